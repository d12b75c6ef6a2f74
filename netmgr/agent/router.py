"""What makes a machine forward between links, whatever its role: the kernel's switches and the document's routes."""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress

from netmgr.agent.rhythm import Steps
from netmgr.config import NodeDocument
from netmgr.dataplane import forwarding
from netmgr.dataplane.routes import StaticRoutes
from netmgr.dataplane.unused import UnusedAddresses
from netmgr.errors import KernelError
from netmgr.prefixes import Family, Prefix
from netmgr.sites import Role

log = logging.getLogger(__name__)


class Router:
    """Forwarding and static routes of one machine."""

    def __init__(self, document: NodeDocument, stack: ExitStack) -> None:
        self._families = forwarded(document)
        self._uplink = document.node.uplink
        self._routes = StaticRoutes(document.routes)
        stack.callback(self._routes.close)
        self._ranges = _own_ranges(document)
        self._unused = UnusedAddresses()
        stack.callback(self._unused.close)

    def start(self) -> None:
        """Have the kernel forward, and install the routes; one that cannot be is left to `reconcile`, which tells.

        Raises:
            SetupError: the switch is off and cannot be thrown.
        """
        forwarding.enable(self._families, self._uplink)
        with suppress(KernelError):
            for sentence in self._routes.reconcile():
                log.info("routes-changed what=%s", sentence)
        self._drop_unused()

    def _drop_unused(self) -> None:
        with suppress(KernelError):
            for sentence in self._unused.reconcile(self._ranges):
                log.info("routes-changed what=%s", sentence)

    def follow(self, document: NodeDocument) -> None:
        """Keep forwarding what this document asks for from now on."""
        self._families = forwarded(document)
        self._ranges = _own_ranges(document)
        self._drop_unused()

    def reconcile(self, steps: Steps) -> None:
        """Put right what another program switched, removed or added."""
        steps.repair("forwarding", lambda: forwarding.enable(self._families, self._uplink))
        steps.repair("routes", lambda: [*self._unused.reconcile(self._ranges), *self._routes.reconcile()])


def _own_ranges(document: NodeDocument) -> tuple[Prefix, ...]:
    """The ranges whose addresses this machine gives to pods, so that what no pod has is nobody's."""
    return document.ranges if document.wires_pods else ()


def forwarded(document: NodeDocument) -> tuple[Family, ...]:
    """The families this machine forwards: its pods', or those of the sites it joins; none where it only observes."""
    if document.role is Role.NODE:
        return document.families if document.cni else ()
    known = {prefix.family for site in document.sites for prefix in site.every_prefix}
    known |= {item.real.family for item in document.nat.services} if document.nat else set()
    return tuple(sorted(known)) or tuple(Family)
