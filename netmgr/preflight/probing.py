"""Measures the ways to other machines: whether they answer, to which source, how large, how often.

Machines answer with their kernels: nothing has to run there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from netmgr.documents.preflight import Endpoint
from netmgr.prefixes import Address
from netmgr.preflight import echo, tcp
from netmgr.preflight.echo import SMALL, Echo
from netmgr.preflight.results import Answers, PathMtu
from netmgr.preflight.tcp import Attempt

# Of an echo that decides by itself: a lost packet is no missing route.
TRIES = 3

# For loss, to each machine. All nodes that start together may have the same few peers.
ECHOES, APART_SECONDS = 100, 0.02

SIZES = 16
"""That are tried at once to find out what a path carries."""

# Between large packets, whose answers would not all fit a socket's buffer.
_APART_SECONDS = 0.001

Way = tuple[Address, Address | None]
"""From a source (None: whatever the kernel chooses) to a machine, which comes first."""


class Bounds(NamedTuple):
    """The largest size, in bytes, that is known to pass, and the smallest that is lost."""

    passes: int
    lost: int

    @property
    def differ(self) -> bool:
        return self.lost - self.passes > 1

    def between(self) -> list[int]:
        """Some of these sizes, evenly apart."""
        apart = max(1, (self.lost - self.passes) // (SIZES + 1))
        return list(range(self.passes + apart, self.lost, apart))[:SIZES]

    def narrowed(self, tried: Iterable[int], answered: Collection[int]) -> Bounds:
        """What is known after some sizes were tried, of which these were answered."""
        passes = max([self.passes, *answered])
        return Bounds(passes, min([self.lost, *(size for size in tried if size > passes)]))


@dataclass(frozen=True, slots=True)
class Prober:
    port: int
    """Of TCP, for machines that answer no echo."""
    seconds: float
    """How long an answer is waited for."""

    def answers(self, machines: Iterable[Address]) -> Answers:
        """Which machines answer to this one's own address."""
        asked = set(machines)
        by_echo = {machine for machine, _ in self._echoed({(target, None) for target in asked})}
        rest: set[Way] = {(machine, None) for machine in asked - by_echo}
        return Answers(by_echo, {machine for machine, _ in self._connected(rest)})

    def returned(self, ways: Iterable[Way], answers: Answers) -> set[Way]:
        """The ways by which an answer comes back to the source."""
        asked = set(ways)
        by_echo = {way for way in asked if way[0] in answers.by_echo}
        return self._echoed(by_echo) | self._connected(asked - by_echo)

    def _echoed(self, ways: Iterable[Way]) -> set[Way]:
        missing, back = list(ways), set[Way]()
        for _ in range(TRIES):
            echoes = [Echo(target, source=source) for target, source in missing]
            answers = echo.exchange(echoes, self.seconds / TRIES)
            back |= {way for way, answer in zip(missing, answers, strict=True) if answer.is_back}
            missing = [way for way in missing if way not in back]
        return back

    def _connected(self, ways: Iterable[Way]) -> set[Way]:
        asked = list(ways)
        attempts = [Attempt(Endpoint(machine, self.port), source) for machine, source in asked]
        endings = tcp.connect(attempts, self.seconds)
        return {way for way, ending in zip(asked, endings, strict=True) if ending.is_answered}

    def path_mtus(self, machines: Iterable[Address], mtu: int) -> dict[Address, PathMtu]:
        """What the paths to machines that answer echoes carry, `mtu` bytes at most."""
        asked = list(machines)
        whole = self._sized({machine: [mtu] for machine in asked})
        mtus = {
            machine: PathMtu(mtu, answered[mtu]) for machine, answered in whole.items() if answered
        }
        bounds = {machine: Bounds(SMALL, mtu) for machine in asked if machine not in mtus}
        while tried := {
            machine: bound.between() for machine, bound in bounds.items() if bound.differ
        }:
            for machine, answered in self._sized(tried).items():
                bounds[machine] = bounds[machine].narrowed(tried[machine], answered)
        return mtus | {machine: PathMtu(bound.passes) for machine, bound in bounds.items()}

    def _sized(self, sizes: Mapping[Address, Iterable[int]]) -> dict[Address, dict[int, int]]:
        """For each machine the sizes that were answered, and of what size the fragments were."""
        echoes = [
            Echo(machine, size)
            for machine, several in sizes.items()
            for size in several
            for _ in range(TRIES)
        ]
        fragments: dict[Address, dict[int, int]] = {machine: {} for machine in sizes}
        answers = echo.exchange(echoes, self.seconds, _APART_SECONDS)
        for asked, answer in zip(echoes, answers, strict=True):
            if answer.is_back:
                fragments[asked.target][asked.size] = answer.fragment
        return fragments

    def losses(self, machines: Iterable[Address]) -> dict[Address, float]:
        """The share of echoes to each machine that stay unanswered."""
        asked = list(machines)
        echoes = [Echo(machine) for _ in range(ECHOES) for machine in asked]
        answers = echo.exchange(echoes, self.seconds, APART_SECONDS / max(1, len(asked)))
        lost = dict.fromkeys(asked, 0)
        for echoed, answer in zip(echoes, answers, strict=True):
            lost[echoed.target] += not answer.is_back
        return {machine: count / ECHOES for machine, count in lost.items()}
