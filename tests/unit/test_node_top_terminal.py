"""`netmgr node top` in a terminal and in a pipe, as a person would use it, beside an agent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.agent_socket import agent, snapshot
from tests.fakes.terminal import Terminal

pytestmark = pytest.mark.programs

PODS = 40
KILOBYTES = 1_000
TOP = [sys.executable, "-m", "netmgr", "node", "top", "--interval", "0.5"]
ALTERNATE, NORMAL = b"\x1b[?1049h", b"\x1b[?1049l"
INTERVAL = 0.5


class Traffic:
    """An agent's snapshots: pod number n receives n kB/s and sends 100 times as much less n."""

    def __init__(self, pods: int = PODS) -> None:
        self.document = snapshot(pods, 4)
        self.document["problems"] = []
        self._began = time.time()
        self._before = [one["bytes"] for one in self.document["pods"]]
        for number, one in enumerate(self.document["tracking"]["pods"]):
            one |= {"namespace": f"team-{number % 4}", "pod": f"training-worker-{number}"}
        limited = {"namespace": "team-1", "pod": "training-worker-5"}
        for one in (*self.document["limits"][:2], *self.document["quotas"][:2]):
            one.update(limited)
        self.document["limits"][0]["rate"] = 50_000
        self.document["limits"] = self.document["limits"][:2]

    def __call__(self, _question: bytes) -> bytes:
        seconds = time.time() - self._began
        self.document["taken_at"] = time.time()
        for before, one in zip(self._before, self.document["pods"], strict=True):
            number = int(one["pod"].rpartition("-")[2])
            rate = number if one["traffic"] == "internet-in" else 100 * (PODS - number)
            one["bytes"] = before + int(rate * KILOBYTES * seconds)
        self.document["limits"][0]["bytes"] = int(5 * KILOBYTES * seconds)
        return json.dumps(self.document).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sock"


@contextmanager
def top(
    path: Path, *arguments: str, columns: int = 80, lines: int = 24, **environment: str
) -> Iterator[Terminal]:
    """A live screen with its first figures."""
    command = [*TOP, *arguments, "--socket", str(path)]
    with Terminal(command, columns, lines, environment) as terminal:
        # The last line is written last.
        terminal.until(lambda: " of " in terminal.lines[-1])
        yield terminal


def rows(terminal: Terminal) -> list[str]:
    """What is between the line of headings and the last line; empty while it is being drawn."""
    lines = terminal.lines
    heads = [number for number, line in enumerate(lines) if line.startswith("namespace/pod")]
    return [line for line in lines[heads[0] + 1 : -1] if line] if len(heads) == 1 else []


def first(terminal: Terminal, name: str) -> Callable[[], bool]:
    return lambda: rows(terminal)[:1] != [] and rows(terminal)[0].startswith(name)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50)])
def test_the_screen_fits_the_terminal_and_shows_who_uses_what(
    path: Path, columns: int, lines: int
) -> None:
    with agent(path, Traffic()), top(path, columns=columns, lines=lines) as terminal:
        terminal.until(first(terminal, "team-0/training-worker-0"))
        who, node, budgets, head, *_ = terminal.lines
        assert who.startswith("node-1 ready")
        assert "every 0.5 s" in who
        assert "last minute" in node
        assert re.search("IPv4 .*50%.*connections .*7%.*IPv4 tcp ports .*25%.*series", budgets)
        assert re.search(r"in/s +out/s .*conns +last min(ute)? +limit +quota$", head)
        found = rows(terminal)
        assert len(found) == min(PODS, lines - 5)
        assert terminal.lines[-1].endswith(f"1-{len(found)} of {PODS}")
        limited = next(line for line in found if "training-worker-5 " in line)
        assert re.search(r"in +(79|80|81)%", limited)
        assert re.search(r" 50%", limited)
        assert ("█" * 8 + "░" * 2 in limited) is (columns == 200)
        assert (" of 50.0 kbit/s" in limited) is (columns == 200)


