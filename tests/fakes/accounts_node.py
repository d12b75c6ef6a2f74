"""A node's accounting on a kernel of the tests' own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from netmgr.agent.accounting import changeover
from netmgr.agent.accounting.accounting import examine
from netmgr.agent.accounting.accounts import Accounts
from netmgr.documents.node import Backend
from netmgr.errors import NetmgrError
from netmgr.model import Attachment, Counter, Sample, Traffic
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.engine import Rules
from netmgr.rules.model import Hook, Ruleset, Sets
from netmgr.rules.transaction import Operation
from tests.chaos.test_accounts_crashes import INTERNET, POLICY, WEB, Named
from tests.fakes.ledger_tools import Clock, counts, gap_seconds, opened
from tests.fakes.passage import SENT
from tests.fakes.rules import FakeBackend, Packet

Totals = dict[str, int]
OUT = "internet-out"
NODE_RULES = 4
"""As many as the article has for each family."""
EVERY = 2 * NODE_RULES + 4 * len(Family) + len(Traffic)
"""Counters of a node with one pod: the node's, two for others' pods and two sums, of each family,
and the pod's own."""
NODE = Address.parse("10.64.0.10")


class Kernel(FakeBackend):
    """Takes time to be read and changed, if told so."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.reading_seconds = self.changing_seconds = 0.0
        self.fault: NetmgrError | None = None

    def read(self, desired: Ruleset) -> list[Sample]:
        self._take(self.reading_seconds)
        return super().read(desired)

    def read_pods(self, pods: Sets) -> list[Sample]:
        self._take(self.reading_seconds)
        return super().read_pods(pods)

    def apply(self, operations: Sequence[Operation]) -> None:
        self._take(self.changing_seconds)
        super().apply(operations)

    def _take(self, seconds: float) -> None:
        if self.fault:
            raise self.fault
        self._clock.time += seconds


class HostPods:
    """A host-network pod, counted as long as somebody looks."""

    def __init__(self) -> None:
        self.counter = Counter("cgroup 7", Family.V4, Traffic.INTERNET_OUT)
        self.bytes, self.looks, self.is_open = 0, 0, True
        self.internal: list[Prefix] = []
        self.fault: NetmgrError | None = None

    def samples(self) -> list[Sample]:
        return [Sample(self.counter, self.bytes, 1)]

    def follow(self, internal: Iterable[Prefix]) -> None:
        self.internal = list(internal)

    def look(self) -> None:
        if self.fault:
            raise self.fault
        self.looks += 1

    def close(self) -> None:
        self.is_open = False


class Node:
    """A kernel and a ledger, and an agent's accounting that can be started again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.kernel = Kernel(self.clock)
        self.policy = POLICY
        self.host_pods: HostPods | None = None
        self.uplinks: list[str] = []

    def start(
        self, *pods: Attachment, boot: str = "boot-1", min_seconds: float = 0, crashed: bool = False
    ) -> list[str]:
        """Start an agent; one that crashed leaves it to this one to close the ledger."""
        if crashed:
            self.ledger.close()
        self.ledger = opened(self.path, self.clock, boot)
        self.rules = Rules(self.kernel, self.policy)
        examine(self.ledger, self.rules)
        self.accounts = Accounts(
            self.rules, self.ledger, self.clock, min_seconds, uplinks=lambda: self.uplinks
        )
        if self.host_pods is not None:
            self.accounts.count_host_pods(self.host_pods)
        return self.accounts.start(pods)

    def flush(self) -> None:
        """Another program takes all rules and sets away."""
        self.kernel.state = type(self.kernel.state)()

    def empty(self, hook: Hook) -> None:
        """Another program takes the rules of one chain away, and no counter."""
        self.kernel.state.chains[hook] = []

    @property
    def removed(self) -> tuple[int, float]:
        """How often another program took counting away, and for how many seconds."""
        return counts(self.ledger.totals()).get("removed", 0), gap_seconds(self.ledger, "removed")

    @property
    def concerned(self) -> int:
        """How many counters went the last time."""
        (gap,) = (one for one in self.ledger.totals().gaps if one["reason"] == "removed")
        return gap["concerned"]

    def send(self, pod: Attachment, size: int) -> None:
        link = pod.host_link
        self.kernel.send(
            Packet(pod.addresses[0], INTERNET, iif=link, way_back=link, oif="eth0", length=size)
        )

    def own(self, size: int) -> None:
        """A packet of the node itself."""
        self.kernel.send(Packet(NODE, INTERNET, SENT, oif="eth0", length=size))

    @property
    def totals(self) -> Totals:
        """Internet traffic out: of the node's hooks together, and of each pod."""
        found = self.ledger.totals()
        of_node = {one["traffic"]: one["bytes"] for one in found.node}
        of_pods = {one["pod"]: one["bytes"] for one in found.pods if one["traffic"] == OUT}
        return {"node": of_node[OUT], **of_pods}


class TwoKernels:
    """A node whose document names another backend every now and then; both see every packet."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, Clock()
        self.kernels = {name: Named(name) for name in (Backend.NFTABLES, Backend.IPTABLES_LEGACY)}

    def start(self, name: Backend) -> None:
        self.ledger = opened(self.folder / "ledger.sqlite", self.clock)
        rules = self.rules(name)
        change = changeover.begin(self.folder, self.ledger, rules, self.rules)
        examine(self.ledger, rules, *(change.rules if change else ()))
        if change is None:
            changeover.note_only_backend(self.folder, self.ledger, rules)
        self.accounts = Accounts(rules, self.ledger, self.clock, 0, change)
        self.accounts.start([WEB])

    def rules(self, name: Backend) -> Rules:
        return Rules(self.kernels[name], POLICY)

    def send(self, size: int) -> None:
        packet = Packet(
            WEB.addresses[0], INTERNET, iif="nm0", way_back="nm0", oif="eth0", length=size
        )
        for kernel in self.kernels.values():
            kernel.send(packet)
