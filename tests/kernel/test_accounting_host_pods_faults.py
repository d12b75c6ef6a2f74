"""Host-network pods whose counting another program, or the kernel, interrupts at any moment: the
next look counts each again, and what was counted for nobody meanwhile is a gap.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from errno import EPERM
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netmgr import programs
from netmgr.agent.accounting.host_pods import HostPods
from netmgr.descriptors import closing
from netmgr.errors import KernelError
from netmgr.kernel import netns
from netmgr.prefixes import Family
from netmgr.rules.cgroup_counters import SYSFS, TABLE, Cgroup
from tests.fakes.ledger_tools import OUT, Clock, gap_seconds, gaps, opened
from tests.kernel.test_accounting_host_pods import UNIFIED, kubelets
from tests.lab.exchange import datagram_bytes

pytestmark = pytest.mark.root

NAMES = ("first", "second", "third")
UPLINK = (
    "link add up0 type veth peer up1",
    "link set up1 up",
    "address add 198.51.100.1/24 dev up0",
    "link set up0 up",
    "route add default dev up0",
)
SENDER = """
import os, socket, sys
open(sys.argv[1], "w").write(str(os.getpid()))
print("ready", flush=True)
for line in sys.stdin:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(bytes(int(line)), ("203.0.113.1", 9))
    print("sent", flush=True)
"""
Fault = Callable[[], None]


@dataclass
class Sender:
    """A process of a pod in the node's network, whose datagrams nobody answers."""

    container: Path

    def __post_init__(self) -> None:
        command = [sys.executable, "-c", SENDER, str(self.container / "cgroup.procs")]
        self.running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._hear("ready")

    def send(self, size: int) -> int:
        assert self.running.stdin
        self.running.stdin.write(f"{size}\n")
        self.running.stdin.flush()
        self._hear("sent")
        return datagram_bytes(Family.V4, size)

    def _hear(self, word: str) -> None:
        assert self.running.stdout
        assert self.running.stdout.readline() == f"{word}\n"

    def end(self) -> None:
        with self.running:
            self.running.kill()


@dataclass
class Machine:
    """A node with three host-network pods in a network of its own."""

    cgroups: Path
    folder: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.ledger = opened(self.folder / "ledger.sqlite", self.clock)
        (self.folder / "logs").mkdir()
        self.pods = {
            name: Sender(kubelets(self.cgroups, self.folder / "logs", name)) for name in NAMES
        }
        settings = SimpleNamespace(cgroup_dir=self.cgroups, pod_logs_dir=self.folder / "logs")
        accounting = SimpleNamespace(
            rules=SimpleNamespace(policy=SimpleNamespace(known=())),
            ledger=self.ledger,
            accounts=SimpleNamespace(count_host_pods=lambda _host_pods: None),
        )
        self.agent: Any = SimpleNamespace(
            document=SimpleNamespace(accounting=settings), get=lambda _kind: accounting
        )
        self.begin()

    def begin(self, *, counts: bool = True) -> None:
        """Begin as the next agent, whose predecessor was killed."""
        self.agent.document.accounting.host_pods = counts
        host_pods = HostPods.open(self.agent)
        assert host_pods
        self.host_pods = host_pods
        self.host_pods.start()

    def disturb(self, monkeypatch: pytest.MonkeyPatch, *faults: Fault) -> None:
        """Have these happen once each, in order, just before a pod is admitted."""
        to_come, admit = iter(faults), self.host_pods._rules.admit

        def admit_disturbed(cgroups: Iterable[Cgroup]) -> None:
            next(to_come, undisturbed)()
            admit(cgroups)

        monkeypatch.setattr(self.host_pods._rules, "admit", admit_disturbed)

    def look(self) -> None:
        """As `Accounts` does, which logs what a look raises."""
        with suppress(KernelError):
            self.host_pods.look()
        self.clock.time += 10

    def end(self, name: str) -> None:
        """All processes of a pod end, and its cgroup with them."""
        self.pods[name].end()
        self.pods[name].container.rmdir()
        self.pods[name].container.parent.rmdir()

    def send(self, *names: str) -> dict[str, int]:
        """What was counted, after each of these has sent something, beyond what was before."""
        before = self.counted
        sent = {name: self.pods[name].send(100 * len(name)) for name in names}
        self.ledger.post(self.host_pods.samples())
        after = self.counted
        assert {name: after[name] - before.get(name, 0) for name in names} == sent
        return after

    @property
    def counted(self) -> dict[str, int]:
        totals = self.ledger.totals().pods
        return {row["pod"]: row["bytes"] for row in totals if row["traffic"] == OUT and row["live"]}

    def close(self) -> None:
        for one in self.pods.values():
            one.end()
        self.host_pods.close()
        self.ledger.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    root = UNIFIED / f"netmgr-test-{os.getpid()}"
    with ExitStack() as stack:
        stack.enter_context(netns.entered(stack.enter_context(closing(netns.unnamed()))))
        for words in UPLINK:
            assert not programs.run(["ip", *words.split()]).returncode
        (root / "kubepods").mkdir(parents=True)
        made = Machine(root, tmp_path)
        yield made
        made.close()
    for folder, _, _ in os.walk(root, topdown=False):
        Path(folder).rmdir()


