"""Which class of HTB a pod's traffic is in, and what each class may send.

For each direction there is a tree: classes of namespaces, and in them or beside them classes of
pods. Pods of one namespace take turns, however many connections each of them has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from netmgr.documents.limits import Limit
from netmgr.kernel.traffic_control import Shape
from netmgr.model import Attachment, Traffic

_LEAST_BURST_BYTES = 65_536
_BURST_SECONDS = 0.005
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
    classes: dict[str, Limited] = {}
    links: dict[str, str] = {}
    wanted = [(limit, rate) for limit in limits if (rate := limit.rate(traffic)) is not None]
    for attachment in attachments:
        if not attachment.host_link:
            continue
        pod = attachment.pod
        matching = [(limit, rate) for limit, rate in wanted if limit.covers(pod)]
        if not matching:
            continue
        shared = _lowest(pod.namespace, "", [one for one in matching if one[0].namespaces])
        own = _lowest(str(pod), "", [one for one in matching if one[0].pods])
        if shared is not None:
            classes[shared.name] = shared
            own = Limited(
                str(pod),
                shared.name,
                min(own.rate, shared.rate) if own else shared.rate,
                own.burst if own else shared.burst,
            )
        if own is not None:
            classes[own.name] = own
            links[attachment.host_link] = own.name
    return Tree(classes, links)


def _lowest(name: str, parent: str, matching: list[tuple[Limit, int]]) -> Limited | None:
    if not matching:
        return None
    limit, rate = min(matching, key=lambda one: one[1])
    burst = limit.burst or max(_LEAST_BURST_BYTES, int(rate / 8 * _BURST_SECONDS))
    return Limited(name, parent, rate, burst)


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
