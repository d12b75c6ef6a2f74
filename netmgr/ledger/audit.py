"""What the node's forward rules counted and no pod was counted for: never overstated, never falling.

Forward rules and pods' elements count the same packets, so over any stretch of time their
difference is what was forwarded for others: containers that are no pods, pods that were noticed
late, traffic after another program took an element away. But the kernel cannot be read at one
instant. A reading tells the pods' counters a moment before or after the forward rules', and a
difference of the two would be wrong by what passed in that moment.

So a reading of the pods is held against the forward rules' reading *before* it. Everything that
those had counted by then and that belongs to a pod is in the pods' later reading; the difference
is therefore at most the truth. The largest one so far is what is shown. It reaches the truth
whenever nothing was forwarded between two readings, and lags behind it by no more than was
forwarded between them.

When a forward rule's counter was zeroed by someone, the difference fell by what that lost of pods'
traffic. With the reading after the one that showed it, it is measured from a new base: these forward
rules less the pods of the reading before, so that no more than one interval is hidden. That a *pod's*
counter was zeroed needs nothing of the kind: what it lost was counted by the forward rules and by
no pod, and shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import NamedTuple

from netmgr.ledger.account import NOTHING, Account, Amount, Scope
from netmgr.model import Counter, Traffic

FORWARD = "FORWARD"

ATTRIBUTED, UNATTRIBUTED, BASE = "attributed", "unattributed", "base"
"""Names of the audit's accounts: what pods' addresses were counted for, what is shown, what it is measured from."""

MIGRATION = f"""
INSERT INTO total SELECT '{Scope.AUDIT}', '{ATTRIBUTED}', '', traffic, sum(bytes), sum(packets)
FROM total WHERE scope = '{Scope.NAMESPACE}' GROUP BY traffic;
"""  # noqa: S608  constants of this module
"""For files of the time before there was an audit: what namespaces have was counted for pods' addresses."""

Totals = Mapping[Account, Amount]


def attributed_to_pods(traffic: Traffic) -> Account:
    """The account that every byte of a pod's address is posted to."""
    return Account(Scope.AUDIT, ATTRIBUTED, "", traffic)


def unattributed(totals: Totals, traffic: Traffic) -> Amount:
    """What is shown for one direction."""
    return totals.get(Account(Scope.AUDIT, UNATTRIBUTED, "", traffic), NOTHING)


def is_forward(counter: Counter) -> bool:
    """Whether this is one of the rules that pods are held against."""
    return counter.subject == FORWARD


class Compared(NamedTuple):
    """Both sides of the comparison, for one direction."""

    forwarded: Amount
    attributed: Amount


def compared(totals: Totals) -> dict[Traffic, Compared]:
    """What the forward rules and the pods' counters have counted so far, both families."""
    forwarded: dict[Traffic, Amount] = {}
    for traffic, amount in _forward_accounts(totals):
        forwarded[traffic] = forwarded.get(traffic, NOTHING) + amount
    return {
        traffic: Compared(amount, totals.get(attributed_to_pods(traffic), NOTHING))
        for traffic, amount in forwarded.items()
    }


def _forward_accounts(totals: Totals) -> Iterator[tuple[Traffic, Amount]]:
    hooks = (entry for entry in totals.items() if entry[0].scope is Scope.HOOK)
    return ((account.traffic, amount) for account, amount in hooks if account.owner == FORWARD)


def settle(
    totals: MutableMapping[Account, Amount], former: Mapping[Traffic, Compared], rebasing: Collection[Traffic]
) -> None:
    """Hold the pods, as just read, against the forward rules as of the reading before (`former`).

    Args:
        totals: the accounts, this reading included.
        former: `compared` before this reading was posted.
        rebasing: traffic of forward rules that had turned out zeroed by the reading before.
    """
    now = compared(totals)
    for traffic, then in former.items():
        shown = unattributed(totals, traffic)
        base = Account(Scope.AUDIT, BASE, "", traffic)
        if traffic in rebasing:
            totals[base] = now[traffic].forwarded - then.attributed - shown
            continue
        least = then.forwarded - now[traffic].attributed - totals.get(base, NOTHING)
        most = Amount(max(shown.bytes, least.bytes), max(shown.packets, least.packets))
        if most != shown:
            totals[Account(Scope.AUDIT, UNATTRIBUTED, "", traffic)] = most
