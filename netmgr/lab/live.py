"""What a lab is at this moment, as its kernel and its agents tell: what a picture of it shows.

Namespaces, links and addresses are asked of the kernel; ranges, drops and readiness of the agents.
Nothing is taken from the topology but what things are there for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from netmgr.dataplane import links as kernel_links
from netmgr.dataplane import rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.errors import KernelError, NetmgrError
from netmgr.lab import wiring
from netmgr.lab.nodes import LabNode
from netmgr.lab.topology import Spoke
from netmgr.lab.world import World
from netmgr.prefixes import Family
from netmgr.sites import HUB

_LOOPBACK = 1
_MASTER = 10  # IFLA_MASTER of linux/if_link.h
_IFINFO_BYTES = 16


@dataclass(frozen=True, slots=True)
class Link:
    """An interface as the kernel has it. `bridge` is the one it is a port of, if any."""

    name: str
    up: bool
    mtu: int
    bridge: str = ""
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that runs."""

    name: str
    namespace: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a machine has dropped from one site to another."""

    origin: str
    destination: str
    packets: int
    bytes: int

    def seen_from(self, site: str) -> str:
        """The same in words, at a machine of `site`."""
        if site == self.origin:
            way = f"to {self.destination}"
        elif site == self.destination:
            way = f"from {self.origin}"
        else:
            way = f"{self.origin} → {self.destination}"
        return f"dropped {way}: {self.packets} packets, {self.bytes} bytes"


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace. `role` is empty for a host without an agent; `reason` says why an agent is not ready."""

    name: str
    role: str
    site: str
    links: tuple[Link, ...]
    ready: bool = True
    reason: str = ""
    ranges: tuple[str, ...] = ()
    pods: tuple[Pod, ...] = ()
    dropped: tuple[Dropped, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Its own, of every link."""
        return tuple(address for link in self.links for address in link.addresses)


@dataclass(frozen=True, slots=True)
class Site:
    """The hub, or a spoke with its Service ranges: as others see them, and as they are inside."""

    name: str
    prefixes: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    real: tuple[str, ...] = ()
    translation: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Live:
    """All of it."""

    name: str
    backend: str
    sites: tuple[Site, ...]
    hosts: tuple[Host, ...] = field(default=())

    def at(self, site: str) -> tuple[Host, ...]:
        """The hosts of a site."""
        return tuple(host for host in self.hosts if host.site == site)

    def dropped(self) -> dict[tuple[str, str], int]:
        """Packets dropped from site to site, by whatever machine."""
        totals: dict[tuple[str, str], int] = {}
        for host in self.hosts:
            for each in host.dropped:
                pair = each.origin, each.destination
                totals[pair] = totals.get(pair, 0) + each.packets
        return totals


def look(world: World) -> Live:
    """Ask kernel and agents.

    Raises:
        KernelError: a namespace is gone, or the kernel does not answer.
    """
    sites = _sites(world)
    return Live(world.name, world.backend.value, sites, tuple(_hosts(world)))


def document(live: Live) -> dict[str, Any]:
    """The same for programs."""
    return asdict(live)


def _sites(world: World) -> tuple[Site, ...]:
    if not world.topology.spokes:
        return ()
    hub = {
        prefix
        for node in world.nodes
        for site in node.node.document.get("sites", ())
        if site["name"] == HUB
        for prefix in site["prefixes"]
    }
    return (Site(HUB, tuple(sorted(hub))), *map(_site, world.topology.spokes))


def _site(spoke: Spoke) -> Site:
    return Site(
        spoke.name,
        tuple(map(str, spoke.prefixes)),
        tuple(str(each.seen) for each in spoke.services),
        tuple(str(each.real) for each in spoke.services),
        str(spoke.translation),
        str(spoke.source),
    )


def _hosts(world: World) -> Iterator[Host]:
    machines = {node.name: node for node in world.nodes}
    outside = {name: spoke.name for spoke in world.topology.spokes for name in spoke.rogues}
    if world.topology.researcher:
        outside[world.topology.researcher] = HUB
    for host in world.topology.hosts:
        links = links_of(world.namespace(host.name))
        if host.name in machines:
            yield _machine(machines[host.name], links)
        else:
            yield Host(host.name, "", outside.get(host.name, ""), links)


def _machine(node: LabNode, links: tuple[Link, ...]) -> Host:
    reason = node.status() if node.agent_pid() else "no agent runs"
    try:
        dropped = [Dropped(**each) for each in node.snapshot().get("isolation", ())]
    except NetmgrError as error:  # such a host is shown all the same
        dropped, reason = [], reason or error.message
    pods = tuple(
        Pod(each.pod.name, each.pod.namespace, tuple(a for link in links_of(each.netns) for a in link.addresses))
        for each in node.runtime.sandboxes()
    )
    return Host(
        node.name,
        str(node.node.role),
        node.node.site,
        links,
        ready=not reason,
        reason=reason,
        ranges=tuple(map(str, node.node.ranges)),
        pods=pods,
        dropped=tuple(dropped),
    )


def links_of(namespace: Path) -> tuple[Link, ...]:
    """Every interface of a namespace but its loopback, with the addresses that are not link-local.

    Raises:
        KernelError: there is no such namespace any more.
    """
    try:
        with wiring.inside(namespace), Netlink() as channel:
            found = channel.dump(rtnetlink.dump_links(), lambda body: (kernel_links.link_of(body), _bridge(body)))
            addresses = [
                each
                for family in Family
                for each in channel.dump(rtnetlink.dump_addresses(family), rtnetlink.address_of)
            ]
    except OSError as error:
        raise KernelError(f"look into {namespace}", error.errno or 0) from None
    names = {link.number: link.name for link, _ in found}
    return tuple(
        Link(
            link.name,
            link.up,
            link.mtu,
            names.get(master, ""),
            tuple(str(each.network) for each, index in addresses if index == link.number and not _is_local(str(each))),
        )
        for link, master in found
        if link.number != _LOOPBACK
    )


def _bridge(body: bytes) -> int:
    return int.from_bytes(rtnetlink.attributes(body, _IFINFO_BYTES).get(_MASTER, b""), "little")


def _is_local(address: str) -> bool:
    return address.startswith("fe80:")
