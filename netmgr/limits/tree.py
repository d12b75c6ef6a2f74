"""Which class of HTB a pod's traffic is in, and what each class may send.

For each direction there is a tree: classes of namespaces, and in them or beside them classes of
pods. Pods of one namespace take turns, however many connections each of them has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from netmgr.documents.limits import Limit
from netmgr.kernel.traffic_control import Shape
from netmgr.model import Attachment, PodRef, Traffic

_LEAST_BURST_BYTES = 65_536
_BURSTS = 200
"""A burst is what passes in this part of a second."""
_SHARE = 1024
"""What a pod always has of its namespace's rate, as the number of parts that the rate is divided
into. More pods than that would together exceed the rate; no kubelet takes so many."""

_LAST_NUMBER = 0xFFFE
"""Of a class; 0 is HTB itself, and 0xFFFF means "none" to some programs."""


@dataclass(frozen=True, slots=True)
class Limited:
    """A class: of a pod (`NAMESPACE/NAME`), or of a namespace, whose name has no slash."""

    name: str
    parent: str
    rate: int
    """Bits a second."""
    burst: int

    @property
    def key(self) -> str:
        """What its number is for: the kernel moves no class into another one."""
        return f"{self.parent} {self.name}"


@dataclass(frozen=True)
class Tree:
    """The classes of one direction by name, and which of them is that of a pod's link."""

    classes: dict[str, Limited]
    links: dict[str, str]


def tree(limits: Sequence[Limit], attachments: Iterable[Attachment], traffic: Traffic) -> Tree:
    """What the limits make of the pods that are there.

    Of several limits that are for a pod, or for a namespace, the lowest one is in force.
    """
    wanted = [limit for limit in limits if limit.rate(traffic) is not None]
    classes: dict[str, Limited] = {}
    links: dict[str, str] = {}
    for attachment in attachments:
        # An observer does not know every pod's link.
        found = _classes_of(attachment.pod, wanted, traffic) if attachment.host_link else []
        classes |= {limited.name: limited for limited in found}
        if found:
            links[attachment.host_link] = found[-1].name
    return Tree(classes, links)


def _classes_of(pod: PodRef, limits: Sequence[Limit], traffic: Traffic) -> list[Limited]:
    """The class of the pod's namespace and that of the pod in it, or one of them; or none."""
    matching = [limit for limit in limits if limit.covers(pod)]
    shared = _lowest(pod.namespace, [one for one in matching if one.namespaces], traffic)
    own = _lowest(str(pod), [one for one in matching if one.pods], traffic)
    if shared is None:
        return [own] if own else []
    # Its own class also without a limit of its own: pods take turns.
    own = own if own and own.rate < shared.rate else replace(shared, name=str(pod))
    return [shared, replace(own, parent=shared.name)]


def _lowest(name: str, limits: Iterable[Limit], traffic: Traffic) -> Limited | None:
    """A class with the lowest of the limits; None without any."""
    found = [
        Limited(name, "", rate, limit.burst or max(_LEAST_BURST_BYTES, rate // 8 // _BURSTS))
        for limit in limits
        if (rate := limit.rate(traffic)) is not None
    ]
    return min(found, key=lambda one: one.rate, default=None)


def numbered(trees: Iterable[Tree], known: Mapping[str, int]) -> dict[str, int]:
    """A number for each class, by its key; those that are known keep theirs.

    A number follows from the key, so that a restarted agent comes to the same ones. Where two
    would have the same number, the later one gets the next that is free.
    """
    wanted = sorted({limited.key for one in trees for limited in one.classes.values()})
    found = {key: known[key] for key in wanted if key in known}
    taken = set(found.values())
    for key in wanted:
        if key not in found:
            number = zlib.crc32(key.encode()) % _LAST_NUMBER
            while number + 1 in taken:
                number = (number + 1) % _LAST_NUMBER
            found[key] = number + 1
            taken.add(number + 1)
    return found


def shapes(one: Tree, numbers: Mapping[str, int]) -> dict[int, Shape]:
    """What the kernel is to hold, parents first."""
    found: dict[int, Shape] = {}
    for limited in sorted(one.classes.values(), key=lambda each: (bool(each.parent), each.name)):
        ceiling = limited.rate // 8
        if limited.parent:
            parent = one.classes[limited.parent]
            always = max(1, min(parent.rate // 8 // _SHARE, ceiling))
            shape = Shape(numbers[parent.key], always, ceiling, limited.burst)
        else:
            shape = Shape(0, ceiling, ceiling, limited.burst)
        found[numbers[limited.key]] = shape
    return found
