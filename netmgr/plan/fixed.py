"""The subnets of machines whose addresses are fixed: the hub's routers and researchers, and NAT hosts.

Each has IPv4, and IPv6 once Services have. A subnet that lacks a family gets it beside what it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from netmgr.plan.demand import NAT_HOSTS, Key, Want, hosts_length
from netmgr.plan.findings import KeyPath
from netmgr.plan.ground import Places
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import Subnet
from netmgr.prefixes import Address, Family, Prefix


@dataclass(frozen=True, slots=True)
class FixedSubnet:
    """One of them: what the lock has of it already, and what the plan asks for.

    `seats` is how many hosts its size allows for, `hosts` how many have addresses in it.
    """

    key: Key
    path: KeyPath
    vnet: str
    held: Subnet | None
    seats: int = NAT_HOSTS
    hosts: int = 0

    def wants(self, families: Iterable[Family], limits: CloudLimits) -> Iterator[Want]:
        """What it lacks."""
        for family in families:
            if self.held is None or self.held.of(family) is None:
                yield Want(self.key, family, hosts_length(self.seats, family, limits), self.path)

    @property
    def taken(self) -> tuple[Prefix, ...]:
        """What it has."""
        return self.held.prefixes if self.held else ()

    def complete(self, places: Mapping[Family, Places], limits: CloudLimits) -> Subnet:
        """Its entry in the lock, with what it lacked at its place."""
        prefixes = {prefix.family: prefix for prefix in self.taken}
        prefixes |= {family: found[self.key] for family, found in places.items() if self.key in found}
        v4, v6 = prefixes[Family.V4], prefixes.get(Family.V6)
        return Subnet(
            prefix=v4,
            prefix_v6=v6,
            vnet=self.held.vnet if self.held else self.vnet,
            addresses=self._addresses(v4, limits),
            addresses_v6=self._addresses(v6, limits) if v6 else (),
        )

    def _addresses(self, prefix: Prefix, limits: CloudLimits) -> tuple[Address, ...]:
        first = prefix.value + limits.reserved_first
        return tuple(Address(prefix.family, first + place) for place in range(self.hosts))
