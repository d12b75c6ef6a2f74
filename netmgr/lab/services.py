"""Each spoke's Service, and what plays kube-proxy for it inside the spoke.

One Service, `echo`, TCP and UDP, in front of one pod of each node. Nodes reach it by a table of
nftables that is the lab's and nobody of netmgr's, as kube-proxy's would be: it picks an
endpoint, and hides the address of whoever is not of the cluster. A NAT host has the same table,
without the hiding, when it maps ranges stateless and its rules leave room for it; one that
translates by endpoints gets the Service and its slices as documents instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from netmgr.config import Backend
from netmgr.errors import LabError
from netmgr.lab import wiring
from netmgr.lab.nodes import LabNode
from netmgr.lab.runtime import Sandbox
from netmgr.lab.topology import Spoke
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.libnftables import LibNftables
from netmgr.sites import Mapping, Role

if TYPE_CHECKING:
    from netmgr.lab.world import World

NAME, NAMESPACE = "echo", "research"
PORT, TARGET_PORT = 80, 8080
PROTOCOLS = ("TCP", "UDP")
PROXY_TABLE = "inet lab-kube-proxy"
_CLUSTER_ADDRESS = 10
_IP = {Family.V4: "ip", Family.V6: "ip6"}


@dataclass(frozen=True, slots=True)
class Service:
    """One Service of a spoke: `addresses` are its own, inside; `seen` what others use."""

    spoke: str
    addresses: tuple[Address, ...]
    seen: tuple[Address, ...]
    backends: tuple[Sandbox, ...]

    def address(self, family: Family, *, inside: bool) -> Address:
        """Where it is reached.

        Raises:
            LabError: it has no address of `family`.
        """
        for address in self.addresses if inside else self.seen:
            if address.family is family:
                return address
        raise LabError(f"Service {NAME} of {self.spoke} has no IPv{family.value} address")


def service(world: World, spoke: Spoke) -> Service:
    """The Service of `spoke`, in front of the pods that run now."""
    seen = [Address(each.seen.family, each.seen.value + _CLUSTER_ADDRESS) for each in spoke.services]
    real = [each.real_of(address) for each, address in zip(spoke.services, seen, strict=True)]
    return Service(spoke.name, tuple(real), tuple(seen), tuple(_backends(world, spoke)))


def _backends(world: World, spoke: Spoke) -> Iterator[Sandbox]:
    """The last pod of each node."""
    for node in machines(world, spoke, Role.NODE):
        yield from node.runtime.sandboxes()[-1:]


def machines(world: World, spoke: Spoke, role: Role) -> list[LabNode]:
    """The spoke's machines that run an agent in `role`."""
    return [node for node in world.nodes if (node.node.site, node.node.role) == (spoke.name, role)]


def proxies_itself(world: World, spoke: Spoke) -> bool:
    """Whether the spoke's NAT host hands a Service's packets to endpoints without help of another machine.

    iptables maps ranges in the nat table, where a connection is translated once: then it is for
    kube-proxy on another machine to choose the endpoint.
    """
    return spoke.translation is Mapping.ENDPOINTS or world.backend is Backend.NFTABLES


def publish(world: World) -> None:
    """Put every spoke's Service in force.

    Raises:
        KernelError: the kernel refused the table.
    """
    for spoke in world.topology.spokes:
        found = service(world, spoke)
        for node in machines(world, spoke, Role.NODE):
            _load(node, _table(found, hide_all_but=node.node.ranges))
        nat_host = world.node(spoke.nat_host)
        if spoke.translation is Mapping.ENDPOINTS:
            write(nat_host, documents(found))
        elif proxies_itself(world, spoke):
            _load(nat_host, _table(found))


def documents(found: Service) -> list[dict[str, Any]]:
    """The Service and its EndpointSlices, as the Kubernetes API has them."""
    ports = [{"name": each.lower(), "protocol": each, "port": PORT, "targetPort": TARGET_PORT} for each in PROTOCOLS]
    metadata = {"name": NAME, "namespace": NAMESPACE}
    addresses = [str(address) for address in found.addresses]
    spec = {"type": "ClusterIP", "clusterIP": addresses[0], "clusterIPs": addresses, "ports": ports}
    slices = [_slice(found, family) for family in Family if any(a.family is family for a in found.addresses)]
    return [{"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}, *slices]


def _slice(found: Service, family: Family) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{NAME}-v{family.value}",
            "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": NAME},
        },
        "addressType": f"IPv{family.value}",
        "ports": [{"name": each.lower(), "protocol": each, "port": TARGET_PORT} for each in PROTOCOLS],
        "endpoints": [
            {"addresses": [str(pod.address(family))], "conditions": {"ready": True}, "nodeName": pod.pod.node}
            for pod in found.backends
        ],
    }


def write(nat_host: LabNode, objects: Sequence[dict[str, Any]]) -> None:
    """Replace the documents that a NAT host translates by, in one step."""
    path = nat_host.services / "services.yaml"
    beside = path.with_suffix(".new")
    beside.write_text(yaml.safe_dump_all(objects, sort_keys=False), encoding="utf-8")
    beside.replace(path)


def _table(found: Service, hide_all_but: Iterable[Prefix] | None = None) -> str:
    """A kube-proxy's rules; with `hide_all_but`, clients from elsewhere look like this machine."""
    own = list(hide_all_but or ())
    lines = [
        f"add table {PROXY_TABLE}",
        f"delete table {PROXY_TABLE}",
        f"add table {PROXY_TABLE}",
        f"add chain {PROXY_TABLE} services",
    ]
    for hook, priority in (("prerouting", -100), ("output", -100), ("postrouting", 90)):
        lines.append(f"add chain {PROXY_TABLE} {hook} {{ type nat hook {hook} priority {priority}; }}")
    lines += [f"add rule {PROXY_TABLE} {hook} jump services" for hook in ("prerouting", "output")]
    for address in found.addresses:
        protocol = _IP[address.family]
        ends = [str(pod.address(address.family)) for pod in found.backends]
        if not ends:
            continue
        choice = ", ".join(f"{number} : {end} . {TARGET_PORT}" for number, end in enumerate(ends))
        lines.append(
            f"add rule {PROXY_TABLE} services {protocol} daddr {address} meta l4proto {{ tcp, udp }} th dport {PORT}"
            f" dnat {protocol} to numgen random mod {len(ends)} map {{ {choice} }}"
        )
        inside = ", ".join(str(prefix) for prefix in own if prefix.family is address.family)
        if inside:
            lines.append(
                f"add rule {PROXY_TABLE} postrouting ct original {protocol} daddr {address}"
                f" {protocol} saddr != {{ {inside} }} masquerade"
            )
    return "\n".join(lines)


def _load(node: LabNode, table: str) -> None:
    with wiring.inside(node.namespace):
        library = LibNftables()
    try:
        library.run(table)
    finally:
        library.close()
