"""State and run directory removed or replaced under a running agent: made again, nothing lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.api import client
from netmgr.documents.node import Backend
from netmgr.errors import NetmgrError
from tests.builders import NODE_KEYS
from tests.kernel.common import (
    ROLES,
    USE_UP,
    NewPod,
    counted,
    goes_on,
    on_small_disk,
    repaired_of,
    repairs,
    talk,
    views,
)
from tests.kernel.conftest import one_of
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root

EVERYTHING = (
    "state/agent.lock",
    "state/ipam.sqlite",
    "state/ledger.sqlite",
    "state/rules-backend",
    "state/spool",
)
SOCKETS = ("run/agent.lock", "run/cni.sock", "run/ledger.sock")
WORLD = {"nodes": 1, "settings": {"reconcile_seconds": 0.5}, "exporters": False}


backend = one_of([Backend.NFTABLES])


def soon(condition: Callable[[], object]) -> None:
    """Wait for it, whether or not the agent can be asked yet."""

    def holds() -> object:
        with suppress(NetmgrError, KeyError):
            return condition()
        return False

    eventually(holds)


def send(world: World, node: LabNode, sandbox: Sandbox) -> None:
    """Have a fresh pod send to the internet, until its agent's books have all of it."""
    size = talk(world, sandbox, [100, 200, 300])
    soon(lambda: counted(node, sandbox.pod.name)["internet-out"] == size)


def remove(path: Path) -> None:
    """Take a file or folder away at once: while a folder is emptied, the agent may put a file there
    again.
    """
    if path.is_dir():
        shutil.rmtree(path.rename(path.with_name("gone")))
    else:
        path.unlink()


def replace_by_file(folder: Path) -> None:
    """Put a file in a folder's place, also if the agent makes the folder again in between."""
    while not folder.is_file():
        remove(folder)
        with suppress(FileExistsError):
            folder.touch(exist_ok=False)


@pytest.mark.parametrize(
    "removed",
    [["state"], ["run"], ["state/ipam.sqlite-wal", *EVERYTHING, *SOCKETS]],
    ids=["state", "run", "all files"],
)
def test_what_is_removed_is_made_again_and_nothing_is_lost(
    world: World, node: LabNode, new_pod: NewPod, removed: list[str]
) -> None:
    sandbox = new_pod()
    send(world, node, sandbox)
    before = views(node), counted(node, sandbox.pod.name)
    gaps = node.snapshot()["gaps"]
    for name in removed:
        known = repairs(node, "files")
        remove(node.directory / name)
        soon(lambda known=known: repairs(node, "files") > known)
    soon(lambda: all_there(node))
    node.runtime.check(sandbox)
    later = new_pod()
    node.restart_after_kill()
    after = views(node)
    assert later.pod.name in after
    assert ({name: after[name] for name in before[0]}, counted(node, sandbox.pod.name)) == before
    assert (node.snapshot()["gaps"], node.snapshot()["state_rebuilds"]) == (gaps, 0)
    send(world, node, later)


def all_there(node: LabNode) -> bool:
    return all((node.directory / name).exists() for name in (*EVERYTHING, *SOCKETS))


