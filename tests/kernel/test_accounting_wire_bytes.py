"""Wire bytes, where links count, against captures of what a link without offloads carried."""

from __future__ import annotations

import csv
import fcntl
import io
import itertools
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from netmgr.dataplane.desired import HOST_MAC
from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.kernel import forging
from tests.kernel.common import Ends
from tests.kernel.conftest import LEGACY, one_of
from tests.kernel.namespaces import host_link, inside
from tests.kernel.spending import IN, OUT, gaps
from tests.kernel.wires import (
    KERNEL,
    KNOWS_TUNNELS,
    TUNNEL,
    Wire,
    assert_exact,
    counted,
    in_parts,
    shell,
    vxlan,
    wire_of,
)
from tests.lab import wiring
from tests.lab.exchange import IP_HEADER, End, open_socket, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import INTERFACE, Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World

pytestmark = pytest.mark.root

WORLD = {
    "nodes": 1,
    "settings": {
        "accounting": {"min_reading_seconds": 0},
        "limits": [{"pods": "limited/*", IN: "1G", OUT: "1G"}],
    },
}
V4 = Family.V4
ETHERNET, VNET_HEADER, PORT = 14, 10, 4242
SOL_PACKET, PACKET_VNET_HDR = 263, 15
TUNSETIFF, TAP_WITH_HEADER = 0x400454CA, 0x5002
NEEDS_CHECKSUM, GSO_TCP, GSO_UDP = 1, {Family.V4: 1, Family.V6: 4}, 5
"""Of struct virtio_net_hdr (linux/virtio_net.h)."""

# A virtual machine may hand over UDP to be segmented since Linux 6.2.
HANDED = [socket.IPPROTO_TCP, *([socket.IPPROTO_UDP] if KERNEL >= (6, 2) else [])]

_numbers = itertools.count(1)
backend = one_of([Backend.LINKS])


