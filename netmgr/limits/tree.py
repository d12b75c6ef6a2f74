"""Which class of HTB a pod's traffic is in, and what each class may send.

For each direction there is a tree: classes of namespaces, and in them or beside them classes of
pods. Pods of one namespace take turns, however many connections each of them has. Around them are
the cluster's budgets, whose rates change every few seconds, and whose pods take turns, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from netmgr.documents.limits import Limit
from netmgr.kernel.traffic_control import Shape
from netmgr.limits import budgets, quotas
from netmgr.limits.budgets import NodeBudget
from netmgr.limits.quotas import NodeQuota
from netmgr.model import ALL_IN, ALL_OUT, Attachment, Traffic

_LEAST_BURST_BYTES = 65_536
# A burst is what passes in this part of a second.
_BURSTS = 200
# What a pod always has of its namespace's rate, as the number of parts that the rate is divided
# into. More pods than that would together exceed the rate; no kubelet takes so many.
_SHARE = 1024

_Rate = tuple[int, int]
"""Bits a second, and the burst in bytes."""

# Of a class, and of its queue's handle: 0 is HTB itself, 1 is HTB's handle, and 0xFFFF means "none"
# to some programs.
_NUMBERS = range(2, 0xFFFF)


@dataclass(frozen=True, slots=True)
class Limited:
    """A class of HTB.

    Attributes:
        pod: whose it is; empty for a namespace's, and both for a budget's.
        traffic: what is in it; the value of a `Traffic`, `ALL_IN` or `ALL_OUT`.
        parent: the key of the class that it is in; empty for none.
        rate: bits a second; the burst is in bytes.
        is_remainder: it has all that is not in the pod's class for the internet.
        beyond: the period of a quota; it has what is beyond that.
        budget: name of the cluster's budget that it is of.
        is_for_turns: it is there only because its pod takes turns with others of a budget.
    """

    namespace: str
    pod: str
    traffic: str
    parent: str
    rate: int
    burst: int
    is_remainder: bool = False
    beyond: str = ""
    budget: str = ""
    is_for_turns: bool = False

    @property
    def key(self) -> str:
        """What its number is for. The kernel moves no class into another one."""
        kind = "rest" if self.is_remainder else self.traffic
        # No name of a budget has a slash.
        owner = self.budget or f"{self.namespace}/{self.pod}"
        return f"{self.parent}>{owner}:{kind}{self.beyond}"

    @property
    def is_shown(self) -> bool:
        """Whether its figures are those of a pod's or a namespace's limit."""
        return not (self.is_remainder or self.beyond or self.budget or self.is_for_turns)


class LinkClasses(NamedTuple):
    """The keys of the classes of a link's packets; without one, they pass at once.

    `classes` are keys by classes of traffic. `charges` are quotas of internet packets, and keys of
    the classes of what is beyond each.
    """

    internet: str
    rest: str = ""
    classes: tuple[tuple[str, str], ...] = ()
    charges: tuple[tuple[NodeQuota, str], ...] = ()


@dataclass(frozen=True)
class Tree:
    """The classes of one direction by key, and what leads from pods' links to them."""

    classes: dict[str, Limited]
    links: dict[str, LinkClasses]

    def joined(self, other: Tree) -> Tree:
        """With the classes and links of another, which decides where both have one."""
        return Tree(self.classes | other.classes, self.links | other.links)


def tree(
    limits: Sequence[Limit],
    attachments: Iterable[Attachment],
    traffic: Traffic,
    now: float,
    held: Sequence[NodeBudget] = (),
) -> Tree:
    """The classes for these pods, by the limits, by what the pods brought along and by budgets.

    Of several limits that are for a pod, or for a namespace, the lowest one is in force.
    """
    classes: dict[str, Limited] = {}
    links: dict[str, LinkClasses] = {}
    for attachment in attachments:
        # An observer does not know every pod's link.
        if attachment.host_link:
            path = budgets.around(held, attachment.pod.namespace, traffic)
            pod_classes, target = _charged(attachment, limits, traffic, now, path)
            classes |= {limited.key: limited for limited in pod_classes}
            if target:
                links[attachment.host_link] = target
    return Tree(classes, links)


