"""The rules of tests/conftest.py, each broken on purpose in a session of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent.parent / "conftest.py"


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\nmarkers =\n    root\n    runtimes\n    kubernetes\n    programs\n")
    return pytester


pytestmark = pytest.mark.programs


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


def test_a_test_without_the_kernel_may_be_skipped(session: pytest.Pytester) -> None:
    session.makepyfile("import pytest\ndef test_plain(): pytest.skip('not today')")
    session.runpytest_subprocess().assert_outcomes(skipped=1)


def test_the_kinds_that_ci_insists_on_are_counted(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import pytest
        def test_plain(): pass
        @pytest.mark.root
        def test_kernel(): pass
        @pytest.mark.root
        @pytest.mark.runtimes
        def test_runtime(): pass
        @pytest.mark.kubernetes
        def test_kubernetes(): pass
    """)
    run = 1 if os.geteuid() == 0 else 0
    outcome = session.runpytest_subprocess()
    outcome.stdout.fnmatch_lines(
        [f"kernel tests: {run} run*", f"runtime tests: {run} run*", "kubernetes tests: 1 run*"]
    )


def test_a_process_left_behind_fails_the_session(session: pytest.Pytester) -> None:
    session.makepyfile("""
        import subprocess, pytest
        @pytest.mark.programs
        def test_leaves_a_grandchild(): subprocess.run(["sh", "-c", "sleep 60 & echo $! >pid"])
    """)
    outcome = session.runpytest_subprocess()
    os.kill(int((session.path / "pid").read_text()), signal.SIGKILL)
    outcome.assert_outcomes(passed=1, errors=1)
    outcome.stdout.fnmatch_lines(["*left behind by this session: process *(sleep)*"])
