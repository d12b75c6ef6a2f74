"""A NAT host's part of the agent: what it translated, and how many of its ports are taken."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from netmgr.agent.latest import Latest
from netmgr.clock import Clock
from netmgr.config import NodeDocument
from netmgr.dataplane import ports, rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.dataplane.ports import Busiest
from netmgr.errors import ConfigError
from netmgr.prefixes import Address, Family
from netmgr.rules.engine import Rules
from netmgr.rules.readings import Translated
from netmgr.sites import Nat, SourceAddress
from netmgr.snapshot import NatState, OpenService, Ports

if TYPE_CHECKING:
    from netmgr.agent.opened import OpenServices

COUNT_SECONDS = 15.0
"""How often ports are counted, unless that takes long: no more than this share of the time is spent on it."""
COUNT_SHARE = 0.02


class NatHost:
    """What readers are told of a NAT host."""

    def __init__(self, document: NodeDocument, rules: Rules, clock: Clock, opened: OpenServices | None) -> None:
        if document.nat is None:
            raise ConfigError("nat belongs to role: nat-host, which needs it")
        self._nat = document.nat
        self._addresses = translating(document.nat, document.node.addresses)
        self._masqueraded = masqueraded(document.nat, self._addresses)
        self._clock = clock
        self._translated = Latest[list[Translated]](
            rules.translated, clock, document.accounting.min_reading_seconds, []
        )
        self._opened = opened
        self._busiest: dict[tuple[Family, str], Busiest] = {}
        self._next_count = float("-inf")

    def count_ports(self) -> None:
        """Count the ports in use, unless that was done just now.

        Raises:
            KernelError: the connection table cannot be read.
        """
        began = self._clock.monotonic()
        if began < self._next_count or not (self._addresses or self._masqueraded):
            return
        self._busiest = ports.busiest((*self._addresses, *held(self._masqueraded)))
        spent = self._clock.monotonic() - began
        self._next_count = began + max(COUNT_SECONDS, spent / COUNT_SHARE)

    def state(self) -> NatState:
        """All of it, for the snapshot."""
        services, endpoints = self._opened.size() if self._opened else (0, 0)
        return {
            "translation": self._nat.translation,
            "source": self._nat.source,
            "ranges": [
                {"seen": str(one.seen), "real": str(one.real), "bytes": one.bytes, "packets": one.packets}
                for one in self._translated.value()
            ],
            "ports": [self._ports(family, protocol) for family, protocol in self._busiest],
            "services": services,
            "endpoints": endpoints,
            "refused": len(self._opened.refused()) if self._opened else 0,
        }

    def services(self) -> list[OpenService]:
        """Every port of every Service that is open.

        Raises:
            KernelError: the connections that were begun cannot be read.
        """
        return self._opened.listed() if self._opened else []

    def refused(self) -> list[str]:
        """What of the documents cannot be used, a sentence each."""
        return self._opened.refused() if self._opened else []

    def _ports(self, family: Family, protocol: str) -> Ports:
        busiest = self._busiest[family, protocol]
        return {
            "family": f"ipv{family.value}",
            "protocol": protocol,
            # Masquerading takes the one address of the link that a connection leaves by.
            "budget": (sum(it.family is family for it in self._addresses) or 1) * ports.PORTS_PER_ADDRESS,
            "used": busiest.ports,
            "endpoint": busiest.endpoint,
        }


def translating(nat: Nat, own: tuple[Address, ...]) -> tuple[Address, ...]:
    """The addresses that clients are given instead of their own: none where theirs are kept."""
    if nat.source is SourceAddress.PRESERVE:
        return ()
    families = {item.real.family for item in nat.services}
    return tuple(address for address in nat.addresses or own if address.family in families)


def masqueraded(nat: Nat, addresses: Collection[Address]) -> frozenset[Family]:
    """The families whose clients are given a link's own address, since the document names none."""
    if nat.source is SourceAddress.PRESERVE:
        return frozenset()
    return frozenset(item.real.family for item in nat.services) - {address.family for address in addresses}


def held(families: Collection[Family]) -> list[Address]:
    """The addresses of these families that the machine's links have.

    Raises:
        KernelError: the kernel does not list them.
    """
    if not families:
        return []
    with Netlink() as kernel:
        return [
            Address(found.family, found.value)
            for family in families
            for found, _ in kernel.dump(rtnetlink.dump_addresses(family), rtnetlink.address_of)
        ]
