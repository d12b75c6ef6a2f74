"""Rates between readings of the agent: who uses the internet now, and how the last minute was."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from netmgr.api.snapshot import LimitState, Ports, Snapshot

IN, OUT = "internet-in", "internet-out"
TREND_SECONDS = 60.0
_ENDLESS = 10**9
"""So many addresses, as a /64 has, do not run out."""

Name = tuple[str, str]
"""Namespace and pod; without a pod the namespace, without either the node."""

Trend = tuple[float | None, ...]
"""Bytes per second in both directions, oldest first; None where the agent did not answer."""

Ways = Mapping[str, float]
"""An amount for each direction."""

NODE: Name = ("", "")


@dataclass(frozen=True, slots=True)
class Share:
    """What is used of a limit (bits per second), a quota (bytes) or another budget.

    `words` say of what.
    """

    words: str
    used: float
    most: float

    @property
    def part(self) -> float:
        """1 is all of it."""
        return self.used / self.most if self.most else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """The rates of a pod, of a namespace's pods together, or of the node, in bytes per second.

    Attributes:
        connections: how many it began; None where the agent does not say.
        limits: those of a direction; the namespace's own for a namespace.
        quota: the one of which the most is used.
    """

    name: Name
    rates: Ways
    trend: Trend
    connections: int | None = None
    limits: Mapping[str, Share] = field(default_factory=dict)
    quota: Share | None = None

    @property
    def received(self) -> float:
        """From the internet."""
        return self.rates.get(IN, 0.0)

    @property
    def sent(self) -> float:
        """To the internet."""
        return self.rates.get(OUT, 0.0)

    @property
    def total(self) -> float:
        """In both directions."""
        return self.received + self.sent

    @property
    def is_namespace(self) -> bool:
        """Whether it is the sum of a namespace's pods."""
        return not self.name[1]


@dataclass(frozen=True, slots=True)
class Reading:
    """The agent's last answer, and the rates since the one before it."""

    snapshot: Snapshot
    node: Row
    pods: tuple[Row, ...]
    namespaces: tuple[Row, ...]
    budgets: tuple[Share, ...]


class Meter:
    """Turns snapshots, taken about every `interval` seconds, into rates and trends.

    `more` names budgets beside those of a snapshot.
    """

    def __init__(
        self,
        first: Snapshot,
        interval: float,
        more: Callable[[Snapshot], Iterable[Share]] = lambda _snapshot: (),
    ) -> None:
        self._before = first
        self._more = more
        self._interval = interval
        self._length = max(2, round(TREND_SECONDS / interval))
        self._trends: dict[Name, deque[float | None]] = {}

    def read(self, now: Snapshot) -> Reading:
        """The rates since the snapshot before; after an outage their mean."""
        seconds = now["taken_at"] - self._before["taken_at"]
        if seconds <= 0:  # the wall clock was set back
            seconds = self._interval
        rates = _with_sums(_rates(_totals(self._before), _totals(now), seconds))
        self._remember(rates)
        limits, quotas, begun = _limits(self._before, now, seconds), _quotas(now), _begun(now)
        rows = {
            name: Row(
                name,
                ways,
                tuple(self._trends[name]),
                begun.get(name),
                limits.get(name, {}),
                quotas.get(name),
            )
            for name, ways in rates.items()
        }
        self._before = now
        node = rows.pop(NODE)
        pods = tuple(row for row in rows.values() if not row.is_namespace)
        namespaces = tuple(row for row in rows.values() if row.is_namespace)
        return Reading(now, node, pods, namespaces, (*budgets(now), *self._more(now)))

    def miss(self) -> None:
        """The agent did not answer this time."""
        for trend in self._trends.values():
            trend.append(None)

    def _remember(self, rates: Mapping[Name, Ways]) -> None:
        # Pods that are gone are forgotten, so that nothing grows with their number.
        self._trends = {
            name: self._trends.get(name) or deque(maxlen=self._length) for name in rates
        }
        for name, trend in self._trends.items():
            trend.append(sum(rates[name].values()))


