"""What passed the node's hooks and no owner was counted for: never overstated, never falling.

What is forwarded for no pod meets a counter of its own, behind the pods' (`UNATTRIBUTED`): for
containers that are no pods, for pods that were noticed late, and after another program took an
element away. Its readings are what is shown.

Where there is none (on a machine without pods, and for what the node itself exchanges beside its
host-network pods), hooks are compared with owners. Over any stretch of time their difference is
what was for others, but the kernel cannot be read at one instant. So a reading of the owners is
compared with the hooks' reading *before* it: whatever those had counted that has an owner is in the
owners' later reading, and the difference is at most the truth. The largest one so far is shown. It
lags behind the truth by no more than passed between two readings.

What pods' counters counted has a counter of its own, too (`PODS`), which no change of theirs
touches: what it has and they have not is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from enum import StrEnum
from itertools import product
from typing import NamedTuple

from netmgr.ledger.tables import LARGEST, NOTHING, Account, Amount, Scope
from netmgr.model import PODS, REMOTE_PODS, UNATTRIBUTED, Counter, PodRef, Traffic
from netmgr.prefixes import Address, Family

COUNTED, MISSED, BASE = "counted", "missed", "base"
"""An audit's accounts: what owners counted, what is shown, and what that is measured from."""

UNKNOWN = Amount(LARGEST, LARGEST)
"""A base that the next reading sets."""

Totals = Mapping[Account, Amount]


class Audit(StrEnum):
    """Which hooks are compared with which counters."""

    FORWARD = "forward"
    """What the node forwarded, against its pods' addresses; the rest is unattributed."""
    LOCAL = "local"
    """What the node received and sent itself, against host-network pods; the rest is its own."""
    PODS = "pods"
    """The sum of what pods' counters counted, against these counters; the rest is lost."""


_HOOKS: Mapping[Address | str, Audit] = {
    "FORWARD": Audit.FORWARD,
    "INPUT": Audit.LOCAL,
    "OUTPUT": Audit.LOCAL,
    PODS: Audit.PODS,
}


def accounts(counter: Counter, owner: PodRef | None) -> Iterator[Account]:
    """Everything that a reading of the counter is posted to."""
    traffic = counter.traffic
    if owner is not None:
        yield Account(Scope.POD, owner.namespace, owner.name, traffic)
        yield Account(Scope.NAMESPACE, owner.namespace, "", traffic)
        for audit in (Audit.FORWARD, Audit.PODS) if counter.is_pod else (Audit.LOCAL,):
            yield Account(Scope.AUDIT, audit, COUNTED, traffic)
    elif counter.subject == REMOTE_PODS:
        # Part of what owners counted, and shown by itself (`Totals.origins`).
        yield side(Audit.FORWARD, REMOTE_PODS, traffic)
        yield side(Audit.FORWARD, COUNTED, traffic)
    elif counter.subject == UNATTRIBUTED:
        yield side(Audit.FORWARD, MISSED, traffic)
    else:
        yield _of_hook(counter)


def _of_hook(counter: Counter) -> Account:
    return Account(Scope.HOOK, str(counter.subject), str(counter.family.value), counter.traffic)


def side(audit: Audit, name: str, traffic: Traffic) -> Account:
    """An account of an audit, by its name."""
    return Account(Scope.AUDIT, audit, name, traffic)


def is_of_node(counter: Counter) -> bool:
    """Whether this is one of the node's own counters, which have no pod as their owner."""
    return str(counter.subject) in (*_HOOKS, REMOTE_PODS, UNATTRIBUTED)


def is_unsized(counter: Counter) -> bool:
    """Whether nobody knows how many bytes of pods it lost."""
    # No sum has those of further classes and of host-network pods; or it is the sum itself.
    if counter.is_pod:
        return counter.traffic not in tuple(Traffic)
    return counter.subject == PODS or not is_of_node(counter)


