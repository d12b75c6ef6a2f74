"""Which attachment holds which address."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from netmgr.agent.core.components import Agent, Component
from netmgr.agent.core.files import Files
from netmgr.agent.core.recovery import boot_id, open_or_set_aside, take_over
from netmgr.agent.core.scheduler import Task
from netmgr.agent.network.known_ranges import RANGES, resolved
from netmgr.api.snapshot import Fault, Problem, Snapshot
from netmgr.dataplane.wiring import Dataplane
from netmgr.errors import DiskFull, NodeFull, NotReady, StateError
from netmgr.ipam.leases import Leases
from netmgr.ipam.pool import Timing
from netmgr.ipam.store import LeaseStore
from netmgr.kernel import conntrack
from netmgr.model import Attachment
from netmgr.prefixes import Family

# Longer than any launcher lives, so no ADD older than its DEL can still be under way.
TOMBSTONE_SECONDS = 600.0

# Longer than a kubelet waits before it tries again to start a pod.
WAITING_SECONDS = 60.0

log = logging.getLogger(__name__)


class NodeAddresses(Component):
    """Addresses and attachments, compared with the kernel's links when the agent starts."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        agent.document = document = resolved(agent.document)
        self.dataplane = Dataplane(uplink=document.node.uplink, mtu=document.mtu)
        agent.stack.callback(self.dataplane.close)
        timing = Timing(document.pool.cooldown_seconds, document.pool.conntrack_wait_seconds)
        self.leases, is_rebuilt = open_or_set_aside(
            document.state_dir / "ipam.sqlite",
            lambda path: Leases(
                LeaseStore(path), document.ranges, timing, agent.clock, conntrack.tracked
            ),
        )
        agent.stack.callback(self.leases.store.close)
        agent.health.rebuilds += is_rebuilt
        agent.get(Files).keep(self.leases.store)

    def start(self) -> None:
        # While the ranges are unknown, pods of either family may be running.
        families = self._agent.document.families or tuple(Family)
        is_older = take_over(self.leases, self.dataplane, families, boot_id())
        self._agent.health.rebuilds += is_older
        # After `take_over`, which adopts whatever link can be understood. One that the kernel does
        # not let go of is no reason to serve no pods.
        self._agent.health.attempt("orphans", self._detach_orphans)

    def _detach_orphans(self) -> None:
        for name in self.dataplane.detach_orphans(self.leases.all):
            log.info("orphan-link-deleted link=%s", name)

    def reconcile(self) -> None:
        self._agent.health.attempt("addresses", self.leases.end_cooldowns)

    def tasks(self) -> Iterable[Task]:
        # Not in the reconcile pass, for which a start waits: fsync takes seconds on a slow disk.
        yield Task(self._tidy, self._agent.document.reconcile_seconds, name="state")

    def _tidy(self) -> None:
        # The clock that launchers stamp requests with; it goes on while the machine is suspended.
        boot_seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.leases.forget_tombstones(boot_seconds - TOMBSTONE_SECONDS)
        self.leases.store.checkpoint()

    def attachments(self) -> list[Attachment]:
        return self.leases.all()

    def health(self, failing: Mapping[str, str]) -> None:
        """Return if the next ADD can get an address of each family and store it.

        Raises NodeFull if all are in use or the disk is full, NotReady for another reason.
        """
        families, occupancy = self.leases.families, self.leases.occupancy()
        if not families:
            raise NotReady("no range is known to give addresses of", failing.get(RANGES, ""))
        try:
            # A store that cannot be written refuses the next ADD, so readiness shows it before.
            self.leases.store.flush()
        except DiskFull as error:
            raise NodeFull(error.message, "make room on the disk of state_dir") from None
        except StateError as error:
            raise NotReady(error.message, "see to the disk of state_dir") from None
        if any(not occupancy[family]["free"] for family in families):
            # As in `Leases.reserve`: a cooldown may have ended since the last reconcile.
            self.leases.end_needed_cooldowns(at_most=8)
            occupancy = self.leases.occupancy()
        for family in families:
            state = occupancy[family]
            if not state["free"]:
                raise NodeFull(
                    f"no IPv{family.value} address is free: "
                    f"{state['allocated']} held, {state['cooldown']} in cooldown",
                    "give the node more ranges, or wait until cooldowns end",
                )

    def problems(self) -> Iterable[Problem]:
        full = [family for family, state in self.leases.occupancy().items() if not state["free"]]
        if full and self.leases.lacks_addresses(WAITING_SECONDS):
            message = (
                f"pods wait for an IPv{full[0].value} address, and none is free; give the node "
                "more ranges, or fewer pods (the kubelet's maxPods)"
            )
            yield {"reason": Fault.POOL, "message": message}

    def snapshot(self, snapshot: Snapshot) -> None:
        snapshot["pool"] = list(self.leases.occupancy().values())
        if (max_pods := self._agent.document.node.max_pods) is not None:
            snapshot["max_pods"] = max_pods
