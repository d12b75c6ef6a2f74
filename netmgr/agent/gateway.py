"""The agent of a hub router or a NAT host: it forwards between sites and runs no pods.

A restart changes nothing in the kernel: rules that are as they should be are not written again,
so the connections that they translate go on while the agent is away.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from netmgr.agent import files
from netmgr.agent.files import Files
from netmgr.agent.nat import NatHost
from netmgr.agent.opening import open_accounts, opens_services
from netmgr.agent.queries import Queries
from netmgr.agent.rhythm import Rhythm, Steps
from netmgr.agent.router import Router
from netmgr.agent.server import readers
from netmgr.agent.telemetry import Telemetry, require
from netmgr.clock import Clock
from netmgr.config import NodeDocument
from netmgr.ipam.pool import Occupancy
from netmgr.model import Attachment
from netmgr.prefixes import Family
from netmgr.snapshot import ResultFiles

if TYPE_CHECKING:
    from netmgr.agent.opened import OpenServices

VITAL_STEPS = (files.STEP, "rules", "forwarding", "routes", "services")
"""Without these packets do not get where they should, or get where they should not."""

log = logging.getLogger(__name__)


class NoPods:
    """Readers' view of the pods of a machine that runs none."""

    def __init__(self, failing: Mapping[str, str]) -> None:
        self._failing = failing

    def attachments(self) -> list[Attachment]:
        """None."""
        return []

    def occupancy(self) -> dict[Family, Occupancy]:
        """No addresses are handed out here."""
        return {}

    def files(self) -> list[ResultFiles]:
        """They are nobody's concern here."""
        return []

    def longest_delay(self) -> float:
        """There is nothing that could be late."""
        return 0.0

    def status(self) -> None:
        """Say nothing when ready.

        Raises:
            NotReady: something that packets depend on could not be put right the last time.
        """
        require(VITAL_STEPS, self._failing)


def _services(document: NodeDocument, backend: str, kept: Files, stack: ExitStack) -> OpenServices | None:
    if not opens_services(document):
        return None
    from netmgr.agent.opened import OpenServices  # noqa: PLC0415  only where Services are opened
    from netmgr.services.choose import holder  # noqa: PLC0415  as above

    services = OpenServices(document, holder(backend), stack)
    kept.keep(services.mark)
    return services


class Gateway:
    """The parts of such an agent, put together. Nothing runs before `start`."""

    def __init__(self, config: Path, document: NodeDocument, clock: Clock, kept: Files, stack: ExitStack) -> None:
        self._document = document
        self._files = kept
        telemetry = Telemetry()
        self._steps = Steps(telemetry)
        self._router = Router(document, stack)
        books = open_accounts(document, clock, telemetry, kept, stack)
        self._accounts, self.backend, self._tagged = books.accounts, books.rules.backend.name, books.tagged
        self._services = _services(document, self.backend, kept, stack)
        self._nat = NatHost(document, books.rules, clock, self._services) if document.nat else None
        pods = NoPods(telemetry.failing)
        self._queries = Queries(config, document, books, telemetry, clock, pods, self._nat)
        every = (
            (document.reconcile_seconds, self._reconcile),
            (document.accounting.reading_seconds, self._read),
        )
        watched = {self._services.fileno(): self._refresh} if self._services else {}
        self._rhythm = Rhythm("gateway", every, watched)

    def start(self, stack: ExitStack) -> None:
        """Rules before forwarding, so that not one packet passes that they would have dropped."""
        for sentence in self._accounts.start(()):
            log.info("rules-begin what=%s", sentence)
        self._router.start()
        self._reconcile()
        self._read()
        self._rhythm.start()
        stack.callback(self._rhythm.stop)
        self._tagged.start(stack)
        server = readers(self._document, self._queries.answer)
        self._files.keep(server)
        server.start()
        stack.callback(server.stop)

    def _reconcile(self) -> None:
        self._steps.repair(files.STEP, self._files.restore)
        self._steps.repair("rules", self._accounts.reconcile)
        self._router.reconcile(self._steps)
        if self._services:
            self._services.reconcile(self._steps)
        self._steps.attempt("ledger", self._accounts.tidy)

    def _refresh(self) -> None:
        if self._services:
            self._services.refresh(self._steps)

    def _read(self) -> None:
        self._steps.attempt("reading", self._accounts.read)
        if self._nat:
            self._steps.attempt("ports", self._nat.count_ports)