def test_keys_sort_filter_group_and_scroll(path: Path) -> None:
    with agent(path, Traffic()), top(path) as terminal:
        terminal.press("i")
        terminal.until(first(terminal, "team-3/training-worker-39"))
        terminal.press("c")
        terminal.until(first(terminal, "team-0/training-worker-0"))
        assert rows(terminal)[0].split()[5] == "2000"
        terminal.press("n\x1b[6~")
        terminal.until(lambda: "20-38 of 40" in terminal.lines[-1])
        terminal.press("\x1b[B\x1b[B\x1b[B\x1b[B")
        terminal.until(lambda: "22-40 of 40" in terminal.lines[-1])
        terminal.press("\x1b[H/team-[12].*-1.$")
        terminal.until(lambda: "filter: team-[12].*-1.$_" in terminal.lines[-1])
        terminal.until(lambda: len(rows(terminal)) == 5)
        terminal.press("\rg")
        terminal.until(lambda: [row.split()[0] for row in rows(terminal)] == ["team-1", "team-2"])
        terminal.press("g")
        terminal.until(lambda: len(rows(terminal)) == 7)
        assert rows(terminal)[1].startswith("  training-worker-13")
        terminal.press("\x1b")
        terminal.until(lambda: "of 44" in terminal.lines[-1])
        terminal.press("?")
        terminal.until(lambda: "regular expression" in terminal.text)
        terminal.press("x")
        terminal.until(lambda: "regular expression" not in terminal.text)
        terminal.press("q")
        assert terminal.ended() == 0


def test_it_follows_the_size_of_its_window_down_to_a_few_letters(path: Path) -> None:
    with agent(path, Traffic()), top(path) as terminal:
        assert "both/s" not in terminal.text
        terminal.resize(200, 50)
        terminal.until(lambda: "both/s" in terminal.text and len(rows(terminal)) == PODS)
        for columns, lines in ((20, 5), (4, 2), (1, 1), (80, 24)):
            terminal.resize(columns, lines)
            terminal.until(lambda: True)
            time.sleep(0.1)
        terminal.until(lambda: len(rows(terminal)) == 19 and "both/s" not in terminal.text)
        assert terminal.program.poll() is None


def test_a_new_size_is_drawn_at_once_and_not_with_the_next_reading(path: Path) -> None:
    command = [*TOP, "--interval", "600", "--socket", str(path)]
    with agent(path, Traffic()), Terminal(command) as terminal:
        terminal.until(lambda: terminal.lines[-1].startswith("q quit"))
        terminal.resize(120, 40)
        terminal.until(lambda: terminal.lines[39].startswith("q quit"))


def test_it_says_that_the_agent_is_away_and_goes_on_when_it_is_back(path: Path) -> None:
    traffic = Traffic()
    with agent(path, traffic):
        started = top(path)
        terminal = started.__enter__()
    try:
        terminal.until(lambda: "no answer, figures are old" in terminal.text)
        assert len(rows(terminal)) == 18, "what was known stays"
        terminal.press("n")
        terminal.until(lambda: "by name" in terminal.lines[0])
        with agent(path, traffic):
            terminal.until(lambda: "no answer" not in terminal.text)
            # The mean of the outage and of the time since, so not a peak.
            terminal.until(
                lambda: any(re.search(r"worker-12 +12\.\d kB", r) for r in rows(terminal))
            )
    finally:
        started.__exit__(None, None, None)


def test_while_paused_the_screen_stays_as_it_is(path: Path) -> None:
    with agent(path, Traffic()), top(path) as terminal:
        terminal.press(" ")
        terminal.until(lambda: "paused" in terminal.text)
        terminal.settle()
        before = terminal.lines
        deadline = time.monotonic() + 3 * INTERVAL
        terminal.until(lambda: time.monotonic() > deadline)
        assert terminal.lines == before
        terminal.press(" ")
        terminal.until(lambda: "paused" not in terminal.text)


def _as_before(terminal: Terminal) -> None:
    assert terminal.settings() == terminal.settings_before
    assert terminal.raw.count(ALTERNATE) == terminal.raw.count(NORMAL) > 0
    assert b"\x1b[?25h" in terminal.raw[terminal.raw.rindex(b"\x1b[?25l") :]