def _totals(snapshot: Snapshot) -> dict[Name, dict[str, int]]:
    found: dict[Name, dict[str, int]] = {NODE: {}}
    for one in snapshot["node_totals"]:
        found[NODE][one["traffic"]] = one["bytes"]
    for one in snapshot["pods"]:
        found.setdefault((one["namespace"], one["pod"]), {})[one["traffic"]] = one["bytes"]
    return found


def _rates(
    before: Mapping[Name, Mapping[str, int]], now: Mapping[Name, Mapping[str, int]], seconds: float
) -> dict[Name, Ways]:
    return {
        name: {
            # A ledger that was lost starts again at 0.
            way: max(0, totals.get(way, 0) - before.get(name, {}).get(way, 0)) / seconds
            for way in (IN, OUT)
        }
        for name, totals in now.items()
    }


def _with_sums(rates: Mapping[Name, Ways]) -> dict[Name, Ways]:
    """With a row for each namespace: sums of rates, as its total lacks pods that are forgotten."""
    sums: dict[Name, dict[str, float]] = {}
    for (namespace, pod), ways in rates.items():
        if pod:
            together = sums.setdefault((namespace, ""), dict.fromkeys((IN, OUT), 0.0))
            for way, rate in ways.items():
                together[way] += rate
    return {**rates, **sums}


def _limits(before: Snapshot, now: Snapshot, seconds: float) -> dict[Name, dict[str, Share]]:
    passed = {_limited(one): one["bytes"] for one in before.get("limits", ())}
    found: dict[Name, dict[str, Share]] = {}
    for one in now.get("limits", ()):
        name, way = _limited(one)
        # A limit that is new has counted nothing before; its own counter begins anew with it.
        gained = max(0, one["bytes"] - passed.get((name, way), 0))
        found.setdefault(name, {})[way] = Share(way, gained * 8 / seconds, one["rate"])
    return found


def _limited(one: LimitState) -> tuple[Name, str]:
    return (one["namespace"], one["pod"]), one["traffic"]


def _quotas(snapshot: Snapshot) -> dict[Name, Share]:
    """The quota of which the most is used, of each pod or namespace that has any."""
    found: dict[Name, Share] = {}
    for one in snapshot.get("quotas", ()):
        name = one["namespace"], one["pod"]
        words = f"{one['traffic'].removeprefix('internet-')} a {one['period']}"
        share = Share(words, one["used"], one["budget"])
        found[name] = max(share, found.get(name, share), key=lambda each: each.part)
    return found


def _begun(snapshot: Snapshot) -> dict[Name, int]:
    """Connections of the pods that the agent names, which are those with the most."""
    return {
        (one["namespace"], one["pod"]): one["connections"]
        for one in snapshot.get("tracking", {"pods": ()})["pods"]
    }


def budgets(snapshot: Snapshot) -> Iterator[Share]:
    """What the node may run out of: addresses, connections, ports of a NAT host."""
    for pool in snapshot["pool"]:
        taken = pool["allocated"] + pool["cooldown"]
        if taken + pool["free"] < _ENDLESS:
            yield Share(pool["family"].replace("ip", "IP"), taken, taken + pool["free"])
    if tracking := snapshot.get("tracking"):
        yield Share("connections", tracking["connections"], tracking["most"])
    yield from _ports(snapshot.get("nat", {"ports": ()})["ports"])


def _ports(ports: Iterable[Ports]) -> Iterator[Share]:
    """The fullest of a NAT host's, which differ by family and protocol."""
    shares = [
        Share(
            f"{one['family'].replace('ip', 'IP')} {one['protocol']} ports",
            one["used"],
            one["budget"],
        )
        for one in ports
    ]
    if shares:
        yield max(shares, key=lambda each: each.part)
