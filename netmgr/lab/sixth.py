"""The IPv6 addresses of a planned lab where the plan gives IPv4 ones alone: the hub, NAT hosts, Services.

They lie beside the plan's pools, so that they can never be what the plan gives to somebody, or,
for a NAT host, high in the subnet of its cluster's nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from netmgr.plan.document import ServiceMode
from netmgr.plan.lock import ClusterLock, LockDocument
from netmgr.prefixes import Address, Family, Prefix
from netmgr.sites import HUB as HUB_SITE

HUB = Prefix.parse("fd00:62::/64")
"""Researchers and routers."""

_ROUTERS = 0x100
_NAT_HOSTS = 0xFF00
_SEEN = Prefix.parse("fd00:61::/112")
_SHARED = Prefix.parse("fd00:60::/112")


def document(planned: dict[str, Any], lock: LockDocument) -> dict[str, Any]:
    """A machine's document with what the plan leaves out."""
    whole = {**planned, "sites": [_site(site, lock) for site in planned["sites"]]}
    if planned.get("role"):
        own = _own(planned["node"]["name"], planned["site"], lock)
        whole["node"] = {**planned["node"], "addresses": [*planned["node"]["addresses"], str(own)]}
    if "nat" in planned:
        whole["nat"] = _nat(planned["nat"], planned["site"], lock)
    if "routes" in planned:
        via = _own(f"nat-0.{planned['site']}", planned["site"], lock)
        whole["routes"] = [*planned["routes"], {"to": str(HUB), "via": str(via)}]
    return whole


def _own(name: str, site: str, lock: LockDocument) -> Address:
    """The address of a router or NAT host, by the number in its name."""
    number = int(name.partition(".")[0].rpartition("-")[2])
    if site == HUB_SITE:
        return Address(Family.V6, HUB.value + _ROUTERS + number)
    nodes = next(_layouts(lock.clusters[site]))
    return Address(Family.V6, nodes.value + _NAT_HOSTS + number)


def _layouts(held: ClusterLock) -> Iterator[Prefix]:
    for pool in held.node_pools.values():
        for segment in pool.segments:
            yield from (layout.hosts for layout in segment.layouts if layout.hosts.family is Family.V6)


def _seen(name: str, lock: LockDocument) -> Prefix:
    number = list(lock.clusters).index(name) + 1
    return Prefix(Family.V6, _SEEN.value + (number << 64), _SEEN.length)


def _site(site: dict[str, Any], lock: LockDocument) -> dict[str, Any]:
    if site["name"] == HUB_SITE:
        return {**site, "prefixes": [*site["prefixes"], str(HUB)]}
    return {**site, "services": [*site["services"], str(_seen(site["name"], lock))]}


def _nat(nat: dict[str, Any], site: str, lock: LockDocument) -> dict[str, Any]:
    seen = _seen(site, lock)
    real = _SHARED if lock.clusters[site].services.mode is ServiceMode.SHARED else seen
    own = _own(f"nat-0.{site}", site, lock)
    return {
        **nat,
        "services": [*nat["services"], {"seen": str(seen), "real": str(real)}],
        "addresses": [*nat["addresses"], str(own)],
    }
