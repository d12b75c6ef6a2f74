"""What the ledger shows: a frozen picture of the book, in the shapes of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap

from netmgr.api import snapshot
from netmgr.ledger import audit
from netmgr.ledger.audit import Audit
from netmgr.ledger.book import Book
from netmgr.ledger.tables import NOTHING, Amount, Gap, LastGap, Lost, Scope, SeriesKey
from netmgr.model import PODS, REMOTE_PODS, Sample, Traffic


@dataclass(frozen=True, slots=True)
class AuditTotal:
    """One direction of an audit: what passed, what its owners counted, and what surely none did.

    `passed` and `counted` are as just read, a moment apart; `missed` is settled and never falls.
    `remote_pods` is the part of `counted` that was for other nodes' pods; None if not counted.
    """

    audit: Audit
    traffic: Traffic
    passed: Amount
    counted: Amount
    missed: Amount
    remote_pods: Amount | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """The ledger's answer, sorted.

    `node` is everything that the node sent, received or forwarded (INPUT or OUTPUT, and FORWARD),
    both families. `rules` are last raw readings of its own rules, which fall when zeroed. `gaps`
    has every reason, zeros included. While the file cannot be written, totals are not `durable`.
    """

    pods: list[snapshot.PodTotals]
    namespaces: list[snapshot.NamespaceTotals]
    node: list[snapshot.TrafficTotals]
    rules: list[Sample]
    gaps: list[snapshot.AccountingGaps]
    audits: list[AuditTotal]
    durable: bool = True

    @property
    def forwarded(self) -> list[AuditTotal]:
        """Both directions of what the node forwarded."""
        return [total for total in self.audits if total.audit is Audit.FORWARD]

    def lost(self, traffic: Traffic) -> int:
        """Bytes of pods that their counters are known to have lost."""
        return sum(
            total.missed.bytes
            for total in self.audits
            if (total.audit, total.traffic) == (Audit.PODS, traffic)
        )

    def unattributed(self, *, runs_pods: bool) -> list[snapshot.Audited]:
        """What was forwarded for no pod, by direction; without pods that is all, and not listed."""
        return [
            {**_amount(total.traffic, total.missed), "forwarded": total.passed.bytes}
            for total in (self.forwarded if runs_pods else ())
        ]

    def forward_audit(self) -> list[snapshot.ForwardAudit]:
        """Both sides of the comparison with the forward rules, in bytes."""
        return [
            {
                "traffic": total.traffic,
                "forwarded": total.passed.bytes,
                "attributed": total.counted.bytes,
                "unattributed": total.missed.bytes,
            }
            for total in self.forwarded
        ]

    def origins(self, *, runs_pods: bool) -> list[snapshot.OriginTotals]:
        """The node's total in parts, each of which only rises."""
        names = {
            Audit.FORWARD: ("pods", "unattributed" if runs_pods else "transit"),
            Audit.LOCAL: ("host-pods", "node"),
        }
        parts: list[snapshot.OriginTotals] = []
        for total in self.audits:
            # Both sides of it are in what FORWARD's owners counted.
            if total.audit is Audit.PODS:
                continue
            of_owners, of_others = names[total.audit]
            if total.remote_pods is not None:
                parts.append({"origin": "remote-pods", **_amount(total.traffic, total.remote_pods)})
            counted = total.counted - (total.remote_pods or NOTHING)
            parts.append({"origin": of_owners, **_amount(total.traffic, counted)})
            parts.append({"origin": of_others, **_amount(total.traffic, total.missed)})
        return parts


def picture(book: Book, *, durable: bool) -> Totals:
    pods: list[snapshot.PodTotals] = []
    namespaces: list[snapshot.NamespaceTotals] = []
    node: dict[Traffic, Amount] = {}
    # Sorted once here, so that readers get each list in a stable order.
    for account in sorted(book.totals):
        amount = book.totals[account]
        match account:
            case (Scope.POD, owner, name, traffic):
                is_live = SeriesKey(owner, name) not in book.ended
                row: snapshot.PodTotals = {
                    "namespace": owner,
                    "pod": name,
                    "traffic": traffic,
                    "bytes": amount.bytes,
                    "packets": amount.packets,
                    "live": is_live,
                    "wire": amount.wire,
                    "wire_unknown": amount.bytes - amount.measured,
                }
                pods.append(row)
            case (Scope.NAMESPACE, owner, _, traffic):
                namespaces.append({"namespace": owner, **_amount(traffic, amount)})
            # The sum of pods' counters is no part of what the node exchanged.
            case (Scope.HOOK, owner, _, traffic) if owner != PODS:
                node[traffic] = node.get(traffic, NOTHING) + amount
            case _:
                pass
    return Totals(
        pods=pods,
        namespaces=namespaces,
        node=list(starmap(_amount, sorted(node.items()))),
        rules=_raw(book),
        gaps=[_gap(gap, book.gaps.get(gap, Lost()), book.last_gap(gap)) for gap in Gap],
        audits=[
            AuditTotal(
                *key,
                *sides,
                audit.missed(book.totals, *key),
                book.totals.get(audit.side(key[0], REMOTE_PODS, key[1])),
            )
            for key, sides in sorted(audit.compared(book.totals).items())
        ],
        durable=durable,
    )


def _amount(traffic: Traffic, amount: Amount) -> snapshot.TrafficTotals:
    return {"traffic": traffic, "bytes": amount.bytes, "packets": amount.packets}


def _gap(gap: Gap, lost: Lost, last: LastGap) -> snapshot.AccountingGaps:
    return {
        "reason": gap,
        "count": lost.times,
        "seconds": lost.seconds,
        "bytes": lost.bytes,
        "since": last.since,
        "last": last.until,
        "concerned": last.concerned,
        "counters": list(last.counters),
    }


def _raw(book: Book) -> list[Sample]:
    return sorted(
        Sample(counter, live.reading.bytes, live.reading.packets)
        for counter, live in book.counters.items()
        if audit.audited_by(counter) and counter.subject != PODS
    )