def _charged(
    attachment: Attachment,
    limits: Sequence[Limit],
    traffic: Traffic,
    now: float,
    path: Sequence[NodeBudget],
) -> tuple[list[Limited], LinkClasses | None]:
    """As `_of_pod`, with the pod's quotas and the classes of what is beyond them."""
    classes, target = _of_pod(attachment, limits, traffic, path)
    # The outermost budget decides last. What drops stays before what is slow.
    charged = [
        *quotas.of_pod(attachment.pod, limits, traffic, now),
        *filter(None, (budget.quota for budget in reversed(path))),
    ]
    charged.sort(key=lambda quota: quota.slow > 0)
    if not charged:
        return classes, target
    target = target or LinkClasses("")
    # Beside the pod's class, so that the namespace's limit holds for this as well. What is beyond a
    # budget's its pods share.
    parent = next((limited.parent for limited in classes if limited.key == target.internet), "")
    parents = {"": parent} | {limited.budget: limited.key for limited in classes if limited.budget}
    slow = {quota: _beyond(quota, parents[quota.budget]) for quota in charged if quota.slow}
    keys = {quota: limited.key for quota, limited in slow.items()}
    charges = tuple((quota, keys.get(quota, "")) for quota in charged)
    return [*classes, *slow.values()], target._replace(charges=charges)


def _beyond(quota: NodeQuota, parent: str) -> Limited:
    """The class of what is beyond a quota."""
    rate = _rate(quota.slow)
    pod, traffic = (quota.namespace, quota.pod), quota.traffic
    return Limited(*pod, traffic, parent, *rate, beyond=quota.period, budget=quota.budget)


def _of_pod(
    attachment: Attachment, limits: Sequence[Limit], traffic: Traffic, path: Sequence[NodeBudget]
) -> tuple[list[Limited], LinkClasses | None]:
    """A pod's classes and its namespace's, parents first, and where its packets go."""
    every = _whole(traffic)
    whole = min(_brought(attachment, every), default=None)
    pod = attachment.pod.namespace, attachment.pod.name
    classes = [Limited(*pod, every, "", *whole)] if whole else []
    around = classes[0].key if classes else ""
    leads: dict[str, str] = {}
    paths = {traffic: path}
    for kind in (traffic, *_classes(limits, traffic)):
        made = _of_kind(attachment, limits, kind, around, paths.get(kind, ()))
        classes += made
        if made:
            leads[kind] = made[-1].key
    rest = around
    # No packet waits in a class that has others in it (htb_classify), so the rest needs one, too.
    if whole and any(limited.parent == around for limited in classes):
        classes.append(Limited(*pod, every, around, *whole, is_remainder=True))
        rest = classes[-1].key
    # With a limit of all traffic, internet traffic without one of its own is in the rest.
    internet = leads.pop(traffic, rest)
    if not classes:
        return [], None
    return classes, LinkClasses(internet, rest, tuple(leads.items()))


def _classes(limits: Sequence[Limit], traffic: Traffic) -> list[Traffic]:
    """The classes of traffic that have limits, in one direction."""
    named = dict.fromkeys(name for limit in limits for name in limit.classes)
    return [kind for kind in map(Traffic, named) if kind.is_inward is traffic.is_inward]