@pytest.mark.slow
def test_an_older_copy_is_set_aside_and_what_the_agent_knows_stays(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    old = new_pod()
    node.stop_agent()
    state = node.directory / "state"
    copies = {
        name: shutil.copy(state / name, node.directory) for name in ("ipam.sqlite", "ledger.sqlite")
    }
    node.start_until_ready()
    new = new_pod()
    send(world, node, new)
    before = views(node), counted(node, new.pod.name)
    for name, copy in copies.items():
        Path(copy).replace(state / name)
    soon(lambda: all(list(state.glob(f"{name}.replaced-*")) for name in copies))
    soon(lambda: not node.runtime.status())
    node.restart_after_kill()
    assert (views(node), counted(node, new.pod.name)) == before
    for sandbox in (old, new):
        node.runtime.check(sandbox)
    for path in state.glob("*.replaced-*"):
        path.unlink()


def test_what_cannot_be_made_again_is_reported_until_it_can(node: LabNode, new_pod: NewPod) -> None:
    state = node.directory / "state"
    sandbox = new_pod()
    replace_by_file(state)
    try:
        soon(lambda: f"{state}: cannot be made or written" in node.runtime.status())
        assert "code 50" in node.runtime.status()
        assert not node.snapshot()["ready"]
    finally:
        state.unlink()
    soon(lambda: not node.runtime.status())
    soon(lambda: all_there(node))
    node.runtime.check(sandbox)


def test_what_stands_in_anothers_way_is_not_unlinked(node: LabNode) -> None:
    """A socket that somebody answers is somebody's: the agent says so, and takes the name when it
    is free.
    """
    path = node.run_dir / "cni.sock"
    # Renamed over ours: after an unlink the agent might be back before the program has started.
    program = (
        "import os, socket\ns = socket.socket(socket.AF_UNIX)\n"
        f"s.bind('{path}.other')\ns.listen()\nos.rename('{path}.other', '{path}')\ninput()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as other:
        try:
            soon(
                lambda: (
                    f"{path}: another process answers here" in node.snapshot()["reason"]
                    or not path.exists()
                )
            )
        finally:
            other.communicate(b"\n")
    soon(lambda: not node.runtime.status())


def mode_of(path: Path) -> int:
    with suppress(FileNotFoundError):  # a temporary file, which has got its name by now
        return path.stat().st_mode & 0o777
    return 0


OPENED = {"state": (0o755, 0o700), "run": (0o777, 0o755)} | {
    f"state/{name}": (0o666, 0o600) for name in ("ipam.sqlite", "ledger.sqlite-wal", "agent.lock")
}
"""A mode that somebody else gives them, and the one that they have afterwards."""


@pytest.mark.parametrize("end", [goes_on, LabNode.restart_after_kill])
def test_what_somebody_opens_to_others_is_closed_and_told(
    node: LabNode, end: Callable[[LabNode], None]
) -> None:
    for name, (opened, _) in OPENED.items():
        (node.directory / name).chmod(opened)
    end(node)
    soon(lambda: all(mode_of(node.directory / name) == mode for name, (_, mode) in OPENED.items()))
    # Logged once the whole pass is over.
    closed = f"{node.directory}/state/ipam.sqlite was open to others, and is closed"
    soon(lambda: closed in (node.directory / "agent.log").read_text())
    soon(lambda: not node.runtime.status())


@pytest.mark.parametrize("is_linked", [True, False])
def test_a_state_directory_that_somebody_else_made_is_closed_and_nothing_in_it_is_open(
    node: LabNode, *, is_linked: bool
) -> None:
    node.stop_agent()
    state, elsewhere = node.directory / "state", node.directory / "elsewhere"
    shutil.rmtree(state)
    if is_linked:
        elsewhere.mkdir()
        state.symlink_to(elsewhere)
    else:
        state.mkdir()
    state.chmod(0o755)
    node.start_until_ready()
    for restart in (goes_on, LabNode.restart_after_kill):
        restart(node)
        assert mode_of(state) == 0o700
        assert [path for path in state.iterdir() if mode_of(path) & 0o077] == []
        # None of its own files is reported.
        assert repairs(node, "files") == 0
    if is_linked:
        node.stop_agent()
        state.unlink()
        elsewhere.rename(state)
        node.start_until_ready()


@contextmanager
def running(tmp_path: Path, role: str) -> Iterator[None]:
    """An agent of a role, in a network of its own, until the block ends."""
    keys = {
        **NODE_KEYS,
        "node": {"name": "one"},
        "reconcile_seconds": 0.2,
        "state_dir": str(tmp_path / "state"),
        "run_dir": str(tmp_path / "run"),
        "backend": "nftables",
        **ROLES[role],
    }
    document = tmp_path / "node.yaml"
    document.write_text(yaml.safe_dump(keys))
    command = ["unshare", "--net", sys.executable, "-m", "netmgr", "agent", "-c", str(document)]
    with subprocess.Popen(command) as agent:
        try:
            soon(lambda: asked(tmp_path)["ready"])
            yield
        finally:
            agent.terminate()
        assert agent.wait(PATIENCE) == 0


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_agents_of_every_role_do_so(tmp_path: Path, role: str) -> None:
    with running(tmp_path, role):
        for name in ("state", "run"):
            remove(tmp_path / name)
        repaired = len(("two lock files", "the ledger", "the backend's mark", "the socket"))
        # A repair is counted when all of it is done, after the ledger is there again.
        soon(lambda: asked(tmp_path)["ready"] and repaired_of(asked(tmp_path), "files") >= repaired)
        assert (tmp_path / "state" / "ledger.sqlite").exists()


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
@USE_UP
def test_agents_of_every_role_start_on_a_full_disk(
    tmp_path: Path, role: str, use_up: Callable[[Path], None]
) -> None:
    (tmp_path / "state").mkdir()
    with on_small_disk(tmp_path / "state") as filler:
        for _ in range(3):
            with running(tmp_path, role):
                use_up(filler)
            use_up(filler)


def asked(directory: Path) -> dict[str, Any]:
    try:
        return client.ask(directory / "run" / "ledger.sock", "snapshot", timeout=PATIENCE)
    except OSError as error:
        raise LabError(str(error)) from None
