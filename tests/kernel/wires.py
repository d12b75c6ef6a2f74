"""Wires behind links that count: what they carry of a pod, and what its node says of them."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from netmgr.kernel.offloads import switch_off
from netmgr.prefixes import Address
from tests.kernel.common import netmgr
from tests.kernel.namespaces import host_link, inside
from tests.kernel.spending import IN, OUT
from tests.lab import wiring
from tests.lab.capture import Capture, Tally
from tests.lab.exchange import End, open_socket
from tests.lab.nodes import LabNode
from tests.lab.runtime import INTERFACE, Sandbox
from tests.lab.world import World

UDP_SEGMENT, TUNNEL = 103, 4790
KERNEL = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))
KNOWS_TUNNELS = KERNEL >= (6, 17)
OFFLOADS = (
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-udp-segmentation",
    "tx-udp_tnl-segmentation",
    "tx-udp_tnl-csum-segmentation",
    "tx-gso-partial",
)


@dataclass
class Wire:
    """What passes the links behind those where netmgr counts, which send each segment by itself."""

    captures: dict[str, Capture]

    def drain(self) -> None:
        for capture in self.captures.values():
            capture.drain()

    def carried(self, quiet_seconds: float = 0.3) -> dict[str, Tally]:
        """By direction, after so many seconds without a packet."""
        for capture in self.captures.values():
            capture.settle(quiet_seconds)
        return {
            traffic: sum(
                (tally for flow, tally in capture.flows().items() if flow.traffic == traffic),
                start=Tally(),
            )
            for traffic, capture in self.captures.items()
        }

    def bytes(self, quiet_seconds: float = 0.3) -> dict[str, int]:
        carried = self.carried(quiet_seconds)
        return {traffic: tally.bytes for traffic, tally in carried.items()}


@contextmanager
def wire_of(world: World, node: LabNode, pod: Sandbox) -> Iterator[Wire]:
    """The wire between a pod and the internet, for the length of the block."""
    own = host_link(node, pod)
    with wiring.inside(node.namespace):
        for link in ("eth0", own):
            switch_off(link, OFFLOADS)
    with ExitStack() as captures:
        places = {OUT: (world.namespace("fabric"), "node-1"), IN: (node.namespace, own)}
        yield Wire(
            {traffic: captures.enter_context(Capture(*place)) for traffic, place in places.items()}
        )


def counted(node: LabNode, pod: Sandbox) -> dict[str, dict[str, int]]:
    rows = node.snapshot()["pods"]
    return {
        row["traffic"]: {name: row[name] for name in ("bytes", "wire", "wire_unknown")}
        for row in rows
        if row["pod"] == pod.pod.name
    }


def assert_exact(
    node: LabNode, pod: Sandbox, wire: Wire, *segmented: str, quiet_seconds: float = 0.3
) -> None:
    """Both directions are what was captured; in these there was something to segment."""
    carried, shown = wire.bytes(quiet_seconds), counted(node, pod)
    assert {traffic: shown[traffic]["wire"] for traffic in (IN, OUT)} == carried
    assert not any(row["wire_unknown"] for row in shown.values())
    for traffic in segmented:
        assert shown[traffic]["wire"] > shown[traffic]["bytes"], "nothing was segmented"


def shell(node: LabNode, command: str) -> str:
    return netmgr(*command.split(), "--socket", str(node.ledger_socket)).stdout


def in_parts(own: End, peer: End, size: int) -> None:
    """Have datagrams be segmented into parts of so many bytes, first outward, then inward."""
    with (
        open_socket(peer.namespace, peer.address.family, socket.SOCK_DGRAM) as far,
        open_socket(own.namespace, own.address.family, socket.SOCK_DGRAM) as near,
    ):
        far.bind((str(peer.address), 0))
        to = far.getsockname()
        for here, there in ((near, far), (far, near)):
            here.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
            # The last one of some is shorter.
            for content in (40 * size, 39 * size + 1, size):
                here.sendto(bytes(content), to)
                for _ in range(-(-content // size)):
                    _, source = there.recvfrom(size)
            to = source


def vxlan(namespace: Path, name: str, own: str, near: Address, far: Address) -> None:
    """A tunnel of the namespace's own to the other end."""
    inside(
        namespace,
        *f"ip link add {name} type vxlan id 7 local {near} remote {far}".split(),
        # With one port at both ends, answers find the way back through the node's translation.
        *f"srcport {TUNNEL} {TUNNEL + 1} dstport {TUNNEL} dev {INTERFACE}".split(),
    )
    inside(namespace, *f"ip address add {own}/24 dev {name}".split())
    # IPv6 would send something at once, which the other end might answer by an error.
    inside(namespace, "sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1")
    inside(namespace, "ip", "link", "set", name, "up")
