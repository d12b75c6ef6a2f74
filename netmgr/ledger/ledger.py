"""The ledger as the agent uses it: thread-safe, and durable after every call that changes it.

Each call decides in the book and then writes what changed in one transaction. If the file
cannot be written (a full disk), the totals go on in memory, the next call tries again with
everything that is still unwritten, and one gap "not-durable" tells of it: `durable` is
false until it worked, and the gap's seconds grow until then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from netmgr import sqlite_file
from netmgr.clock import Clock
from netmgr.errors import SetupError, StateError
from netmgr.ledger import mark, rollups
from netmgr.ledger.account import Amount
from netmgr.ledger.book import Book, Gap, Moment
from netmgr.ledger.history import By, Period, Retention, Usage, grouped
from netmgr.ledger.mark import Found, Mark, Own, Synced
from netmgr.ledger.store import Store
from netmgr.ledger.totals import Totals, picture
from netmgr.model import Counter, PodRef, Sample

WEEK = Retention()
PRUNE_SECONDS = 600.0
"""How often the history is bounded; each time takes milliseconds."""

MARK_FILE = "ledger-mark"
"""Beside the ledger: what a sync made sure of (`mark.py`)."""

BACKENDS = "backends"
"""Fact: names of backends that may have rules in the kernel; the readings are of the first one's."""

_GAPS = {Found.LOST: Gap.LEDGER_LOST, Found.FOREIGN: Gap.LEDGER_LOST, Found.OLDER: Gap.LEDGER_OLDER}

log = logging.getLogger(__name__)


