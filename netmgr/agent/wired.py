"""The agent of a node whose pods it wires itself: CNI requests, addresses, links, rules and accounts, put together."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from netmgr.agent import ranging, recovery
from netmgr.agent.cni import CniService
from netmgr.agent.files import Files
from netmgr.agent.following import Following
from netmgr.agent.housekeeping import Housekeeping
from netmgr.agent.locks import AttachmentLocks
from netmgr.agent.node import Node
from netmgr.agent.opening import open_accounts
from netmgr.agent.queries import Queries
from netmgr.agent.ranging import Ranging
from netmgr.agent.reaper import Reaper
from netmgr.agent.router import Router
from netmgr.agent.server import UnixServer, readers
from netmgr.agent.telemetry import Telemetry
from netmgr.agent.verbs.status import status
from netmgr.clock import Clock
from netmgr.config import NodeDocument
from netmgr.dataplane import conntrack
from netmgr.dataplane.wiring import Dataplane
from netmgr.ipam.leases import Leases
from netmgr.ipam.pool import Occupancy, Timing
from netmgr.ipam.store import Store
from netmgr.model import Attachment
from netmgr.prefixes import Family
from netmgr.snapshot import ResultFiles

DRAIN_SECONDS = 10.0
"""How long a stop waits for requests under way."""

log = logging.getLogger(__name__)


class WiredPods:
    """The pods that this agent gives their network."""

    def __init__(self, node: Node, telemetry: Telemetry) -> None:
        self._node = node
        self._telemetry = telemetry

    def attachments(self) -> list[Attachment]:
        """Every attachment that holds addresses."""
        return self._node.leases.all()

    def occupancy(self) -> Mapping[Family, Occupancy]:
        """The node's pool."""
        return self._node.leases.occupancy()

    def files(self) -> list[ResultFiles]:
        """They are nobody's concern here."""
        return []

    def longest_delay(self) -> float:
        """Every pod is counted before its first packet."""
        return 0.0

    def status(self) -> None:
        """As CNI's STATUS."""
        status(self._node, self._telemetry)


class PodAgent:
    """The parts of one agent, put together. Nothing runs before `start`."""

    def __init__(self, config: Path, document: NodeDocument, clock: Clock, files: Files, stack: ExitStack) -> None:
        self._document = document = ranging.resolved(document)
        self._telemetry = Telemetry()
        self._router = Router(document, stack)
        dataplane = Dataplane(uplink=document.node.uplink, mtu=document.mtu)
        stack.callback(dataplane.close)
        # Before the accounts: a backend that changes must not be retired by an agent that cannot go on.
        leases = self._open_leases(clock)
        stack.callback(leases.close)
        files.keep(leases)
        books = open_accounts(document, clock, self._telemetry, files, stack)
        self.backend, self._tagged = books.rules.backend.name, books.tagged
        reaper = Reaper(dataplane, self._telemetry)
        self._node = Node(document.network, leases, dataplane, books.accounts, AttachmentLocks(), reaper)
        self._cni = CniService(self._node, self._telemetry)
        pods = WiredPods(self._node, self._telemetry)
        self._queries = Queries(config, document, books, self._telemetry, clock, pods)
        self._ranging = Ranging(config, document, self._node, books.rules, self._follow, self._telemetry)
        self._housekeeping = Housekeeping(
            document, self._node, self._router, self._telemetry, lambda message: self._cni.serve(message)[0], files
        )
        self._following = Following(self._node, self._telemetry, document.reconcile_seconds, stack)
        self._files = files
        files.keep(self._ranging.kept)

    def _follow(self, document: NodeDocument) -> None:
        self._queries.change_document(document)
        self._router.follow(document)

    def start(self, stack: ExitStack) -> None:
        """Take over from a predecessor, then begin to serve."""
        node, document = self._node, self._document
        self._router.start()
        # Whose ranges are not known yet may have pods of either family.
        older = recovery.take_over(node, document.families or tuple(Family), recovery.boot_id())
        self._telemetry.state_rebuilds += older
        self._ranging.prepare()
        for name in node.dataplane.detach_strays(a.host_link for a in node.leases.all()):
            log.info("stray-link-lowered link=%s", name)
        for sentence in node.accounts.start(node.leases.all()):
            log.info("rules-begin what=%s", sentence)
        node.reaper.start()
        stack.callback(node.reaper.stop)
        self._housekeeping.reconcile()
        servers = (readers(document, self._queries.answer), UnixServer(document.run_dir / "cni.sock", self._cni.answer))
        self._files.keep(*servers)
        self._housekeeping.start()
        self._following.start()
        stack.callback(self._following.stop)
        stack.callback(self._housekeeping.stop)
        self._ranging.start()
        stack.callback(self._ranging.stop)
        self._tagged.start(stack)
        stack.callback(self._drain)
        for each in servers:
            each.start()
            stack.callback(each.stop)
        # A launcher that found no socket a moment ago has spooled its DEL after the pass above.
        self._housekeeping.replay_spool()

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline and not self._telemetry.idle_for(0):
            time.sleep(0.01)

    def _open_leases(self, clock: Clock) -> Leases:
        pool = self._document.pool
        timing = Timing(pool.cooldown_seconds, pool.conntrack_wait_seconds)
        leases, rebuilt = recovery.open_or_set_aside(
            self._document.state_dir / "ipam.sqlite",
            lambda path: Leases(Store.open(path), self._document.ranges, timing, clock, conntrack.named),
        )
        self._telemetry.state_rebuilds += rebuilt
        return leases
