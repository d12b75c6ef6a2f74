"""The ledger as the agent uses it: thread-safe, and durable after every call that changes it.

Each call decides in the book and then writes what changed in one transaction. If the file
cannot be written (a full disk), totals go on in memory and the next call tries again with
everything that is still unwritten. Until that works, `durable` is false and the seconds of one
gap "not-durable" grow.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from netmgr import sqlite_file
from netmgr.api.snapshot import UsageRow
from netmgr.clock import Clock
from netmgr.errors import SetupError, StateError
from netmgr.ledger import mark, store
from netmgr.ledger.book import BOOKS, ZEROED_AT, Book, Moment
from netmgr.ledger.history import By, Period, Retention, usage_row
from netmgr.ledger.mark import MENDED, BooksState, Mark, Own, Synced
from netmgr.ledger.store import LedgerStore
from netmgr.ledger.tables import Amount, Gap, Lost
from netmgr.ledger.totals import Totals, picture
from netmgr.model import Counter, PodRef, Sample

WEEK = Retention()
PRUNE_SECONDS = 600.0
"""How often the history is bounded; each time takes milliseconds."""

MARK_FILE = "ledger-mark"
"""Beside the ledger: what the disk surely has of it (`mark.py`)."""

BACKENDS = "backends"
"""Fact: names of backends that may have rules in the kernel; readings are the first one's."""

log = logging.getLogger(__name__)


