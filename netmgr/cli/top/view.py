"""Which rows of a reading are shown, in which order, and how keys change that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from netmgr.cli.top.rates import Reading, Row


class Sort(StrEnum):
    """What rows are sorted by: most first, names by the alphabet."""

    TOTAL = "total"
    IN = "in"
    OUT = "out"
    CONNECTIONS = "connections"
    NAME = "name"


class Group(StrEnum):
    """Of whom there are rows: every pod, every namespace, or both."""

    POD = "pod"
    NAMESPACE = "namespace"
    BOTH = "both"


_ORDER: Mapping[Sort, Callable[[Row], float]] = {
    Sort.TOTAL: lambda row: -row.total,
    Sort.IN: lambda row: -row.received,
    Sort.OUT: lambda row: -row.sent,
    Sort.CONNECTIONS: lambda row: 1 if row.connections is None else -row.connections,
    Sort.NAME: lambda _row: 0,
}
SORT_KEYS = {"t": Sort.TOTAL, "i": Sort.IN, "o": Sort.OUT, "c": Sort.CONNECTIONS, "n": Sort.NAME}

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
ESCAPE, ENTER, BACKSPACE = "escape", "enter", "backspace"
"""Keys without a letter, as `terminal.py` names them."""


@dataclass(frozen=True, slots=True)
class View:
    """What the user chose.

    Attributes:
        pattern: a regular expression that `namespace/pod` has to contain; empty shows all.
        typed: the pattern while it is being typed, or None.
        first: number of the first row on the screen.
    """

    sort: Sort = Sort.TOTAL
    group: Group = Group.POD
    pattern: str = ""
    typed: str | None = None
    first: int = 0
    is_paused: bool = False
    is_helping: bool = False
    is_ended: bool = False

    def pressed(self, key: str, page: int) -> View:
        """The view after a key; `page` is how many rows fit on the screen."""
        if self.typed is not None:
            return self._typing(self.typed, key)
        if self.is_helping:
            return replace(self, is_helping=False)
        if key in SORT_KEYS:
            return replace(self, sort=SORT_KEYS[key], first=0)
        if key in _CHANGES:
            return _CHANGES[key](self)
        steps = {UP: -1, DOWN: 1, PAGE_UP: -page, PAGE_DOWN: page, HOME: -self.first, END: 1 << 30}
        return replace(self, first=max(0, self.first + steps.get(key, 0)))

    def _typing(self, typed: str, key: str) -> View:
        if key == ENTER:
            return replace(self, typed=None)
        if key == ESCAPE:
            return replace(self, typed=None, pattern="")
        typed = typed[:-1] if key == BACKSPACE else typed + key * (len(key) == 1)
        # The rows follow what is typed so far.
        return replace(self, typed=typed, pattern=typed, first=0)

    def scrolled(self, rows: int, page: int) -> View:
        """The view with its last row no higher on the screen than it has to be."""
        return replace(self, first=max(0, min(self.first, rows - page)))


_CHANGES: Mapping[str, Callable[[View], View]] = {
    "q": lambda view: replace(view, is_ended=True),
    "g": lambda view: replace(view, group=_next(view.group), first=0),
    "/": lambda view: replace(view, typed=view.pattern),
    ESCAPE: lambda view: replace(view, pattern="", first=0),
    " ": lambda view: replace(view, is_paused=not view.is_paused),
    "?": lambda view: replace(view, is_helping=True),
}


def _next(group: Group) -> Group:
    groups = list(Group)
    return groups[(groups.index(group) + 1) % len(groups)]


def rows(reading: Reading, view: View) -> list[Row]:
    """The rows to show, in order; with both, each namespace comes before its pods."""
    pods = _sorted(_matching(reading.pods, view.pattern), view.sort)
    if view.group is Group.POD:
        return pods
    namespaces = _sorted(_of_pods(reading.namespaces, pods), view.sort)
    if view.group is Group.NAMESPACE:
        return namespaces
    inside: dict[str, list[Row]] = {}
    for pod in pods:
        inside.setdefault(pod.name[0], []).append(pod)
    return [row for one in namespaces for row in (one, *inside[one.name[0]])]


def _of_pods(namespaces: Iterable[Row], pods: Iterable[Row]) -> Iterator[Row]:
    shown = {pod.name[0] for pod in pods}
    return (row for row in namespaces if row.name[0] in shown)


def _sorted(found: Iterable[Row], sort: Sort) -> list[Row]:
    return sorted(found, key=lambda row: (_ORDER[sort](row), row.name))


def _matching(found: Iterable[Row], pattern: str) -> list[Row]:
    search = compiled(pattern).search
    return [row for row in found if search("/".join(row.name))]


def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, or its letters as they are while it is no regular expression yet."""
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error:
        return re.compile(re.escape(pattern), re.IGNORECASE)
