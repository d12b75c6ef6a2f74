"""`netmgr node top`: rates of two readings, and what a terminal and a pipe show of them; and what
`netmgr node status` says is wrong.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest

from netmgr.api.snapshot import Snapshot
from netmgr.cli import node_tables
from netmgr.cli.terminal import console
from netmgr.cli.top import NODE, Sort, measured, ordered, table
from tests.fakes.agent_socket import agent, snapshot
from tests.waiting import PATIENCE, patient_netmgr

SECONDS = 2.0
TOP = [
    *patient_netmgr("netmgr.cli.top._PATIENCE_SECONDS"),
    *("node", "top", "--interval", "0.5"),
]
ALTERNATE, NORMAL = "\x1b[?1049h", "\x1b[?1049l"


def after(
    before: Snapshot, gained: dict[int, tuple[int, int]], seconds: float = SECONDS
) -> Snapshot:
    """A snapshot in which pods, by their numbers, have received and sent so many bytes more."""
    now = deepcopy(before)
    now["taken_at"] += seconds
    for total in now["pods"]:
        pair = gained.get(int(total["pod"].rpartition("-")[2]), (0, 0))
        total["bytes"] += pair[total["traffic"] == "internet-out"]
    return now


def pod(number: int, namespace: int = 0) -> tuple[str, str]:
    return f"team-{namespace}", f"training-worker-{number}"


def test_rates_are_those_between_two_readings_and_totals_those_of_the_newer() -> None:
    before = snapshot(2, 1)
    now = after(before, {0: (4000, 1000), 1: (500, 0)})
    for total in now["node_totals"]:
        total["bytes"] += 10_000
    usages = measured(before, now)
    assert usages[pod(0)].rates == [2000, 500]
    assert usages[pod(1)].rates == [250, 0]
    assert usages[pod(0)].totals == [now["pods"][0]["bytes"], now["pods"][1]["bytes"]]
    assert usages[NODE].rates == [5000, 5000]


def test_a_pod_that_was_not_there_before_is_counted_from_its_beginning() -> None:
    before, now = snapshot(1, 1), after(snapshot(2, 1), {})
    for total in now["pods"][2:]:
        total["bytes"] = 800
    assert measured(before, now)[pod(1)].rates == [400, 400]


def test_counters_that_begin_anew_are_no_negative_rate() -> None:
    before = snapshot(1, 1)
    now = after(before, {})
    for total in (*now["pods"], *now["node_totals"]):
        total["bytes"] = 10
    usages = measured(before, now)
    assert usages[NODE].rates == usages[pod(0)].rates == [0, 0]
    assert usages[pod(0)].totals == [10, 10]


@pytest.mark.parametrize("seconds", [-3600.0, 0.0])
def test_a_reading_that_is_no_newer_gives_no_rate(seconds: float) -> None:
    before = snapshot(1, 1)
    usages = measured(before, after(before, {0: (6, 0)}, seconds))
    assert usages[pod(0)].rates == []
    assert usages[pod(0)].totals[0] == before["pods"][0]["bytes"] + 6


def test_pods_are_sorted_by_what_is_asked_for_and_unknown_connections_come_last() -> None:
    before = snapshot(3, 1)
    before["tracking"]["pods"] = [
        {"namespace": "team-0", "pod": "training-worker-2", "connections": 0},
        {"namespace": "team-0", "pod": "training-worker-1", "connections": 9},
    ]
    usages = measured(before, after(before, {0: (1, 9), 1: (6, 1), 2: (5, 6)}))
    orders = {sort: [name[1][-1] for name in ordered(usages, sort, None)] for sort in Sort}
    assert orders == {
        Sort.TOTAL: ["2", "0", "1"],
        Sort.IN: ["1", "2", "0"],
        Sort.OUT: ["0", "2", "1"],
        Sort.CONNECTIONS: ["1", "2", "0"],
        Sort.NAME: ["0", "1", "2"],
    }


def test_one_namespace_is_shown_where_it_is_asked_for() -> None:
    before = snapshot(4, 2)
    del before["tracking"]
    usages = measured(before, after(before, {}))
    assert ordered(usages, Sort.NAME, "team-1") == [pod(1, 1), pod(3, 1)]


def test_no_name_is_a_control_sequence_or_markup(capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(1, 1)
    for total in before["pods"]:
        total["pod"] = "\x1b[2J[red]pod-0"
    usages = measured(before, after(before, {}, 0))
    console().print(table("node-1", usages, ordered(usages, Sort.NAME, None)))
    shown = capsys.readouterr().out
    assert "team-0/\N{REPLACEMENT CHARACTER}[2J[red]pod-0" in shown
    assert shown.count("?") == 4, "the rates of the node and its pod"


class Traffic:
    """An agent's snapshots: with each, pod number n has received n kB and sent 1 kB more."""

    def __init__(self) -> None:
        self.document = snapshot(40, 4)

    def __call__(self, _question: bytes) -> bytes:
        self.document = after(self.document, {n: (n * 1000, 1000) for n in range(40)}, 1.0)
        return json.dumps(self.document).encode()


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "ledger.sock"
    with agent(path, Traffic()):
        yield str(path)


