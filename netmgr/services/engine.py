"""The Services room's facade: manifests in, translation in the kernel.

A rejected update is reported and leaves the state unchanged: a Service that contradicts the plan
keeps what was programmed for it, and a file that cannot be read keeps its last content. After a
start the former content of a rejected file is unknown, so nothing that a predecessor programmed for
it is removed.
"""

from __future__ import annotations

import logging
import threading
import typing
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from netmgr import collection
from netmgr.documents.sites import ServiceRange
from netmgr.errors import NetmgrError
from netmgr.kernel.inotify import Watch
from netmgr.prefixes import Prefix
from netmgr.services import connections
from netmgr.services.directory import Documents
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort, ServiceStatus
from netmgr.services.nftables import NftablesServices
from netmgr.services.service_map import ServiceMap, ServiceObjects

_MOST_LOGGED = 20
_NOTHING = Frontend(frozenset())

log = logging.getLogger(__name__)


class ServiceBackend(typing.Protocol):
    """What translates Services: nftables, or the tests' fake. For one thread at a time.

    Every method raises KernelError when the kernel refuses, with what and why.
    """

    def held(self) -> dict[ServicePort, Frontend]:
        """What the kernel translates now; nothing if nothing of ours is there."""

    def reconcile(self, wanted: Mapping[ServicePort, Frontend]) -> list[str]:
        """Compare all of the kernel's content with `wanted`, and change only what differs.

        Returns a line for each difference.
        """

    def change(self, changes: Mapping[ServicePort, Frontend | None]) -> None:
        """Apply differences from what the backend last wrote; None removes a ServicePort.

        It is atomic: a new connection meets either the state before or the state after.
        """

    def hits(self) -> dict[ServicePort, int]:
        """How many connections clients began to each ServicePort."""

    def remove(self) -> None:
        """Take away everything of ours, and nothing else."""

    def close(self) -> None:
        """Give back sockets; what is translated stays translated."""