class Ledger:
    """Totals of every counter, whatever happens to agent, pods and kernel counters.

    A pod's series outlives the pod by `linger_seconds`. `boot_id` differs between boots of the
    machine (/proc/sys/kernel/random/boot_id). A file that cannot be used is closed.

    Attributes:
        is_new: whether there was nothing in the file.
        books_state: what `examine` found out.

    Raises:
        StateError: the file is damaged or is no ledger; the message names it.
        SetupError: the file cannot be read just now.
    """

    def __init__(
        self,
        file: LedgerStore,
        *,
        clock: Clock,
        linger_seconds: float,
        boot_id: str,
        retention: Retention = WEEK,
    ) -> None:
        self._store = file
        self._clock = clock
        self._linger_seconds = linger_seconds
        self._retention = retention
        # Reentrant: `examine` and `sweep` call methods that write, while they hold it.
        self._lock = threading.RLock()
        # Taken before the other one by whoever looks at the file from outside. A sync holds it
        # alone, so that postings go on while the disk is waited for.
        self._file_lock = threading.Lock()
        self._undurable_since: float | None = None
        self._pruned_at = -math.inf
        self._boot_id = boot_id
        self.books_state = BooksState.CURRENT
        self._mark_path = file.path.with_name(MARK_FILE)
        try:
            self._open_book(file.load())
        except (StateError, SetupError):
            # The caller sets a damaged file aside, and must not leave it open under its new name.
            file.close()
            raise

    def _open_book(self, book: Book) -> None:
        book.hours.is_kept = self._retention.hours > 0
        self.is_new = not (book.totals or book.counters or BOOKS in book.facts)
        try:
            book.open(self.moment(), self._boot_id)
        except ValueError as error:
            raise StateError(f"{self._store.path}: cannot be read as a ledger: {error}") from None
        self._book = book
        self._write()

    @contextmanager
    def _changing(self) -> Iterator[Book]:
        """The book, locked; what the block changed is written at its end."""
        with self._lock:
            yield self._book
            self._write()

    def begin(self, counters: Iterable[Counter], owner: PodRef | None) -> None:
        """Begin counters, just before the kernel makes them; `owner` None is the node itself."""
        with self._changing() as book:
            book.begin(counters, owner, self.moment())

    def restart(self, counters: Iterable[Counter], unmade: Collection[Counter] = ()) -> bool:
        """Begin live counters that vanished anew, just before the kernel makes them at zero."""
        with self._changing() as book:
            return book.restart(counters, self.moment(), unmade)

    def note(self, gap: Gap, since: float, *, goes_on: bool = False) -> None:
        """Report a gap since then, by the steady clock, that counters do not show."""
        with self._changing() as book:
            book.note(gap, since, self.moment(), goes_on=goes_on)

    def prolong(self, gap: Gap, since: float) -> float:
        """Have the reason's last gap go on from then until now, which is returned."""
        with self._changing() as book:
            now = self.moment()
            book.prolong(gap, since, now)
        return now.steady

    def moment(self) -> Moment:
        """Now. A reading is stamped with the instant before it was taken."""
        return Moment(self._clock.now(), self._clock.monotonic())

    def post(
        self,
        samples: Iterable[Sample],
        taken_at: Moment | None = None,
        closing: Iterable[Counter] = (),
    ) -> None:
        """Add readings to the totals, in the order in which they were taken.

        The caller holds one lock over reading the kernel and posting. `taken_at` is an instant
        before that reading, if it took time; `closing` are counters whose last reading this is.
        Those of them that it lacks were taken away by another program, unless they never counted.
        """
        with self._changing() as book:
            # One transaction: killed after it, an agent's successor knows that closed counters were
            # read for the last time, and reports no gap for them.
            read, last = tuple(samples), frozenset(closing)
            book.post(read, self.moment(), taken_at)
            unread = last.difference(sample.counter for sample in read)
            book.restart(unread, self.moment(), unmade=unread)
            book.close(last)

    def hand_over(
        self, last: Iterable[Sample], first: Iterable[Sample], backends: str, seconds: float
    ) -> None:
        """Post one backend's last reading, and have counters go on from another one's first.

        `backends` is remembered under `BACKENDS`. Readings of counters that moved meanwhile were so
        many seconds apart; 0 if none did.
        """
        # One transaction: after a crash within it the former backend's readings still hold.
        with self._changing() as book:
            now = self.moment()
            book.post(last, now)
            book.rebase(first, now)
            if seconds:
                book.note(Gap.REMOVED, now.steady - seconds, now)
            book.facts[BACKENDS] = backends

    def end(self, counters: Iterable[Counter]) -> None:
        """End counters whose last reading was posted; the kernel may drop them. Idempotent."""
        with self._changing() as book:
            book.end(counters, self.moment())

    def sweep(self) -> None:
        """Drop the series of pods that lingered long enough; bound the history now and then."""
        with self._lock:
            with self._changing() as book:
                book.sweep(self.moment(), self._linger_seconds)
            now = self._clock.monotonic()
            if now - self._pruned_at >= PRUNE_SECONDS:
                # Before the attempt: a disk that is full is not asked every minute.
                self._pruned_at = now
                try:
                    self._store.prune(self._retention)
                except StateError as error:
                    log.warning("history-unbounded error=%s", error.message)

    def recall(self, key: str) -> str | None:
        with self._lock:
            return self._book.facts.get(key)

    def remember(self, key: str, value: str) -> None:
        """Keep a fact of the agent's beside the totals."""
        with self._changing() as book:
            book.remember(key, value)

    @property
    def mark(self) -> Mark | None:
        """The books' mark as of now; None if they have no number yet."""
        return self._book.mark

    def examine(self, kernel: Collection[Mark], *, has_counters: bool) -> BooksState:
        """Find out whether these are the books that were written last, and take them into use.

        Called before the first reading is posted, with the marks beside the kernel's counters and
        whether there are any counters of ours. Books that lack something are one gap, and begin
        anew. That is written in the same transaction as the number that makes them the true ones,
        so that a crash reports it neither twice nor never. A file of other books is set aside.

        Raises:
            StateError: a foreign file cannot be set aside.
        """
        with self._lock:
            synced = mark.read(self._mark_path)
            zeroed_at = int(self._book.facts.get(ZEROED_AT, "0"))
            own = Own(self._book.mark, self.is_new, self._book.lasting_bytes(), zeroed_at)
            finding = mark.compare(own, kernel, synced, has_counters=has_counters)
            if finding is BooksState.FOREIGN:
                self._begin_anew()
            with self._changing() as book:
                book.number(mark.successor(book.mark, kernel, synced))
                book.recall(synced.gaps if synced else ())
                if finding in MENDED:
                    self._note_loss(book, finding)
                    book.forget()
            # After the transaction: what was not written down is found again by the next start.
            self.books_state = finding
        if finding in MENDED:
            # At once, since the next loss may come before the next sync, and is to be counted, too.
            self.checkpoint()
        return finding

    def _note_loss(self, book: Book, finding: BooksState) -> None:
        now, since = self.moment(), book.last_reading.steady if finding is BooksState.OLDER else 0.0
        book.note(MENDED[finding], since, now)
        log.error(
            "ledger-gap kind=%s path=%s found=%s seconds=%.0f action=begin-totals-at-zero",
            MENDED[finding],
            self._store.path,
            finding.value,
            now.steady - since,
        )

    def _begin_anew(self) -> None:
        path = self._store.path
        self._store.close()
        kept = sqlite_file.set_aside(path, "foreign")
        log.error("ledger-foreign path=%s action=set-aside", kept)
        self._store = LedgerStore(path)
        self._open_book(self._store.load())

    @property
    def read_at(self) -> float:
        """When counters were read last, also by a predecessor, by the clock that never steps."""
        return self._book.last_reading.steady

    def counters(self) -> dict[Counter, PodRef | None]:
        """Live counters and whose they are; None is the node itself."""
        with self._lock:
            return {counter: live.owner for counter, live in self._book.counters.items()}

    def readings(self) -> dict[Counter, Amount]:
        with self._lock:
            return {counter: live.reading for counter, live in self._book.counters.items()}

    def totals(self) -> Totals:
        with self._lock:
            # Without it, readers would see the gap grow only when something is written.
            self._note_undurable_time()
            return picture(self._book, durable=self.durable)

    def losses(self) -> dict[Gap, Lost]:
        with self._lock:
            return dict(self._book.gaps)

    def usage(self, period: Period, by: Sequence[By]) -> list[UsageRow]:
        """Sums of the period's roll-ups by `by` and by traffic, most bytes first.

        Raises as opening does.
        """
        with ExitStack() as stack:
            # The view of the file and what it lacks must be of one instant; summing up takes
            # longer, and needs no lock.
            with self._lock:
                connection = stack.enter_context(store.reading(self._store.path))
                unwritten = [
                    usage_row(*bucket, amount)
                    for bucket, amount in self._book.hours.items()
                    if period.holds(bucket.hour)
                ]
            return store.usage(connection, period, by, unwritten)

    @property
    def durable(self) -> bool:
        """Whether everything posted so far would survive the end of this process."""
        return self._undurable_since is None

    def checkpoint(self) -> None:
        """Sync to the disk, for power cuts, and bound the log's size; once a minute is plenty.

        Takes as long as the disk does; other calls go on meanwhile, and wait only for what is left
        of a log that got long. A failure is only logged: the next call tries again.
        """
        try:
            with self._file_lock:
                self._sync()
        except StateError as error:
            log.warning("ledger-not-synced error=%s", error.message)

    def _sync(self) -> None:
        synced = None
        with self._lock:
            current = self._book.mark
            # A sync does not cover what could not be written and is in memory alone.
            if current and not self._book.dirty:
                synced = Synced(current, self._book.lasting_bytes(), self._book.counted_gaps())
        is_whole = self._store.checkpoint()
        if sqlite_file.is_long(self._store.path):
            # While nothing is written: under constant writes a log never starts over.
            with self._lock:
                self._store.checkpoint()
        # The small file comes after the disk has the ledger, and never ahead of it.
        if is_whole and synced and mark.read(self._mark_path) != synced:
            mark.write(self._mark_path, synced)

    @property
    def path(self) -> Path:
        return self._store.path

    def is_lost(self) -> bool:
        """Whether its file was removed, replaced, or altered by somebody else."""
        if not self._file_lock.acquire(blocking=False):
            return False  # a sync is under way, which alters the file itself
        try:
            with self._lock:
                # quick_check reads the whole file, so only after a write failed.
                return self._store.is_lost() or self._store.is_harmed(check=not self.durable)
        finally:
            self._file_lock.release()

    def restore(self) -> None:
        """Recreate its file with all that it had; if it was altered, without hourly roll-ups.

        Raises:
            StateError: it cannot be made.
        """
        with self._file_lock, self._lock:
            if self._store.is_harmed(check=True):
                self._note_undurable_time()
                self._store.begin_anew(self._book)
                self._undurable_since = None
                log.error(
                    "ledger-rewritten path=%s reason=damaged-or-altered lost=hourly-history",
                    self._store.path,
                )
            else:
                self._store.restore()

    def close(self) -> None:
        """Sync and close the file. Nothing may be called afterwards."""
        with self._lock:
            self._book.write_down_reading()
            self._write()
        # Not under the lock: a sync takes the file's lock first and then this one.
        self.checkpoint()
        with self._lock:
            self._store.close()

    def _write(self) -> None:
        # Most readings of an idle node change no total, and cost no transaction.
        if not self._book.dirty:
            return
        self._note_undurable_time()
        # Only with something else to write: the time alone is not worth a transaction.
        self._book.write_down_reading()
        try:
            self._store.write(self._book)
        except StateError as error:
            if self.durable:
                log.error("ledger-not-durable action=totals-in-memory error=%s", error.message)  # noqa: TRY400  the message says file and reason
                # Once for each such time; `_note_undurable_time` prolongs it.
                now = self.moment()
                self._undurable_since = now.steady
                self._book.note(Gap.NOT_DURABLE, now.steady, now)
        else:
            if not self.durable:
                log.warning("ledger-durable-again path=%s", self._store.path)
            self._undurable_since = None

    def _note_undurable_time(self) -> None:
        """Called before a write, so that the one that succeeds includes this."""
        if self._undurable_since is not None:
            now = self.moment()
            self._book.note(Gap.NOT_DURABLE, self._undurable_since, now, goes_on=True)
            self._undurable_since = now.steady
