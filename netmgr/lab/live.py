"""A lab as it is now, as its kernel and its agents report it.

`status` is what `netmgr lab status` prints: everything that runs, and where. `look` is what a
picture shows: namespaces, links and addresses from the kernel; ranges, drops and readiness from the
agents. Only what things are for is taken from the topology.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

from netmgr.documents.sites import HUB
from netmgr.errors import KernelError, NetmgrError
from netmgr.kernel import links as kernel_links
from netmgr.kernel.netlink import Netlink
from netmgr.lab import wiring
from netmgr.lab.comparison import POD_BYTES
from netmgr.lab.nodes import LabNode
from netmgr.lab.runtime import Sandbox
from netmgr.lab.topology import INTERNET, Spoke
from netmgr.lab.world import World

NODE_BYTES = "netmgr_node_traffic_bytes_total"
_LOOPBACK = 1


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
    """One namespace. `role` is empty without an agent; `reason` is why an agent is not ready."""

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
class LiveSite:
    """The hub, or a spoke with its Service ranges: as others see them, and as they are inside."""

    name: str
    prefixes: tuple[str, ...] = ()
    vip_ranges: tuple[str, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    translation: str = ""
    source: str = ""

    def services(self) -> Iterator[str]:
        """Each Service range in words: as the hub reaches it, and what that is inside."""
        for vip_range, service_cidr in zip(self.vip_ranges, self.service_cidrs, strict=True):
            yield f"{vip_range} → {service_cidr}" if service_cidr != vip_range else vip_range


@dataclass(frozen=True, slots=True)
class Live:
    """All of it."""

    name: str
    backend: str
    sites: tuple[LiveSite, ...]
    hosts: tuple[Host, ...] = field(default=())
    version: Literal[1] = 1
    """Of its form for programs."""

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


def _sites(world: World) -> tuple[LiveSite, ...]:
    if not world.topology.spokes:
        return ()
    hub: set[str] = set()
    for node in world.nodes:
        for site in node.node.document.get("sites", ()):
            if site["name"] == HUB:
                hub.update(site["prefixes"])
    return (LiveSite(HUB, tuple(sorted(hub))), *map(_site, world.topology.spokes))


def _site(spoke: Spoke) -> LiveSite:
    return LiveSite(
        spoke.name,
        tuple(map(str, spoke.prefixes)),
        tuple(str(each.vip_range) for each in spoke.services),
        tuple(str(each.service_cidr) for each in spoke.services),
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
        Pod(
            each.pod.name,
            each.pod.namespace,
            tuple(a for link in links_of(each.netns) for a in link.addresses),
        )
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
        # A netlink socket answers for the namespace it was opened in.
        with wiring.inside(namespace), Netlink() as channel:
            found = kernel_links.read_links(channel)
            addresses = kernel_links.read_addresses(channel)
    except OSError as error:
        raise KernelError(f"look into {namespace}", error.errno or 0) from None
    names = {link.number: link.name for link in found}
    shown: dict[int, list[str]] = {link.number: [] for link in found}
    for address, number in addresses:
        is_link_local = str(address).startswith("fe80:")
        if number in shown and not is_link_local:
            shown[number].append(str(address.network))
    links = []
    for link in found:
        if link.number != _LOOPBACK:
            bridge, own = names.get(link.master, ""), tuple(shown[link.number])
            links.append(Link(link.name, link.up, link.mtu, bridge, own))
    return tuple(links)


class LabNodeStatus(TypedDict):
    """A node, and why its agent is not ready, if it is not."""

    name: str
    role: str
    site: str
    addresses: list[str]
    ranges: list[str]
    namespace: str
    ledger_socket: str
    agent_pid: int | None
    exporter_pid: int | None
    ready: bool
    reason: str


class LabPodStatus(TypedDict):
    """A pod that runs."""

    name: str
    namespace: str
    node: str
    addresses: list[str]
    netns: str
    container_id: str


class LabServiceRange(TypedDict):
    """A Service range, as the hub reaches it and inside its spoke."""

    vip_range: str
    service_cidr: str


class LabSpokeStatus(TypedDict):
    """A spoke, and the hosts in it that are no nodes."""

    name: str
    prefixes: list[str]
    nat_host: str
    services: list[LabServiceRange]
    translation: str
    source: str
    rogues: dict[str, list[str]]


class LabStatus(TypedDict):
    """A lab: where everything is, and whether it runs."""

    version: Literal[1]
    name: str
    directory: str
    backend: str
    internet: list[str]
    nodes: list[LabNodeStatus]
    pods: list[LabPodStatus]
    spokes: list[LabSpokeStatus]
    researcher: list[str]


def status(world: World) -> LabStatus:
    """The lab as one JSON object: where everything is, and whether it runs."""
    return {
        "version": 1,
        "name": world.name,
        "directory": str(world.directory),
        "backend": world.backend.value,
        "internet": [str(address) for address in INTERNET.values()],
        "nodes": [_node_status(node) for node in world.nodes],
        "pods": [_pod_status(sandbox) for sandbox in world.pods()],
        "spokes": [_spoke_status(world, spoke) for spoke in world.topology.spokes],
        "researcher": _researcher(world),
    }


def _spoke_status(world: World, spoke: Spoke) -> LabSpokeStatus:
    return {
        "name": spoke.name,
        "prefixes": list(map(str, spoke.prefixes)),
        "nat_host": spoke.nat_host,
        "services": [
            {"vip_range": str(each.vip_range), "service_cidr": str(each.service_cidr)}
            for each in spoke.services
        ],
        "translation": str(spoke.translation),
        "source": str(spoke.source),
        "rogues": {name: _addresses(world, name) for name in spoke.rogues},
    }


def _researcher(world: World) -> list[str]:
    return _addresses(world, world.topology.researcher) if world.topology.researcher else []


def _addresses(world: World, host: str) -> list[str]:
    return [str(own.address) for end in world.topology.attached(host) for own in end.addresses]


def _node_status(node: LabNode) -> LabNodeStatus:
    not_ready = node.status()
    return {
        "name": node.name,
        "role": str(node.node.role),
        "site": node.node.site,
        "addresses": [str(address) for address in node.node.addresses],
        "ranges": [str(block) for block in node.node.ranges],
        "namespace": str(node.namespace),
        "ledger_socket": str(node.ledger_socket),
        "agent_pid": node.agent_pid(),
        "exporter_pid": node.exporter_pid(),
        "ready": not not_ready,
        "reason": not_ready,
    }


def _pod_status(sandbox: Sandbox) -> LabPodStatus:
    return {
        "name": sandbox.pod.name,
        "namespace": sandbox.pod.namespace,
        "node": sandbox.pod.node,
        "addresses": [str(address) for address in sandbox.addresses],
        "netns": str(sandbox.netns),
        "container_id": sandbox.container_id,
    }


def excerpt(page: str, pods: set[str]) -> list[str]:
    """The lines of a metrics page about these pods, and about the node as a whole."""
    wanted = tuple(f'pod="{pod}"' for pod in sorted(pods))
    lines = []
    for line in page.splitlines():
        is_of_pod = line.startswith(POD_BYTES) and any(label in line for label in wanted)
        if is_of_pod or line.startswith(NODE_BYTES):
            lines.append(line)
    return lines