class Ledger:
    """Totals of every counter, whatever happens to agent, pods and kernel counters.

    `linger_seconds` is how long a pod's series outlives the pod; `boot_id` tells this boot of
    the machine from any other (/proc/sys/kernel/random/boot_id). `is_new` says that there was
    nothing in the file, `found` what `examine` found out. `retention` bounds the hourly roll-ups.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        linger_seconds: float,
        boot_id: str,
        retention: Retention = WEEK,
    ) -> None:
        self._store = store
        self._clock = clock
        self._linger_seconds = linger_seconds
        self._retention = retention
        self._lock = threading.RLock()
        self._file_lock = threading.Lock()
        """Taken before the other by whoever looks at the file from outside; a sync holds it alone."""
        self._durable = True
        self._undurable_since = self._pruned_at = float("-inf")
        self._boot_id = boot_id
        self.found = Found.CURRENT
        self._mark_path = store.path.with_name(MARK_FILE)
        self._take_up(store.load())

    def _take_up(self, book: Book) -> None:
        book.keeps_hours = self._retention.hours > 0
        self.is_new = not (book.totals or book.counters)
        try:
            book.open(self._now(), self._boot_id)
        except ValueError as error:
            raise StateError(f"{self._store.path}: cannot be read as a ledger: {error}") from None
        self._book = book
        self._write()

    @classmethod
    def open(
        cls, path: Path, *, clock: Clock, linger_seconds: float, boot_id: str, retention: Retention = WEEK
    ) -> Self:
        """The ledger in the file at `path`, exactly as it was left, or a new one.

        Raises:
            StateError: the file is damaged or of another version; the message names it.
            SetupError: the file cannot be reached or made (permissions, a full disk).
        """
        store = Store(path)
        try:
            return cls(store, clock=clock, linger_seconds=linger_seconds, boot_id=boot_id, retention=retention)
        except (StateError, SetupError):
            store.close()
            raise

    def begin(self, counters: Iterable[Counter], owner: PodRef | None) -> None:
        """Tell of counters just before the kernel makes them; `owner` None is the node itself.

        Counters that are live for this owner already stay as they are.

        Raises:
            ValueError: a pod's counter without an owner, or a hook's with one.
        """
        with self._lock:
            self._book.begin(counters, owner, self._now())
            self._write()

    def restart(self, counters: Iterable[Counter], unlinked: Collection[Counter] = ()) -> bool:
        """Tell of live counters that vanished, just before the kernel makes them again at zero.

        Whether something was lost; `unlinked` are those of pods that have no link.
        """
        with self._lock:
            lost = self._book.restart(counters, self._now(), unlinked)
            self._write()
            return lost

    def note(self, gap: Gap, seconds: float = 0.0, count: int = 1) -> None:
        """Tell of a gap that counters themselves do not show, and how long counting was incomplete.

        With `count` 0 one that was told of already lasted so much longer.
        """
        with self._lock:
            self._book.note(gap, seconds, count)
            self._write()

    def moment(self) -> Moment:
        """The instant to stamp a reading with that is about to be taken."""
        return self._now()

    def post(self, samples: Iterable[Sample], taken_at: Moment | None = None, closing: Iterable[Counter] = ()) -> None:
        """Take readings into the totals.

        An older reading posted after a newer one looks like a reset: the caller holds one lock
        over reading the kernel and posting.

        Args:
            samples: the readings.
            taken_at: an instant before they were taken; now, if they took no time.
            closing: counters that will be taken away after this, their last reading.
        """
        with self._lock:
            self._book.post(samples, self._now(), taken_at)
            self._book.close(closing)
            self._write()

    def hand_over(
        self, last: Iterable[Sample], first: Iterable[Sample], backends: str, moving: int, seconds: float
    ) -> None:
        """Post the last reading of one backend, and have counters go on from what another one showed then.

        Args:
            last: what the former shows.
            first: what the successor shows.
            backends: what to remember under `BACKENDS`.
            moving: how many counters moved between both readings, and may have lost something.
            seconds: how far apart both readings were.
        """
        with self._lock:
            now = self._now()
            self._book.post(last, now)
            self._book.rebase(first, now)
            if moving:
                self._book.note(Gap.REMOVED, seconds, moving)
            self._book.facts[BACKENDS] = backends
            self._write()

    def end(self, counters: Iterable[Counter]) -> None:
        """Tell that the last reading has been posted and the kernel may drop these. Idempotent.

        With the last of its counters a pod's series begins to linger.
        """
        with self._lock:
            self._book.end(counters, self._now())
            self._write()

    def sweep(self) -> None:
        """Drop the series of pods that lingered long enough; their namespaces keep the bytes. Bound the history."""
        with self._lock:
            self._book.sweep(self._now(), self._linger_seconds)
            self._write()
            if self._clock.monotonic() - self._pruned_at >= PRUNE_SECONDS:
                self._prune()

    def recall(self, key: str) -> str | None:
        """What `remember` was told last under this key."""
        with self._lock:
            return self._book.facts.get(key)

    def remember(self, key: str, value: str) -> None:
        """Keep a fact of the agent's beside the totals."""
        with self._lock:
            if self._book.facts.get(key) != value:
                self._book.facts[key] = value
                self._write()

    @property
    def mark(self) -> Mark | None:
        """The books' mark as of now; None if they have no number yet."""
        return self._book.mark

    def examine(self, kernel: Collection[Mark], *, has_counters: bool) -> Found:
        """Find out whether these are the books that were written last, and have them be the machine's from now on.

        Called before the first reading is posted. Books that lack something are one gap, written in
        the same transaction as the number that says they are now the true ones. A file of other
        books is set aside.

        Args:
            kernel: the marks found beside the kernel's counters.
            has_counters: whether there are any counters of ours.

        Raises:
            StateError: a foreign file cannot be set aside.
        """
        with self._lock:
            synced = mark.read(self._mark_path)
            own = Own(self._book.mark, self.is_new, self._book.lasting_bytes())
            found = mark.compare(own, kernel, synced, has_counters=has_counters)
            if found is Found.FOREIGN:
                self._begin_anew()
            known = [*kernel, *([synced.mark] if synced else [])]
            # Their own number; else, of several, the kernel's. Of one number the latest mark.
            number = (self._book.mark or next(iter(known), None) or Mark.new()).books
            self._book.number(max((one for one in known if one.books == number), default=Mark(number, 0)))
            if found in _GAPS:
                since = 0.0 if found is not Found.OLDER else self._book.last_reading.steady
                seconds = self._now().steady - since
                self._book.note(_GAPS[found], seconds)
                action = "bring-up-by-live-counters" if found is Found.OLDER else "rebuild-from-live-counters"
                log.error(
                    "ledger-gap kind=%s path=%s found=%s seconds=%.0f action=%s",
                    _GAPS[found],
                    self._store.path,
                    found.value,
                    seconds,
                    action,
                )
            self.found = found
            self._write()
            return found

    def _begin_anew(self) -> None:
        path = self._store.path
        self._store.close()
        kept = sqlite_file.set_aside(path, "foreign")
        log.error("ledger-foreign path=%s action=set-aside", kept)
        self._store = Store(path)
        self._take_up(self._store.load())

    @property
    def read_at(self) -> float:
        """When counters were read last, a predecessor's reading included, by the clock that never steps."""
        return self._book.last_reading.steady

    def counters(self) -> dict[Counter, PodRef | None]:
        """Live counters and whose they are; None is the node itself."""
        with self._lock:
            return {counter: live.owner for counter, live in self._book.counters.items()}

    def readings(self) -> dict[Counter, Amount]:
        """Last readings of live counters."""
        with self._lock:
            return {counter: live.reading for counter, live in self._book.counters.items()}

    def totals(self) -> Totals:
        """Everything there is to show."""
        with self._lock:
            self._tell_of_undurable_time()
            return picture(self._book, durable=self._durable)

    def usage(self, period: Period, by: Sequence[By]) -> list[Usage]:
        """Sums of the period's hourly roll-ups by what `by` names and by traffic, most bytes first.

        Raises:
            StateError: the file is damaged.
            SetupError: it cannot be read just now.
        """
        with ExitStack() as stack:
            with self._lock:  # the file's view and what it lacks are of one instant; summing up takes longer
                connection = stack.enter_context(rollups.reading(self._store.path))
                unwritten = [Usage(*slot, sum_.bytes, sum_.packets) for slot, sum_ in self._book.hours.items()]
            written = rollups.usage(connection, period, by)
        return grouped([*written, *(row for row in unwritten if period.holds(row.hour))], by)

    @property
    def durable(self) -> bool:
        """Whether everything posted so far would survive the end of this process."""
        return self._durable

    def checkpoint(self) -> None:
        """Sync to the disk, for power cuts, and bound the log's size; once a minute is plenty.

        Takes as long as the disk does; other calls go on meanwhile. Failing is logged only: the
        next call tries again.
        """
        try:
            with self._file_lock:
                self._sync()
        except StateError as error:
            log.warning("ledger-not-synced error=%s", error.message)

    def _sync(self) -> None:
        with self._lock:
            current = self._book.mark
            # What could not be written is in memory alone, and no sync makes sure of it.
            synced = Synced(current, self._book.lasting_bytes()) if current and not self._book.dirty else None
        if self._store.checkpoint() and synced and mark.read(self._mark_path) != synced:
            mark.write(self._mark_path, synced)

    @property
    def path(self) -> Path:
        """Where its file stands."""
        return self._store.path

    def is_lost(self) -> bool:
        """Whether its file was removed or replaced since it was opened, or altered by somebody else."""
        if not self._file_lock.acquire(blocking=False):
            return False  # a sync is under way, which alters the file itself
        try:
            with self._lock:
                return self._store.is_lost() or self._store.is_harmed(check=not self._durable)
        finally:
            self._file_lock.release()

    def restore(self) -> None:
        """Make its file again: with all that it held, or if it was altered with all but the hourly roll-ups.

        Raises:
            StateError: it cannot be made.
        """
        with self._file_lock, self._lock:
            if self._store.is_harmed(check=True):
                self._tell_of_undurable_time()
                self._store.begin_anew(self._book)
                self._durable = True
                log.error("ledger-rewritten path=%s reason=damaged-or-altered lost=hourly-history", self._store.path)
            else:
                self._store.restore()

    def close(self) -> None:
        """Sync and close the file. Nothing may be called afterwards."""
        with self._lock:
            self._book.write_down_reading()
            self._write()
        self.checkpoint()
        with self._lock:
            self._store.close()

    def _now(self) -> Moment:
        return Moment(self._clock.now(), self._clock.monotonic())

    def _write(self) -> None:
        if not self._book.dirty:
            return
        self._tell_of_undurable_time()
        self._book.write_down_reading()
        try:
            self._store.write(self._book)
        except StateError as error:
            if self._durable:
                # No traceback: the message tells file and reason.
                log.error("ledger-not-durable action=totals-in-memory error=%s", error.message)  # noqa: TRY400  no traceback: the reason says it all
                self._book.note(Gap.NOT_DURABLE)
                self._undurable_since = self._clock.monotonic()
            self._durable = False
        else:
            if not self._durable:
                log.warning("ledger-durable-again path=%s", self._store.path)
            self._durable = True

    def _tell_of_undurable_time(self) -> None:
        """Before a write and not after, so that the one that succeeds writes this down as well."""
        if not self._durable:
            now = self._clock.monotonic()
            self._book.note(Gap.NOT_DURABLE, now - self._undurable_since, count=0)
            self._undurable_since = now

    def _prune(self) -> None:
        self._pruned_at = self._clock.monotonic()
        try:
            self._store.prune(self._retention)
        except StateError as error:
            log.warning("history-unbounded error=%s", error.message)
