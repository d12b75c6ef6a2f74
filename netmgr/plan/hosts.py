"""The machines beside the nodes: the hub's routers, and each cluster's NAT hosts.

Their names have a dot, which no cluster and no node pool can have: `router-0.hub` and
`nat-0.training` are never the name of a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.plan.lock import LockDocument
from netmgr.prefixes import Address
from netmgr.sites import HUB, Role


@dataclass(frozen=True, slots=True)
class PlannedHost:
    """One router (`site` is the hub) or NAT host (`site` is its cluster), and its own addresses."""

    role: Role
    site: str
    number: int
    addresses: tuple[Address, ...]

    @property
    def name(self) -> str:
        """`router-<number>.hub` or `nat-<number>.<cluster>`, numbers from 0."""
        return f"{'router' if self.role is Role.HUB_ROUTER else 'nat'}-{self.number}.{self.site}"


def hosts(lock: LockDocument) -> Iterator[PlannedHost]:
    """Every router, then every NAT host of the clusters that are in use."""
    for number, addresses in enumerate(lock.hub.routers.hosts):
        yield PlannedHost(Role.HUB_ROUTER, HUB, number, addresses)
    for name, held in lock.clusters.items():
        for number, addresses in enumerate(held.nat.hosts if not held.tombstone else ()):
            yield PlannedHost(Role.NAT_HOST, name, number, addresses)


def named(lock: LockDocument, role: Role, name: str) -> PlannedHost | None:
    """The host of that role and name, or None."""
    return next((host for host in hosts(lock) if (host.role, host.name) == (role, name)), None)
