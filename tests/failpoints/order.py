"""What a process is to do at which durable step, between it and the test that started it.

One folder for a process: the test writes the order, the process the steps that it took.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from tests.failpoints.steps import Frame, Step

FOLDER = "NETMGR_FAILPOINTS"
"""Variable that names the folder to the process."""
FILE, STEPS, KILLED = "order", "steps", "killed"


class When(StrEnum):
    """Before a step nothing of it is done, after it all, and nobody was answered yet."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True)
class Order:
    """Be killed at a step: the one of this number since the order came.

    Attributes:
        site: count steps of this call site alone.
        behind: count only steps that come right after one of this call site; the first step of all
            comes after "".
        number: 0 for none.
        records: whether all steps are written down.
    """

    site: str = ""
    behind: str | None = None
    number: int = 0
    when: When = When.BEFORE
    records: bool = False

    def counts(self, site: str, former: str) -> bool:
        """Whether a step of this call site counts that comes after one of `former`."""
        return self.site in ("", site) and self.behind in (None, former)


NONE = Order()


class FailPoints:
    """The folder of one process, as the test sees it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder

    @property
    def environment(self) -> dict[str, str]:
        """What the process needs to find it."""
        return {FOLDER: str(self._folder)}

    def give(self, order: Order) -> None:
        """Give an order, which is in force from the next step on."""
        for name in (STEPS, KILLED):
            (self._folder / name).unlink(missing_ok=True)
        new = self._folder / f"{FILE}.new"
        new.write_text(json.dumps(asdict(order)))
        # A new file: its inode says that it is another order.
        new.replace(self._folder / FILE)

    def steps(self) -> list[Step]:
        """The steps that were recorded."""
        return list(_lines(self._folder / STEPS))

    def killed_at(self) -> Step | None:
        """The step at which the process was killed."""
        return next(_lines(self._folder / KILLED), None)


Pair = tuple[str, str]
"""The call sites of two adjacent steps; the beginning and the end have none."""


def cuts(steps: list[Step], known: Collection[Pair] = ()) -> dict[Pair, Order]:
    """An order for each two adjacent steps, for the beginning, and for the end unanswered.

    Where the same two sites follow each other again, one cut is enough; pairs that are `known` need
    none.
    """
    found: dict[Pair, Order] = {}
    former = ""
    for step in steps:
        found.setdefault((former, step.site), Order(step.site, former, 1))
        former = step.site
    if len(steps) > 1:
        before = steps[-2].site
        found.setdefault((former, ""), Order(former, before, 1, When.AFTER))
    return {pair: order for pair, order in found.items() if pair not in known}


def to_line(step: Step) -> bytes:
    """A step as one line of JSON."""
    return json.dumps([step.kind, step.text[:200], step.frames]).encode() + b"\n"


def version_of(path: Path) -> object:
    """Differs between two orders."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def read(path: Path) -> Order:
    """The order in force."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return NONE
    return Order(**{**found, "when": When(found["when"])})


def _lines(path: Path) -> Iterator[Step]:
    if path.exists():
        for line in path.read_text().splitlines():
            kind, text, frames = json.loads(line)
            yield Step(kind, text, tuple(Frame(*one) for one in frames))
