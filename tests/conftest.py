"""What holds for every test: who may start programs, who may be skipped, what runs beside what, and
what may be left behind (nothing).
"""

from __future__ import annotations

import gc
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

IN_CI = os.environ.get("CI") == "true"
IS_ROOT = os.geteuid() == 0
NEEDING_ROOT = ("root", "runtimes")
STARTING_PROGRAMS = frozenset(
    {"subprocess.Popen", "os.posix_spawn", "os.system", "os.exec", "os.fork", "os.forkpty"}
)
SESSION_MARK = ("NETMGR_TEST_SESSION", str(os.getpid()))
LEGACY_LOCK = Path(f"/run/netmgr-test-{os.getpid()}-xtables.lock")
"""Where iptables of this session's tests finds the lock of the legacy tables: no test waits for
another's.
"""
SECONDS_TO_END = 60
LEFT = pytest.ExitCode.INTERRUPTED
LINKS_BEFORE = frozenset(name for _, name in socket.if_nameindex())
FAILURES = os.environ.get("NETMGR_FAILURES", "")
SHARING = ("tests/kubernetes/", "tests/guards/")
LONGEST = ("tests/kubernetes/", "tests/kernel/test_flowtable.py", "tests/runtimes/")

# How long it takes to draw an example says nothing on a busy machine.
hypothesis.settings.register_profile(
    "here", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "ci", hypothesis.settings.get_profile("here"), derandomize=True, print_blob=True
)
hypothesis.settings.load_profile("ci" if IN_CI else "here")

pytest_plugins = ["pytester"]

# Git does the same on every machine: whoever runs the tests may have told it nothing, or much.
os.environ["GIT_CONFIG_GLOBAL"] = "/dev/null"
for _role in ("AUTHOR", "COMMITTER"):
    os.environ[f"GIT_{_role}_NAME"] = "somebody"
    os.environ[f"GIT_{_role}_EMAIL"] = "somebody@example.com"

_programs = SimpleNamespace(allowed=True)
_left: set[str] = set()


def _refuse_programs(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTING_PROGRAMS and not _programs.allowed:
        pytest.fail(
            f"{event} {arguments[:2]}: only tests marked root or programs may start programs"
        )


sys.addaudithook(_refuse_programs)
os.environ.update([SESSION_MARK, ("XTABLES_LOCKFILE", str(LEGACY_LOCK))])
# xdist tells its workers how large its terminal is; programs on a terminal of their own believe it.
os.environ.pop("LINES", None)
os.environ.pop("COLUMNS", None)


def _is_marked(item: pytest.Item, *names: str) -> bool:
    return any(item.get_closest_marker(name) for name in names)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out_clusters(config, items)
    # What takes longest begins first: no worker ends long after the others.
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    if not IS_ROOT:
        for item in items:
            if _is_marked(item, *NEEDING_ROOT):
                item.add_marker(
                    pytest.mark.skip(
                        reason="needs root: the kernel's own rules and links are tested"
                    )
                )


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected lives to the end: looking through it again and again is a waste."""
    gc.freeze()
    gc.enable()


def _leave_out_clusters(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of whole clusters run only when their folder is named, as `make e2e` does."""
    if any("e2e" in Path(argument.partition("::")[0]).parts for argument in config.args):
        return
    left_out = [item for item in items if _is_marked(item, "e2e")]
    items[:] = [item for item in items if not _is_marked(item, "e2e")]
    config.hook.pytest_deselected(items=left_out)


class FilesSideBySide(LoadScopeScheduling):
    """Workers take file by file. Each of some folders is one worker's: every worker would make for
    itself what their tests share.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((folder for folder in SHARING if path.startswith(folder)), path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesSideBySide:
    config.option.loadscopereorder = False
    return FilesSideBySide(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _programs.allowed = _is_marked(item, "programs", "kubernetes", *NEEDING_ROOT)
    try:
        return (yield)
    finally:
        _programs.allowed = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # To build an API server takes minutes: .ci/run insists on those tests, and nobody else.
    insisted = _is_marked(item, *NEEDING_ROOT) and not _is_marked(item, "kubernetes")
    if report.skipped and not hasattr(report, "wasxfail") and insisted:
        _turn_into_failure(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _turn_into_failure(report)
    return report


def _turn_into_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where everything needed is there, a test that did not run has shown nothing."""
    if IS_ROOT or IN_CI:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"may not be skipped as root or in CI: {report.nodeid}: {reason}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each kind of test that a machine might lack something for;
    .ci/run reads them."""
    kinds: dict[str, Callable[[pytest.TestReport], bool]] = {
        "kernel": lambda report: (
            "root" in report.keywords
            and not {"runtimes", "kubernetes", "e2e"} & report.keywords.keys()
        ),
        "runtime": lambda report: "runtimes" in report.keywords,
        "kubernetes": lambda report: "kubernetes" in report.keywords,
        "e2e": lambda report: "e2e" in report.keywords,
    }
    for kind, belongs in kinds.items():
        ran = [
            report
            for outcome in ("passed", "failed")
            for report in terminalreporter.getreports(outcome)
        ]
        run = sum(belongs(report) for report in ran if report.when == "call")
        skipped = sum(belongs(report) for report in terminalreporter.getreports("skipped"))
        terminalreporter.write_line(f"{kind} tests: {run} run, {skipped} skipped")
    if _left:
        terminalreporter.write_line(f"left behind by this session: {', '.join(sorted(_left))}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what failed to the file that `.ci/steady` reads."""
    if report.failed and FAILURES and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(FAILURES).open("a") as failures:
            failures.write(f"{report.nodeid}\n")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the session with an exit code of its own if something of its tests outlives it.

    No repetition of a test could excuse that, so it is no test's failure. A worker tells the
    session that has the terminal.
    """
    LEGACY_LOCK.unlink(missing_ok=True)
    if not session.config.pluginmanager.has_plugin("dsession"):
        _left.update(_processes_after_a_while() | _namespaces_and_links())
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = sorted(_left)
    elif _left:
        session.exitstatus = LEFT


def pytest_testnodedown(node: WorkerController) -> None:
    _left.update(getattr(node, "workeroutput", {}).get("left", ()))


def _namespaces_and_links() -> set[str]:
    """This session's: names of its tests have its process in them, links of netmgr its prefix."""
    run = Path("/run")
    paths = [path for pattern in ("netns/*", "netmgr-lab/*") for path in run.glob(pattern)]
    return {str(path) for path in paths if str(os.getpid()) in path.name.split("-")} | {
        f"link {name}"
        for _, name in socket.if_nameindex()
        if name not in LINKS_BEFORE and re.fullmatch("nm[0-9a-f]{12}|netmgr-.*", name)
    }


def _processes_after_a_while() -> set[str]:
    """Processes that still run, given a moment to end by themselves."""
    deadline = time.monotonic() + SECONDS_TO_END
    looks_without_any = 0
    left: set[str] = set()
    # In the midst of execve(2) a process shows an empty environment, without the mark: so one look
    # proves nothing.
    while looks_without_any < 2 and time.monotonic() < deadline:
        left = set(_processes())
        looks_without_any = 0 if left else looks_without_any + 1
        time.sleep(0.05)
    return left


def _processes() -> Iterator[str]:
    """This session's processes: its children, and those that inherited its mark."""
    mark = os.fsencode("=".join(SESSION_MARK))
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            ours = int(parent) == os.getpid() or mark in (folder / "environ").read_bytes().split(
                b"\0"
            )
            if ours and state != "Z" and int(folder.name) != os.getpid():
                yield f"process {folder.name} ({(folder / 'comm').read_text().strip()})"
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