def _of_kind(
    attachment: Attachment,
    limits: Sequence[Limit],
    kind: Traffic,
    around: str,
    path: Sequence[NodeBudget],
) -> list[Limited]:
    """The pod's class for one kind of traffic, behind those of its budgets and its namespace.

    What is in any of these is not in `around`, the class of all of the pod's traffic.
    """
    pod = attachment.pod
    matching = [limit for limit in limits if limit.covers(pod)]
    shared = sorted(_rates([limit for limit in matching if limit.namespaces], kind))[:1]
    own = [*_rates([limit for limit in matching if limit.pods], kind), *_brought(attachment, kind)]
    if not (own or shared or path):
        return []
    classes: list[Limited] = []
    for budget in path:
        rate = _rate(budget.rate)
        classes.append(Limited("", "", kind, _innermost(classes), *rate, budget=budget.name))
    for rate in shared:
        classes.append(Limited(pod.namespace, "", kind, _innermost(classes), *rate))
    rates = [*own, *shared, *_brought(attachment, _whole(kind))]
    # Also without a limit of its own a pod has a class in these: pods take turns. In a budget not
    # at the rate in force, with which the classes of all its pods would have to change.
    least = min([*rates, *(_rate(budget.budget.rate) for budget in path)])
    parent = _innermost(classes) or around
    limited = Limited(pod.namespace, pod.name, kind, parent, *least, is_for_turns=not rates)
    return [*classes, limited]


def _whole(kind: Traffic) -> str:
    return ALL_IN if kind.is_inward else ALL_OUT


def _innermost(classes: Sequence[Limited]) -> str:
    return classes[-1].key if classes else ""


def _rates(limits: Iterable[Limit], traffic: Traffic) -> list[_Rate]:
    rates_and_bursts = [(limit.rate(traffic), limit.burst) for limit in limits]
    return [_rate(rate, burst) for rate, burst in rates_and_bursts if rate is not None]


def _brought(attachment: Attachment, traffic: str) -> list[_Rate]:
    return [_rate(rate) for kind, rate in attachment.rates if kind == traffic]


def _rate(rate: int, burst: int | None = None) -> _Rate:
    return rate, burst or max(_LEAST_BURST_BYTES, rate // 8 // _BURSTS)


def numbered(trees: Iterable[Tree], known: Mapping[str, int]) -> dict[str, int]:
    """A number for each class, by its key; those that are known keep theirs."""
    wanted = sorted({key for class_tree in trees for key in class_tree.classes})
    numbers = {key: known[key] for key in wanted if key in known}
    # Also of those that are known and not wanted: they are removed later.
    taken = set(known.values())
    for key in wanted:
        if key not in numbers:
            # By the key, so that a restarted agent comes to the same ones. Not by `hash`, which
            # differs from one process to the next.
            position = zlib.crc32(key.encode()) % len(_NUMBERS)
            while _NUMBERS[position] in taken:
                position = (position + 1) % len(_NUMBERS)
            numbers[key] = _NUMBERS[position]
            taken.add(numbers[key])
    return numbers


def retuned(class_tree: Tree, held: Sequence[NodeBudget]) -> dict[str, Limited]:
    """Budgets' classes that have another rate now."""
    rates = {(budget.name, ""): budget.rate for budget in held}
    quotas_of = (budget.quota for budget in held)
    rates |= {(quota.budget, quota.period): quota.slow for quota in quotas_of if quota}
    changed = {
        key: replace(limited, rate=rate, burst=_rate(rate)[1])
        for key, limited in class_tree.classes.items()
        if (rate := rates.get((limited.budget, limited.beyond)))
    }
    return {key: limited for key, limited in changed.items() if limited != class_tree.classes[key]}


def shapes(class_tree: Tree, numbers: Mapping[str, int]) -> dict[int, Shape]:
    """What the kernel is to hold, parents first."""
    # The key of a class begins with that of the one that it is in.
    return {
        numbers[key]: shape(class_tree, limited, numbers)
        for key, limited in sorted(class_tree.classes.items())
    }


def shape(class_tree: Tree, limited: Limited, numbers: Mapping[str, int]) -> Shape:
    ceiling = limited.rate // 8
    if not limited.parent:
        return Shape(0, ceiling, ceiling, limited.burst)
    above = class_tree.classes[limited.parent]
    # A class always has its rate, whatever is left of those around it; so none in a budget has one.
    is_in_budget = above.budget or (above.parent and class_tree.classes[above.parent].budget)
    shared = 0 if is_in_budget else above.rate // 8 // _SHARE
    # The kernel refuses a rate of 0 (htb_change_class).
    always = max(1, min(shared, ceiling))
    return Shape(numbers[limited.parent], always, ceiling, limited.burst)