class Services:
    """Opens the Services of the manifests.

    One thread drives it; `status` and `faults` may be called from any.
    """

    def __init__(self, backend: ServiceBackend, service_map: ServiceMap, watch: Watch) -> None:
        self._backend = backend
        self._map = service_map
        self._watch = watch
        self._lock = threading.Lock()
        self._left: dict[ServicePort, Frontend] = {}
        self._gone: defaultdict[ServicePort, set[Endpoint]] = defaultdict(set)
        self._logged: frozenset[str] = frozenset()

    @classmethod
    def open(
        cls,
        ranges: Sequence[ServiceRange],
        source: Path,
        spoke: Iterable[Prefix] = (),
        machines: Iterable[Prefix] = (),
    ) -> Services:
        """The Services in `source`, mapped through `ranges`; for endpoints see `ServiceObjects`.

        Works in the namespace of the calling thread. Nothing is changed before `start`.

        Raises:
            SetupError: inotify is not available.
            KernelError: the kernel refuses a socket of nf_tables.
        """
        documents = Documents(source)
        watch = Watch(documents.watched)
        try:
            backend = NftablesServices([one.vip_range for one in ranges])
        except NetmgrError:
            watch.close()
            raise
        objects = ServiceObjects(ranges, tuple(spoke), tuple(machines))
        return cls(backend, ServiceMap(documents, objects), watch)

    def fileno(self) -> int:
        """Becomes readable when documents may have changed; call `refresh` then."""
        return self._watch.fileno()

    def start(self) -> None:
        """Take over what a predecessor programmed, and bring it to what the documents say.

        Raises:
            NetmgrError: the kernel refused, or is busy.
        """
        with self._lock, collection.suspended():
            self._left = self._backend.held()
            log.info("services-begin programmed=%d", len(self._left))
            self._take(None)
            self._reconcile()

    def refresh(self) -> None:
        """Carry out what changed in the documents since the last time, and nothing else.

        Raises:
            NetmgrError: the kernel refused, or is busy; `sync` makes up for it.
        """
        with self._lock:
            # Before the reading: what changes from here on makes the descriptor readable again.
            names = self._watch.drain()
            self._watch.renew()
            # A mounted ConfigMap changes by a link of its own that all its files lead through.
            everything = names is None or any(name.startswith("..") for name in names)
            if changes := self._take(None if everything else names):
                self._backend.change(changes)
                self._forget()

    def sync(self) -> list[str]:
        """Take what changed in the documents, and repair what another program did.

        Returns a line for each repair.

        Raises:
            NetmgrError: the kernel refused, or is busy.
        """
        with self._lock:
            self._watch.drain()
            self._watch.renew()
            self._take(None)
            return self._reconcile()

    def status(self) -> list[ServiceStatus]:
        """Every open ServicePort, by Service and port, with the connections that clients began."""
        with self._lock:
            mapped = dict(self._map.ports)
        hits = self._backend.hits()
        found = [
            ServiceStatus(
                one.service,
                vip,
                tuple(sorted(one.frontend.endpoints)),
                tuple(sorted(one.draining)),
                one.frontend.sticky,
                hits.get(vip),
            )
            for vip, one in mapped.items()
        ]
        return sorted(found, key=lambda one: (one.service, one.vip))

    def size(self) -> tuple[int, int]:
        """How many Services are open, and how many endpoints they have; cheaper than `status`."""
        with self._lock:
            mapped = list(self._map.ports.values())
        endpoints = sum(len(one.frontend.endpoints) for one in mapped)
        return len({one.service for one in mapped}), endpoints

    def faults(self) -> list[str]:
        """What is refused now: file, line, key and what is wrong with it."""
        with self._lock:
            return self._map.faults()

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
        for vip, (before, after) in self._map.read(names).items():
            changes[vip] = after.frontend if after else None
            had = before.endpoints if before else self._left.pop(vip, _NOTHING).endpoints
            self._note_gone(vip, had, after.endpoints if after else frozenset())
        for vip in self._no_longer_wanted():
            changes[vip] = None
            self._note_gone(vip, self._left.pop(vip).endpoints, frozenset())
        _log(changes)
        self._log_faults()
        return changes

    def _no_longer_wanted(self) -> list[ServicePort]:
        """What a predecessor exposed and no document asks for, not even one that is refused now."""
        doubtful = self._map.in_doubt() if self._left else None
        if doubtful is None:
            return []
        return [vip for vip in self._left if vip.address not in doubtful]

    def _log_faults(self) -> None:
        """Log what is refused, each fault once while it lasts."""
        faults = frozenset(self._map.faults())
        for fault in sorted(faults - self._logged)[:_MOST_LOGGED]:
            log.warning("documents-refused fault=%s", fault)
        self._logged = faults

    def _reconcile(self) -> list[str]:
        mapped = {vip: one.frontend for vip, one in self._map.ports.items()}
        # What a predecessor programmed stays until it is known whether a manifest asks for it.
        wanted = self._left | mapped
        repairs = self._backend.reconcile(wanted)
        self._forget()
        return repairs

    def _note_gone(
        self, vip: ServicePort, had: frozenset[Endpoint], has: frozenset[Endpoint]
    ) -> None:
        if vip.protocol is not Protocol.UDP:
            return
        self._gone[vip] = (self._gone[vip] | had) - has
        if has and not had:
            # Clients who came before there was anything may be remembered as not translated.
            self._gone[vip].add(Endpoint(vip.address, vip.port))

    def _forget(self) -> None:
        """Make UDP clients of removed endpoints begin new connections."""
        if count := connections.forget(self._gone):
            log.info("connections-ended reason=endpoint-gone count=%d", count)
        self._gone.clear()


def _log(changes: Mapping[ServicePort, Frontend | None]) -> None:
    for vip, frontend in list(changes.items())[:_MOST_LOGGED]:
        log.info(
            "service-changed vip=%s endpoints=%s",
            vip,
            len(frontend.endpoints) if frontend else "closed",
        )
    if len(changes) > _MOST_LOGGED:
        log.info("services-changed count=%d", len(changes))
