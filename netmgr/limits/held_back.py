"""What pods make of a cluster's budgets on one node, and which budget holds a pod back.

It follows from looks at HTB's classes, a second apart: a pod of which packets wait is held back by
the innermost class around them that may not send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from netmgr.api.snapshot import NamespaceTotals, PodTotals
from netmgr.kernel.traffic_control import ClassUsage
from netmgr.limits import budgets
from netmgr.limits.budgets import NodeBudget
from netmgr.limits.tree import Limited

_WAITING_SHARE = 0.3
"""Of the looks: a pod that was held back in more of them waits."""

PodTraffic = tuple[str, str, str]
"""Namespace, name and direction. Without a namespace it is what is beyond the quota of the budget
of this name, in one class for all of its pods; without a name, what is beyond a namespace's."""


@dataclass(frozen=True, slots=True)
class Look:
    """What had passed at a time, in seconds.

    Attributes:
        budgets: bytes, by budget.
        pods: bytes of each pod, and the budget that held it back; empty for none.
    """

    at: float
    budgets: dict[str, int]
    pods: dict[PodTraffic, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class BudgetRates:
    """Since a look: the mean rate, pods that wait, and the mean rate of the other pods."""

    rate: int = 0
    waiting: int = 0
    free: int = 0


def seen(at: float, usage: Iterable[tuple[Limited, ClassUsage]]) -> Look:
    """A look at the classes."""
    classes = {limited.key: (limited, class_usage) for limited, class_usage in usage}
    look = Look(at, {}, {})
    for limited, class_usage in classes.values():
        if limited.budget and not limited.beyond:
            look.budgets[limited.budget] = class_usage.bytes
        elif (limited.pod or limited.beyond) and not limited.is_remainder:
            pod = limited.namespace, limited.budget or limited.pod, limited.traffic
            # Beside a pod's own class there is one of what is beyond each of its quotas.
            before, told = look.pods.get(pod, (0, ""))
            look.pods[pod] = before + class_usage.bytes, told or _blocking(limited, classes)
    return look


def _blocking(limited: Limited, classes: Mapping[str, tuple[Limited, ClassUsage]]) -> str:
    """The budget that holds a pod back; empty if another class does, or none."""
    key = limited.key
    is_waiting = classes[key][1].backlog > 0
    while is_waiting and key in classes:
        limited, class_usage = classes[key]
        if class_usage.is_over and not limited.is_for_turns:
            return limited.budget
        key = limited.parent
    return ""


def reckoned(
    at: float,
    namespaces: Iterable[NamespaceTotals],
    pods: Iterable[PodTotals],
    held: Sequence[NodeBudget],
    former: Look | None,
) -> Look:
    """What would be seen if budgets were enforced, by what namespaces and pods have had.

    As well as that can be known: a pod is held back that had no less than an equal share of a
    budget that had more than its rate.
    """
    sent = dict.fromkeys((budget.name for budget in held), 0)
    for total in namespaces:
        for budget in budgets.around(held, total["namespace"], total["traffic"]):
            sent[budget.name] += total["bytes"]
    totals = {(pod["namespace"], pod["pod"], pod["traffic"]): (pod["bytes"], "") for pod in pods}
    look = Look(at, sent, totals)
    members = _members(held, look)
    for budget in held if former else ():
        _hold_back(budget, members[budget.name], former or look, look)
    return look


def _hold_back(budget: NodeBudget, pods: Iterable[PodTraffic], former: Look, look: Look) -> None:
    rates = {pod: _pod_rate(pod, former, look) for pod in pods}
    busy = sum(rate > 0 for rate in rates.values())
    is_over = _budget_rate(budget, former, look) > budget.rate
    for pod, rate in rates.items():
        if is_over and rate * busy >= budget.rate:
            look.pods[pod] = look.pods[pod][0], budget.name


def throttled(look: Look, seconds: float) -> Counter[tuple[str, str]]:
    """Milliseconds that pods were held back in these seconds, by namespace and budget."""
    many = Counter(
        (namespace, name)
        for (namespace, _, _), (_, name) in look.pods.items()
        if name and namespace
    )
    return Counter({key: int(pods * seconds * 1000) for key, pods in many.items()})


def rates(looks: Sequence[Look], held: Sequence[NodeBudget]) -> dict[str, BudgetRates]:
    """From the first look to the last one, by budget."""
    if not looks:
        return {budget.name: BudgetRates() for budget in held}
    members = _members(held, looks[-1])
    return {budget.name: _rates(budget, looks, members[budget.name]) for budget in held}


def _rates(budget: NodeBudget, looks: Sequence[Look], pods: Iterable[PodTraffic]) -> BudgetRates:
    first, *following = looks
    total, waiting, free = _budget_rate(budget, first, looks[-1]), 0, 0
    for pod in pods:
        rate = _pod_rate(pod, first, looks[-1])
        if pod[:2] == ("", budget.name) and budget.budget.slow:
            # The node has as large a share of the slow rate as of the budget's: it wants that.
            wanted = min(budget.budget.rate, rate * budget.budget.rate // budget.budget.slow)
            total, rate = total + wanted - rate, wanted
        blocked = sum(look.pods.get(pod, (0, ""))[1] == budget.name for look in following)
        if blocked > _WAITING_SHARE * len(following) or 0 < budget.level < rate:
            waiting += 1
        else:
            free += rate
    return BudgetRates(total, waiting, free)


def _members(held: Sequence[NodeBudget], look: Look) -> dict[str, list[PodTraffic]]:
    """The pods that are in each budget."""
    # Of many pods of one namespace, whose patterns are compared once.
    paths = {group: _path(held, *group) for group in set(map(_group, look.pods))}
    members: dict[str, list[PodTraffic]] = {budget.name: [] for budget in held}
    for pod in look.pods:
        for budget in paths[_group(pod)]:
            members[budget.name].append(pod)
    return members


def _group(pod: PodTraffic) -> PodTraffic:
    namespace, name, traffic = pod
    return namespace, "" if namespace else name, traffic


def _path(
    held: Sequence[NodeBudget], namespace: str, budget: str, traffic: str
) -> list[NodeBudget]:
    return budgets.around(held, namespace, traffic) if namespace else budgets.path(held, budget)


def _pod_rate(pod: PodTraffic, first: Look, last: Look) -> int:
    before, _ = first.pods.get(pod, (0, ""))
    return _rate(before, last.pods[pod][0], last.at - first.at)


def _budget_rate(budget: NodeBudget, first: Look, last: Look) -> int:
    before, now = (look.budgets.get(budget.name, 0) for look in (first, last))
    return _rate(before, now, last.at - first.at)


def _rate(before: int, now: int, seconds: float) -> int:
    """Bits a second; a count that fell began again at 0."""
    passed = now - before if now >= before else now
    return int(8 * passed / seconds) if seconds > 0 else 0
