"""What passed the node's hooks and no owner was counted for: never overstated, never falling.

What is forwarded for no pod meets a counter of its own, behind the pods' (`UNATTRIBUTED`): for
containers that are no pods, for pods that were noticed late, and after another program took an
element away. Its readings are what is shown.

Where there is no such counter, hooks are compared with owners: on a machine without pods, and what
the node itself receives and sends with its host-network pods, where those are counted. Both sides
count the same packets, so over any stretch of time their difference is what was for others. But the
kernel cannot be read at one instant. A reading has the owners' counters a moment before or after
the hooks', and a difference of the two would be wrong by what passed in that moment.

So a reading of the owners is compared with the hooks' reading *before* it. Everything that those
had counted by then and that has an owner is in the owners' later reading; the difference is
therefore at most the truth. The largest one so far is what is shown. It reaches the truth whenever
nothing passed between two readings, and lags behind it by no more than passed between them.

What pods' counters counted has a counter of its own, too (`PODS`), which no change of theirs
touches. It is raised after theirs and read before them. So whatever it has and they have not is
lost: that is shown by the audit `PODS`, at once and to the byte.

When somebody zeroed a hook's counter, the difference fell by what that lost of owners' traffic, and
would hide as much of what is for others from then on. Whether the zero was seen or not: a reading
of the hooks less the owners of the reading *before* it is at least the truth. Where that is below
what is shown, the difference is measured from a new base, which makes them equal. So at most one
interval is hidden. An *owner's* zeroed counter needs no such thing: the hooks counted what it lost,
and it shows.
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


def counted(counter: Counter) -> Iterator[Account]:
    """The accounts of audits that every byte of a counter with an owner is posted to."""
    for audit in (Audit.FORWARD, Audit.PODS) if counter.is_pod else (Audit.LOCAL,):
        yield Account(Scope.AUDIT, audit, COUNTED, counter.traffic)


def accounts(counter: Counter, owner: PodRef | None) -> Iterator[Account]:
    """Everything that a reading of the counter is posted to."""
    if owner is None:
        yield from of_node(counter)
    else:
        yield Account(Scope.POD, owner.namespace, owner.name, counter.traffic)
        yield Account(Scope.NAMESPACE, owner.namespace, "", counter.traffic)
        yield from counted(counter)


def is_of_node(counter: Counter) -> bool:
    """Whether this is one of the node's own counters, which have no pod as their owner."""
    return str(counter.subject) in (*_HOOKS, REMOTE_PODS, UNATTRIBUTED)


def is_unsized(counter: Counter) -> bool:
    """Whether nobody knows how many bytes of pods it lost: no sum has them, or it is the sum."""
    if counter.is_pod:
        return counter.traffic not in tuple(Traffic)
    return counter.subject == PODS or not is_of_node(counter)


def is_hook(account: Account) -> bool:
    """Whether this is a part of what the node exchanged."""
    return account.scope is Scope.HOOK and account.owner != PODS


def remote_pods(totals: Totals, audit: Audit, traffic: Traffic) -> Amount | None:
    """What was forwarded for pods of other nodes, by Services; None if that is not counted."""
    return totals.get(_remote_pods(traffic)) if audit is Audit.FORWARD else None


def of_node(counter: Counter) -> Iterator[Account]:
    """The accounts of one of the node's own counters."""
    if counter.subject == REMOTE_PODS:
        yield _remote_pods(counter.traffic)
        yield Account(Scope.AUDIT, Audit.FORWARD, COUNTED, counter.traffic)
    elif counter.subject == UNATTRIBUTED:
        yield Account(Scope.AUDIT, Audit.FORWARD, MISSED, counter.traffic)
    else:
        yield _of_hook(counter)


def _of_hook(counter: Counter) -> Account:
    return Account(Scope.HOOK, str(counter.subject), str(counter.family.value), counter.traffic)


def _remote_pods(traffic: Traffic) -> Account:
    return Account(Scope.AUDIT, Audit.FORWARD, REMOTE_PODS, traffic)


def missed(totals: Totals, audit: Audit, traffic: Traffic) -> Amount:
    """What is shown for one direction."""
    return totals.get(Account(Scope.AUDIT, audit, MISSED, traffic), NOTHING)


Key = tuple[Audit, Traffic]


def audited_by(counter: Counter) -> Key | None:
    """The audit that a hook's counter is one side of; None for the counters on the other side."""
    audit = _HOOKS.get(counter.subject)
    return (audit, counter.traffic) if audit else None


def audited(counters: Iterable[Counter]) -> set[Key]:
    """The audits that any of these are the hooks' side of."""
    return {key for counter in counters if (key := audited_by(counter))}


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
    comparisons: dict[Key, Comparison] = {}
    for (audit, traffic), amount in passed.items():
        counted = totals.get(Account(Scope.AUDIT, audit, COUNTED, traffic), NOTHING)
        comparisons[audit, traffic] = Comparison(amount, counted)
    return comparisons


def settle(
    totals: MutableMapping[Account, Amount],
    former: Mapping[Key, Comparison],
    counters: Collection[Counter],
) -> None:
    """Compare the owners' counters, as just read, with the hooks as of the reading before.

    Args:
        totals: the accounts, this reading included.
        former: `compared` before this reading was posted.
        counters: all live ones.
    """
    current = compared(totals)
    for key, then in former.items():
        now = current[key]
        audit, traffic = key
        if audit is Audit.FORWARD and _is_counted(traffic, counters):
            continue
        shown = missed(totals, audit, traffic)
        base = Account(Scope.AUDIT, audit, BASE, traffic)
        former_base = totals.get(base, NOTHING)
        measured_from = _smallest(former_base, now.passed - then.counted - shown)
        # Setting an account makes it a row to write.
        if measured_from != former_base:
            totals[base] = measured_from
        # Without any counted owner no reading can be late, so that the newest one holds.
        has_owners = Account(Scope.AUDIT, audit, COUNTED, traffic) in totals
        passed = then.passed if has_owners and audit is not Audit.PODS else now.passed
        largest = _largest(shown, passed - now.counted - measured_from)
        if largest != shown:
            totals[Account(Scope.AUDIT, audit, MISSED, traffic)] = largest


def _smallest(amount: Amount, other: Amount) -> Amount:
    return Amount(min(amount.bytes, other.bytes), min(amount.packets, other.packets))


def _largest(amount: Amount, other: Amount) -> Amount:
    return Amount(max(amount.bytes, other.bytes), max(amount.packets, other.packets))


PODS_KEYS: Collection[Key] = [(Audit.PODS, traffic) for traffic in Traffic]


def shake(totals: MutableMapping[Account, Amount], keys: Collection[Key] = PODS_KEYS) -> None:
    """Have pods' losses measured anew, by the agent's next life if need be."""
    for audit, traffic in keys:
        if audit is Audit.PODS:
            totals[Account(Scope.AUDIT, audit, BASE, traffic)] = UNKNOWN


def has_counted(totals: Totals, traffic: Traffic) -> bool:
    """Whether pods' counters have counted anything."""
    return totals.get(Account(Scope.AUDIT, Audit.PODS, COUNTED, traffic), NOTHING) != NOTHING


def lost(totals: Totals) -> dict[Traffic, int]:
    """Bytes that pods' counters are known to have lost."""
    return {traffic: missed(totals, Audit.PODS, traffic).bytes for traffic in Traffic}


def _is_counted(traffic: Traffic, counters: Collection[Counter]) -> bool:
    """Whether what has no owner is counted by itself, so that nothing is compared."""
    return any(Counter(UNATTRIBUTED, family, traffic) in counters for family in Family)
