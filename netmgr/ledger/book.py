"""Counter readings into totals: the decisions. `store.py` remembers them, `ledger.py` joins both.

The rules, of which every method below is one:

 1. A counter is *live* from just before the kernel makes it (`begin`) until its last reading
    has been posted and the kernel is about to drop it (`end`). Readings of counters that are
    not live are ignored: they are late, and their bytes were posted by `end`'s caller.
 2. A reading posts its difference to the last one, to every account of the counter in the
    same step: a pod's counter to its pod and its namespace, a hook's counter to its hook. The
    same reading again differs by nothing and so posts nothing.
 3. A reading below the last one means that somebody zeroed the counter. What it shows now
    passed since; what passed between our last reading and the zeroing is lost: gap "reset".
    (Zeroed *and* past its old value within one reading interval is growth to any reader.)
 4. A counter that vanished is begun anew by `restart`, before the kernel makes it again: what
    passed between our last reading and its removal is lost: gap "removed".
 5. A reboot ends every counter and every pod at once: gap "reboot".
 6. A pod's series is keyed by namespace and name. After its last counter ended it lingers; a
    pod that returns under the name meanwhile continues it; then it goes. Its namespace's total
    was raised by the same postings and stays for ever, so it never falls.
 7. A counter that begins after its pod may have sent something is told by `note`: gap "late".
 8. Counters never wrap: 2**63 bytes are almost six years of 400 Gbit/s through one counter.

Readings must be posted in the order in which they were taken: an old one that overtakes a
newer looks like a reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from netmgr.model import Counter, PodRef, Sample, Traffic

Key = TypeVar("Key")
Value = TypeVar("Value")

BOOT_ID = "boot_id"


class Gap(StrEnum):
    """Why bytes may be missing from the totals. Values are label values."""

    REMOVED = "removed"
    """Another program removed a counter; up to one reading interval of its traffic is lost."""
    RESET = "reset"
    """Another program zeroed a counter; up to one reading interval of its traffic is lost."""
    REBOOT = "reboot"
    """The machine went down with counters live; what was read last before that may be lost too."""
    NOT_DURABLE = "not-durable"
    """The state file could not be written; a crash before it can would lose the pods that ended."""
    LATE = "late"
    """A pod that another plugin wired was noticed late; what it sent before is not in its totals, or is in
    those of the pod that had its address before."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes (IP headers included) and packets."""

    bytes: int = 0
    packets: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.bytes + other.bytes, self.packets + other.packets)


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class LiveCounter:
    """What is known of one kernel counter: `epoch` counts the times it was begun at zero."""

    owner: PodRef | None
    epoch: int = 0
    reading: Amount = NOTHING


class Scope(StrEnum):
    """What kind of total an account is."""

    POD = "pod"
    NAMESPACE = "namespace"
    HOOK = "hook"


class Account(NamedTuple):
    """Where bytes are posted: a pod (namespace, name), a namespace, or a hook (chain, family)."""

    scope: Scope
    owner: str
    name: str
    traffic: Traffic


class PodName(NamedTuple):
    """Key of a pod's series; the UID is not in it, so that a StatefulSet's pod continues its own."""

    namespace: str
    name: str


