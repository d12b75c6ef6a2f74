"""State and run directory removed or replaced under a running agent: noticed, reported, made again,
nothing lost.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.api import client
from netmgr.documents.node import Backend
from netmgr.errors import NetmgrError
from netmgr.prefixes import Family
from tests.builders import NODE_KEYS
from tests.lab.errors import LabError
from tests.lab.exchange import End, datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World

pytestmark = pytest.mark.root

NewPod = Callable[..., Sandbox]
NOTICED_SECONDS = 30.0
SENT = [100, 200, 300]
HEADERS = (20 + 8, 40 + 8)
EVERYTHING = (
    "state/agent.lock",
    "state/ipam.sqlite",
    "state/ledger.sqlite",
    "state/rules-backend",
    "state/spool",
)
SOCKETS = ("run/agent.lock", "run/cni.sock", "run/ledger.sock")
ROLES: dict[str, dict[str, object]] = {
    "observer": {"cni": False},
    "hub-router": {"role": "hub-router"},
    "nat-host": {
        "role": "nat-host",
        "nat": {
            "source": "preserve",
            "services": [{"vip_range": "10.99.0.0/24", "service_cidr": "10.98.0.0/24"}],
        },
    },
}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    topology = replace(cluster(pods=100), pods=())
    settings = {"reconcile_seconds": 0.5}
    with World(
        topology, backend=Backend.NFTABLES, name=f"files-{os.getpid()}", settings=settings
    ) as made:
        yield made


def eventually(condition: Callable[[], object], seconds: float = NOTICED_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with suppress(NetmgrError, StopIteration):
            if condition():
                return
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def views(node: LabNode) -> dict[str, list[str]]:
    return {item["pod"]: item["addresses"] for item in node.ask("pods")["attachments"]}


def repairs(node: LabNode) -> int:
    return next(
        item["count"] for item in node.snapshot()["drift_repaired"] if item["reason"] == "files"
    )


def sent(node: LabNode, sandbox: Sandbox) -> int:
    rows = node.snapshot()["pods"]
    return next(
        row["bytes"]
        for row in rows
        if row["pod"] == sandbox.pod.name and row["traffic"] == "internet-out"
    )


def send(world: World, node: LabNode, sandbox: Sandbox) -> None:
    """Have a fresh pod send to the internet, until its agent's books have all of it."""
    for family in Family:
        datagrams(
            End(sandbox.netns, sandbox.address(family)),
            End(world.internet, INTERNET[family]),
            SENT,
            SENT,
        )
    eventually(
        lambda: sent(node, sandbox) == sum(len(SENT) * headers + sum(SENT) for headers in HEADERS)
    )


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
    "removed", ["state", "run", "state/ipam.sqlite-wal", *EVERYTHING, *SOCKETS]
)
def test_what_is_removed_is_made_again_and_nothing_is_lost(
    world: World, node: LabNode, new_pod: NewPod, removed: str
) -> None:
    sandbox = new_pod("node-1")
    send(world, node, sandbox)
    before = views(node), sent(node, sandbox)
    gaps = node.snapshot()["gaps"]
    remove(node.directory / removed)
    eventually(lambda: all_there(node))
    eventually(lambda: repairs(node) >= 1)
    node.runtime.check(sandbox)
    later = new_pod("node-1")
    node.restart_after_kill()
    after = views(node)
    assert later.pod.name in after
    assert ({name: after[name] for name in before[0]}, sent(node, sandbox)) == before
    assert (node.snapshot()["gaps"], node.snapshot()["state_rebuilds"]) == (gaps, 0)
    send(world, node, later)


def all_there(node: LabNode) -> bool:
    return all((node.directory / name).exists() for name in (*EVERYTHING, *SOCKETS))


@pytest.mark.slow
def test_an_older_copy_is_set_aside_and_what_the_agent_knows_stays(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    old = new_pod("node-1")
    node.stop_agent()
    state = node.directory / "state"
    copies = {
        name: shutil.copy(state / name, node.directory) for name in ("ipam.sqlite", "ledger.sqlite")
    }
    node.start_until_ready()
    new = new_pod("node-1")
    send(world, node, new)
    before = views(node), sent(node, new)
    for name, copy in copies.items():
        Path(copy).replace(state / name)
    eventually(
        lambda: (
            list(state.glob("ipam.sqlite.replaced-*"))
            and list(state.glob("ledger.sqlite.replaced-*"))
        )
    )
    eventually(lambda: not node.runtime.status())
    node.restart_after_kill()
    assert (views(node), sent(node, new)) == before
    for sandbox in (old, new):
        node.runtime.check(sandbox)
    for path in state.glob("*.replaced-*"):
        path.unlink()


def test_what_cannot_be_made_again_is_reported_until_it_can(node: LabNode, new_pod: NewPod) -> None:
    state = node.directory / "state"
    sandbox = new_pod("node-1")
    replace_by_file(state)
    try:
        eventually(lambda: f"{state}: cannot be made or written" in node.runtime.status())
        assert "code 50" in node.runtime.status()
        assert not node.snapshot()["ready"]
        eventually(lambda: "answers 503: files: " in node._exporter_status())
        assert "netmgr_agent_ready 0" in node.scrape().replace(".0\n", "\n")
    finally:
        state.unlink()
    eventually(lambda: not node.runtime.status())
    eventually(lambda: all_there(node))
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
            eventually(
                lambda: (
                    f"{path}: another process answers here" in node.snapshot()["reason"]
                    or not path.exists()
                )
            )
        finally:
            other.communicate(b"\n")
    eventually(lambda: not node.runtime.status())


def files_repaired(folder: Path) -> int:
    drift = asked(folder)["drift_repaired"]
    return sum(item["count"] for item in drift if item["reason"] == "files")


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_agents_of_every_role_do_so(tmp_path: Path, role: str) -> None:
    place = {"state_dir": str(tmp_path / "state"), "run_dir": str(tmp_path / "run")}
    head = {
        **NODE_KEYS,
        "node": {"name": "one"},
        "reconcile_seconds": 0.2,
    }
    document = tmp_path / "node.yaml"
    document.write_text(yaml.safe_dump({**head, **place, "backend": "nftables", **ROLES[role]}))
    command = ["unshare", "--net", sys.executable, "-m", "netmgr", "agent", "-c", str(document)]
    with subprocess.Popen(command) as agent:
        try:
            eventually(lambda: asked(tmp_path)["ready"], 30)
            for name in ("state", "run"):
                remove(tmp_path / name)
            repaired = len(("two lock files", "the ledger", "the backend's mark", "the socket"))
            # A repair is counted when all of it is done, after the ledger is there again.
            eventually(lambda: asked(tmp_path)["ready"] and files_repaired(tmp_path) >= repaired)
            assert (tmp_path / "state" / "ledger.sqlite").exists()
        finally:
            agent.terminate()
        assert agent.wait(30) == 0


def asked(directory: Path) -> dict[str, Any]:
    try:
        return client.ask(directory / "run" / "ledger.sock", "snapshot", timeout=5)
    except OSError as error:
        raise LabError(str(error)) from None
