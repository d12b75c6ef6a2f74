"""What makes a machine forward between links: the kernel's switches and the node's own routes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from netmgr.agent.core.components import Agent, Component, Remnants
from netmgr.agent.core.scheduler import Task
from netmgr.agent.health import firewall
from netmgr.agent.health.firewall import Obstacle
from netmgr.api.snapshot import Fault, Problem
from netmgr.dataplane import settings
from netmgr.dataplane.node_routes import RoutesToNodes, StaticRoutes, UnusedAddresses
from netmgr.documents import node_list
from netmgr.documents.node import NodeDocument
from netmgr.documents.node_list import MAX_BYTES, ListedNode
from netmgr.documents.sites import Role
from netmgr.errors import ConfigError, KernelError
from netmgr.file_version import ReadAgain
from netmgr.kernel.losses import BlackholeLosses
from netmgr.model import ROUTE_PROTOCOL
from netmgr.prefixes import Family, Prefix
from netmgr.printable import shortened

log = logging.getLogger(__name__)


def listed_nodes(path: Path) -> tuple[ListedNode, ...]:
    """The cluster's nodes, as `netmgr controller` listed them last in a file."""
    try:
        with path.open(encoding="utf-8") as file:
            nodes = node_list.parse(file.read(MAX_BYTES + 1))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: is not there: the kubelet brings it up to 90 s after netmgr "
            "controller --routes nodes wrote the ConfigMap netmgr-nodes"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: {error}; netmgr controller writes it again if you remove what "
            "the ConfigMap netmgr-nodes has"
        ) from None
    log.info("nodes-read number=%s file=%s", len(nodes), path)
    return nodes


class Router(Component):
    """Forwarding, static routes, routes to other nodes, and blackholes for unused addresses."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        document = agent.document
        # A node whose route is refused still serves its pods; on a router a missing route is lost
        # traffic.
        is_node = document.role is Role.NODE
        self.vital = ("forwarding",) if is_node else ("forwarding", "routes")
        opened = agent.stack.enter_context
        self._routes = opened(closing(StaticRoutes(document.routes)))
        self._unused = opened(closing(UnusedAddresses()))
        self._losses = None
        if document.wires_pods:
            self._losses = opened(closing(BlackholeLosses(ROUTE_PROTOCOL)))
        self._document = document
        nodes_file = document.nodes_file
        self._listed = ReadAgain(nodes_file, listed_nodes) if nodes_file else None
        self._to_nodes = opened(closing(RoutesToNodes()))
        self._faults: list[str] = []
        self.nodes: tuple[Prefix, ...] = ()
        """Nodes that there are routes to, by their addresses, and their pods'."""
        self._obstacles: list[Obstacle] = []

    def start(self) -> None:
        self._enable_forwarding()
        # A route that is refused is left to `reconcile`, which reports it.
        _change_routes(self._routes.reconcile)
        _change_routes(self._block_unused)
        if self._listed is None:
            # A predecessor with a list left them.
            _change_routes(self._to_nodes.remove)
        else:
            # The rules, which come next, have to know the other nodes.
            self._agent.health.attempt("node-routes", self._check_routes)

    def _enable_forwarding(self) -> list[str]:
        families, uplink = forwarded_families(self._document), self._document.node.uplink
        return settings.enable_forwarding(families, uplink)

    def _block_unused(self) -> list[str]:
        return self._unused.reconcile(lambda: _pod_ranges(self._document))

    def follow(self, document: NodeDocument) -> None:
        self._document = document
        _change_routes(self._block_unused)

    def reconcile(self) -> None:
        health = self._agent.health
        health.repair("forwarding", self._enable_forwarding)
        health.repair("routes", self._repair_routes)
        health.attempt("node-routes", self._check_routes)
        if self._document.wires_pods:
            health.attempt("firewall", self._look_for_obstacles)

    def _look_for_obstacles(self) -> None:
        self._obstacles = list(firewall.obstacles())

    def tasks(self) -> Iterable[Task]:
        # At once: without its blackhole, a packet for an unused address takes the default route,
        # comes back, and counts each time.
        if self._losses:
            yield Task(partial(self._restore_unused, self._losses), wakes=self._losses.fileno())

    def _restore_unused(self, losses: BlackholeLosses) -> None:
        if losses.read():
            self._agent.health.repair("routes", self._repair_routes)

    def _repair_routes(self) -> list[str]:
        return [*self._block_unused(), *self._routes.reconcile()]

    def _check_routes(self) -> None:
        faults = self._unused.outranking(_pod_ranges(self._document))
        if self._listed is not None:
            try:
                nodes = self._listed.value()
            except ConfigError as error:
                # Nodes that are not known are not gone: their routes stay.
                faults.append(error.message)
            else:
                changes, refused, self.nodes = self._to_nodes.reconcile(nodes, self._document)
                faults += refused
                for change in changes:
                    log.info("routes-changed what=%s", change)
        for fault in faults:
            if fault not in self._faults:
                log.warning("route-fault what=%s", fault)
        self._faults = faults

    def problems(self) -> Iterable[Problem]:
        if self._faults:
            yield {"reason": Fault.ROUTES, "message": shortened(self._faults)}
        if self._obstacles:
            messages = [f"{obstacle.message}; {obstacle.remedy}" for obstacle in self._obstacles]
            yield {"reason": Fault.FORWARD, "message": shortened(messages)}

    @classmethod
    def remove(cls, _remnants: Remnants) -> Iterator[str]:
        """Remove routes of our protocol. Forwarding stays on: other programs may rely on it."""
        with closing(StaticRoutes(())) as routes:
            yield from routes.reconcile()
        with closing(UnusedAddresses()) as unused:
            yield from unused.reconcile(tuple)
        with closing(RoutesToNodes()) as to_nodes:
            yield from to_nodes.remove()


def _change_routes(reconcile: Callable[[], list[str]]) -> None:
    with suppress(KernelError):
        for change in reconcile():
            log.info("routes-changed what=%s", change)


def _pod_ranges(document: NodeDocument) -> tuple[Prefix, ...]:
    """The ranges whose addresses this machine gives to pods."""
    return document.ranges if document.wires_pods else ()


def forwarded_families(document: NodeDocument) -> tuple[Family, ...]:
    """The families this machine forwards: its pods' or its sites'; none where it only observes."""
    if document.role is Role.NODE:
        return document.families if document.cni else ()
    known = {prefix.family for site in document.sites for prefix in site.every_prefix}
    if document.nat:
        known |= {item.service_cidr.family for item in document.nat.services}
    return tuple(sorted(known)) or tuple(Family)