class Tracked(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that knows which of its keys were set or deleted since they were last written."""

    def __init__(self, entries: Iterable[tuple[Key, Value]] = ()) -> None:
        super().__init__(entries)
        self._touched: set[Key] = set()

    def __setitem__(self, key: Key, value: Value) -> None:
        self._touched.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Key) -> None:
        self._touched.add(key)
        super().__delitem__(key)

    @property
    def changed(self) -> list[tuple[Key, Value]]:
        """Entries to write."""
        return [(key, self[key]) for key in self._touched if key in self]

    @property
    def deleted(self) -> list[Key]:
        """Keys to delete."""
        return [key for key in self._touched if key not in self]

    @property
    def dirty(self) -> bool:
        """Whether anything is to be written."""
        return bool(self._touched)

    def written(self) -> None:
        """Everything has been written."""
        self._touched.clear()


@dataclass(slots=True)
class Book:
    """Everything the ledger knows, in memory; the store holds a copy of each table."""

    facts: Tracked[str, str]
    counters: Tracked[Counter, LiveCounter]
    totals: Tracked[Account, Amount]
    ended: Tracked[PodName, float]
    gaps: Tracked[Gap, int]

    def begin(self, counters: Iterable[Counter], owner: PodRef | None, now: float) -> None:
        """Rule 1. Live already for this owner: nothing changes. For another: that one ends unread.

        Raises:
            ValueError: a pod's counter without an owner or a hook's with one, or a name that is not text.
        """
        wanted = list(counters)
        str(owner).encode()  # a name that cannot be stored would bar every later write
        if any(counter.is_pod is not (owner is not None) for counter in wanted):
            raise ValueError(f"counters of {owner or 'the node'} belong to someone else: {wanted}")
        for counter in wanted:
            self._begin_one(counter, owner, now)
        if owner is not None and self.ended.get(_name(owner)) is not None:
            del self.ended[_name(owner)]

    def _begin_one(self, counter: Counter, owner: PodRef | None, now: float) -> None:
        former = self.counters.get(counter)
        if former is not None and _same(former.owner, owner):
            return
        for account in _accounts(counter, owner):
            if account not in self.totals:
                self.totals[account] = NOTHING
        self.counters[counter] = LiveCounter(owner, former.epoch + 1 if former else 0)
        if former is not None:
            self.note(Gap.REMOVED)
            self._end_pods({former.owner}, now)

    def restart(self, counters: Iterable[Counter]) -> None:
        """Rule 4. Counters that are not live are passed over."""
        for counter in counters:
            live = self.counters.get(counter)
            if live is not None:
                self.counters[counter] = LiveCounter(live.owner, live.epoch + 1)
                self.note(Gap.REMOVED)

    def post(self, samples: Iterable[Sample]) -> None:
        """Rules 2 and 3."""
        for sample in samples:
            live = self.counters.get(sample.counter)
            if live is None:
                continue
            last = live.reading
            if sample.bytes != last.bytes or sample.packets != last.packets:
                self._post_one(sample, live)

    def _post_one(self, sample: Sample, live: LiveCounter) -> None:
        reading, last, epoch = Amount(sample.bytes, sample.packets), live.reading, live.epoch
        if reading.bytes < last.bytes or reading.packets < last.packets:
            self.note(Gap.RESET)
            last, epoch = NOTHING, epoch + 1
        passed = Amount(reading.bytes - last.bytes, reading.packets - last.packets)
        self.counters[sample.counter] = replace(live, epoch=epoch, reading=reading)
        for account in _accounts(sample.counter, live.owner):
            self.totals[account] = self.totals.get(account, NOTHING) + passed

    def end(self, counters: Iterable[Counter], now: float) -> None:
        """Rule 1, and the beginning of rule 6's lingering. Ended already is fine."""
        owners: set[PodRef | None] = set()
        for counter in counters:
            live = self.counters.get(counter)
            if live is not None:
                owners.add(live.owner)
                del self.counters[counter]
        self._end_pods(owners, now)

    def _end_pods(self, owners: set[PodRef | None], now: float) -> None:
        gone = {_name(owner) for owner in owners if owner is not None}
        if gone:
            gone -= {_name(live.owner) for live in self.counters.values() if live.owner is not None}
        for name in gone:
            self.ended[name] = now

    def sweep(self, now: float, linger_seconds: float) -> None:
        """The end of rule 6's lingering. A clock that stepped back lengthens it by no more than itself."""
        for name, since in list(self.ended.items()):
            if since > now:
                self.ended[name] = now
            elif now - since >= linger_seconds:
                del self.ended[name]
                for account in _pod_accounts(name):
                    if account in self.totals:
                        del self.totals[account]

    def enter_boot(self, boot_id: str, now: float) -> None:
        """Rule 5, if `boot_id` is not that of the last time."""
        former = self.facts.get(BOOT_ID)
        if former == boot_id:
            return
        self.facts[BOOT_ID] = boot_id
        if former is not None and self.counters:
            self.note(Gap.REBOOT)
            self.end(list(self.counters), now)

    def note(self, gap: Gap) -> None:
        """Count one gap."""
        self.gaps[gap] = self.gaps.get(gap, 0) + 1

    @property
    def dirty(self) -> bool:
        """Whether the store's copy is behind."""
        return any(table.dirty for table in (self.facts, self.counters, self.totals, self.ended, self.gaps))

    def written(self) -> None:
        """The store's copy has caught up."""
        for table in (self.facts, self.counters, self.totals, self.ended, self.gaps):
            table.written()


def _name(owner: PodRef) -> PodName:
    return PodName(owner.namespace, owner.name)


def _same(former: PodRef | None, owner: PodRef | None) -> bool:
    """Whether both are one pod; a UID that one side does not know decides nothing."""
    if former is None or owner is None:
        return former is owner
    return _name(former) == _name(owner) and (former.uid == owner.uid or not (former.uid and owner.uid))


def _accounts(counter: Counter, owner: PodRef | None) -> Iterator[Account]:
    if owner is None:
        yield Account(Scope.HOOK, str(counter.subject), str(counter.family.value), counter.traffic)
    else:
        yield Account(Scope.POD, owner.namespace, owner.name, counter.traffic)
        yield Account(Scope.NAMESPACE, owner.namespace, "", counter.traffic)


def _pod_accounts(name: PodName) -> Iterator[Account]:
    return (Account(Scope.POD, name.namespace, name.name, traffic) for traffic in Traffic)