def undisturbed() -> None:
    pass


def flush() -> None:
    assert not programs.run(["nft", "delete", "table", *TABLE.split()]).returncode


def refuse() -> None:
    raise KernelError("add element", EPERM)


@pytest.mark.parametrize("fault", [flush, refuse])
def test_pods_that_were_not_counted_again_at_once_are_with_the_next_look(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    machine.look()
    machine.send(*NAMES)
    machine.clock.time += 3
    flush()
    machine.disturb(monkeypatch, undisturbed, fault)
    machine.look()
    # Between two containers they have no process, and are counted all the same.
    for one in machine.pods.values():
        one.end()
    machine.look()
    machine.pods = {name: Sender(one.container) for name, one in machine.pods.items()}
    machine.send(*NAMES)
    # From the last reading until the first look, and from there until the second one.
    assert gap_seconds(machine.ledger, "removed") == pytest.approx(3 + 10)
    assert gaps(machine.ledger) == {"removed": 2}
    machine.look()
    machine.send(*NAMES)
    assert gap_seconds(machine.ledger, "removed") == pytest.approx(3 + 10)


@pytest.mark.parametrize("fault", [flush, refuse])
def test_pods_that_the_first_look_could_not_count_are_counted_with_the_second(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    machine.disturb(monkeypatch, undisturbed, fault)
    machine.look()
    machine.look()
    machine.send(*NAMES)
    assert gaps(machine.ledger) == {"removed": 1}
    assert gap_seconds(machine.ledger, "removed") == pytest.approx(10)


def test_a_pod_that_is_gone_when_the_table_is_made_again_ends_and_the_others_are_counted(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.look()
    machine.send(*NAMES)
    flush()
    machine.disturb(monkeypatch, lambda: machine.end("second"))
    machine.look()
    assert machine.send("first", "third").keys() == {"first", "third"}
    assert gaps(machine.ledger) == {"removed": 1}


def test_a_pod_that_was_refused_and_is_gone_ends(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.disturb(monkeypatch, undisturbed, refuse)
    machine.look()
    for name in ("first", "second"):
        machine.end(name)
    machine.look()
    assert machine.send("third").keys() == {"third"}


def remove_counter(machine: Machine, name: str) -> None:
    cgroup = machine.pods[name].container.parent
    depth = machine.host_pods._finder.depths[0]
    element = f'{TABLE} out4_{depth} {{ "{cgroup.relative_to(SYSFS)}" }}'
    assert not programs.run(["nft", "delete", "element", element]).returncode


@pytest.mark.parametrize("agent", ["lasting", "killed", "killed, and the table flushed"])
def test_a_pod_that_ends_after_another_program_took_its_counter_away_is_a_gap(
    machine: Machine, agent: str
) -> None:
    machine.look()
    machine.send(*NAMES)
    machine.clock.time += 3
    remove_counter(machine, "second")
    machine.end("second")
    if agent != "lasting":
        machine.host_pods.close()
        if "flushed" in agent:
            flush()
        machine.begin()
    machine.look()
    assert machine.send("first", "third").keys() == {"first", "third"}
    assert gaps(machine.ledger) == {"removed": 1}
    assert gap_seconds(machine.ledger, "removed") == pytest.approx(3)


@pytest.mark.parametrize("is_flushed", [False, True])
def test_pods_that_are_no_longer_counted_have_all_that_they_sent_or_are_a_gap(
    machine: Machine, *, is_flushed: bool
) -> None:
    machine.look()
    sent = sum(machine.send(*NAMES).values())
    machine.clock.time += 3
    sent += machine.pods["first"].send(500)
    machine.host_pods.close()
    if is_flushed:
        flush()
    machine.begin(counts=False)
    totals = [row for row in machine.ledger.totals().pods if row["traffic"] == OUT]
    assert {row["live"] for row in totals} == {False}
    assert (sum(row["bytes"] for row in totals) == sent) is not is_flushed
    assert gaps(machine.ledger) == ({"removed": 1} if is_flushed else {})
    assert programs.run(["nft", "list", "table", *TABLE.split()]).returncode
