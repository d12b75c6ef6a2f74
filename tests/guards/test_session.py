"""The rules of tests/conftest.py, each broken on purpose in a session of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from textwrap import dedent

import pytest

CONFTEST = Path(__file__).parent.parent / "conftest.py"
STEADY = CONFTEST.parent.parent / ".ci" / "steady"
LEAVES_A_PROCESS = """
    import subprocess, pytest
    @pytest.mark.programs
    def test_leaves_a_grandchild(): subprocess.run(["sh", "-c", "sleep 300 & echo $! >pid"])
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("CI", "NETMGR_FAILURES", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest(CONFTEST.read_text().replace("SECONDS_TO_END = 60", "SECONDS_TO_END = 5"))
    pytester.makeini("[pytest]\nmarkers =\n    root\n    runtimes\n    kubernetes\n    programs\n")
    return pytester


pytestmark = [pytest.mark.programs, pytest.mark.slow]


def test_an_unmarked_test_may_not_start_a_program(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import subprocess, pytest
        def test_closed(): subprocess.run(["true"])
        @pytest.mark.programs
        def test_open(): subprocess.run(["true"])
    """)
    outcome = session.runpytest_subprocess()
    outcome.assert_outcomes(passed=1, failed=1)
    outcome.stdout.fnmatch_lines(["*only tests marked root or programs may start programs*"])


@pytest.mark.parametrize("how", ["in the test", "in its module"])
def test_a_kernel_test_may_not_be_skipped_in_ci(
    session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("CI", "true")
    lines = {
        "in the test": "import pytest\n@pytest.mark.root\ndef test_kernel(): pytest.skip('no nft')",
        "in its module": "import pytest\npytest.skip('no nft', allow_module_level=True)",
    }
    session.makepyfile(lines[how])
    outcome = session.runpytest_subprocess()
    assert outcome.ret != 0
    outcome.stdout.fnmatch_lines(["*may not be skipped as root or in CI*no nft*"])


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_process_left_behind_ends_the_session_as_no_failed_test_does(
    session: pytest.Pytester, workers: str
) -> None:
    session.makepyfile(LEAVES_A_PROCESS)
    outcome = session.runpytest_subprocess("--numprocesses", workers)
    os.kill(int((session.path / "pid").read_text()), signal.SIGKILL)
    assert outcome.ret == pytest.ExitCode.INTERRUPTED
    outcome.assert_outcomes(passed=1)
    outcome.stdout.fnmatch_lines(["*left behind by this session: process *(sleep)*"])


def test_namespaces_of_other_programs_are_not_the_sessions(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import os, pathlib
        def test_makes_two():
            for name in (f"wire-{os.getpid()}-1", f"wire-{os.getpid()}1-1"):
                path = pathlib.Path("/run/netmgr-lab") / name
                path.mkdir(parents=True)
                pathlib.Path("made").open("a").write(f"{path}\\n")
    """)
    outcome = session.runpytest_subprocess()
    ours, other = map(Path, (session.path / "made").read_text().split())
    ours.rmdir()
    other.rmdir()
    assert outcome.ret == pytest.ExitCode.INTERRUPTED
    outcome.stdout.fnmatch_lines([f"*left behind by this session: {ours}*"])
    outcome.stdout.no_fnmatch_line(f"*{other}*")


def test_workers_take_whole_files_and_a_folder_that_shares_as_a_whole(
    session: pytest.Pytester,
) -> None:
    test = "import os, pathlib\ndef test_one(): {}\ndef test_two(): {}"
    note = "pathlib.Path(f'{__name__}-{os.getpid()}').touch()"
    folder = session.mkpydir("tests") / "guards"
    folder.mkdir()
    paths = [session.path / f"test_{name}.py" for name in "ab"]
    for path in (*paths, folder / "test_c.py", folder / "test_d.py"):
        path.write_text(test.format(note, note))
    session.runpytest_subprocess("--numprocesses", "2").assert_outcomes(passed=8)
    workers = dict(path.name.rsplit("-", 1) for path in session.path.glob("*test_?-*"))
    assert len(workers) == len([*session.path.glob("*test_?-*")]) == 4
    assert workers["test_c"] == workers["test_d"]


FAILS_ONCE = """
    import pathlib, pytest
    def test_good(): pass
    @pytest.mark.parametrize("number", range({failing}))
    def test_bad(number):
        runs = pathlib.Path(f"runs-{{number}}")
        runs.open("a").write("x")
        assert runs.stat().st_size not in {failures}
"""


@pytest.mark.parametrize(
    ("failing", "failures", "repeated"),
    [(3, [1], True), (1, [1, 4], False), (4, [1], False)],
    ids=["three fail once", "one fails twice", "four fail once"],
)
def test_ci_goes_on_after_failures_that_do_not_come_again(
    session: pytest.Pytester, failing: int, failures: list[int], *, repeated: bool
) -> None:
    folder = session.mkdir("tests")
    text = dedent(FAILS_ONCE.format(failing=failing, failures=failures))
    (folder / "test_steady.py").write_text(text)
    outcome = session.run(STEADY, sys.executable, "-m", "pytest", "tests")
    assert outcome.ret == (0 if repeated else 1)
    unsteady = [line for line in outcome.outlines if line.startswith("unsteady: ")]
    assert unsteady == [
        f"unsteady: tests/test_steady.py::test_bad[{number}]"
        for number in range(failing)
        if repeated
    ]


def test_ci_repeats_nothing_after_a_session_that_left_something_behind(
    session: pytest.Pytester,
) -> None:
    folder = session.mkdir("tests")
    (folder / "test_left.py").write_text(
        f"{dedent(LEAVES_A_PROCESS)}\ndef test_bad(): assert False"
    )
    outcome = session.run(STEADY, sys.executable, "-m", "pytest", "tests")
    os.kill(int((session.path / "pid").read_text()), signal.SIGKILL)
    assert outcome.ret == pytest.ExitCode.INTERRUPTED
    outcome.stdout.no_fnmatch_line("unsteady: *")