@pytest.mark.parametrize(
    ("how", "status"),
    [
        (lambda terminal: terminal.press("q"), 0),
        (lambda terminal: terminal.press("\x03"), 0),
        (lambda terminal: terminal.program.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda terminal: terminal.program.send_signal(signal.SIGHUP), 128 + signal.SIGHUP),
    ],
    ids=["q", "Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_the_terminal_is_as_it_was(
    path: Path, how: Callable[[Terminal], None], status: int
) -> None:
    with agent(path, Traffic()), top(path) as terminal:
        assert terminal.settings() != terminal.settings_before
        how(terminal)
        assert terminal.ended() == status
        _as_before(terminal)


def test_the_terminal_is_as_it_was_after_a_fault(path: Path) -> None:
    traffic = Traffic()
    with agent(path, traffic), top(path) as terminal:
        del traffic.document["node_totals"]
        assert terminal.ended() == 1
        _as_before(terminal)
        assert b"Traceback" in terminal.raw[terminal.raw.rindex(NORMAL) :], "where it can be read"


def test_the_terminal_is_the_shells_while_it_is_stopped(path: Path) -> None:
    shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
    with agent(path, Traffic()), Terminal(shell, environment={"PS1": "ready> "}) as terminal:
        terminal.until(lambda: "ready>" in terminal.text)
        usual = terminal.settings()
        terminal.press(" ".join([*TOP, "--socket", str(path)]) + "\n")
        terminal.until(lambda: "training-worker" in terminal.text)
        terminal.press("\x1a")
        terminal.until(lambda: NORMAL in terminal.raw and "Stopped" in terminal.text)
        assert terminal.settings() == usual
        terminal.press("fg\n")
        terminal.until(lambda: terminal.raw.count(ALTERNATE) == 2)
        terminal.until(lambda: terminal.lines[0].startswith("node-1 ready"))
        terminal.press("q")
        terminal.until(lambda: terminal.settings() == usual)
        terminal.press("exit\n")
        terminal.ended()


def piped(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*TOP, *arguments, "--socket", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_in_a_pipe_each_reading_is_a_plain_table(path: Path) -> None:
    with agent(path, Traffic()):
        done = piped(path, "--count", "2", "--sort", "in", "--rows", "3", "--filter", "team-[01]")
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    tables = done.stdout.split("node-1: internet traffic\n")[1:]
    assert len(tables) == 2
    for table in tables:
        head, *shown, budgets = table.splitlines()
        assert head.split() == ["namespace", "pod", "in/s", "out/s"], "no empty columns"
        assert [row.split()[1] for row in shown] == [
            f"training-worker-{number}" for number in (37, 36, 33)
        ]
        assert "connections: 20,100 of 262,144 (7%)" in budgets


def test_once_is_a_plain_table_even_on_a_terminal(path: Path) -> None:
    command = [*TOP, "--once", "--group", "namespace", "--socket", str(path)]
    with agent(path, Traffic()), Terminal(command) as terminal:
        assert terminal.ended() == 0
        assert ALTERNATE not in terminal.raw
        assert [line.split()[0] for line in terminal.lines[2:6]] == [
            f"team-{number}" for number in range(4)
        ]


def test_a_terminal_without_colours_or_unicode_has_the_same_figures(path: Path) -> None:
    with (
        agent(path, Traffic()),
        top(path, columns=200, NO_COLOR="1", PYTHONIOENCODING="ascii") as terminal,
    ):
        terminal.until(lambda: "########--" in terminal.text)
        assert terminal.raw.isascii()
        assert not re.search(rb"\x1b\[3\dm", terminal.raw)


def test_a_mistake_is_one_message(path: Path, tmp_path: Path) -> None:
    with agent(path, Traffic()):
        wrong = piped(path, "--filter", "team-[")
    away = piped(tmp_path / "none.sock")
    assert wrong.returncode == 2
    assert "--filter team-[: no regular expression" in wrong.stderr
    assert "no agent answers there" in away.stderr
    assert "Traceback" not in wrong.stderr + away.stderr


def test_the_screen_itself_costs_little(path: Path) -> None:
    with agent(path, Traffic(250)), top(path, lines=50, columns=200) as terminal:
        before, began = _processor_seconds(terminal), time.monotonic()
        terminal.until(lambda: time.monotonic() - began > 6 * INTERVAL)
        used = _processor_seconds(terminal) - before
    # 250 pods take some 10 ms a reading, most of it for the agent's 300 kB of JSON.
    assert used / 6 < 0.05


def _processor_seconds(terminal: Terminal) -> float:
    fields = Path(f"/proc/{terminal.program.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
