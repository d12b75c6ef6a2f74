"""Holds what a node counted against what a capture saw: every byte is counted, or in a gap.

The rules, for each pod and direction between two looks at a quiet node:

- No more is counted than was sent, and nothing is counted later than it passed.
- Less than what arrived is a loss, and needs a gap. Where nothing was broken that counts there is
  neither.
- A gap covers the loss: its seconds are at least the shortest time in which the pod sent as much.
- A gap is no longer than twice the true blind time and the resolution. Blind is the time from just
  before the fault until the rules were first seen to be whole again (looked at every 10 ms). The
  resolution is the interval of readings or that of reconciles, whichever is longer: by reading
  alone, nobody can know more exactly when a counter was lost.
- Lost bytes were sent in the blind time, or within the resolution before.

Lost or older books are other gaps (`ledger/book.py`, rule 12): the first covers everything since
the boot, the second everything since the copy was made.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from netmgr.ledger.tables import Gap
from netmgr.model import Traffic
from tests.chaos.traffic import WAYS, Bounds, Conversation, Sending
from tests.lab.nodes import LabNode

SLACK_SECONDS = 0.15
"""How late the agent's threads may always be."""

OF_BOOKS = frozenset({Gap.LEDGER_LOST, Gap.LEDGER_OLDER})


class Blind(NamedTuple):
    """A time in which something that counts was broken, by the clock that never steps."""

    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclass
class Faults:
    """What a step did to the accounting.

    Attributes:
        blinds: when counting was broken.
        books_since: what the books may lack is from this moment on; None if they are whole.
        older_before: the gaps of older books that the copy has.
        undurable: when the file could not be written.
        forgets: whether nothing was left that could say there had been books.
        has_filter: whether another program dropped packets behind the hook that counts them all.
    """

    blinds: list[Blind] = field(default_factory=list)
    books_since: float | None = None
    older_before: tuple[int, float] | None = None
    undurable: list[Blind] = field(default_factory=list)
    forgets: bool = False
    has_filter: bool = False

    @property
    def allowed(self) -> frozenset[Gap]:
        found = {Gap.REMOVED, Gap.RESET, Gap.RESTORED} if self.blinds else set()
        found |= OF_BOOKS if self.books_since is not None else set()
        found |= {Gap.NOT_DURABLE} if self.undurable else set()
        return frozenset(found)


class Lost(NamedTuple):
    """Bytes of one pod that were not counted."""

    pod: str
    traffic: Traffic
    bytes: int


@dataclass
class Look:
    """What a node said at one moment."""

    counted: dict[tuple[str, Traffic], int]
    namespaces: dict[tuple[str, Traffic], int]
    forward: dict[Traffic, tuple[int, int]]
    """Bytes that passed the hook, and those of pods and of nobody."""
    gaps: dict[Gap, tuple[int, float]]


def look(node: LabNode) -> Look:
    found = node.snapshot()
    audit = node.ask("audit")
    return Look(
        {(one["pod"], Traffic(one["traffic"])): one["bytes"] for one in found["pods"]},
        {(one["namespace"], Traffic(one["traffic"])): one["bytes"] for one in found["namespaces"]},
        {
            Traffic(one["traffic"]): (one["forwarded"], one["attributed"] + one["unattributed"])
            for one in audit["forward"]
        },
        {Gap(one["reason"]): (one["count"], one["seconds"]) for one in audit["gaps"]},
    )


