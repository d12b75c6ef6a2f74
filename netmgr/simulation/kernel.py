"""A node's kernel: holds the rules it is given, and counts what simulated pods exchange.

It knows the truth as well, by namespace, which nothing of netmgr reads: the sums that ledgers and
scrapes end with have to equal it.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from random import Random
from typing import NamedTuple

from netmgr.clock import Clock
from netmgr.model import UNATTRIBUTED, Counter, Sample, Traffic
from netmgr.prefixes import Address, Family
from netmgr.rules.classifier import pod_set
from netmgr.rules.model import Abilities, Count, Ruleset
from netmgr.rules.policy import ARRIVED, DELIVERED
from netmgr.simulation.held_rules import HeldRules

DAY = 86_400.0
PACKET_BYTES = 900
"""Bytes of a packet on average."""

TRACKED_SECONDS = 120.0
"""Connection tracking names an address for this time after its pod is gone."""

OWN_BYTES_PER_SECOND = 2_000
"""What the node itself exchanges in each direction."""


class _Pod:
    """A pod that exchanges packets, and how many bytes it has."""

    __slots__ = ("bytes", "namespace", "rates", "since")

    def __init__(self, namespace: str, rates: Mapping[Traffic, float], now: float) -> None:
        self.namespace = namespace
        self.rates = rates
        self.since = now
        self.bytes = 0


class SimulatedKernel(HeldRules):
    """Implements netmgr.rules.engine.RuleBackend.

    Attributes:
        passed: bytes of the internet that pods exchanged, by namespace and direction.
        own: bytes that the node itself did since there are rules, by direction.
    """

    def __init__(self, clock: Clock, random: Random) -> None:
        super().__init__("simulated", Abilities())
        self.passed: Tally[tuple[str, Traffic]] = Tally()
        self.own: Tally[Traffic] = Tally()
        self._clock = clock
        self._random = random
        self._own_since = clock.monotonic()
        self._pods: dict[Address, _Pod] = {}
        self._gone: dict[Address, float] = {}

    def begin(self, address: Address, namespace: str, rate: float) -> None:
        """Have a pod send about so many bytes a second to the internet, all day on average.

        It receives a third of that, or three times as much.
        """
        inward = rate / 3 if address.value % 2 else rate * 3
        rates = {Traffic.INTERNET_OUT: rate, Traffic.INTERNET_IN: inward}
        self._pods[address] = _Pod(namespace, rates, self._clock.monotonic())

    def end(self, address: Address) -> int:
        """Let the last packet of a pod have passed; returns all bytes that it exchanged."""
        pod = self._pods.pop(address)
        self._exchange(address, pod)
        self._gone[address] = self._clock.monotonic()
        return pod.bytes

    def tracked(self, addresses: Iterable[Address]) -> set[Address]:
        """Those that connection tracking still names."""
        since = self._clock.monotonic() - TRACKED_SECONDS
        self._gone = {address: at for address, at in self._gone.items() if at > since}
        return self._gone.keys() & set(addresses)

    def pass_time(self) -> None:
        """Count what was exchanged since the last time."""
        for address, pod in self._pods.items():
            self._exchange(address, pod)
        seconds = self._clock.monotonic() - self._own_since
        self._own_since += seconds
        for traffic, name in _OWN.items():
            if name in self.state.counters:
                size = int(OWN_BYTES_PER_SECOND * self._busy(seconds))
                self.own[traffic] += size
                self._raise(name, size, size // PACKET_BYTES + 1)

    def _busy(self, seconds: float) -> float:
        """Seconds of mean traffic that these are worth: most at noon, and 1 over a day."""
        return seconds * (1 - 0.8 * math.cos(2 * math.pi * (self._clock.now() % DAY) / DAY))

    def _exchange(self, address: Address, pod: _Pod) -> None:
        """Have a pod exchange what is due since the last time."""
        now = self._clock.monotonic()
        busy, pod.since = self._busy(now - pod.since), now
        for traffic, rate in pod.rates.items():
            size = int(rate * busy * (0.5 + self._random.random()))
            if size:
                pod.bytes += size
                self.passed[pod.namespace, traffic] += size
                self._pass(address, _PATHS[address.family, traffic], size)

    def _pass(self, address: Address, path: _Path, size: int) -> None:
        packets = size // PACKET_BYTES + 1
        hits = self._hits(path.pods, address)
        if hits:
            hits.hit(size, packets)
        for name in path.always if hits else (*path.always, path.unattributed):
            self._raise(name, size, packets)

    def _raise(self, name: str, size: int, packets: int) -> None:
        if hits := self.state.counters.get(name):
            hits.hit(size, packets)

    def read(self, desired: Ruleset) -> list[Sample]:
        """Every counter, as of now."""
        self.pass_time()
        return super().read(desired)


class _Path(NamedTuple):
    """What counts a pod's packets of one family and direction: the pods' set, and counters."""

    pods: str
    always: tuple[str, ...]
    unattributed: str


def _named(subject: str, family: Family, traffic: Traffic) -> str:
    return Count(Counter(subject, family, traffic)).name


def _path(family: Family, traffic: Traffic) -> _Path:
    tallies = [f"{name}{family.value}" for name in (ARRIVED, DELIVERED) if traffic.is_inward]
    always = (_named("FORWARD", family, traffic), *tallies)
    return _Path(pod_set(traffic, family).name, always, _named(UNATTRIBUTED, family, traffic))


_PATHS = {(family, traffic): _path(family, traffic) for family in Family for traffic in Traffic}
_OWN = {
    Traffic.INTERNET_IN: _named("INPUT", Family.V4, Traffic.INTERNET_IN),
    Traffic.INTERNET_OUT: _named("OUTPUT", Family.V4, Traffic.INTERNET_OUT),
}
