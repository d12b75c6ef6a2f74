"""Holds what happened to every probe of the matrix against what the design says, drops against their counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from netmgr.lab import counted, matrix, probing, tracked
from netmgr.lab.probing import Outcome
from netmgr.lab.world import World
from netmgr.prefixes import Address

PATIENCE = 3.0
"""Seconds in which a counter that runs behind catches up."""


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """What one isolation counter is about: a machine, and an ordered pair of sites."""

    machine: str
    origin: str
    destination: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the matrix: from whom to what of which site; `probes` in all protocols and families."""

    origin: str
    origin_site: str
    site: str
    kinds: tuple[matrix.Target, ...]
    expected: str
    happened: str
    probes: int
    agrees: bool


@dataclass(frozen=True, slots=True)
class Drops:
    """One isolation counter: how many packets it should have risen by, and how many it did."""

    pair: Pair
    sent: int
    counted: int


@dataclass(frozen=True, slots=True, order=True)
class HalfOpen:
    """A connection of which a machine saw one direction alone."""

    machine: str
    connection: str


@dataclass(frozen=True, slots=True)
class Verification:
    """All of it."""

    rows: tuple[Row, ...]
    drops: tuple[Drops, ...]
    half_open: tuple[HalfOpen, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether everything is as the design says."""
        counts = all(each.sent == each.counted for each in self.drops)
        return counts and not self.half_open and all(row.agrees for row in self.rows)

    @property
    def probes(self) -> int:
        """How many probes were sent."""
        return sum(row.probes for row in self.rows)


def verify(world: World) -> Verification:
    """Send every probe and compare.

    Raises:
        LabError: a probe could not be sent at all, or an agent does not answer.
    """
    before, halves = dropped(world), set(half_open(world))
    outcomes = probing.send(matrix.probes(world))
    sent = _sent(outcomes)
    after = counted.wait_for(lambda: _risen(before, dropped(world)), +sent, PATIENCE)
    drops = tuple(Drops(pair, sent[pair], after[pair]) for pair in sorted(before | sent))
    return Verification(
        tuple(_rows(outcomes, matrix.names(world), drops)), drops, tuple(sorted(set(half_open(world)) - halves))
    )


def half_open(world: World) -> Iterator[HalfOpen]:
    """What should not be there on any machine: answers take the way of what they answer."""
    for machine in matrix.machines(world):
        yield from (HalfOpen(machine.name, line) for line in tracked.half_open(machine.namespace))


def dropped(world: World) -> Counter[Pair]:
    """Packets each machine has dropped from site to site, as its agent tells."""
    return Counter(
        {
            Pair(machine.name, each["origin"], each["destination"]): each["packets"]
            for machine in matrix.machines(world)
            for each in machine.snapshot().get("isolation", ())
        }
    )


def _risen(before: Counter[Pair], after: Counter[Pair]) -> Counter[Pair]:
    return after - before


def _sent(outcomes: Iterable[Outcome]) -> Counter[Pair]:
    """What each machine should have dropped: everything its own node and pods sent to other spokes."""
    sent: Counter[Pair] = Counter()
    for outcome in outcomes:
        probe = outcome.probe
        if probe.seen is None:
            sent[Pair(probe.origin.machine, probe.origin.site, probe.site)] += outcome.packets
    return sent


def _rows(outcomes: Sequence[Outcome], names: dict[Address, str], drops: Iterable[Drops]) -> Iterable[Row]:
    miscounted = {each.pair for each in drops if each.sent != each.counted}
    cells: dict[tuple[str, str, matrix.Target], list[Outcome]] = {}
    for outcome in outcomes:
        probe = outcome.probe
        cells.setdefault((probe.origin.name, probe.site, probe.kind), []).append(outcome)
    told = [(key, _tell(found, names, miscounted), found) for key, found in cells.items()]
    for ((origin, site), texts), group in groupby(told, key=lambda each: (each[0][:2], each[1])):
        members = list(group)
        found = [outcome for _, _, each in members for outcome in each]
        yield Row(
            origin,
            found[0].probe.origin.site,
            site,
            kinds=tuple(sorted((key[2] for key, _, _ in members), key=list(matrix.Target).index)),
            expected=texts[0],
            happened=texts[1],
            probes=len(found),
            agrees=texts[0] == texts[1],
        )


def _tell(outcomes: Sequence[Outcome], names: dict[Address, str], miscounted: set[Pair]) -> tuple[str, str]:
    expected = Counter(_wanted(each, names) for each in outcomes)
    happened = Counter(_became(each, names, miscounted) for each in outcomes)
    return _text(expected), _text(happened)


def _wanted(outcome: Outcome, names: dict[Address, str]) -> str:
    seen = outcome.probe.seen
    return f"as {names.get(seen, str(seen))}" if seen else "dropped, counted"


def _became(outcome: Outcome, names: dict[Address, str], miscounted: set[Pair]) -> str:
    probe, seen = outcome.probe, outcome.seen
    if seen is not None:
        lost = "" if outcome.answered else ", no answer came back"
        return f"as {names.get(seen, str(seen))}{lost}"
    if probe.seen is not None:
        return f"nothing arrived{f' ({outcome.error})' if outcome.error else ''}"
    wrong = Pair(probe.origin.machine, probe.origin.site, probe.site) in miscounted
    return "dropped, miscounted" if wrong else "dropped, counted"


def _text(found: Counter[str]) -> str:
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{number} of {found.total()} {text}" for text, number in sorted(found.items()))


def document(found: Verification) -> dict[str, Any]:
    """The same for programs."""
    return {
        "agrees": found.agrees,
        "probes": found.probes,
        "matrix": [
            {
                "from": row.origin,
                "from_site": row.origin_site,
                "to_site": row.site,
                "to": list(row.kinds),
                "expected": row.expected,
                "happened": row.happened,
                "probes": row.probes,
                "agrees": row.agrees,
            }
            for row in found.rows
        ],
        "dropped": [
            {
                "machine": each.pair.machine,
                "from": each.pair.origin,
                "to": each.pair.destination,
                "sent": each.sent,
                "counted": each.counted,
            }
            for each in found.drops
        ],
        "half_open": [{"machine": each.machine, "connection": each.connection} for each in found.half_open],
    }
