"""What `explain` says becomes of a packet is what the machine's own rules make of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from netmgr.documents.explain import PacketPath, explain
from netmgr.documents.node import Backend, NodeDocument
from netmgr.documents.sites import HUB, Role
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from tests.fakes.passage import Packet
from tests.fakes.rules import FakeBackend
from tests.lab import planned
from tests.lab.topology import Node, Topology

INTERNET = tuple(map(Address.parse, ("203.0.113.1", "198.51.100.9", "2001:db8:ffff::1")))
NOBODYS = tuple(map(Address.parse, ("192.168.77.1", "fd77::1", "169.254.169.254")))
OWN = {Family.V4: Address.parse("192.0.2.1"), Family.V6: Address.parse("2001:db8::1")}


@cache
def drawn(name: str) -> Topology:
    return planned.network(3, 2, 2, planned.KINDS if name == "default" else planned.OTHER_KINDS)


def targets(document: NodeDocument) -> Iterator[Address]:
    """Some address of every prefix of every site, of the pods', of what is translated, and of none
    of them.
    """
    prefixes = [prefix for site in document.sites for prefix in site.every_prefix]
    prefixes += (
        [*document.ranges, *(item.service_cidr for item in document.nat.services if document.nat)]
        if document.nat
        else []
    )
    for prefix in prefixes:
        yield from (
            Address(prefix.family, prefix.value + place)
            for place in (1, prefix.size // 2, prefix.size - 2)
        )
    yield from (*INTERNET, *NOBODYS)


def sender(document: NodeDocument, address: Address) -> tuple[Address, str]:
    """Whose packets the machine is asked about, and the link they come in by: a pod's of its own,
    or who passes it.
    """
    if document.role is Role.NODE:
        return first(document.ranges, address.family), "nm0"
    is_service = document.nat and any(
        item.vip_range.holds(address) for item in document.nat.services
    )
    site = HUB if is_service else document.site
    return first(
        next(each.prefixes for each in document.sites if each.name == site), address.family
    ), "eth0"


def first(prefixes: tuple[Prefix, ...], family: Family) -> Address:
    block = next(prefix for prefix in prefixes if prefix.family is family)
    return Address(family, block.value + 3)


def fate(document: NodeDocument, kernel: FakeBackend, address: Address) -> PacketPath:
    """What the rules do to the first packet of a connection."""
    source, link = sender(document, address)
    kernel.connections.clear()
    packet = Packet(source, address, iif=link, oif="eth0", way_back=link, own=OWN[address.family])
    outcome = kernel.send(packet)
    if outcome.dropped_by:
        return PacketPath.DROPPED
    if outcome.dst != address or (document.nat and outcome.src != source):
        return PacketPath.TRANSLATED
    return PacketPath.MASQUERADED if outcome.src != source else PacketPath.NATIVE


@pytest.mark.parametrize("backend", [Backend.NFTABLES, Backend.IPTABLES_LEGACY], ids=str)
@pytest.mark.parametrize("kinds", ["default", "others"])
@pytest.mark.parametrize("keys", [{}, {"native": []}], ids=["all native", "sites native"])
def test_a_packet_fares_as_explained_on_every_machine(
    keys: dict[str, Any], kinds: str, backend: Backend
) -> None:
    checked: set[tuple[Role, str]] = set()
    for node in drawn(kinds).nodes:
        more = keys if node.role is not Role.NAT_HOST else {}
        document = NodeDocument.model_validate(node.document | more)
        kernel = FakeBackend(rewrites=backend is not Backend.IPTABLES_LEGACY)
        rules = Rules(kernel, Policy.of(document))
        rules.apply(rules.plan(list(pods(node))))
        for address in targets(document):
            told = explain(document, address, [])
            # To whom a NAT host is on the way, the packet leaves here as it is.
            expected = PacketPath.NATIVE if told["path"] == PacketPath.NAT_HOST else told["path"]
            assert (node.host, str(address), fate(document, kernel, address)) == (
                node.host,
                str(address),
                expected,
            )
            if address in NOBODYS[:2] and document.role is not Role.NAT_HOST:
                assert told["masqueraded"] == ("native" in more)
                assert not told["counted"]
            checked.add((document.role, told["path"]))
    wanted = {(Role.NODE, path) for path in PacketPath if path is not PacketPath.TRANSLATED}
    wanted |= {(Role.HUB_ROUTER, PacketPath.MASQUERADED), (Role.NAT_HOST, PacketPath.DROPPED)}
    assert wanted <= checked


def pods(node: Node) -> Iterator[Address]:
    return (Address(block.family, block.value + 3) for block in node.ranges)
