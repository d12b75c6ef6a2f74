"""The connections that pods begin: their limits by the node document, and who begins the most.

All pods of a node share its connection table.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Self

from netmgr.agent.core.components import Agent, Component, Remnants
from netmgr.agent.core.scheduler import Task
from netmgr.api.snapshot import PodConnections, Snapshot
from netmgr.errors import KernelError, SetupError
from netmgr.kernel import conntrack, nf_tables
from netmgr.kernel.libnftables import LibNftables
from netmgr.kernel.nf_tables_socket import NO_NF_TABLES, NftSocket
from netmgr.limits import connections
from netmgr.limits.connections import TABLE, Listing, Owner, Wanted
from netmgr.model import Attachment

COUNT_SHARE = 0.005
"""Connections are counted in this share of a processor at most: there may be many."""

FULLEST = 10

_FOLLOW_SECONDS = 1.0
_NOTHING = Wanted({}, {})

log = logging.getLogger(__name__)


class ConnectionLimits(Component):
    """The limits of connections, on a node whose document has some."""

    vital = ("connection-limits",)

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._nft = agent.stack.enter_context(closing(LibNftables()))
        self._socket = agent.stack.enter_context(NftSocket())
        self._lock = threading.Lock()
        self._wanted = _NOTHING
        self._base = ""
        self._generation = -1

    @classmethod
    def open(cls, agent: Agent) -> Self | None:
        """None without such limits; a predecessor's are removed then."""
        if any(limit.connections for limit in agent.document.limits):
            return cls(agent)
        for removal in _removed():
            log.info("limits-removed what=%s", removal)
        return None

    def start(self) -> None:
        """Limit the pods that are there."""
        try:
            self._nft.run(connections.trial())
        except KernelError as error:
            needed = "nf_tables with CONFIG_NFT_CONNLIMIT, CONFIG_NFT_LIMIT and CONFIG_NFT_NAT"
            raise SetupError(f"limits of connections need {needed}: {error}") from None
        with self._lock:
            self._put(self._of(self._agent.attachments()))

    def begin(self, attachment: Attachment) -> None:
        """Limit a pod that was attached, if a limit is for it."""
        with self._lock:
            added = self._of([attachment])
            if added.links:
                chains = {**self._wanted.chains, **added.chains}
                links = {**self._wanted.links, **added.links}
                # What a former pod of this name left in connection tracking is not its own.
                self._put(Wanted(chains, links), new=attachment)

    def reconcile(self) -> None:
        """Put back what another program changed, and remove what no pod needs any more."""
        self._agent.health.repair("connection-limits", self._repaired)

    def tasks(self) -> Iterable[Task]:
        """Limit pods that another plugin wired as soon as they are found."""
        if not self._agent.document.cni:
            yield Task(self.reconcile, _FOLLOW_SECONDS)

    def snapshot(self, snapshot: Snapshot) -> None:
        with self._lock:
            owners, dropped = list(self._wanted.chains), self._listing().dropped
        snapshot["connection_limits"] = [
            {"namespace": owner.namespace, "pod": owner.pod, "dropped": dropped[owner.chain]}
            for owner in owners
            if owner.chain in dropped
        ]

    def _of(self, attachments: Iterable[Attachment]) -> Wanted:
        return connections.wanted(self._agent.document.limits, attachments)

    def _repaired(self) -> Collection[str]:
        with self._lock:
            generation = self._socket.generation()
            changed = False
            if generation != self._generation:
                listed = self._listing()
                changed = not listed.holds(self._wanted) or listed.base != self._base
                self._generation = generation
            # Read within the lock: an older list must not come last.
            wanted = self._of(self._agent.attachments())
            if changed or wanted != self._wanted:
                self._put(wanted)
        return [f"table {TABLE} was changed"] if changed else []

    def _put(self, wanted: Wanted, new: Attachment | None = None) -> None:
        if wanted.chains:
            present = self._listing()
            if new:
                present = present.without(Owner(new.pod.namespace, new.pod.name))
            try:
                self._nft.run(connections.changes(wanted, present))
            except KernelError:
                # Another program may have made something else of the same name.
                self._nft.run(connections.anew(wanted))
            self._base = self._listing().base
        else:
            list(_removed())
            self._base = ""
        self._wanted = wanted

    def _listing(self) -> Listing:
        try:
            return connections.listing(self._nft.run(f"list table {TABLE}\n"))
        except KernelError:
            return connections.listing("")

    @classmethod
    def remove(cls, _remnants: Remnants) -> Iterator[str]:
        yield from _removed()


def _removed() -> Iterator[str]:
    """Remove the table; describes what was done."""
    with NftSocket() as channel:
        try:
            channel.commit([nf_tables.delete_table(TABLE.split()[1])])
        except KernelError as error:
            if error.errno != errno.ENOENT and error.errno not in NO_NF_TABLES:
                raise
        else:
            yield f"table {TABLE} was removed"


class Tracking(Component):
    """The pods that began the most connections."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._fullest: list[PodConnections] = []

    def tasks(self) -> Iterable[Task]:
        seconds = self._agent.document.reconcile_seconds
        count = partial(self._agent.health.attempt, "tracking", self._count)
        yield Task(count, seconds, share=COUNT_SHARE)

    def _count(self) -> None:
        if conntrack.occupancy() is None:
            return
        pods = {
            address: attachment.pod
            for attachment in self._agent.attachments()
            for address in attachment.addresses
        }
        by_pod: Counter[tuple[str, str]] = Counter()
        for address, begun in conntrack.begun_by(pods).items():
            by_pod[pods[address].namespace, pods[address].name] += begun
        self._fullest = [
            {"namespace": namespace, "pod": pod, "connections": begun}
            for (namespace, pod), begun in by_pod.most_common(FULLEST)
        ]

    def snapshot(self, snapshot: Snapshot) -> None:
        if occupancy := conntrack.occupancy():
            snapshot["tracking"] = {
                "connections": occupancy.connections,
                "most": occupancy.most,
                "pods": self._fullest,
            }