@pytest.mark.programs
def test_in_a_pipe_each_reading_is_a_plain_table(socket: str) -> None:
    options = ["--count", "2", "--sort", "in", "--namespace", "team-1", "--socket", socket]
    done = subprocess.run(
        [*TOP, *options], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    tables = done.stdout.split("namespace/pod")[1:]
    assert len(tables) == 2
    for shown in tables:
        head, node, first, *others = shown.splitlines()
        assert head.split() == ["in/s", "out/s", "in", "out", "conns"]
        assert node.startswith("node node-1 ")
        assert first.split()[:5] == ["team-1/training-worker-37", "37.0", "kB", "1.0", "kB"]
        assert len(others) == 9


@pytest.mark.programs
def test_on_a_terminal_the_table_is_as_high_as_the_screen_which_is_given_back(socket: str) -> None:
    own, theirs = os.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 7, 100, 0, 0))
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    environment = {**os.environ, "TERM": "xterm"}
    shown = ""
    with subprocess.Popen([*TOP, "--socket", socket], env=environment, **streams) as program:
        os.close(theirs)
        while shown.count("node node-1") < 2:
            shown += os.read(own, 1 << 16).decode()
        program.send_signal(signal.SIGTERM)
        while NORMAL not in shown:
            shown += os.read(own, 1 << 16).decode()
        assert program.wait() == 128 + signal.SIGTERM
    os.close(own)
    before, _, frames = shown.partition(ALTERNATE)
    assert before == ""
    waiting, frame, *_ = frames.split("\x1b[H")[2:]
    assert waiting.startswith("measuring")
    assert len(frame.splitlines()) == 7
    assert "team-3/training-worker-39" in frame.splitlines()[2]


POOL = {"family": "ipv4", "allocated": 5, "cooldown": 2, "free": 7}


def status(**keys: object) -> str:
    return "\n".join(map(str, node_tables.status({**snapshot(2, 1), "pool": [POOL], **keys})))


@pytest.mark.parametrize(
    ("most", "is_shown"), [(110, True), (15, True), (14, False), (None, False)]
)
def test_more_pods_than_addresses_are_status(most: int | None, *, is_shown: bool):
    text = status() if most is None else status(max_pods=most)
    assert (f"the kubelet takes {most} pods, and the ranges have 14 ipv4" in text) is is_shown


def test_people_see_result_files_where_there_is_no_pool():
    text = status(pool=[], result_files=[{"state": "stale", "count": 3}])
    assert "3 stale" in text
    assert "cooldown" not in text


def test_every_problem_is_status():
    problem = {"reason": "RoutesWrong", "message": "no route to 10.244.2.0/24"}
    assert "RoutesWrong: no route to 10.244.2.0/24" in status(problems=[problem])


@pytest.mark.parametrize("pod", ["job-1", ""])
def test_a_spent_quota_is_shown_and_others_are_not(pod: str):
    one = {"namespace": "batch", "pod": pod, "traffic": "internet-out", "period": "day"}
    amounts = {"budget": 10**10, "used": 10**10, "until": 1_700_006_400, "forecast": 10**10}
    owner = f"batch/{pod}" if pod else "batch"
    text = status(quotas=[{**one, **amounts, "spent": True}])
    assert f"quota spent: internet-out of {owner}, " in text
    assert "of its day, until 2023-11-15T00:00Z" in text
    assert "quota spent" not in status(quotas=[{**one, **amounts, "spent": False}])