class Books:
    """Of one node, from its beginning on."""

    def __init__(self, node: LabNode, conversation: Conversation, resolution: float) -> None:
        self._node = node
        self._conversation = conversation
        self._resolution = resolution
        self._bounds: dict[str, dict[Traffic, Bounds]] = {}
        self._before = look(node)
        self.bytes = self.lost = 0

    def begin(self, name: str) -> None:
        """Judge this pod as well, which has not sent anything yet."""
        self._bounds[name] = dict.fromkeys(WAYS, Bounds(0, 0))

    @property
    def gaps(self) -> dict[str, tuple[int, float]]:
        """Those of now that there are."""
        return {gap.value: found for gap, found in self._before.gaps.items() if found[0]}

    @property
    def older(self) -> tuple[int, float]:
        """The gaps of older books so far."""
        return self._before.gaps[Gap.LEDGER_OLDER]

    def leave_out(self) -> None:
        """Take what was counted since the last look for right."""
        self._before = look(self._node)

    def settle(self, faults: Faults) -> None:
        """Compare, and begin anew from here."""
        now, before = look(self._node), self._before
        is_older = faults.books_since is not None
        lost = [one for name in self._bounds for one in self._lost_of(name, now, is_older=is_older)]
        found: dict[Gap, tuple[int, float]] = {}
        for gap, (times, seconds) in now.gaps.items():
            more = times - before.gaps[gap][0], seconds - before.gaps[gap][1]
            if more != (0, 0):
                found[gap] = more
        if faults.forgets:
            assert not any(times for times, _ in now.gaps.values()), now.gaps
        elif is_older and found.keys() & OF_BOOKS:
            self._compare_older(faults, now)
        else:
            assert found.keys() <= faults.allowed, f"gaps without a fault: {found}, lost {lost}"
            assert not lost or found, f"{lost} in no gap"
            self._compare_seconds(faults, found, lost)
            self._compare_sums(now, is_exact=not (found or faults.has_filter))
        self.lost += sum(one.bytes for one in lost)
        self._before = now
        for name in self._bounds:
            self._bounds[name] = self._conversation.bounds(name)
        self.bytes = self._conversation.bytes

    def _lost_of(self, name: str, now: Look, *, is_older: bool) -> Iterable[Lost]:
        passed = self._conversation.bounds(name)
        for way in WAYS:
            key, former = (name, way), self._bounds[name][way]
            # Of a pod that ended before the books were lost, there is no row.
            base, counted = self._before.counted.get(key, 0), now.counted.get(key, 0)
            most = base + passed[way].most - former.most
            if is_older:
                # A copy from before that has its row again.
                most = max(most, passed[way].most)
            assert counted <= most, f"{name} {way}: {counted} counted, and {most} passed at most"
            least = base + passed[way].least - former.least
            if counted < least:
                yield Lost(name, way, least - counted)

    def _compare_seconds(
        self, faults: Faults, found: dict[Gap, tuple[int, float]], lost: list[Lost]
    ) -> None:
        began = min((one.since for one in faults.blinds), default=time.monotonic())
        # The agent's threads are late as this process is, when they read and when they repair.
        late = 2 * self._conversation.late(began - self._resolution)
        resolution = self._resolution + SLACK_SECONDS + late
        seconds = sum(s for gap, (_, s) in found.items() if gap is not Gap.NOT_DURABLE)
        blind = sum(one.seconds for one in faults.blinds)
        assert seconds <= 2 * blind + resolution, (
            f"gaps of {seconds:.2f} s: {found}, blind for {blind:.2f}"
        )
        undurable = sum(one.seconds for one in faults.undurable)
        not_durable = found.get(Gap.NOT_DURABLE, (0, 0.0))[1]
        assert not_durable <= 2 * undurable + resolution, f"{not_durable} of {undurable} s"
        for one in lost:
            sent = self._conversation.sent(one.pod, one.traffic)
            least = shortest(sent, one.bytes)
            assert seconds >= least, (
                f"{one} took {least:.3f} s, and gaps are {seconds:.3f}: {found}"
            )
            near = [
                packet
                for packet in sent
                if any(b.since - resolution <= packet.at <= b.until for b in faults.blinds)
            ]
            sum_near = sum(packet.bytes for packet in near)
            assert one.bytes <= sum_near, f"{one}, and {sum_near} were sent while it was blind"

    def _compare_older(self, faults: Faults, now: Look) -> None:
        """An older copy lacks what passed since it was made; a lost file everything."""
        assert faults.books_since is not None
        times, seconds = now.gaps[Gap.LEDGER_OLDER]
        former = faults.older_before
        if former is not None and (times, seconds) != former:
            last = max((one.until for one in faults.blinds), default=time.monotonic())
            true, said = last - faults.books_since, seconds - former[1]
            assert said <= 2 * true + self._resolution + SLACK_SECONDS, (
                f"the books lack {true:.2f} s, and say {said:.2f}"
            )

    def _compare_sums(self, now: Look, *, is_exact: bool) -> None:
        """A namespace has what its pods have, and a hook what pods and nobody have."""
        for way in WAYS:
            of_pods = _growth(self._before.counted, now.counted, way)
            of_namespaces = _growth(self._before.namespaces, now.namespaces, way)
            assert of_pods == of_namespaces, f"{way}: pods {of_pods}, namespaces {of_namespaces}"
            passed, attributed = (
                one - former
                for one, former in zip(now.forward[way], self._before.forward[way], strict=True)
            )
            assert not is_exact or passed == attributed, (
                f"{way}: {passed} passed, {attributed} known"
            )


def _growth(
    before: dict[tuple[str, Traffic], int], now: dict[tuple[str, Traffic], int], way: Traffic
) -> int:
    return sum(
        size - before.get((name, traffic), 0)
        for (name, traffic), size in now.items()
        if traffic is way
    )


def shortest(sent: list[Sending], size: int) -> float:
    """The shortest time in which so many bytes were sent; a packet takes none."""
    found, first, held = float("inf"), 0, 0
    for packet in sent:
        held += packet.bytes
        while held - sent[first].bytes >= size:
            held -= sent[first].bytes
            first += 1
        if held >= size:
            found = min(found, packet.at - sent[first].at)
    return found
