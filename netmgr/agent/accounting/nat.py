"""A NAT host's part of the agent: what it translated, and how many of its ports are taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.core.components import Agent, Component, Query
from netmgr.agent.core.scheduler import Latest, Task
from netmgr.api.snapshot import VERSION, NatAnswer, NatState, Ports, Snapshot, TranslatedRange
from netmgr.documents.sites import Nat, SourceAddress
from netmgr.kernel import conntrack, links
from netmgr.kernel.conntrack import Busiest
from netmgr.kernel.netlink import Netlink
from netmgr.prefixes import Family

# How often ports are counted, at most in this share of a processor: the table may be large.
COUNT_SECONDS, COUNT_SHARE = 15.0, 0.02


class NatHost(Component):
    """Reports what a NAT host translates, and how many of its ports are in use."""

    def __init__(self, agent: Agent, nat: Nat) -> None:
        super().__init__(agent)
        self._nat = nat
        families: set[Family] = set()
        if nat.source is not SourceAddress.PRESERVE:
            families = {item.service_cidr.family for item in nat.services}
        own = nat.addresses or agent.document.node.addresses
        # What clients are given instead of their own addresses; where the document names none of a
        # family, that of the link which a connection leaves by.
        self._addresses = [address for address in own if address.family in families]
        self._masqueraded = families - {address.family for address in self._addresses}
        self._translated = Latest[list[TranslatedRange]](
            agent.get(NodeAccounting).rules.translated,
            agent.clock,
            agent.document.accounting.min_reading_seconds,
            [],
        )
        self._busiest: dict[tuple[Family, str], Busiest] = {}

    @classmethod
    def open(cls, agent: Agent) -> Self | None:
        return cls(agent, agent.document.nat) if agent.document.nat else None

    def start(self) -> None:
        # Once, for the first reader.
        self._agent.health.attempt("ports", self._count_ports)

    def tasks(self) -> Iterable[Task]:
        yield Task(self._count_ports, COUNT_SECONDS, COUNT_SECONDS, name="ports", share=COUNT_SHARE)

    def _count_ports(self) -> None:
        if self._addresses or self._masqueraded:
            addresses = list(self._addresses)
            if self._masqueraded:
                with Netlink() as kernel:
                    held = [prefix for prefix, _ in links.read_addresses(kernel)]
                addresses += [own.network for own in held if own.family in self._masqueraded]
            self._busiest = conntrack.busiest(addresses)

    def snapshot(self, snapshot: Snapshot) -> None:
        snapshot["nat"] = self._state()

    def queries(self) -> Mapping[str, Query]:
        return {"nat": self._answer}

    def _answer(self, _: Mapping[str, object]) -> NatAnswer:
        node = self._agent.document.node.name
        return {"version": VERSION, "node": node, "nat": self._state()}

    def _state(self) -> NatState:
        ports: list[Ports] = []
        for (family, protocol), busiest in self._busiest.items():
            # Masquerading takes the one address of the link that a connection leaves by.
            addresses = sum(address.family is family for address in self._addresses) or 1
            ports.append(
                {
                    "family": f"ipv{family.value}",
                    "protocol": protocol,
                    "budget": addresses * conntrack.PORTS_PER_ADDRESS,
                    "used": busiest.ports,
                    "endpoint": busiest.endpoint,
                }
            )
        return {"source": self._nat.source, "ranges": self._translated.value(), "ports": ports}
