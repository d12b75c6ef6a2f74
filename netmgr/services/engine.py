"""The Services room's facade: documents in, translation in the kernel.

What cannot be used is refused, told, and changes nothing: a Service whose documents
contradict the plan keeps what was programmed for it, and a file that is no document at all
keeps saying what it said before. At a start nobody knows what such a file said; so while
anything is refused then, nothing that a predecessor programmed is taken away.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from netmgr.errors import NetmgrError
from netmgr.inotify import Watch
from netmgr.prefixes import Prefix
from netmgr.services import connections
from netmgr.services.backend import ServiceBackend
from netmgr.services.choose import open_backend
from netmgr.services.desk import Desk
from netmgr.services.directory import Documents
from netmgr.services.joining import Catalogue, Opening
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort, ServiceStatus
from netmgr.sites import ServiceRange

_MOST_LOGGED = 20
_NOTHING = Frontend(frozenset())

log = logging.getLogger(__name__)


class Services:
    """Opens the Services that documents name. One thread works it; `status` and `faults` are for any."""

    def __init__(self, backend: ServiceBackend, desk: Desk, watch: Watch) -> None:
        self._backend = backend
        self._desk = desk
        self._watch = watch
        self._lock = threading.Lock()
        self._left: dict[ServicePort, Frontend] = {}
        self._gone: defaultdict[ServicePort, set[Endpoint]] = defaultdict(set)
        self._told: frozenset[str] = frozenset()

    @classmethod
    def open(
        cls,
        backend_name: str,
        ranges: Sequence[ServiceRange],
        source: Path,
        spoke: Iterable[Prefix] = (),
        machines: Iterable[Prefix] = (),
    ) -> Services:
        """The Services in `source`, seen through `ranges`; endpoints as `Catalogue` has them.

        Works in the namespace of the calling thread. Nothing is changed before `start`.

        Raises:
            SetupError: a library or inotify is not to be had.
            KernelError: the kernel refuses the backend's socket.
        """
        documents = Documents(source)
        watch = Watch(documents.watched)
        try:
            backend = open_backend(backend_name, [one.seen for one in ranges])
        except NetmgrError:
            watch.close()
            raise
        return cls(backend, Desk(documents, Catalogue(ranges, tuple(spoke), tuple(machines))), watch)

    def fileno(self) -> int:
        """Becomes readable when documents may have changed; call `refresh` then."""
        return self._watch.fileno()

    def start(self) -> None:
        """Take over what a predecessor programmed, and bring it to what the documents say.

        Raises:
            NetmgrError: the kernel refused, or is busy.
        """
        with self._lock, _without_collection():
            self._left = self._backend.held()
            log.info("services-begin programmed=%d", len(self._left))
            self._take(None)
            self._put_right()

    def refresh(self) -> None:
        """Carry out what changed in the documents since the last time, and nothing else.

        Raises:
            NetmgrError: the kernel refused, or is busy; `sync` makes up for it.
        """
        with self._lock:
            names = self._watch.drain()
            self._watch.renew()
            # A mounted ConfigMap changes by a link of its own that all its files lead through.
            everything = names is None or any(name.startswith("..") for name in names)
            if changes := self._take(None if everything else names):
                self._backend.change(changes)
                self._forget()

    def sync(self) -> list[str]:
        """Take what changed in the documents, and put right what another program did; sentences of repairs.

        Raises:
            NetmgrError: the kernel refused, or is busy.
        """
        with self._lock:
            self._watch.drain()
            self._watch.renew()
            self._take(None)
            return self._put_right()

    def status(self) -> list[ServiceStatus]:
        """Everything that is opened, by Service and port, with the connections that clients began."""
        with self._lock:
            opened = dict(self._desk.opened)
        hits = self._backend.hits()
        found = [
            ServiceStatus(
                name,
                seen,
                tuple(sorted(opening.frontend.endpoints)),
                tuple(sorted(opening.draining)),
                opening.frontend.sticky,
                hits.get(seen),
            )
            for seen, (name, opening) in opened.items()
        ]
        return sorted(found, key=lambda one: (one.service, one.seen))

    def size(self) -> tuple[int, int]:
        """How many Services are open, and how many endpoints stand behind all their ports; cheaper than `status`."""
        with self._lock:
            opened = list(self._desk.opened.values())
        return len({one.service for one in opened}), sum(len(one.opening.frontend.endpoints) for one in opened)

    def faults(self) -> list[str]:
        """What is refused now: file, line, key and what is wrong with it."""
        with self._lock:
            return self._desk.faults()

    def remove(self) -> None:
        """Take the translation away; connections that were translated go on.

        Raises:
            NetmgrError: the kernel refused, or is busy.
        """
        with self._lock:
            self._backend.remove()

    def close(self) -> None:
        """Give back sockets; what is translated stays translated."""
        self._backend.close()
        self._watch.close()

    def _take(self, names: Iterable[str] | None) -> dict[ServicePort, Frontend | None]:
        """Read the documents; what is to be programmed otherwise than before."""
        changes: dict[ServicePort, Frontend | None] = {}
        for seen, (before, after) in self._desk.read(names).items():
            changes[seen] = after.frontend if after else None
            had = _endpoints(before) if before else self._left.pop(seen, _NOTHING).endpoints
            self._note_gone(seen, had, _endpoints(after) if after else frozenset())
        # What a refused document may have opened before stays; what no document asks for any more does not.
        doubtful = self._desk.in_doubt() if self._left else None
        for seen in [seen for seen in self._left if doubtful is not None and seen.address not in doubtful]:
            changes[seen] = None
            self._note_gone(seen, self._left.pop(seen).endpoints, frozenset())
        _log(changes)
        self._tell_faults()
        return changes

    def _tell_faults(self) -> None:
        """Log what is refused, each fault once while it lasts."""
        faults = frozenset(self._desk.faults())
        for fault in sorted(faults - self._told)[:_MOST_LOGGED]:
            log.warning("documents-refused fault=%s", fault)
        self._told = faults

    def _put_right(self) -> list[str]:
        wanted = self._left | {seen: opened.opening.frontend for seen, opened in self._desk.opened.items()}
        repairs = self._backend.put_right(wanted)
        self._forget()
        return repairs

    def _note_gone(self, seen: ServicePort, had: frozenset[Endpoint], has: frozenset[Endpoint]) -> None:
        if seen.protocol is not Protocol.UDP:
            return
        self._gone[seen] = (self._gone[seen] | had) - has
        if has and not had:
            # Clients who came before there was anything may be remembered as not translated.
            self._gone[seen].add(Endpoint(seen.address, seen.port))

    def _forget(self) -> None:
        """Have UDP clients of endpoints that went begin anew."""
        if count := connections.forget(self._gone):
            log.info("connections-ended reason=endpoint-gone count=%d", count)
        self._gone.clear()


@contextmanager
def _without_collection() -> Iterator[None]:
    """Look for no garbage meanwhile: a million new objects without a cycle are walked again and again for none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _endpoints(opening: Opening) -> frozenset[Endpoint]:
    """Those that may have connections."""
    return opening.frontend.endpoints | opening.draining


def _log(changes: Mapping[ServicePort, Frontend | None]) -> None:
    for seen, frontend in list(changes.items())[:_MOST_LOGGED]:
        log.info("service-changed seen=%s endpoints=%s", seen, len(frontend.endpoints) if frontend else "closed")
    if len(changes) > _MOST_LOGGED:
        log.info("services-changed count=%d", len(changes))
