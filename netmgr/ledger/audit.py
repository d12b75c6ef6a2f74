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

The same is done with what the node itself receives and sends, against its host-network pods where
those are counted: what is missed there is the node's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from enum import StrEnum
from typing import NamedTuple

from netmgr.ledger.account import NOTHING, Account, Amount, Scope
from netmgr.model import Counter, Traffic

COUNTED, MISSED, BASE = "counted", "missed", "base"
"""An audit's accounts: what owners' counters were counted for, what is shown, and what that is measured from."""

Totals = Mapping[Account, Amount]


class Audit(StrEnum):
    """Which hooks are held against which counters."""

    FORWARD = "forward"
    """What the node forwarded, against its pods' addresses; what is missed is unattributed."""
    LOCAL = "local"
    """What the node itself received and sent, against its host-network pods; what is missed is the node's own."""


_HOOKS = {"FORWARD": Audit.FORWARD, "INPUT": Audit.LOCAL, "OUTPUT": Audit.LOCAL}

MIGRATION = f"""
INSERT INTO total SELECT '{Scope.AUDIT}', '{Audit.FORWARD}', '{COUNTED}', traffic, sum(bytes), sum(packets)
FROM total WHERE scope = '{Scope.NAMESPACE}' GROUP BY traffic;
"""  # noqa: S608  constants of this module
"""For files of the time before there was an audit: what namespaces have was counted for pods' addresses."""


def counted(counter: Counter) -> Account:
    """The account that every byte of a counter with an owner is posted to."""
    return Account(Scope.AUDIT, Audit.FORWARD if counter.is_pod else Audit.LOCAL, COUNTED, counter.traffic)


def missed(totals: Totals, audit: Audit, traffic: Traffic) -> Amount:
    """What is shown for one direction."""
    return totals.get(Account(Scope.AUDIT, audit, MISSED, traffic), NOTHING)


Key = tuple[Audit, Traffic]


def audited_by(counter: Counter) -> Key | None:
    """The audit that a hook's counter is one side of; None for the counters on the other side."""
    audit = _HOOKS.get(str(counter.subject))
    return (audit, counter.traffic) if audit else None


class Compared(NamedTuple):
    """Both sides of a comparison, for one direction."""

    passed: Amount
    counted: Amount


def compared(totals: Totals) -> dict[Key, Compared]:
    """What the hooks and the owners' counters have counted so far, both families."""
    passed: dict[Key, Amount] = {}
    for account, amount in totals.items():
        if account.scope is Scope.HOOK and (audit := _HOOKS.get(account.owner)):
            key = audit, account.traffic
            passed[key] = passed.get(key, NOTHING) + amount
    return {
        (audit, traffic): Compared(amount, totals.get(Account(Scope.AUDIT, audit, COUNTED, traffic), NOTHING))
        for (audit, traffic), amount in passed.items()
    }


def settle(totals: MutableMapping[Account, Amount], former: Mapping[Key, Compared], rebasing: Collection[Key]) -> None:
    """Hold the owners' counters, as just read, against the hooks as of the reading before (`former`).

    Args:
        totals: the accounts, this reading included.
        former: `compared` before this reading was posted.
        rebasing: hooks that had turned out zeroed by the reading before.
    """
    for key, now in compared(totals).items():
        audit, traffic = key
        then = former.get(key, now)
        shown = missed(totals, audit, traffic)
        base = Account(Scope.AUDIT, audit, BASE, traffic)
        if key in rebasing:
            totals[base] = now.passed - then.counted - shown
            continue
        # Where nobody was ever counted, there is nothing to be read too late.
        passed = then.passed if Account(Scope.AUDIT, audit, COUNTED, traffic) in totals else now.passed
        least = passed - now.counted - totals.get(base, NOTHING)
        most = Amount(max(shown.bytes, least.bytes), max(shown.packets, least.packets))
        if most != shown:
            totals[Account(Scope.AUDIT, audit, MISSED, traffic)] = most
