"""What several unit tests share: golden files, the plan that the renderings are shown with,
commands of a plan, a running exporter.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netmgr.cli import asking
from netmgr.cli.main import main
from netmgr.errors import Exit
from netmgr.ledger.ledger import Ledger
from netmgr.plan import files
from netmgr.plan.derive import network
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.network import Network
from tests.fakes.accounts_node import Node
from tests.fakes.ledger_tools import Clock, opened
from tests.waiting import PATIENCE

GOLDEN = Path(__file__).parent.parent / "golden"
ROOT = GOLDEN.parent.parent

Netmgr = Callable[..., tuple[int, str, str]]
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def rendered_plan() -> PlanDocument:
    return files.load_plan(GOLDEN / "render" / "plan.yaml")


@pytest.fixture(scope="session")
def rendered_lock() -> LockDocument:
    lock = files.load_lock(GOLDEN / "render" / "plan.lock.yaml")
    assert lock is not None
    return lock


@pytest.fixture(scope="session")
def rendered_network(rendered_plan: PlanDocument, rendered_lock: LockDocument) -> Network:
    return network(rendered_plan, rendered_lock, files.load_limits(rendered_plan.cloud))


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compares text with a golden file, or with NETMGR_UPDATE_GOLDEN=1 writes it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("NETMGR_UPDATE_GOLDEN") == "1":
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text("utf-8"), (
            "judge the difference, then run again with NETMGR_UPDATE_GOLDEN=1"
        )

    return compare


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a state file may be made."""
    return tmp_path / "state.sqlite"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(path: Path, clock: Clock) -> Iterator[Ledger]:
    ledger = opened(path, clock)
    yield ledger
    ledger.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """One whose accounting has a kernel of the tests' own."""
    made = Node(tmp_path / "ledger.sqlite")
    yield made
    made.ledger.close()


@pytest.fixture
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The plan of the test's module, its `PLAN`, as a file."""
    path = tmp_path / "plan.yaml"
    path.write_text(request.module.PLAN)
    return path


@pytest.fixture
def netmgr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Netmgr:
    """Runs a command; gives its exit code and what it printed, to standard output and error."""

    # An agent of this process's own is stopped as long as the command is that waits for it.
    monkeypatch.setitem(asking.ask.__kwdefaults__, "timeout", PATIENCE)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["netmgr", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run


@pytest.fixture
def run(plan: Path, netmgr: Netmgr, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `netmgr plan …` on that file; gives its exit code and all that it printed."""

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.chdir(plan.parent)
        code, out, err = netmgr("plan", *arguments, "-f", str(plan))
        return code, out + err

    return command


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """What a `netmgr plan …` that refuses says."""

    def said(*arguments: str) -> str:
        code, text = run(*arguments)
        assert code == Exit.INVALID, text
        return text

    return said


@pytest.fixture
def contradicted(run: Run) -> Callable[[str], None]:
    """Neither `lock` nor `check` accepts the plan, and both say why."""

    def says(why: str) -> None:
        for command, expected in ((("lock", "--yes"), Exit.INVALID), (("check",), Exit.FAILURE)):
            code, text = run(*command)
            assert (code, why in text) == (expected, True), text

    return says


@pytest.fixture
def locked(run: Run) -> Run:
    """Runs `netmgr plan …` on that file, which is locked."""
    assert run("lock", "--yes")[0] == 0
    return run


@pytest.fixture
def lock(plan: Path, locked: Run) -> Path:
    """That lock."""
    assert locked
    return files.lock_path(plan)


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """In a folder with a short name that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="netmgr-exporter-"))
    folder.chmod(0o755)
    yield folder / "ledger.sock"
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the command `netmgr` of this source, whatever is installed."""
    folder = tmp_path_factory.mktemp("commands")
    netmgr = folder / "netmgr"
    netmgr.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m netmgr "$@"\n')
    netmgr.chmod(0o755)
    return folder


@pytest.fixture
def netmgr_on_path(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")


@pytest.fixture
def started(
    socket_path: Path, tmp_path: Path
) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], int]]]:
    """Starts exporters of the agent at `socket_path` as processes; gives each with its port."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*program: str) -> tuple[subprocess.Popen[bytes], int]:
        log = tmp_path / f"log-{len(running)}"
        options = ("--socket", str(socket_path), "--listen", "127.0.0.1:0")
        with log.open("wb") as stderr:
            command = [sys.executable, *program, *options]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            running.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                )
            )
        deadline = time.monotonic() + PATIENCE
        while not (listening := re.search(r"listening .* port=(\d+)", log.read_text())):
            assert running[-1].poll() is None and time.monotonic() < deadline, log.read_text()  # noqa: PT018  both halves say the same: not ready in time
            time.sleep(0.02)
        return running[-1], int(listening[1])

    yield start
    for process in running:
        process.kill()
        process.wait()