def missed(totals: Totals, audit: Audit, traffic: Traffic) -> Amount:
    """What is shown for one direction."""
    return totals.get(side(audit, MISSED, traffic), NOTHING)


Key = tuple[Audit, Traffic]


def audited_by(counter: Counter) -> Key | None:
    """The audit that a hook's counter is one side of; None for the counters on the other side."""
    audit = _HOOKS.get(counter.subject)
    return (audit, counter.traffic) if audit else None


class Comparison(NamedTuple):
    """Both sides of an audit, for one direction, as just read and a moment apart."""

    passed: Amount
    counted: Amount


def compared(totals: Totals) -> dict[Key, Comparison]:
    """What the hooks and the owners' counters have counted so far, both families."""
    passed: dict[Key, Amount] = {}
    # Hooks count no other classes. Looked up, since a node has thousands of other accounts.
    for (hook, audit), family, traffic in product(_HOOKS.items(), Family, Traffic):
        amount = totals.get(_of_hook(Counter(hook, family, traffic)))
        if amount is not None:
            # Both families in one: owners are not compared by family.
            passed[audit, traffic] = passed.get((audit, traffic), NOTHING) + amount
    return {
        (audit, traffic): Comparison(amount, totals.get(side(audit, COUNTED, traffic), NOTHING))
        for (audit, traffic), amount in passed.items()
    }


def settle(
    totals: MutableMapping[Account, Amount],
    former: Mapping[Key, Comparison],
    counters: Collection[Counter],
) -> None:
    """Compare the owners' counters, as just read, with the hooks as of the reading before.

    `totals` has this reading, `former` is what was `compared` before it; `counters` are live.
    """
    current = compared(totals)
    for (audit, traffic), then in former.items():
        now = current[audit, traffic]
        # Nothing is compared where what has no owner is counted by itself.
        if audit is Audit.FORWARD and _is_counted(traffic, counters):
            continue
        shown = missed(totals, audit, traffic)
        base = side(audit, BASE, traffic)
        former_base = totals.get(base, NOTHING)
        # Somebody may have zeroed a hook's counter, seen or not. The difference fell by what that
        # lost of owners' traffic, and would hide as much of what is for others from then on. A
        # reading of the hooks less the owners of the reading before it is at least the truth. Where
        # that is below what is shown, a new base makes them equal: at most one interval is hidden.
        # An owner's zeroed counter needs no base: the hooks counted what it lost, and it shows.
        measured_from = former_base.smallest(now.passed - then.counted - shown)
        # Setting an account makes it a row to write.
        if measured_from != former_base:
            totals[base] = measured_from
        # Without any counted owner no reading can be late, so that the newest one holds. Nor are
        # pods' counters late for their sum, which is raised after them and read before them.
        has_owners = side(audit, COUNTED, traffic) in totals
        passed = then.passed if has_owners and audit is not Audit.PODS else now.passed
        largest = shown.largest(passed - now.counted - measured_from)
        if largest != shown:
            totals[side(audit, MISSED, traffic)] = largest


def remeasure(
    totals: MutableMapping[Account, Amount], traffics: Iterable[Traffic] = Traffic
) -> None:
    """Have pods' losses measured anew, by the agent's next life if need be."""
    for traffic in traffics:
        totals[side(Audit.PODS, BASE, traffic)] = UNKNOWN


def summed(counters: Iterable[Counter]) -> set[Traffic]:
    """The traffic of the sums of pods' counters that are among these."""
    return {counter.traffic for counter in counters if counter.subject == PODS}


def lost(totals: Totals) -> dict[Traffic, int]:
    """Bytes that pods' counters are known to have lost."""
    return {traffic: missed(totals, Audit.PODS, traffic).bytes for traffic in Traffic}


def _is_counted(traffic: Traffic, counters: Collection[Counter]) -> bool:
    return any(Counter(UNATTRIBUTED, family, traffic) in counters for family in Family)
