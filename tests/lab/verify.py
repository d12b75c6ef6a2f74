"""Compares every probe of the matrix with the design, and drops with their counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from netmgr.kernel import conntrack
from netmgr.prefixes import Address
from tests.lab import comparison, matrix, probing, wiring
from tests.lab.probing import Outcome
from tests.lab.world import World
from tests.waiting import PATIENCE

_CONNECTIONS = Path("/proc/thread-self/net/nf_conntrack")
_HALF = ("[UNREPLIED]", " SYN_SENT ", " SYN_RECV ")


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """What one isolation counter is about: a machine, and an ordered pair of sites."""

    machine: str
    origin: str
    destination: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the matrix, in all protocols and families."""

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
    rows: tuple[Row, ...]
    drops: tuple[Drops, ...]
    half_open: tuple[HalfOpen, ...] = ()

    @property
    def agrees(self) -> bool:
        counts = all(each.sent == each.counted for each in self.drops)
        return counts and not self.half_open and all(row.agrees for row in self.rows)

    @property
    def probes(self) -> int:
        return sum(row.probes for row in self.rows)


def verify(world: World) -> Verification:
    # Counters are never reset, and connections of earlier runs are still in the table: both are
    # compared as differences.
    before, halves = dropped(world), set(half_open(world))
    outcomes = probing.send(matrix.probes(world))
    sent = _sent(outcomes)
    # Zeros are left out of both sides (`+`), because subtracting Counters leaves them out.
    after = comparison.wait_for(lambda: dropped(world) - before, +sent, PATIENCE)
    drops = tuple(Drops(pair, sent[pair], after[pair]) for pair in sorted(before | sent))
    return Verification(
        tuple(_rows(outcomes, matrix.names(world), drops)),
        drops,
        tuple(sorted(set(half_open(world)) - halves)),
    )


def half_open(world: World) -> Iterator[HalfOpen]:
    """Connections of which a machine saw one direction alone: their answers bypass it.

    A translation would not be undone, and such entries pile up.
    """
    for machine in matrix.machines(world):
        yield from (HalfOpen(machine.name, line) for line in _half_open_in(machine.namespace))


def tracked(namespace: Path) -> int:
    """How many connections are tracked in the namespace pinned at `namespace`."""
    # Not counted in the list: all namespaces share one table, and while connections of others end,
    # a reader of it misses some.
    with wiring.inside(namespace):
        occupancy = conntrack.occupancy()
    return occupancy.connections if occupancy else 0


def _half_open_in(namespace: Path) -> list[str]:
    """Protocol, state, and the addresses and ports of both directions of each."""
    with wiring.inside(namespace):
        listed = _CONNECTIONS.read_text(encoding="ascii") if _CONNECTIONS.exists() else ""
    found = (line for line in listed.splitlines() if any(mark in line for mark in _HALF))
    return [_without_what_changes(line) for line in found]


def _without_what_changes(line: str) -> str:
    """A line without its timeout, and without what follows the ports."""
    before, _, after = line.partition(" src=")
    # The timeout counts down, and would make one connection look like two.
    words = [word for word in before.split()[2:] if not word.isdigit()]
    return f"{' '.join(words)} src={after.partition(' mark=')[0]}"


def dropped(world: World) -> Counter[Pair]:
    """Packets each machine has dropped from site to site, as its agent reports them."""
    found: Counter[Pair] = Counter()
    for machine in matrix.machines(world):
        for each in machine.snapshot().get("isolation", ()):
            found[Pair(machine.name, each["origin"], each["destination"])] = each["packets"]
    return found


def _sent(outcomes: Iterable[Outcome]) -> Counter[Pair]:
    """What each machine should have dropped: all that its node and pods sent to other spokes."""
    sent: Counter[Pair] = Counter()
    for outcome in outcomes:
        probe = outcome.probe
        # What should not arrive is dropped on the machine of its origin, which counts every packet
        # of it.
        if probe.expected_source is None:
            sent[Pair(probe.origin.machine, probe.origin.site, probe.site)] += outcome.packets
    return sent


def _rows(
    outcomes: Sequence[Outcome], names: dict[Address, str], drops: Iterable[Drops]
) -> Iterable[Row]:
    miscounted = {each.pair for each in drops if each.sent != each.counted}
    cells: dict[tuple[str, str, matrix.Target], list[Outcome]] = {}
    for outcome in outcomes:
        probe = outcome.probe
        cells.setdefault((probe.origin.name, probe.site, probe.kind), []).append(outcome)
    described = [(key, _describe(found, names, miscounted), found) for key, found in cells.items()]
    for ((origin, site), texts), group in groupby(
        described, key=lambda each: (each[0][:2], each[1])
    ):
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


def _describe(
    outcomes: Sequence[Outcome], names: dict[Address, str], miscounted: set[Pair]
) -> tuple[str, str]:
    expected = Counter(_wanted(each, names) for each in outcomes)
    happened = Counter(_became(each, names, miscounted) for each in outcomes)
    return _text(expected), _text(happened)


def _wanted(outcome: Outcome, names: dict[Address, str]) -> str:
    source = outcome.probe.expected_source
    return f"as {names.get(source, str(source))}" if source else "dropped, counted"


def _became(outcome: Outcome, names: dict[Address, str], miscounted: set[Pair]) -> str:
    probe, source = outcome.probe, outcome.source
    if source is not None:
        lost = "" if outcome.answered else ", no answer came back"
        return f"as {names.get(source, str(source))}{lost}"
    if probe.expected_source is not None:
        return f"nothing arrived{f' ({outcome.error})' if outcome.error else ''}"
    wrong = Pair(probe.origin.machine, probe.origin.site, probe.site) in miscounted
    return "dropped, miscounted" if wrong else "dropped, counted"


def _text(found: Counter[str]) -> str:
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(
        f"{number} of {found.total()} {text}" for text, number in sorted(found.items())
    )


def result(found: Verification) -> str:
    """The whole in one line."""
    if found.agrees:
        packets = sum(each.counted for each in found.drops)
        return (
            f"All {found.probes} probes as expected; "
            f"{packets} packets between spokes dropped and counted."
        )
    wrong = sum(not row.agrees for row in found.rows)
    counters = sum(each.sent != each.counted for each in found.drops)
    halves = f" {len(found.half_open)} connections are half-open." if found.half_open else ""
    return (
        f"{wrong} of {len(found.rows)} lines and {counters} counters are not as expected.{halves}"
    )
