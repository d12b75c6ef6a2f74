"""The ledger as the agent uses it: thread-safe, and durable after every call that changes it.

Each call decides in the book and then writes what changed in one transaction. If the file
cannot be written (a full disk), the totals go on in memory, the next call tries again with
everything that is still unwritten, and one gap "not-durable" tells of it: `durable` is
false until it worked, and the gap's seconds grow until then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from netmgr.clock import Clock
from netmgr.errors import SetupError, StateError
from netmgr.ledger import rollups
from netmgr.ledger.account import Amount
from netmgr.ledger.book import BOOT_ID, Gap, Moment
from netmgr.ledger.history import By, Period, Retention, Usage, grouped
from netmgr.ledger.store import Store
from netmgr.ledger.totals import Totals, picture
from netmgr.model import Counter, PodRef, Sample

WEEK = Retention()
PRUNE_SECONDS = 600.0
"""How often the history is bounded; each time takes milliseconds."""

log = logging.getLogger(__name__)


class Ledger:
    """Totals of every counter, whatever happens to agent, pods and kernel counters.

    `linger_seconds` is how long a pod's series outlives the pod; `boot_id` tells this boot of
    the machine from any other (/proc/sys/kernel/random/boot_id). `is_new` says that there was
    no ledger before this one. `retention` bounds the hourly roll-ups.
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
        self._durable = True
        self._undurable_since = self._pruned_at = float("-inf")
        self._book = store.load()
        self._book.keeps_hours = retention.hours > 0
        self.is_new = BOOT_ID not in self._book.facts
        self._book.open(self._now())
        self._book.enter_boot(boot_id, self._now())
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

    def restart(self, counters: Iterable[Counter]) -> None:
        """Tell of live counters that vanished, just before the kernel makes them again at zero."""
        with self._lock:
            self._book.restart(counters, self._now())
            self._write()

    def note(self, gap: Gap, seconds: float = 0.0) -> None:
        """Tell of a gap that counters themselves do not show, and how long counting was incomplete."""
        with self._lock:
            self._book.note(gap, seconds)
            self._write()

    def post(self, samples: Iterable[Sample]) -> None:
        """Take readings into the totals.

        An older reading posted after a newer one looks like a reset: the caller holds one lock
        over reading the kernel and posting.
        """
        with self._lock:
            self._book.post(samples, self._now())
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
            self._store.checkpoint()
        except StateError as error:
            log.warning("event=checkpoint-failed error=%r", error.message)

    @property
    def path(self) -> Path:
        """Where its file stands."""
        return self._store.path

    def is_lost(self) -> bool:
        """Whether its file was removed or replaced since it was opened."""
        with self._lock:
            return self._store.is_lost()

    def restore(self) -> None:
        """Make its file again with all that it held.

        Raises:
            StateError: it cannot be made.
        """
        with self._lock:
            self._store.restore()

    def close(self) -> None:
        """Sync and close the file. Nothing may be called afterwards."""
        with self._lock:
            self._book.write_down_reading()
            self._write()
            self._store.close()

    def _now(self) -> Moment:
        return Moment(self._clock.now(), self._clock.monotonic())

    def _write(self) -> None:
        if not self._book.dirty:
            return
        self._tell_of_undurable_time()
        try:
            self._store.write(self._book)
        except StateError as error:
            if self._durable:
                # No traceback: the message tells file and reason.
                log.error("event=ledger-not-durable action=totals-in-memory error=%r", error.message)  # noqa: TRY400  no traceback: the reason says it all
                self._book.note(Gap.NOT_DURABLE)
                self._undurable_since = self._clock.monotonic()
            self._durable = False
        else:
            if not self._durable:
                log.warning("event=ledger-durable-again path=%s", self._store.path)
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
            log.warning("event=history-unbounded error=%r", error.message)
