"""What the ledger shows: a frozen picture of the book, in the shape in which it is exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netmgr.ledger import audit
from netmgr.ledger.account import NOTHING, Amount, PodName, Scope
from netmgr.ledger.audit import Audit
from netmgr.ledger.book import Book, Gap, Lost
from netmgr.model import Counter, Sample, Traffic


@dataclass(frozen=True, slots=True)
class PodTotal:
    """One direction of one pod; `live` is false while the series lingers after the pod's end."""

    namespace: str
    pod: str
    traffic: Traffic
    bytes: int
    packets: int
    live: bool


@dataclass(frozen=True, slots=True)
class NamespaceTotal:
    """One direction of all pods that a namespace ever had on this node."""

    namespace: str
    traffic: Traffic
    bytes: int
    packets: int


@dataclass(frozen=True, slots=True)
class NodeTotal:
    """One direction of everything the node sent, received or forwarded, both families.

    internet-in is INPUT and FORWARD, internet-out is OUTPUT and FORWARD.
    """

    traffic: Traffic
    bytes: int
    packets: int


@dataclass(frozen=True, slots=True)
class Audited:
    """One direction of an audit (`audit.py`): what passed in all, for its owners, and for certain for none of them.

    `passed` and `counted` are as just read, a moment apart; `missed` is settled and never falls.
    """

    audit: Audit
    traffic: Traffic
    passed: Amount
    counted: Amount
    missed: Amount


@dataclass(frozen=True, slots=True)
class Totals:
    """The ledger's answer, sorted.

    Attributes:
        pods: live and lingering pods, both directions each.
        namespaces: sums that never fall.
        node: both directions.
        rules: last raw readings of the node's own rules; unlike totals these fall when zeroed.
        gaps: how often bytes may have been lost, for every reason, zeros included.
        gap_seconds: for how long in all.
        audits: every direction of every audit.
        durable: false while the state file cannot be written and totals live in memory alone.
    """

    pods: tuple[PodTotal, ...]
    namespaces: tuple[NamespaceTotal, ...]
    node: tuple[NodeTotal, ...]
    rules: tuple[Sample, ...]
    gaps: Mapping[Gap, int]
    gap_seconds: Mapping[Gap, float]
    audits: tuple[Audited, ...] = ()
    durable: bool = True

    def audit(self, which: Audit) -> list[Audited]:
        """Every direction of one audit."""
        return [one for one in self.audits if one.audit is which]


def picture(book: Book, *, durable: bool) -> Totals:
    """The book as it stands."""
    pods: list[PodTotal] = []
    namespaces: list[NamespaceTotal] = []
    node: dict[Traffic, Amount] = {}
    for account, amount in sorted(book.totals.items(), key=lambda entry: entry[0]):
        scope, owner, name, traffic = account
        if scope is Scope.POD:
            live = PodName(owner, name) not in book.ended
            pods.append(PodTotal(owner, name, traffic, amount.bytes, amount.packets, live))
        elif scope is Scope.NAMESPACE:
            namespaces.append(NamespaceTotal(owner, traffic, amount.bytes, amount.packets))
        elif scope is Scope.HOOK:
            node[traffic] = node.get(traffic, NOTHING) + amount
    lost = {gap: book.gaps.get(gap, Lost()) for gap in Gap}
    return Totals(
        pods=tuple(pods),
        namespaces=tuple(namespaces),
        node=tuple(NodeTotal(traffic, amount.bytes, amount.packets) for traffic, amount in sorted(node.items())),
        rules=tuple(_raw(book)),
        gaps={gap: one.times for gap, one in lost.items()},
        gap_seconds={gap: one.seconds for gap, one in lost.items()},
        audits=tuple(
            Audited(which, traffic, *sides, audit.missed(book.totals, which, traffic))
            for (which, traffic), sides in sorted(audit.compared(book.totals).items())
        ),
        durable=durable,
    )


def _raw(book: Book) -> list[Sample]:
    hooks: list[tuple[Counter, Amount]] = [
        (counter, live.reading) for counter, live in book.counters.items() if live.owner is None
    ]
    hooks.sort(key=lambda entry: str(entry[0]))
    return [Sample(counter, reading.bytes, reading.packets) for counter, reading in hooks]