@pytest.fixture
def pod(node: LabNode, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    made = node.add(f"wired-{next(_numbers)}", getattr(request, "param", "research"))
    yield made
    node.runtime.delete(made)


@pytest.fixture
def wire(world: World, node: LabNode, pod: Sandbox) -> Iterator[Wire]:
    with wire_of(world, node, pod) as made:
        yield made


@contextmanager
def tap(node: LabNode) -> Iterator[tuple[int, bytes]]:
    """A link of the node's with a virtual machine at the other end, and the link's address."""
    # It belongs to the namespace in which it is opened.
    with wiring.inside(node.namespace):
        descriptor = os.open("/dev/net/tun", os.O_RDWR)
    try:
        with wiring.inside(node.namespace):
            fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", b"machine", TAP_WITH_HEADER))
        inside(node.namespace, "ip", "link", "set", "machine", "up")
        shown = json.loads(inside(node.namespace, "ip", "-j", "link", "show", "machine"))
        yield descriptor, bytes.fromhex(shown[0]["address"].replace(":", ""))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("pod", ["research", "limited"], indirect=True)
@pytest.mark.parametrize("family", Family)
def test_tcp_each_way_is_counted_as_a_wire_carries_it(
    node: LabNode, pod: Sandbox, wire: Wire, ends: Ends, family: Family
) -> None:
    stream(*ends[family], 3_000_000, 2_000_000)
    assert_exact(node, pod, wire, IN, OUT)


@contextmanager
def jumbo(world: World, node: LabNode, pod: Sandbox) -> Iterator[None]:
    """Links take packets of 9,000 bytes on the whole way."""
    fabric, own = world.namespace("fabric"), host_link(node, pod)
    links = [(node.namespace, "eth0"), (fabric, "node-1"), (fabric, "internet")]
    links += [(world.internet, "eth0"), (node.namespace, own), (pod.netns, INTERFACE)]
    for place, link in links:
        inside(place, "ip", "link", "set", link, "mtu", "9000")
    try:
        yield
    finally:
        for place, link in links[:4]:
            inside(place, "ip", "link", "set", link, "mtu", "1500")


@pytest.mark.parametrize("family", Family)
def test_jumbo_frames_are_counted_as_a_wire_carries_them(
    world: World, node: LabNode, pod: Sandbox, wire: Wire, ends: Ends, family: Family
) -> None:
    with jumbo(world, node, pod):
        stream(*ends[family], 3_000_000, 2_000_000)
        assert_exact(node, pod, wire, IN, OUT)
        row = counted(node, pod)[OUT]
    assert 1 < row["wire"] / row["bytes"] < 1.01


def test_totals_of_wires_go_on_after_the_agent_was_restarted_or_killed(
    node: LabNode, pod: Sandbox, wire: Wire, ends: Ends
) -> None:
    for begin in (node.restart_after_kill, lambda: (node.stop_agent(), node.start_until_ready())):
        stream(*ends[V4], 300_000, 200_000)
        before = counted(node, pod)
        begin()
        assert counted(node, pod) == before
        node.kill_agent()
        # The kernel counts on meanwhile.
        stream(*ends[V4], 300_000, 200_000)
        node.start_until_ready()
        assert_exact(node, pod, wire, IN, OUT)
    assert not any(count for count, _ in gaps(node).values())


def test_hours_and_the_page_have_what_wires_carried(
    node: LabNode, pod: Sandbox, wire: Wire, ends: Ends
) -> None:
    stream(*ends[V4], 300_000, 200_000)
    carried, shown = wire.bytes(), counted(node, pod)
    rows = list(csv.DictReader(io.StringIO(shell(node, "usage --by pod -o csv"))))
    own_rows = {row["traffic"]: row for row in rows if row["pod"] == pod.pod.name}
    assert {way: int(own_rows[way]["wire"]) for way in (IN, OUT)} == carried
    assert {way: int(own_rows[way]["bytes"]) for way in (IN, OUT)} == {
        way: shown[way]["bytes"] for way in (IN, OUT)
    }
    assert {row["wire_unknown"] for row in own_rows.values()} == {"0"}
    page = node.scrape()
    for way in (IN, OUT):
        labels = f'namespace="research",pod="{pod.pod.name}",traffic="{way}"'
        for name, value in (("wire", carried[way]), ("wire_unknown", 0)):
            assert f"netmgr_pod_traffic_{name}_bytes_total{{{labels}}} {value:.1f}" in page


def test_the_audit_against_uplinks_has_the_difference_by_its_causes(
    node: LabNode, pod: Sandbox, wire: Wire, ends: Ends
) -> None:
    def audited() -> dict[str, dict[str, int]]:
        return {
            f"internet-{row['direction']}": {
                **{name: row[name] for name in ("carried", "headers", "rest", "segments")},
                "counted": sum(row["counted"].values()),
            }
            for row in node.ask("audit")["uplinks"]
        }

    before = audited()
    stream(*ends[V4], 3_000_000, 2_000_000)
    carried, shown, after = wire.bytes(), counted(node, pod), audited()
    for way, row in after.items():
        grown = {name: row[name] - before[way][name] for name in row}
        assert grown["carried"] == grown["headers"] + grown["counted"] + grown["rest"]
        assert grown["counted"] == shown[way]["bytes"]
        assert grown["segments"] == carried[way] - shown[way]["bytes"]
        # What leaves is in segments there already, what comes is not. ARP and discovery are few.
        unseen = grown["rest"] - (grown["segments"] if way == OUT else 0)
        assert 0 <= unseen < 2000
    assert "of the rest are headers of further segments" in shell(node, "node audit")


@pytest.mark.parametrize("backend", [Backend.NFTABLES, LEGACY], indirect=True, ids=str)
def test_where_rules_count_there_are_no_wire_bytes(node: LabNode, pod: Sandbox, ends: Ends) -> None:
    stream(*ends[V4], 300_000, 200_000)
    (row, *_) = [row for row in node.snapshot()["pods"] if row["pod"] == pod.pod.name]
    assert row["bytes"]
    assert not {"wire", "wire_unknown"} & row.keys()
    page = node.scrape()
    assert "netmgr_pod_traffic_bytes_total{" in page
    assert "_wire_bytes_total{" not in page
    assert "_wire_unknown_bytes_total{" not in page
    rows = node.history(since="0", until="", by="pod")["rows"]
    assert {row["wire"] for row in rows} == {row["measured"] for row in rows} == {0}


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("size", [37, 1200])
def test_udp_gso_each_way_is_counted_as_a_wire_carries_it(
    node: LabNode, pod: Sandbox, wire: Wire, ends: Ends, family: Family, size: int
) -> None:
    in_parts(*ends[family], size)
    assert_exact(node, pod, wire, IN, OUT)


@pytest.mark.parametrize("family", Family)
def test_a_pods_own_tunnel_is_counted_as_a_wire_carries_it_or_told_apart(
    world: World, node: LabNode, pod: Sandbox, wire: Wire, family: Family
) -> None:
    own, peer = pod.address(family), INTERNET[family]
    vxlan(pod.netns, "tunnel", "192.168.77.1", own, peer)
    vxlan(world.internet, "tunnel", "192.168.77.2", peer, node.node.address(family))
    try:
        near, far = (Address.parse(f"192.168.77.{number}") for number in (1, 2))
        stream(End(pod.netns, near), End(world.internet, far), 3_000_000, 1_000_000)
        if KNOWS_TUNNELS or not any(row["wire_unknown"] for row in counted(node, pod).values()):
            assert_exact(node, pod, wire, IN, OUT)
    finally:
        inside(world.internet, "ip", "link", "delete", "tunnel")


def gso_frame(source: Address, destination: Address, protocol: int, mac: bytes) -> bytes:
    """2,000 bytes that are to be sent in parts of 37, as a virtual machine hands them over."""
    family = source.family
    ports = struct.pack("!HH", PORT + 1, PORT)
    content, header = bytes(2000), ports + struct.pack("!IIBBHHH", 1, 1, 5 << 4, 0x10, 99, 0, 0)
    if protocol == socket.IPPROTO_UDP:
        header = ports + struct.pack("!HH", 8 + len(content), 0)
    frame = forging.ip(source, destination, protocol, header + content, hops=64)
    checksum = 6 if protocol == socket.IPPROTO_UDP else 16
    kind = GSO_UDP if protocol == socket.IPPROTO_UDP else GSO_TCP[family]
    start = ETHERNET + IP_HEADER[family]
    meta = struct.pack("=BBHHHH", NEEDS_CHECKSUM, kind, start + len(header), 37, start, checksum)
    return meta + mac + frame[6:]


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("protocol", HANDED)
def test_what_a_packet_socket_or_a_virtual_machine_hands_over_is_counted_in_its_parts(
    world: World, node: LabNode, pod: Sandbox, wire: Wire, family: Family, protocol: int
) -> None:
    own, peer = pod.address(family), INTERNET[family]
    with ExitStack() as opened:
        for namespace, address in ((pod.netns, own), (world.internet, peer)):
            # Or else errors answered, which no capture has.
            receiving = opened.enter_context(open_socket(namespace, family, socket.SOCK_DGRAM))
            receiving.bind((str(address), PORT))
        with wiring.inside(pod.netns):
            link = opened.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        link.bind((INTERFACE, 0))
        link.send(gso_frame(own, peer, protocol, HOST_MAC))
        machine, mac = opened.enter_context(tap(node))
        os.write(machine, gso_frame(peer, own, protocol, mac))
        assert_exact(node, pod, wire, IN, OUT)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("protocol", HANDED)
def test_what_nobody_knows_of_a_tunnels_segments_is_told_apart(
    world: World, node: LabNode, pod: Sandbox, wire: Wire, family: Family, protocol: int
) -> None:
    peer, inner = INTERNET[family], [Address.parse(f"192.168.77.{number}") for number in (1, 2)]
    frame = gso_frame(*inner, protocol, bytes(6))
    size = IP_HEADER[family] + 8 + 8 + len(frame) - VNET_HEADER
    add = f"ip link add tunnel type vxlan id 7 remote {peer} dstport {TUNNEL}"
    # Kernels have the one or the other, whose headers are as long.
    inside(pod.netns, "sh", "-c", f"{add} || {add.replace('vxlan', 'geneve')}")
    inside(pod.netns, "sysctl", "-qw", "net.ipv6.conf.tunnel.disable_ipv6=1")
    inside(pod.netns, "ip", "link", "set", "tunnel", "up")
    with ExitStack() as opened:
        receiving = opened.enter_context(open_socket(world.internet, family, socket.SOCK_DGRAM))
        receiving.bind((str(peer), TUNNEL))
        with wiring.inside(pod.netns):
            link = opened.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        link.bind(("tunnel", 0))
        link.send(frame)
        carried, shown = wire.bytes()[OUT], counted(node, pod)[OUT]
    assert carried > shown["bytes"] == size, "it was segmented"
    known = {"bytes": size, "wire": carried, "wire_unknown": 0}
    unknown = {"bytes": size, "wire": 0, "wire_unknown": size}
    if KNOWS_TUNNELS and protocol == socket.IPPROTO_TCP:
        assert shown == known
    else:
        # Updates of older kernels know it, too.
        assert shown == unknown or (shown == known and protocol == socket.IPPROTO_TCP)
