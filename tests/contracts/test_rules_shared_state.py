"""What a pod sends to harm what it shares with others, and how little of it passes."""

from __future__ import annotations

import socket

import pytest

from netmgr.kernel import netns
from netmgr.prefixes import Address, Family
from netmgr.rules.engine import Rules
from tests.contracts.routed import (
    FAMILIES,
    INTERNAL,
    INTERNET,
    LINK,
    LINKS_KNOWN,
    NODE_INTERNAL,
    PODS,
    counts,
    guarded,
    refused,
    routed,
)
from tests.contracts.star import PORT, set_kernel
from tests.kernel import forging
from tests.waiting import PATIENCE, eventually

SURROUNDINGS = routed
pytestmark = pytest.mark.root


@pytest.fixture(params=LINKS_KNOWN)
def node(real_kernel, policy, request) -> Rules:
    return guarded(real_kernel.backend, policy, knows_links=request.param == "link known")


@FAMILIES
def test_an_error_of_a_pod_about_a_packet_that_nobody_sent_narrows_nobodys_path(
    world, node, program, family
):
    own, far = NODE_INTERNAL[family], INTERNAL[family]
    pod, *ends = map(Address.parse, (PODS[family], own, far))
    world.send(forging.too_big(pod, *way) for way in (ends, ends[::-1]))
    eventually(lambda: refused(node)["icmp"] == 2)
    assert " mtu " not in program(f"ip route get {far} from {own}")
    with netns.entered(world.host):
        assert " mtu " not in program(f"ip route get {own} from {far}")
    assert counts(node) == {}


@FAMILIES
@pytest.mark.parametrize("real_kernel", ["nftables"], indirect=True)
def test_a_pod_that_knows_the_ports_of_a_connection_of_no_pod_does_not_narrow_its_path(
    world, node, program, family
):
    pod, own, far = (Address.parse(ends[family]) for ends in (PODS, NODE_INTERNAL, INTERNAL))
    near = world.socket(None, family, str(own), PORT)
    host = world.socket(world.host, family, str(far), PORT)
    assert world.reaches(near, host, str(far)) == str(own)
    assert world.reaches(host, near, str(own)) == str(far)
    world.send(forging.too_big(pod, *ends, ports=(PORT, PORT)) for ends in ((own, far), (far, own)))
    eventually(lambda: refused(node)["icmp"] == 2)
    assert " mtu " not in program(f"ip route get {far} from {own}")
    with netns.entered(world.host):
        assert " mtu " not in program(f"ip route get {own} from {far}")


@FAMILIES
def test_an_error_of_a_connection_reaches_whoever_opened_it(world, node, family):
    own = world.socket(None, family, NODE_INTERNAL[family])
    host = world.socket(world.host, family, INTERNAL[family])
    for client in (own, host):
        client.connect((PODS[family], PORT))
        client.send(b"is anybody there?")
        with pytest.raises(ConnectionRefusedError):
            client.recv(100)
    assert refused(node)["icmp"] == 0


@FAMILIES
def test_answers_to_what_the_node_asks_a_group_reach_it(world, node, family):
    """They come from addresses that nobody asked, so they belong to no connection."""
    request, answer = {Family.V4: (8, 0), Family.V6: (128, 129)}[family]
    group = {Family.V4: "203.0.113.255", Family.V6: "ff02::1%uplink"}[family]
    kinds = {
        Family.V4: (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        Family.V6: (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
    }
    with netns.entered(world.host):
        set_kernel("ipv4/icmp_echo_ignore_broadcasts", 0)
    with socket.socket(*kinds[family]) as asking:
        asking.settimeout(PATIENCE)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        # RFC 1071's sum of these eight bytes; of ICMPv6 the kernel makes it.
        asking.sendto(bytes((request, 0, 0xF7, 0xFE, 0, 0, 0, 1)), (group, 0))
        header = {Family.V4: 20, Family.V6: 0}[family]
        # An IPv6 node is of the group itself.
        answers = set[str]()
        while len(answers) < {Family.V4: 1, Family.V6: 2}[family]:
            packet, source = asking.recvfrom(100)
            if packet[header] == answer:
                answers.add(source[0])
    assert refused(node)["icmp"] == 0


@pytest.mark.parametrize("sender", ["pod", "host"])
def test_the_nodes_loopback_is_reached_by_no_link(world, node, program, sender):
    """Also where a plugin opened it, as portmap does for its ports."""
    link = {"pod": LINK, "host": "uplink"}[sender]
    set_kernel(f"ipv4/conf/{link}/route_localnet", 1)
    with netns.entered(getattr(world, sender)):
        set_kernel("ipv4/conf/all/route_localnet", 1)
        program("ip addr flush dev lo")
        via = {"pod": "169.254.1.1", "host": "203.0.113.1"}[sender]
        program(f"ip route add 127.0.0.0/8 via {via}")
    address = {"pod": PODS, "host": INTERNET}[sender][Family.V4]
    client = world.socket(getattr(world, sender), Family.V4, address, PORT)
    server = world.socket(None, Family.V4, "127.0.0.1", PORT)
    assert world.is_lost(client, server, "127.0.0.1")
    assert refused(node)["loopback"] == 1
    assert world.reaches(server, server, "127.0.0.1") == "127.0.0.1"
    node.remove()
    assert world.reaches(client, server, "127.0.0.1") == address
