"""Counter readings into totals: the decisions. `store.py` remembers them, `ledger.py` joins both.

The rules; the methods below name the one they follow:

 1. A counter is *live* from just before the kernel makes it (`begin`) until its last reading
    was posted and the kernel is about to drop it (`end`). Readings of counters that are not
    live are ignored: they are late, and `end`'s caller posted their bytes.
 2. A reading posts its difference from the last one to every account of the counter, in one
    step: a pod's counter to its pod and its namespace, a hook's counter to its hook. The same
    reading again posts nothing.
 3. A reading below the last one, or of another life (`Sample`), means that somebody zeroed the
    counter or put back what it had shown before. Zeroed, it is in no life: what it shows now passed
    since, and what passed between our last reading and the zeroing is lost: gap "reset". Put back,
    it shows what was counted already, and goes on from there: gap "restored". (Of counters that
    have no lives, zeroed *and* past the old value within one interval is growth to any reader.)
 4. A counter that vanished is begun anew by `restart`, before the kernel makes it again: what
    passed between our last reading and its removal is lost: gap "removed". Nothing is lost of one
    that the kernel never had, or that `close` read for the last time: an agent was killed just
    before it was made, or just after it was taken away.
 5. A reboot ends every counter and every pod at once: gap "reboot".
 6. A pod's series is keyed by namespace and name. After its last counter ended it lingers; a
    pod that returns under the name meanwhile continues it; then it goes. The same postings
    raised its namespace's total, which stays for ever and so never falls.
 7. A counter that begins after its pod may have sent something is reported to `note`: gap "late".
 8. Counters wrap at 2**63, where SQLite's integers end: after almost six years of 400 Gbit/s, or
    because someone set one. A reading that fell by more than half of that has wrapped, and nothing
    of it is lost.
 9. A gap is one event, whatever the number of its counters: what one call finds of one reason,
    and what later ones find that nobody had read since it began. Its seconds are how long counting
    may have been incomplete, by the counter that was unread for longest, from each one's last
    reading; two reasons in one call are one stretch of time, which the first has. It lasts until
    the counter counts again for "removed", until the loss was seen for "reset", as long as the
    caller says for "late", and until the file can be written for "not-durable". The clock never
    steps and starts with the boot. So for "reboot" the seconds are the time since the boot and the
    longest pause between two readings of the life before; how long the machine was off, no such
    clock can know.
10. What a posting adds to a pod it adds to the pod's roll-up of the hour as well (`history.py`),
    and what it adds to a pod's address to what is attributed (`audit.py`).
11. A counter that the kernel has and the books do not know is begun at nothing and read whole,
    but by books that lack something (rule 12).
12. A mark shows whether books are the true ones (`mark.py`). New ones where there had been
    others, or where those are another machine's, are one gap "ledger-lost" (seconds since the
    boot), an older copy is one gap "ledger-older" (since its last reading). Either way every total
    begins at zero, which whoever takes rates of it understands; a smaller total would pass for all
    of it once more. What the live counters show in the first reading is what they go on from
    (`forget`). Of an older copy, hours and gaps stay.
13. Two backends that count at once show the same packets. `rebase` has counters go on from what
    the new one shows, after the last reading of the former one was posted (`changeover.py`).
14. What pods' counters lost is known in bytes by their sum (`audit.py`). It belongs to the gap of
    these counters; without one, to a gap "reset" of its own.

Readings must be posted in the order in which they were taken: an old one that overtakes a
newer looks like a reset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from netmgr.ledger import audit, tables
from netmgr.ledger.history import SECONDS, HourBucket, Unwritten
from netmgr.ledger.mark import Mark
from netmgr.model import PODS, Counter, PodRef, Sample

BOOT_ID = "boot_id"
READ_AT, LONGEST_PAUSE = "read_at_steady", "longest_pause"
BOOKS, SEQUENCE, ZEROED_AT = "books", "sequence", "zeroed_at"
GAP_AT = "gap_at "
UNREAD = "unread"
"""Facts: the boot's identity; when counters were read last, in seconds since the boot, and the
longest pause between two readings of this life; both parts of the mark, and the sequence at which
totals began at zero; with a gap's reason behind it, its `LastGap`; and, until the first reading
after a loss, that there was one."""


class Moment(NamedTuple):
    """An instant by both clocks, in seconds: since the epoch, and by one that never steps."""

    wall: float
    steady: float


NEVER = Moment(0.0, 0.0)


@dataclass(slots=True)
class Book:
    """Everything the ledger knows, in memory; the store has a copy of each table.

    Attributes:
        hours: additions to the roll-ups, which only the store has.
        read_at: when each live counter was read last, by the steady clock; `inherited`, when the
            life before read last, is for those that were not read in this one.
        explained: the gap of pods' counters since the last whole reading.
        blind: from when to when, by the steady clock, the last gap of each reason in this life was.
    """

    facts: tables.Tracked[str, str]
    counters: tables.Tracked[Counter, tables.LiveCounter]
    totals: tables.Tracked[tables.Account, tables.Amount]
    ended: tables.Tracked[tables.SeriesKey, float]
    gaps: tables.Tracked[tables.Gap, tables.Lost]
    hours: Unwritten = field(default_factory=Unwritten)
    read_at: dict[Counter, float] = field(default_factory=dict)
    last_reading: Moment = NEVER
    inherited: Moment = NEVER
    longest_pause: float = 0.0
    explained: tables.Gap | None = None
    blind: dict[tables.Gap, tuple[float, float]] = field(default_factory=dict)

    def open(self, now: Moment, boot_id: str) -> None:
        """Work out when the last reading was, from what was written down; follow rule 5.

        Raises:
            ValueError: a fact is no number.
        """
        former = self.facts.get(BOOT_ID)
        # Parsed now, while the file can still be set aside if it is no mark.
        Mark(int(self.facts.get(BOOKS, "0"), 16), self._sequence)
        int(self.facts.get(ZEROED_AT, "0"))
        for gap in tables.Gap:
            self.last_gap(gap)
        steady = min(float(self.facts.get(READ_AT, now.steady)), now.steady)
        if former not in (None, boot_id):
            # The clock began anew: before its zero there was at most this pause.
            steady = -float(self.facts.get(LONGEST_PAUSE, 0.0))
        self.last_reading = self.inherited = Moment(now.wall, steady)
        if former == boot_id:
            return
        self.facts[BOOT_ID] = boot_id
        if former is not None and self.counters:
            self.note(tables.Gap.REBOOT, steady, now)
            # A list, since ending deletes from the dictionary.
            self.end(list(self.counters), now)

    @property
    def mark(self) -> Mark | None:
        """Rule 12; None until the books were given a number."""
        books = self.facts.get(BOOKS)
        return Mark(int(books, 16), self._sequence) if books is not None else None

    @property
    def _sequence(self) -> int:
        return int(self.facts.get(SEQUENCE, "0"))

    def number(self, mark: Mark) -> None:
        """Give the books this number; their sequence goes on from the mark's if that is ahead."""
        self.facts[BOOKS] = f"{mark.books:016x}"
        self.facts[SEQUENCE] = str(max(mark.sequence, self._sequence))

    def forget(self) -> None:
        """Rule 12, after its gap: begin every total at zero, from what the next reading shows."""
        # The gap advanced the sequence, so no mark that was synced before comes up to this.
        self.facts[ZEROED_AT] = str(self._sequence)
        self.counters.clear()
        self.totals.clear()
        self.ended.clear()
        self.read_at.clear()
        self.facts[UNREAD] = "yes"

    def counted_gaps(self) -> tuple[tuple[tables.Gap, tables.Lost], ...]:
        """Every gap, as the small file has it."""
        # In whole milliseconds: what is read back has to be equal, or each sync would write it
        # again. Cut off, so that what is recalled is never more than was noted.
        return tuple(
            (gap, lost._replace(seconds=int(lost.seconds * 1000) / 1000))
            for gap, lost in sorted(self.gaps.items())
        )

    def recall(self, gaps: Iterable[tuple[tables.Gap, tables.Lost]]) -> None:
        """Count gaps on from these, where more of them were noted than these books have."""
        for gap, kept in gaps:
            known = self.gaps.get(gap, tables.Lost())
            merged = tables.Lost(
                max(known.times, kept.times),
                max(known.seconds, kept.seconds),
                max(known.bytes, kept.bytes),
            )
            if merged != known:
                self.gaps[gap] = merged

    def lasting_bytes(self) -> int:
        """The sum of the totals that never fall."""
        # The file has no more than LARGEST of each: opened again, it must not seem to have less.
        return sum(
            min(amount.bytes, tables.LARGEST)
            for account, amount in self.totals.items()
            if account.scope in (tables.Scope.NAMESPACE, tables.Scope.HOOK)
        )

    def begin(self, counters: Iterable[Counter], owner: PodRef | None, now: Moment) -> None:
        """Rule 1. A counter that is live for this owner stays; one of another owner ends unread.

        Raises:
            ValueError: a pod's counter without an owner, a hook's with one, or a name of no text.
        """
        wanted = list(counters)
        # A name that cannot be stored would fail every later write as well.
        str(owner).encode()
        # Checked before the first change: an error leaves the book as it was.
        if any(audit.is_of_node(counter) is (owner is not None) for counter in wanted):
            raise ValueError(f"counters of {owner or 'the node'} belong to someone else: {wanted}")
        for counter in wanted:
            self._begin_one(counter, owner, now)
        # Rule 6: a pod that returns under its name continues its series.
        if owner is not None and _name(owner) in self.ended:
            del self.ended[_name(owner)]

    def _begin_one(self, counter: Counter, owner: PodRef | None, now: Moment) -> None:
        former = self.counters.get(counter)
        if former is not None and tables.is_same_pod(former.owner, owner):
            return
        # Shown before the first byte: a series that appears with a value has lost that value for
        # whoever takes rates of it.
        for account in audit.accounts(counter, owner):
            if account not in self.totals:
                self.totals[account] = tables.NOTHING
        self.counters[counter] = tables.LiveCounter(owner)
        counted = audit.side(audit.Audit.PODS, audit.COUNTED, counter.traffic)
        if counter.subject == PODS and self.totals.get(counted, tables.NOTHING) != tables.NOTHING:
            # Pods were counted before there was a sum of it.
            audit.remeasure(self.totals, [counter.traffic])
        if former is not None:
            # Its address passed to another pod before the former one was ended here.
            self._lose({tables.Gap.REMOVED: [counter]}, now, now)
            self.hours.miss(now.wall, now.wall)
            self._end_pods({former.owner}, now)
        self.read_at[counter] = now.steady

    def restart(
        self, counters: Iterable[Counter], now: Moment, unmade: Collection[Counter] = ()
    ) -> bool:
        """Rule 4. Counters that are not live are ignored. Returns whether something was lost.

        `unmade` counted nothing if they were never seen: counters of pods without a link, or of
        rules that may not have been made yet.
        """
        known = [counter for counter in dict.fromkeys(counters) if counter in self.counters]
        lost = [
            counter
            for counter in known
            if self.counters[counter].phase is tables.Phase.COUNTING
            or (self.counters[counter].phase is tables.Phase.BEGUN and counter not in unmade)
        ]
        self._lose({tables.Gap.REMOVED: lost}, now, now)
        if known:
            # An older copy of the books could not get these readings from the kernel again.
            self._advance()
        for counter in known:
            # Its next reading starts at zero; with the old one kept it would look like a reset.
            self.counters[counter] = tables.LiveCounter(self.counters[counter].owner)
            self.read_at[counter] = now.steady
        return bool(lost)

    def post(self, samples: Iterable[Sample], now: Moment, taken_at: Moment | None = None) -> None:
        """Rules 2, 3, 10 and 12. `taken_at` is from before the reading, which may take long."""
        taken_at = taken_at or now
        read = [sample for sample in samples if sample.counter in self.counters]
        is_rebased = UNREAD in self.facts
        if is_rebased:
            del self.facts[UNREAD]
            self.rebase(read, taken_at)
        # Before posting: the audit compares owners as of now with hooks as of the last reading.
        former, unread_since = audit.compared(self.totals), self.last_reading
        lost: dict[tables.Gap, list[Counter]] = {}
        for sample in read:
            if gap := self._post_one(sample, now):
                lost.setdefault(gap, []).append(sample.counter)
        self._lose(lost, now, taken_at)
        self.read_at.update(dict.fromkeys([sample.counter for sample in read], taken_at.steady))
        # The first reading of a life ends no pause of this life.
        if self.last_reading is not self.inherited:
            self.longest_pause = max(self.longest_pause, taken_at.steady - self.last_reading.steady)
        self.last_reading = taken_at
        self._settle(former, read, now, unread_since)
        if is_rebased:
            # What passed between the readings of pods and of their sum shows in the next one.
            audit.remeasure(self.totals)

    def _settle(
        self,
        former: Mapping[audit.Key, audit.Comparison],
        read: Sequence[Sample],
        now: Moment,
        unread_since: Moment,
    ) -> None:
        """Audit, and follow rule 14."""
        # Hooks and pods are read together; a pod's own last reading says nothing for the audit.
        if not any(audit.audited_by(sample.counter) for sample in read):
            return
        known = audit.lost(self.totals)
        audit.settle(self.totals, former, self.counters)
        lacks = audit.lost(self.totals)
        for traffic in lacks:
            lacks[traffic] -= known[traffic]
            if lacks[traffic]:
                self.hours.lose(now.wall, traffic, lacks[traffic])
        if size := sum(lacks.values()):
            if gap := self.explained or self._gap_to_come(read):
                self.note(gap, now.steady, now, size=size, goes_on=True)
            else:
                self.note(tables.Gap.RESET, unread_since.steady, now, size=size)
        self.explained = None

    def _gap_to_come(self, read: Iterable[Sample]) -> tables.Gap | None:
        """What `restart` will count, before counters that were not found are made again."""
        present = {sample.counter for sample in read}
        is_missed = any(
            live.phase is tables.Phase.COUNTING and counter.is_pod and counter not in present
            for counter, live in self.counters.items()
        )
        return tables.Gap.REMOVED if is_missed else None

    def _post_one(self, sample: Sample, now: Moment) -> tables.Gap | None:
        """Post what passed since the last reading; returns what was lost."""
        counter = sample.counter
        former = self.counters[counter]
        is_known = former.phase is tables.Phase.COUNTING and sample.life == former.life
        last = former.reading
        # The last reading once more, as most are.
        if is_known and sample.bytes == last.bytes and sample.packets == last.packets:
            return None
        live, passed, gap = former.read(sample)
        self.counters[counter] = live
        if passed == tables.NOTHING:
            return gap
        for account in audit.accounts(counter, live.owner):
            self.totals[account] = self.totals.get(account, tables.NOTHING) + passed
        if live.owner is not None:
            # The wall clock, since people ask for hours of the day.
            hour = int(now.wall // SECONDS)
            self.hours.add(HourBucket(hour, *_name(live.owner), counter.traffic), passed)
        return gap

    def close(self, counters: Iterable[Counter]) -> None:
        """Note that the last reading of these was posted and that they will be taken away."""
        for counter in counters:
            if (live := self.counters.get(counter)) is not None:
                self.counters[counter] = replace(live, phase=tables.Phase.ENDING)
                self._advance()

    def rebase(self, samples: Iterable[Sample], now: Moment) -> None:
        """Rule 13."""
        for sample in samples:
            # A counter may have ended while both backends were read.
            if (live := self.counters.get(sample.counter)) is not None:
                self.counters[sample.counter] = live.continued(sample)
                self.read_at[sample.counter] = now.steady
        # Pods and their sum are never read at one instant.
        audit.remeasure(self.totals)
        self._advance()

    def end(self, counters: Iterable[Counter], now: Moment) -> None:
        """Rule 1, and the beginning of rule 6's lingering. Already ended is fine."""
        owners: set[PodRef | None] = set()
        for counter in counters:
            if (live := self.counters.get(counter)) is not None:
                owners.add(live.owner)
                # `close` has advanced the sequence for a counter whose last reading it posted.
                if live.phase is not tables.Phase.ENDING:
                    self._advance()
                del self.counters[counter]
                self.read_at.pop(counter, None)
        self._end_pods(owners, now)

    def _end_pods(self, owners: set[PodRef | None], now: Moment) -> None:
        gone = {_name(owner) for owner in owners if owner is not None}
        if gone:
            # A pod has ended when none of its counters is left, of either family and direction.
            gone -= {_name(live.owner) for live in self.counters.values() if live.owner is not None}
        for name in gone:
            self.ended[name] = now.wall

    def sweep(self, now: Moment, linger_seconds: float) -> None:
        """The end of rule 6's lingering. A clock that stepped back lengthens it by that step."""
        gone: set[tables.SeriesKey] = set()
        for name, since in list(self.ended.items()):
            if since > now.wall:
                # The clock was set back; counted from its new time the series still ends.
                self.ended[name] = now.wall
            elif now.wall - since >= linger_seconds:
                del self.ended[name]
                gone.add(name)
        for account in list(self.totals) if gone else ():
            series = tables.SeriesKey(account.owner, account.name)
            if account.scope is tables.Scope.POD and series in gone:
                del self.totals[account]
        self.write_down_reading()

    def write_down_reading(self) -> None:
        """Write down when counters were read last, for rule 9 in another life."""
        self.remember(READ_AT, f"{self.last_reading.steady:.3f}")
        self.remember(LONGEST_PAUSE, f"{self.longest_pause:.3f}")

    def remember(self, key: str, value: str) -> None:
        # Compared first: a fact that is set is a row to write.
        if self.facts.get(key) != value:
            self.facts[key] = value

    def _advance(self) -> None:
        """Count something that the kernel will not show a second time, for rule 12."""
        self.facts[SEQUENCE] = str(self._sequence + 1)

    def note(
        self,
        gap: tables.Gap,
        since: float,
        now: Moment,
        *,
        known: float = 0.0,
        size: int = 0,
        concerned: Collection[Counter] = (),
        goes_on: bool = False,
    ) -> None:
        """Count a gap since then, by the steady clock, or have the reason's last one go on.

        So many seconds of it are known already; so many bytes are known to be lost.
        """
        # Until the file can be written, it lacks this gap, and no more than that.
        if gap is not tables.Gap.NOT_DURABLE:
            self._advance()
        # By the wall clock, which may be wrong, for people and roll-ups.
        last = tables.LastGap.of(concerned, now.wall - (now.steady - since), now.wall)
        # Without counters nobody knows whose bytes they were: any row of these hours may lack some.
        if not (goes_on or concerned or gap in (tables.Gap.RESET, tables.Gap.NOT_DURABLE)):
            self.hours.miss(last.since, last.until)
        self.facts[GAP_AT + gap] = (self.last_gap(gap).prolonged(last) if goes_on else last).text
        lost = self.gaps.get(gap, tables.Lost())
        self.gaps[gap] = tables.Lost(
            lost.times + (not goes_on),
            lost.seconds + max(0.0, now.steady - since - known),
            min(lost.bytes + size, tables.LARGEST),
        )

    def prolong(self, gap: tables.Gap, since: float, now: Moment) -> None:
        """Have the reason's last gap go on from then; nobody knows whose bytes it has."""
        known, _ = self._extend(gap, since, now.steady)
        self.hours.miss(now.wall - (now.steady - since), now.wall)
        self.note(gap, since, now, known=known, goes_on=True)

    def last_gap(self, gap: tables.Gap) -> tables.LastGap:
        """The last gap of a reason; all zero if it is unknown."""
        return tables.LastGap.parse(self.facts.get(GAP_AT + gap, "0 0 0 "))

    def _lose(
        self, lost: Mapping[tables.Gap, Collection[Counter]], now: Moment, read_at: Moment
    ) -> None:
        """Rule 9 for the counters that one call reports, which are read as of `read_at` then."""
        every = [counter for counters in lost.values() for counter in counters]
        if not every:
            return
        since = min(self.read_at.get(counter, self.inherited.steady) for counter in every)
        # Before the audit, since a sum that was put back has posted again what it shows.
        audit.remeasure(self.totals, audit.summed(every))
        unsized = {
            (self._pod(counter), counter.traffic) for counter in filter(audit.is_unsized, every)
        }
        self.hours.miss(now.wall - (now.steady - since), now.wall, unsized)
        counted = 0.0
        for gap, counters in lost.items():
            known, goes_on = self._extend(gap, since, read_at.steady)
            known += counted
            self.note(gap, since, now, known=known, concerned=counters, goes_on=goes_on)
            # One stretch of time, whatever happened to each.
            counted = now.steady - since
            if any(counter.is_pod for counter in counters):
                self.explained = gap

    def _pod(self, counter: Counter) -> str:
        return str(self.counters[counter].owner or "")

    def _extend(self, gap: tables.Gap, since: float, until: float) -> tuple[float, bool]:
        """How many of these seconds the reason's last gap has already, and whether it goes on."""
        # Unread since before that gap ended, it belongs to it (rule 9).
        began, ended = self.blind.get(gap, (since, since))
        goes_on = since < ended
        # Two that meet are two events, and one stretch of time.
        self.blind[gap] = min(began, since) if since <= ended else since, until
        return ended - max(began, since) if goes_on else 0.0, goes_on

    @property
    def dirty(self) -> bool:
        """Whether the store's copy is behind."""
        touched = (self.facts.touched, self.counters.touched, self.totals.touched)
        return any((self.hours, *touched, self.ended.touched, self.gaps.touched))

    def written(self) -> None:
        """The store's copy has caught up."""
        self.hours.clear()
        self.facts.touched.clear()
        self.counters.touched.clear()
        self.totals.touched.clear()
        self.ended.touched.clear()
        self.gaps.touched.clear()


def _name(owner: PodRef) -> tables.SeriesKey:
    return tables.SeriesKey(owner.namespace, owner.name)
