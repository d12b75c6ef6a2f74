"""What a network namespace holds: links, addresses, unicast routes of every table."""

from __future__ import annotations

from typing import NamedTuple

from netmgr.descriptors import closing
from netmgr.kernel import netns
from netmgr.kernel.links import Link, read_addresses, read_links
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.routes import ANY_TABLE, Route, read_routes
from netmgr.prefixes import Address


class Contents(NamedTuple):
    """Links by name, (link, address, prefix length) of each address, and routes."""

    links: dict[str, Link]
    addresses: set[tuple[str, Address, int]]
    routes: list[Route]


def contents_of(path: str) -> Contents:
    """What the namespace at a path holds; KernelError if there is none."""
    with closing(netns.open_namespace(path)) as descriptor, netns.entered(descriptor):
        channel = Netlink()
    with channel:
        return _read(channel, read_routes(channel, table=ANY_TABLE))


def own_contents() -> Contents:
    """The same of the agent's own namespace, without its routes, of which a host may have many."""
    with Netlink() as channel:
        return _read(channel, [])


def _read(channel: Netlink, routes: list[Route]) -> Contents:
    links = read_links(channel)
    names = {link.number: link.name for link in links}
    addresses = {
        (names.get(index, ""), held.network, held.length) for held, index in read_addresses(channel)
    }
    return Contents({link.name: link for link in links}, addresses, routes)
