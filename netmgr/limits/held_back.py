"""What pods make of a cluster's budgets on one node, and which budget holds a pod back.

It follows from looks at HTB's classes, a second apart: a pod of which packets wait is held back by
the innermost class around them that may not send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from netmgr.kernel.traffic_control import ClassUsage
from netmgr.limits import budgets
from netmgr.limits.budgets import NodeBudget
from netmgr.limits.tree import Limited
from netmgr.model import Traffic

_WAITING_SHARE = 0.3
"""Of the looks: a pod that was held back in more of them waits."""

PodTraffic = tuple[str, str, Traffic]
"""Namespace, name and direction."""


@dataclass(frozen=True, slots=True)
class Look:
    """What had passed at a time, in seconds.

    Attributes:
        budgets: bytes, by budget.
        pods: bytes of each pod, and the budget that held it back; empty for none.
    """

    at: float
    budgets: Mapping[str, int]
    pods: Mapping[PodTraffic, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class BudgetRates:
    """Since a look: the mean rate, pods that wait, and the mean rate of the other pods."""

    rate: int = 0
    waiting: int = 0
    free: int = 0


def seen(at: float, usage: Iterable[tuple[Limited, ClassUsage]]) -> Look:
    """A look at the classes."""
    classes = {limited.key: (limited, class_usage) for limited, class_usage in usage}
    sent: dict[str, int] = {}
    pods: dict[PodTraffic, tuple[int, str]] = {}
    for limited, class_usage in classes.values():
        if limited.budget and not limited.beyond:
            sent[limited.budget] = class_usage.bytes
        elif limited.pod and not limited.beyond and not limited.is_remainder:
            pod = limited.namespace, limited.pod, Traffic(limited.traffic)
            blocking = _blocking(limited, classes) if class_usage.backlog else ""
            pods[pod] = class_usage.bytes, blocking
    return Look(at, sent, pods)


def _blocking(limited: Limited, classes: Mapping[str, tuple[Limited, ClassUsage]]) -> str:
    """The budget whose class is the innermost that may not send; empty if another class is it."""
    key = limited.key
    while key in classes:
        limited, class_usage = classes[key]
        if class_usage.is_over and not limited.is_for_turns:
            return limited.budget
        key = limited.parent
    return ""


def reckoned(
    at: float,
    namespaces: Mapping[tuple[str, Traffic], int],
    pods: Mapping[PodTraffic, int],
    held: Sequence[NodeBudget],
    former: Look | None,
) -> Look:
    """What would be seen if budgets were enforced, by the bytes of namespaces and pods.

    As well as that can be known: a pod that had no less than an equal share of a budget that had
    more than its rate.
    """
    sent: Counter[str] = Counter({budget.budget.name: 0 for budget in held})
    for (namespace, traffic), bytes_ in namespaces.items():
        for budget in budgets.around(held, namespace, traffic):
            sent[budget.budget.name] += bytes_
    now = Look(at, sent, {pod: (bytes_, "") for pod, bytes_ in pods.items()})
    if former is None:
        return now
    busy = {pod: rate for pod in pods if (rate := _pod_rate(pod, former, now))}
    paths = {pod: budgets.around(held, pod[0], pod[2]) for pod in busy}
    shares = Counter(budget.budget.name for path in paths.values() for budget in path)
    blocking: dict[PodTraffic, str] = {}
    for pod, path in paths.items():
        for budget in path:
            name = budget.budget.name
            is_over = _rate(former.budgets.get(name, 0), sent[name], now.at - former.at)
            if is_over > budget.rate and busy[pod] >= budget.rate / shares[name]:
                blocking[pod] = name
    return Look(at, sent, {pod: (bytes_, blocking.get(pod, "")) for pod, bytes_ in pods.items()})


def rates(looks: Sequence[Look], held: Sequence[NodeBudget]) -> dict[str, BudgetRates]:
    """From the first look to the last one, by budget."""
    if len(looks) < 2:  # noqa: PLR2004  a rate is between two
        return {budget.budget.name: BudgetRates() for budget in held}
    first, *following = looks
    last = following[-1]
    blocked = Counter(
        (pod, blocking) for look in following for pod, (_, blocking) in look.pods.items()
    )
    most = _WAITING_SHARE * len(following)
    waiting: Counter[str] = Counter()
    free: Counter[str] = Counter()
    for pod in last.pods:
        rate = _pod_rate(pod, first, last)
        for budget in budgets.around(held, pod[0], pod[2]):
            name = budget.budget.name
            if blocked[pod, name] > most or 0 < budget.level < rate:
                waiting[name] += 1
            else:
                free[name] += rate
    seconds = last.at - first.at
    return {
        name: BudgetRates(
            _rate(first.budgets.get(name, 0), last.budgets.get(name, 0), seconds),
            waiting[name],
            free[name],
        )
        for name in (budget.budget.name for budget in held)
    }


def _pod_rate(pod: PodTraffic, first: Look, last: Look) -> int:
    before, _ = first.pods.get(pod, (0, ""))
    return _rate(before, last.pods[pod][0], last.at - first.at)


def _rate(before: int, now: int, seconds: float) -> int:
    """Bits a second; a count that fell began again at 0."""
    return int(8 * (now - before if now >= before else now) / seconds)
