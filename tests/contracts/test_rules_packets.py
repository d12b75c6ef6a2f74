"""Real packets from a pod's namespace through a node's to a host's: what the kernels count, drop
and translate.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from netmgr.documents.accounting import NodeRules
from netmgr.kernel import netns
from netmgr.model import PROTECTED, Counter, Sample, Traffic
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.engine import Rules
from netmgr.rules.model import Hook
from netmgr.rules.policy import Policy
from netmgr.rules.protection import Protection
from tests.contracts.conftest import (
    AND_AT_LINKS,
    RANGES,
    Kernel,
    inside_its_namespace,
    put_right,
    settled,
)
from tests.contracts.routed import (
    FAMILIES,
    FORGERIES,
    INTERNAL,
    INTERNET,
    LINK,
    LINKS_KNOWN,
    NODE_INTERNAL,
    NODES,
    POD_ADDRESSES,
    PODS,
    counts,
    guarded,
    of_pod,
    refused,
    routed,
)
from tests.contracts.star import HEADERS, MACS, PORT, SECONDS_TO_BE_LOST, wait_until_up
from tests.waiting import eventually

SURROUNDINGS = routed
pytestmark = pytest.mark.root


@pytest.fixture(params=AND_AT_LINKS)
def real_kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    yield from inside_its_namespace(request)


@pytest.fixture(params=LINKS_KNOWN)
def node(real_kernel, policy, request) -> Rules:
    # A link counts for pods that it is known to belong to.
    knows_links = request.param == "link known" or real_kernel.backend.name == "links"
    return guarded(real_kernel.backend, policy, knows_links=knows_links)


def expected(
    family: Family, outward: tuple[int, int], inward: tuple[int, int]
) -> dict[Counter, tuple[int, int]]:
    amounts = {Traffic.INTERNET_OUT: outward, Traffic.INTERNET_IN: inward}
    return {
        counter: amount
        for traffic, amount in amounts.items()
        for counter in (
            of_pod(family, traffic),
            *(Counter(subject, family, traffic) for subject in ("FORWARD", "PODS")),
        )
    }


@FAMILIES
def test_internet_traffic_is_counted_to_the_byte_in_both_directions(world, node, family):
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, INTERNET[family], PORT)
    sizes_out, sizes_in = [1, 17, 1000, 1400], [3, 999]
    for size in sizes_out:
        pod.sendto(b"o" * size, (INTERNET[family], PORT))
        data, source = host.recvfrom(65535)
        assert len(data) == size
    assert source[0] == NODES[family], "pods reach the internet as the node"
    for size in sizes_in:
        host.sendto(b"i" * size, source)
        assert len(pod.recv(65535)) == size
    outward = (sum(sizes_out) + len(sizes_out) * HEADERS[family], len(sizes_out))
    inward = (sum(sizes_in) + len(sizes_in) * HEADERS[family], len(sizes_in))
    assert counts(node) == expected(family, outward, inward)
    pod_counters = [
        Sample(counter, *count) for counter, count in counts(node).items() if counter.is_pod
    ]
    found = node.read_pods([Address.parse(PODS[family])])
    # Nothing was segmented; rules know nothing of wires.
    assert {(sample.wire, sample.measured) for sample in found} <= {
        (size, size) for size in (outward[0], inward[0], 0)
    }
    read = [sample._replace(life=0, wire=0, measured=0) for sample in found if sample.packets]
    assert sorted(read, key=str) == sorted(pod_counters, key=str)


@FAMILIES
def test_internal_traffic_is_neither_counted_nor_translated(world, node, family):
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, INTERNAL[family], PORT)
    assert world.reaches(pod, host, INTERNAL[family]) == PODS[family]
    assert world.reaches(host, pod, PODS[family]) == INTERNAL[family]
    assert counts(node) == {}


@FAMILIES
def test_an_internal_machine_without_a_way_back_to_pods_sees_the_node_unless_it_is_native(
    world, real_kernel, policy, program, family
):
    machine, own = INTERNAL[family], NODE_INTERNAL[family]
    with netns.entered(world.host):
        for other in Family:
            program(f"ip -{other.value} route del default")
        version = f"ip -{family.value}"
        program(f"{version} neigh add {own} lladdr {MACS[0]} dev eth0")
        program(f"{version} route add {own} dev eth0")
    rules = guarded(real_kernel.backend, replace(policy, native=RANGES), knows_links=True)
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, machine, PORT)
    pod.sendto(b"who?", (machine, PORT))
    _, seen = host.recvfrom(100)
    assert seen[0] in (NODES[family], own)
    host.sendto(b"me", seen)
    assert pod.recv(100) == b"me"
    assert counts(rules) == {}, "it is internal all the same"
    rules.change_policy(replace(policy, native=(*RANGES, Address.parse(machine).prefix)))
    put_right(rules, POD_ADDRESSES)
    # What is known to connection tracking keeps its translation.
    later = world.socket(world.pod, family, PODS[family], PORT + 1)
    assert world.reaches(later, host, machine) == PODS[family]
    with pytest.raises(OSError, match="unreachable"):
        host.sendto(b"me", (PODS[family], PORT + 1))
    assert counts(rules) == {}
    internet = world.socket(world.host, family, INTERNET[family], PORT)
    assert world.reaches(later, internet, INTERNET[family]) == NODES[family]
    assert {counter for counter in counts(rules) if counter.is_pod} == {
        of_pod(family, Traffic.INTERNET_OUT)
    }


@FAMILIES
@pytest.mark.parametrize("claimed", ["a pod's address", "the node's own address"])
def test_what_comes_from_elsewhere_with_an_address_of_this_node_is_neither_forwarded_nor_billed(
    world, node, program, family, claimed
):
    """IPv6 would take the node's own address from anybody; IPv4 has its own check for that, and
    none for pods'.
    """
    forged = {"a pod's address": PODS, "the node's own address": NODES}[claimed][family]
    with netns.entered(world.host):
        program(
            f"ip addr add {forged}/{family.width} dev eth0{' nodad' if family is Family.V6 else ''}"
        )
    sender = world.socket(world.host, family, forged, PORT)
    internal = world.socket(None, family, NODE_INTERNAL[family], PORT)
    pod = world.socket(world.pod, family, PODS[family], PORT)
    assert world.is_lost(sender, internal, NODE_INTERNAL[family])
    if claimed != "a pod's address":
        assert world.is_lost(sender, pod, PODS[family])
    sender.sendto(b"x", (FORGERIES["an address behind the uplink"][family], PORT))
    assert counts(node) == {}
    assert refused(node)["forged"] >= (family is Family.V6 or claimed == "a pod's address")


@FAMILIES
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_source_is_dropped_and_nothing_counted(world, node, family, forgery):
    honest = world.socket(world.pod, family, PODS[family], PORT)
    forged = world.socket(world.pod, family, FORGERIES[forgery][family], PORT)
    host = world.socket(world.host, family, INTERNET[family], PORT)
    assert world.is_lost(forged, host, INTERNET[family])
    assert counts(node) == {}
    assert world.reaches(honest, host, INTERNET[family]) == NODES[family]


@FAMILIES
@pytest.mark.parametrize("excepted", [False, True])
def test_protected_addresses_are_kept_from_pods_but_for_dns_and_excepted_namespaces(
    world, real_kernel, policy, family, excepted
):
    away = Address.parse(INTERNAL[family])
    protection = Protection((away.prefix,), excepted=frozenset({"trusted"}))
    rules = Rules(real_kernel.backend, replace(policy, protection=protection))
    pod = Address.parse(PODS[family])
    rules.know([pod], "trusted" if excepted else "research", LINK)
    rules.apply(rules.plan([]))
    rules.admit([pod])
    assert not rules.plan([pod])
    client = world.socket(world.pod, family, PODS[family], PORT)
    host, dns = (world.socket(world.host, family, str(away), port) for port in (PORT, 53))
    if excepted:
        assert world.reaches(client, host, str(away), 72) == PODS[family]
    else:
        assert world.is_lost(client, host, str(away), 72)
    client.sendto(b"who?", (str(away), 53))
    asked = dns.recvfrom(100)[1]
    dns.sendto(b"me", asked)
    assert client.recv(100) == b"me"
    # What the protected machine begins is answered.
    assert world.reaches(host, client, PODS[family]) == str(away)
    assert world.reaches(client, host, str(away)) == PODS[family]
    kept = {} if excepted else {Counter.of_pod(pod, PROTECTED): (72 + HEADERS[family], 1)}
    assert counts(rules) == kept
    assert refused(rules)["protected"] == len(kept)
    elsewhere = world.socket(world.host, family, INTERNET[family], PORT)
    assert world.reaches(client, elsewhere, INTERNET[family]) == NODES[family]


@FAMILIES
def test_a_connection_that_is_redirected_to_an_agent_of_the_node_still_gets_there(
    world, real_kernel, policy, program, family
):
    """As agents of clouds have it that answer for the metadata service: behind the translation it
    is another one.
    """
    away, own = INTERNAL[family], NODE_INTERNAL[family]
    protection = Protection((Address.parse(away).prefix,))
    protecting = replace(policy, protection=protection)
    rules = guarded(real_kernel.backend, protecting, knows_links=False)
    protocol = "ip" if family is Family.V4 else "ip6"
    chain = "add chain inet agent prerouting { type nat hook prerouting priority dstnat; }"
    rule = f"add rule inet agent prerouting {protocol} daddr {away} dnat {protocol} to {own}"
    program("nft -f -", f"add table inet agent\n{chain}\n{rule}\n")
    client = world.socket(world.pod, family, PODS[family], PORT)
    agent = world.socket(None, family, own, PORT)
    assert world.reaches(client, agent, away) == PODS[family]
    assert refused(rules)["protected"] == 0


@FAMILIES
def test_the_nodes_own_services_are_kept_from_pods_where_that_is_asked_for(
    world, real_kernel, policy, family
):
    own = Address.parse(NODE_INTERNAL[family]).prefix
    protecting = replace(policy, protection=Protection((own,), own=(own,)))
    rules = guarded(real_kernel.backend, protecting, knows_links=False)
    client = world.socket(world.pod, family, PODS[family], PORT)
    node = world.socket(None, family, str(own.network), PORT)
    assert world.is_lost(client, node, str(own.network))
    assert refused(rules)["protected"] == 1
    # A probe of the kubelet's is answered.
    assert world.reaches(node, client, PODS[family]) == str(own.network)
    assert world.reaches(client, node, str(own.network)) == PODS[family]


@FAMILIES
def test_it_is_the_rules_that_stop_a_forged_source_from_reaching_the_node(world, node, family):
    forged_address = FORGERIES["an address behind the uplink"][family]
    forged = world.socket(world.pod, family, forged_address, PORT)
    honest = world.socket(world.pod, family, PODS[family], PORT)
    own = world.socket(None, family, NODE_INTERNAL[family], PORT)
    assert world.is_lost(forged, own, NODE_INTERNAL[family])
    assert world.reaches(honest, own, NODE_INTERNAL[family]) == PODS[family]
    node.remove()
    assert world.reaches(forged, own, NODE_INTERNAL[family]) == forged_address


def test_what_a_pod_sends_from_a_link_local_address_is_dropped_and_counted(world, node):
    """Its link needs no neighbour discovery, and an answer would cost an entry for every address
    that is made up.
    """
    pod = world.socket(world.pod, Family.V6, "::")
    own = world.socket(None, Family.V6, "::", PORT)
    with netns.entered(world.pod):
        pod.connect(("fe80::1", PORT, 0, socket.if_nametoindex("eth0")))
    pod.send(b"hello")
    own.settimeout(SECONDS_TO_BE_LOST)
    with pytest.raises(TimeoutError):
        own.recvfrom(100)
    assert refused(node)["link-local"] >= 1
    assert counts(node) == {}


@FAMILIES
def test_corrected_node_rules_count_the_nodes_own_internet_and_not_its_loopback(
    world, node, family
):
    own = world.socket(None, family, "", PORT)
    host = world.socket(world.host, family, INTERNET[family], PORT)
    loop = {Family.V4: "127.0.0.1", Family.V6: "::1"}[family]
    assert world.reaches(own, own, loop) == loop
    assert world.reaches(own, own, NODES[family]) == NODES[family]
    assert counts(node) == {}
    assert world.reaches(own, host, INTERNET[family], 50) == NODES[family]
    assert world.reaches(host, own, NODES[family], 70) == INTERNET[family]
    assert counts(node) == {
        Counter("OUTPUT", family, Traffic.INTERNET_OUT): (50 + HEADERS[family], 1),
        Counter("INPUT", family, Traffic.INTERNET_IN): (70 + HEADERS[family], 1),
    }


def test_the_articles_text_counts_loopback_as_internet(world, real_kernel, policy):
    rules = settled(real_kernel.backend, replace(policy, node_rules=NodeRules.EXACT))
    own = world.socket(None, Family.V4, "", PORT)
    assert world.reaches(own, own, "127.0.0.1", 100) == "127.0.0.1"
    assert counts(rules) == {
        Counter("OUTPUT", Family.V4, Traffic.INTERNET_OUT): (128, 1),
        Counter("INPUT", Family.V4, Traffic.INTERNET_IN): (128, 1),
    }


@FAMILIES
def test_counts_survive_repairs_and_changes_of_policy(world, node, real_kernel, policy, family):
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, INTERNET[family], PORT)
    assert world.reaches(pod, host, INTERNET[family])
    before = counts(node)
    assert before
    narrower = tuple(block for block in policy.internal if str(block) != "192.168.0.0/16")
    changed = Rules(real_kernel.backend, replace(policy, masquerade=False, internal=narrower))
    changed.know(POD_ADDRESSES, "research", LINK)
    plan = changed.plan([*POD_ADDRESSES, Address.parse("10.1.0.77")])
    changed.apply(plan)
    assert {
        counter: count for counter, count in counts(changed).items() if counter not in plan.created
    } == before
    node.apply(node.plan(POD_ADDRESSES))
    assert counts(node) == before


def test_only_pods_are_masqueraded(world, node):
    del node
    own = world.socket(None, Family.V4, "198.51.100.1", PORT)
    host = world.socket(world.host, Family.V4, INTERNET[Family.V4], PORT)
    assert world.reaches(own, host, INTERNET[Family.V4]) == "198.51.100.1"


def writes(kernel: Kernel, rules: Rules, policy: Policy) -> Iterator[str]:
    """Every kind of write that leaves the rules alone that count what the test sends."""
    other = [Address.parse("10.1.0.77"), Address.parse("2001:db8:1::77")]
    rules.admit(other)
    yield "a pod comes, and is dropped by a plan"
    at_links = kernel.backend.name == "links"
    hook = Hook.INPUT if at_links else Hook.BEFORE_SRCNAT
    kernel.lose_rule(hook, f"{'node input' if at_links else 'unattributed'} internet-in v4")
    yield "a rule is put back"
    kernel.add_rule(hook)
    yield "a rule is removed"
    kernel.settle_neighbours()
    yield "others add rules"
    protection = Protection((Prefix.parse("198.51.100.0/25"),))
    for changes in ({"protection": protection}, {"masquerade": False}, {}):
        rules.change_policy(replace(policy, **changes))
        yield f"another policy: {changes}"


@FAMILIES
def test_no_packet_is_lost_to_any_kind_of_write(real_kernel, world, policy, family):
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    sender = world.socket(world.host, family, INTERNET[family], PORT)
    ended, sent = threading.Event(), itertools.count()

    def send() -> None:
        # Slowly enough that no queue between the namespaces overflows.
        while not ended.wait(0.0005):
            sender.sendto(b"x" * 100, (PODS[family], PORT))
            next(sent)

    def passed() -> int:
        return counts(rules).get(counter, (0, 0))[1]

    thread = threading.Thread(target=send)
    thread.start()
    counter = Counter("FORWARD", family, Traffic.INTERNET_IN)
    seen = 0
    try:
        for what in writes(real_kernel, rules, policy):
            plan = rules.plan(POD_ADDRESSES)
            assert counter not in plan.created
            rules.apply(plan)
            before, seen = seen, passed()
            assert seen >= before, f"{what}: the count begins anew"
            eventually(lambda mark=seen: passed() > mark, f"{what}: then nothing passes")
    finally:
        ended.set()
        thread.join()
    packets = next(sent)
    octets = packets * (100 + HEADERS[family])
    assert counts(rules)[counter] == (octets, packets), "the node's"
    assert counts(rules)[of_pod(family, Traffic.INTERNET_IN)] == (octets, packets), "in a set"
    in_sum = counter._replace(subject="PODS")
    assert counts(rules)[in_sum] == (octets, packets), "in a chain of ours"


def test_what_comes_by_a_link_that_leads_nowhere_outside_is_its_sources(
    world, real_kernel, policy, program
):
    """As where answers take another way than what they answer."""
    program("ip link add other type veth peer name other-far")
    program(f"ip link set other-far netns /proc/{os.getpid()}/fd/{world.host}")
    program(f"ip link set other up address {MACS[0]}")
    program("ip route add 10.99.0.0/24 dev other")
    family, source = Family.V4, "192.0.2.9"
    with netns.entered(world.host):
        program("ip link set other-far up")
        program(f"ip addr add {source}/32 dev lo")
        program(f"ip route add {PODS[family]} dev other-far")
        program(f"ip neigh add {PODS[family]} lladdr {MACS[0]} dev other-far")
    wait_until_up("other")
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    host = world.socket(world.host, family, source, PORT + 1)
    pod = world.socket(world.pod, family, PODS[family], PORT)
    assert world.reaches(host, pod, PODS[family]) == source
    arrived = of_pod(family, Traffic.INTERNET_IN)
    assert counts(rules)[arrived] == (100 + HEADERS[family], 1)


def test_by_whichever_of_several_uplinks_a_packet_leaves_it_counts(
    world, real_kernel, policy, program
):
    """A route that names several links spreads connections over them."""
    other, address, family = "other", "192.0.2.9", Family.V4
    program(f"ip link add {other} address {MACS[0]} type veth peer name far address {MACS[1]}")
    program(f"ip link set far name {other} netns /proc/{os.getpid()}/fd/{world.host}")
    program(f"ip link set {other} up")
    with netns.entered(world.host):
        program(f"ip link set {other} up")
        program(f"ip addr add {address}/32 dev lo")
    for link in ("uplink", other):
        program(f"ip neigh add {address} lladdr {MACS[1]} dev {link}")
    program("sysctl -qw net.ipv4.fib_multipath_hash_policy=1")
    program(f"ip route add 192.0.2.0/24 nexthop dev uplink nexthop dev {other}")
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    host = world.socket(world.host, family, address, PORT)
    for number in range(32):
        pod = world.socket(world.pod, family, PODS[family], PORT + 1 + number)
        assert world.reaches(pod, host, address)
    left = {link: sent(program, link) for link in ("uplink", other)}
    assert all(left.values()), left
    out = of_pod(family, Traffic.INTERNET_OUT)
    assert counts(rules)[out] == (32 * (100 + HEADERS[family]), 32)


def sent(program, link: str) -> int:
    (shown,) = json.loads(program(f"ip -s -j link show {link}"))
    return int(shown["stats64"]["tx"]["packets"])
