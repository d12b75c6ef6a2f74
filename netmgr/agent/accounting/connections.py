"""The connections that pods begin: their limits by the node document, and who begins the most.

All pods of a node share its connection table.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from typing import Self

from netmgr.agent.core.components import Agent, Component, Remnants
from netmgr.agent.core.scheduler import Task
from netmgr.api.snapshot import PodConnections, Snapshot
from netmgr.errors import KernelError, SetupError
from netmgr.kernel import conntrack
from netmgr.limits import connections
from netmgr.limits.connections import FIRST, TABLE, Owner, Wanted
from netmgr.model import Attachment, by_address
from netmgr.rules import nft_table
from netmgr.rules.nft_table import Listing, NftTable

# Connections are counted in this share of a processor at most: there may be many.
COUNT_SHARE = 0.005

FULLEST = 10

_FOLLOW_SECONDS = 1.0
_NOTHING = Wanted({}, {})

log = logging.getLogger(__name__)


class ConnectionLimits(Component):
    """The limits of connections, on a node whose document has some."""

    vital = ("connection-limits",)

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._table = agent.stack.enter_context(closing(NftTable(TABLE)))
        self._lock = threading.Lock()
        self._wanted = _NOTHING
        self._listing: Listing | None = None
        self._is_altered = False

    @classmethod
    def open(cls, agent: Agent) -> Self | None:
        """None without such limits; a predecessor's are removed then."""
        if any(limit.connections for limit in agent.document.limits):
            return cls(agent)
        for removal in _removed():
            log.info("limits-removed what=%s", removal)
        return None

    def start(self) -> None:
        try:
            # Now, and not by a pod's ADD: the kernel may lack what limits need.
            self._table.run(connections.trial())
        except KernelError as error:
            needed = "nf_tables with CONFIG_NFT_CONNLIMIT, CONFIG_NFT_LIMIT and CONFIG_NFT_NAT"
            raise SetupError(f"limits of connections need {needed}: {error}") from None
        with self._lock:
            self._put(self._of(self._agent.attachments()))
            # What differs from a predecessor's is no other program's work.
            self._is_altered = False

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
        self._agent.health.repair("connection-limits", self._repaired)

    def tasks(self) -> Iterable[Task]:
        # No ADD calls `begin` for pods that another plugin wires.
        if not self._agent.document.cni:
            yield Task(self.reconcile, _FOLLOW_SECONDS)

    def snapshot(self, snapshot: Snapshot) -> None:
        with self._lock:
            owners = list(self._wanted.chains)
        dropped = {name: packets for name, packets, _ in self._table.counters()}
        snapshot["connection_limits"] = [
            {"namespace": owner.namespace, "pod": owner.pod, "dropped": dropped[owner.chain]}
            for owner in owners
            if owner.chain in dropped
        ]

    def _of(self, attachments: Iterable[Attachment]) -> Wanted:
        return connections.wanted(self._agent.document.limits, attachments)

    def _repaired(self) -> Collection[str]:
        with self._lock:
            self._look()
            # Read within the lock: an older list must not come last.
            wanted = self._of(self._agent.attachments())
            if self._is_altered or wanted != self._wanted:
                self._put(wanted)
            told, self._is_altered = self._is_altered, False
        return [f"table {TABLE} was changed"] if told else []

    def _look(self) -> Listing:
        """What the table has. Another program's change is told by the next pass, whoever mends it.

        Raises:
            KernelError: the kernel refused, or another program owns the table.
        """
        listing = self._table.listing()
        # The same object until any program changes any table.
        if listing is not self._listing:
            self._listing = listing
            self._is_altered |= not connections.holds(listing, self._wanted)
        return listing

    def _put(self, wanted: Wanted, new: Attachment | None = None) -> None:
        if wanted.chains:
            listing = self._look()
            owner = Owner(new.pod.namespace, new.pod.name) if new else None
            names = connections.to_write(wanted, listing, owner)
            self._table.wake()
            try:
                self._table.run(connections.changes(wanted, listing, names))
            except KernelError:
                # Another program has changed the table since the look, or has something of a name.
                self._is_altered = True
                names = sorted(wanted.rules)
                self._table.run(connections.anew(wanted))
            # Not taken for what was written: another program may have been between.
            self._table.listing([*names, FIRST])
        else:
            nft_table.remove(TABLE)
        self._wanted = wanted

    @classmethod
    def remove(cls, _remnants: Remnants) -> Iterator[str]:
        yield from _removed()


def _removed() -> Iterator[str]:
    """Remove the table; describes what was done."""
    if nft_table.remove(TABLE):
        yield f"table {TABLE} was removed"


class Tracking(Component):
    """The pods that began the most connections."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._fullest: list[PodConnections] = []

    def tasks(self) -> Iterable[Task]:
        seconds = self._agent.document.reconcile_seconds
        yield Task(self._count, seconds, name="tracking", share=COUNT_SHARE)

    def _count(self) -> None:
        if conntrack.occupancy() is None:
            return
        holders = by_address(self._agent.attachments())
        by_pod: Counter[tuple[str, str]] = Counter()
        for address, begun in conntrack.begun_by(holders).items():
            pod = holders[address].pod
            by_pod[pod.namespace, pod.name] += begun
        self._fullest = [
            {"namespace": namespace, "pod": name, "connections": begun}
            for (namespace, name), begun in by_pod.most_common(FULLEST)
        ]

    def snapshot(self, snapshot: Snapshot) -> None:
        if occupancy := conntrack.occupancy():
            snapshot["tracking"] = {
                "connections": occupancy.connections,
                "most": occupancy.most,
                "pods": self._fullest,
            }
