"""Each spoke's Service, and what plays kube-proxy for it inside the spoke.

One Service, `echo`, TCP and UDP, in front of one pod of each node. Nodes reach it by an nftables
table of the lab, as kube-proxy's would be: it picks an endpoint, and masquerades clients from
outside the cluster. A NAT host has the same table, without the hiding, when it maps ranges
stateless and its rules leave room for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from netmgr.documents.node import Backend
from netmgr.documents.sites import Role, SourceAddress
from netmgr.kernel.libnftables import LibNftables
from netmgr.prefixes import Address, Family, Prefix
from tests.lab import wiring
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import Spoke

NAME, NAMESPACE = "echo", "research"
PORT, TARGET_PORT = 80, 8080
PROTOCOLS = ("TCP", "UDP")
PROXY_TABLE = "inet lab-kube-proxy"
_CLUSTER_ADDRESS = 10
_IP = {Family.V4: "ip", Family.V6: "ip6"}


@dataclass(frozen=True, slots=True)
class Service:
    """One Service of a spoke: `addresses` are its own, inside; `vips` what others use."""

    spoke: str
    addresses: tuple[Address, ...]
    vips: tuple[Address, ...]
    backends: tuple[Sandbox, ...]

    def address(self, family: Family, *, inside: bool) -> Address:
        """Where it is reached.

        Raises:
            LabError: it has no address of `family`.
        """
        for address in self.addresses if inside else self.vips:
            if address.family is family:
                return address
        raise LabError(f"Service {NAME} of {self.spoke} has no IPv{family.value} address")


def service(spoke: Spoke, nodes: Iterable[LabNode]) -> Service:
    """The Service of `spoke`, in front of the last pod of each of its nodes."""
    vips = [
        Address(each.vip_range.family, each.vip_range.value + _CLUSTER_ADDRESS)
        for each in spoke.services
    ]
    cluster_ips = [
        each.cluster_ip(address) for each, address in zip(spoke.services, vips, strict=True)
    ]
    backends: list[Sandbox] = []
    for node in machines(nodes, spoke, Role.NODE):
        backends += node.runtime.sandboxes()[-1:]
    return Service(spoke.name, tuple(cluster_ips), tuple(vips), tuple(backends))


def machines(nodes: Iterable[LabNode], spoke: Spoke, role: Role) -> list[LabNode]:
    """The spoke's machines that run an agent in `role`."""
    return [node for node in nodes if (node.node.site, node.node.role) == (spoke.name, role)]


def proxies_itself(spoke: Spoke, backend: Backend) -> bool:
    """Whether the spoke's NAT host sends a Service's packets to endpoints without another machine.

    iptables maps ranges in the nat table, where a connection is translated once: then a kube-proxy
    on another machine must choose the endpoint. A host that preserves clients' addresses has
    nftables in every lab.
    """
    return spoke.source is SourceAddress.PRESERVE or backend is Backend.NFTABLES


def publish(spokes: Iterable[Spoke], nodes: Sequence[LabNode], backend: Backend) -> None:
    """Put every spoke's Service in force.

    Raises:
        KernelError: the kernel refused the table.
    """
    for spoke in spokes:
        found = service(spoke, nodes)
        for node in machines(nodes, spoke, Role.NODE):
            _load(node, _table(found, hide_all_but=node.node.ranges))
        nat_host = next(node for node in nodes if node.name == spoke.nat_host)
        if proxies_itself(spoke, backend):
            _load(nat_host, _table(found))


def _table(found: Service, hide_all_but: Iterable[Prefix] = ()) -> str:
    """A kube-proxy's rules; with `hide_all_but`, clients from elsewhere look like this machine."""
    own = list(hide_all_but)
    lines = [
        f"add table {PROXY_TABLE}",
        # Added before it is deleted: deleting a table that is not there fails the whole
        # transaction.
        f"delete table {PROXY_TABLE}",
        f"add table {PROXY_TABLE}",
        f"add chain {PROXY_TABLE} services",
    ]
    for hook, priority in (("prerouting", -100), ("output", -100), ("postrouting", 90)):
        chain = f"{{ type nat hook {hook} priority {priority}; }}"
        lines.append(f"add chain {PROXY_TABLE} {hook} {chain}")
    lines += [f"add rule {PROXY_TABLE} {hook} jump services" for hook in ("prerouting", "output")]
    if found.backends:
        for address in found.addresses:
            inside = [str(prefix) for prefix in own if prefix.family is address.family]
            lines += _rules(found, address, ", ".join(inside))
    return "\n".join(lines)


def _rules(found: Service, address: Address, inside: str) -> Iterator[str]:
    protocol = _IP[address.family]
    ends = enumerate(str(pod.address(address.family)) for pod in found.backends)
    choice = ", ".join(f"{number} : {end} . {TARGET_PORT}" for number, end in ends)
    yield (
        f"add rule {PROXY_TABLE} services {protocol} daddr {address}"
        f" meta l4proto {{ tcp, udp }} th dport {PORT} dnat {protocol} to"
        f" numgen random mod {len(found.backends)} map {{ {choice} }}"
    )
    if inside:
        yield (
            f"add rule {PROXY_TABLE} postrouting ct original {protocol} daddr {address}"
            f" {protocol} saddr != {{ {inside} }} masquerade"
        )


def _load(node: LabNode, table: str) -> None:
    # The library opens its netlink socket here, and a socket stays in its namespace.
    with wiring.inside(node.namespace):
        library = LibNftables()
    try:
        library.run(table)
    finally:
        library.close()
