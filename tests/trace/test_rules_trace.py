"""Packets through the fake kernel: which counters each hits, and whether it is dropped or
translated.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netmgr.documents.accounting import NodeRules
from netmgr.documents.special_use import PLATFORM as PLATFORMS
from netmgr.documents.special_use import PRIVATE_USE, SPECIAL_USE
from netmgr.model import PROTECTED, Counter, Traffic
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy, pod_sets
from netmgr.rules.protection import Protection
from netmgr.rules.sources import Sources
from tests.fakes.passage import FORWARDED, LOOPED, RECEIVED, SENT, Outcome, Packet
from tests.fakes.rules import FakeBackend

POD, NEIGHBOUR, NODE, WEB = "10.1.0.5", "10.1.0.6", "10.9.0.1", "203.0.113.9"
POD6, NEIGHBOUR6, WEB6 = "2001:db8:1::5", "2001:db8:1::6", "2001:db8:ffff::9"
NODE2, EVERYBODY = "10.9.0.2", "255.255.255.255"
UNKNOWN, PLATFORM, METADATA, PUBLIC_NODE = (
    "10.1.0.99",
    "168.63.129.16",
    "169.254.169.254",
    "198.51.100.1",
)
METADATA6 = "fd00:ec2::254"
LINK, OTHER_LINK, UPLINK = "nm0123456789ab", "nmba9876543210", "eth0"
IN, OUT = Traffic.INTERNET_IN, Traffic.INTERNET_OUT


def packet(
    src: str,
    dst: str,
    iif: str = "",
    oif: str = "",
    *,
    way_back: str | None = None,
    hooks=FORWARDED,
    **keys,
) -> Packet:
    back = iif if way_back is None else way_back
    return Packet(
        Address.parse(src), Address.parse(dst), hooks, iif=iif, oif=oif, way_back=back, **keys
    )


def pod(address: str, traffic: Traffic) -> Counter:
    return Counter.of_pod(Address.parse(address), traffic)


def node(hook: str, traffic: Traffic, family: Family = Family.V4) -> Counter:
    return Counter(hook, family, traffic)


def counted(*counters: Counter, masqueraded: bool = False) -> Outcome:
    return Outcome(frozenset(counters), masqueraded=masqueraded)


NOTHING = counted()
FORGED, FORGED6 = Outcome(dropped_by="spoofed4"), Outcome(dropped_by="spoofed6")
AWAY = Outcome(frozenset({Counter.of_pod(Address.parse(POD), PROTECTED)}), dropped_by="protected4")
AWAY6 = Outcome(
    frozenset({Counter.of_pod(Address.parse(POD6), PROTECTED)}), dropped_by="protected6"
)
NEAR, ELSEWHERE = Outcome(dropped_by="link_local6"), Outcome(dropped_by="forged4")
OUTWARD = counted(pod(POD, OUT), node("FORWARD", OUT), masqueraded=True)
OUTWARD6 = counted(pod(POD6, OUT), node("FORWARD", OUT, Family.V6), masqueraded=True)
INWARD6 = counted(pod(POD6, IN), node("FORWARD", IN, Family.V6))

BOTH_MODES = {
    "pod to the internet": (packet(POD, WEB, LINK, UPLINK), OUTWARD),
    "internet to a pod": (
        packet(WEB, POD, UPLINK, LINK),
        counted(pod(POD, IN), node("FORWARD", IN)),
    ),
    "pod to the internet, v6": (packet(POD6, WEB6, LINK, UPLINK), OUTWARD6),
    "internet to a pod, v6": (packet(WEB6, POD6, UPLINK, LINK), INWARD6),
    "pod to a pod of the node": (packet(POD, NEIGHBOUR, LINK, OTHER_LINK), NOTHING),
    "pod to a pod of the node, v6": (packet(POD6, NEIGHBOUR6, LINK, OTHER_LINK), NOTHING),
    "pod to a private address elsewhere": (packet(POD, "10.77.0.1", LINK, UPLINK), NOTHING),
    "pod to the node": (packet(POD, NODE, LINK, hooks=RECEIVED), NOTHING),
    "node to a pod": (packet(NODE, POD, oif=LINK, hooks=SENT), NOTHING),
    "node to the internet": (
        packet(NODE, WEB, oif=UPLINK, hooks=SENT),
        counted(node("OUTPUT", OUT)),
    ),
    "internet to the node": (packet(WEB, NODE, UPLINK, hooks=RECEIVED), counted(node("INPUT", IN))),
    "an address of a range that no pod has": (
        packet(UNKNOWN, WEB, LINK, UPLINK),
        counted(node("FORWARD", OUT), node("UNATTRIBUTED", OUT), masqueraded=True),
    ),
    "forwarded for somebody else": (
        packet("10.50.0.1", WEB, "br0", UPLINK),
        counted(node("FORWARD", OUT), node("UNATTRIBUTED", OUT)),
    ),
    "a neighbour's address": (packet(NEIGHBOUR, WEB, LINK, UPLINK, way_back=OTHER_LINK), FORGED),
    "an internet address from a pod": (
        packet(WEB, NEIGHBOUR, LINK, OTHER_LINK, way_back=UPLINK),
        FORGED,
    ),
    "a neighbour's address to the node": (
        packet(NEIGHBOUR, NODE, LINK, way_back=OTHER_LINK, hooks=RECEIVED),
        FORGED,
    ),
    "a neighbour's address, v6": (
        packet(NEIGHBOUR6, WEB6, LINK, UPLINK, way_back=OTHER_LINK),
        FORGED6,
    ),
    "no way back, v6": (packet("2001:db8:2::1", WEB6, LINK, UPLINK, way_back=""), FORGED6),
    "asymmetric routing of the uplink is not ours": (
        packet(WEB, POD, UPLINK, LINK, way_back="eth1"),
        counted(pod(POD, IN), node("FORWARD", IN)),
    ),
    "neighbour discovery": (packet("fe80::5", "fe80::1", LINK, hooks=RECEIVED, icmp=135), NEAR),
    "duplicate address detection": (
        packet("::", "ff02::1:ff00:5", LINK, hooks=RECEIVED, icmp=135),
        NEAR,
    ),
    "neighbour discovery of the uplink": (
        packet("fe80::5", "ff02::1", UPLINK, hooks=RECEIVED, icmp=135),
        NOTHING,
    ),
    "a router of the uplink": (
        packet("fe80::5", "ff02::1", UPLINK, hooks=RECEIVED, icmp=134),
        NOTHING,
    ),
    "a pod as router": (
        packet("fe80::5", "ff02::1", LINK, hooks=RECEIVED, icmp=134),
        Outcome(dropped_by="router6"),
    ),
    "a redirect": (
        packet(POD, NODE, LINK, hooks=RECEIVED, icmp=5),
        Outcome(dropped_by="redirect4"),
    ),
    "a redirect of the uplink": (packet(NODE2, NODE, UPLINK, hooks=RECEIVED, icmp=5), NOTHING),
    "a redirect, v6": (
        packet("fe80::5", "fe80::1", LINK, hooks=RECEIVED, icmp=137),
        Outcome(dropped_by="redirect6"),
    ),
    "a DHCP answer": (
        packet(POD, EVERYBODY, LINK, hooks=RECEIVED, udp=(67, 68)),
        Outcome(dropped_by="dhcp4"),
    ),
    "a DHCP answer of the uplink": (
        packet(NODE2, EVERYBODY, UPLINK, hooks=RECEIVED, udp=(67, 68)),
        NOTHING,
    ),
    "a DHCP answer, v6": (
        packet(POD6, "ff02::1", LINK, hooks=RECEIVED, udp=(547, 546)),
        Outcome(dropped_by="dhcp6"),
    ),
    "a pod's address from elsewhere": (packet(POD, WEB, UPLINK, UPLINK), ELSEWHERE),
    "a pod's address from elsewhere, to the node": (
        packet(POD, NODE, UPLINK, hooks=RECEIVED),
        ELSEWHERE,
    ),
    "a pod's address from elsewhere, v6": (
        packet(POD6, WEB6, "eth1", UPLINK),
        Outcome(dropped_by="forged6"),
    ),
    "a pod to the metadata, v6": (packet(POD6, METADATA6, LINK, UPLINK), AWAY6),
    "loopback from elsewhere": (
        packet("127.0.0.1", NODE, UPLINK, way_back="lo", hooks=RECEIVED),
        ELSEWHERE,
    ),
    "as many fragments as a pod may send": (packet(POD, WEB, LINK, UPLINK, fragments=200), OUTWARD),
    "more fragments than a pod may send": (
        packet(POD, WEB, LINK, UPLINK, fragments=201),
        Outcome(dropped_by="fragments4"),
    ),
    "more fragments than a pod may send, v6": (
        packet(POD6, WEB6, LINK, UPLINK, fragments=201),
        Outcome(dropped_by="fragments6"),
    ),
    "many fragments of the uplink": (packet(NODE2, POD, UPLINK, LINK, fragments=201), NOTHING),
    "a forged fragment": (
        packet(NEIGHBOUR, WEB, LINK, UPLINK, way_back=OTHER_LINK, fragments=1),
        FORGED,
    ),
    "a pod to loopback": (
        packet(POD, "127.0.0.1", LINK, hooks=RECEIVED),
        Outcome(dropped_by="loopback4"),
    ),
    "the uplink to loopback": (
        packet(NODE2, "127.0.0.1", UPLINK, hooks=RECEIVED),
        Outcome(dropped_by="loopback4"),
    ),
    "an error of a connection": (packet(POD, NEIGHBOUR, LINK, OTHER_LINK, icmp=3), NOTHING),
    "an error that nobody caused": (
        packet(POD, NEIGHBOUR, LINK, OTHER_LINK, icmp=3, is_of_nobody=True),
        Outcome(dropped_by="icmp4"),
    ),
    "an error that nobody caused, to the internet": (
        packet(POD, WEB, LINK, UPLINK, icmp=3, is_of_nobody=True),
        Outcome(dropped_by="icmp4"),
    ),
    "an error that nobody caused, to the node, v6": (
        packet(POD6, "2001:db8:ff::1", LINK, hooks=RECEIVED, icmp=2, is_of_nobody=True),
        Outcome(dropped_by="icmp6"),
    ),
    "an error about others' connection": (
        packet(POD, WEB, LINK, UPLINK, icmp=3, is_of_others=True),
        Outcome(dropped_by="icmp4"),
    ),
    "an error about the node's connection, v6": (
        packet(POD6, "2001:db8:ff::1", LINK, hooks=RECEIVED, icmp=2, is_of_others=True),
        Outcome(dropped_by="icmp6"),
    ),
    "an error of the uplink about the node's connection": (
        packet(NODE2, NODE, UPLINK, hooks=RECEIVED, icmp=3, is_of_others=True),
        NOTHING,
    ),
    "an error that nobody caused, of the uplink": (
        packet(NODE2, NODE, UPLINK, hooks=RECEIVED, icmp=3, is_of_nobody=True),
        Outcome(dropped_by="icmp4"),
    ),
    "an error that nobody caused, of the uplink to a pod": (
        packet(NODE2, POD, UPLINK, LINK, icmp=3, is_of_nobody=True),
        NOTHING,
    ),
    "loopback from a pod": (packet("127.0.0.1", NODE, LINK, way_back="lo", hooks=RECEIVED), FORGED),
    "the node's own address to many, heard by itself": (
        packet(NODE, "224.0.0.251", UPLINK, hooks=RECEIVED),
        NOTHING,
    ),
    "the node's own address from elsewhere": (
        packet(NODE, POD, UPLINK, LINK, way_back="lo"),
        ELSEWHERE,
    ),
    "loopback, v6": (packet("::1", "::1", "lo", "lo", hooks=LOOPED), NOTHING),
}

CORRECTED = {
    "the platform to a pod": (packet(PLATFORM, POD, UPLINK, LINK), NOTHING),
    "a pod to the metadata's DNS": (packet(POD, METADATA, LINK, UPLINK, port=53), NOTHING),
    "an excepted pod to the metadata": (packet(NEIGHBOUR, METADATA, OTHER_LINK, UPLINK), NOTHING),
    "a pod to the metadata": (packet(POD, METADATA, LINK, UPLINK), AWAY),
    "loopback": (packet("127.0.0.1", "127.0.0.1", "lo", "lo", hooks=LOOPED), NOTHING),
    "node to its own public address": (
        packet(PUBLIC_NODE, PUBLIC_NODE, "lo", "lo", hooks=LOOPED),
        NOTHING,
    ),
    "node to the platform": (packet(NODE, PLATFORM, oif=UPLINK, hooks=SENT), NOTHING),
    "node to instance metadata": (packet(NODE, METADATA, oif=UPLINK, hooks=SENT), NOTHING),
    "other private range": (packet("192.168.1.1", NODE, UPLINK, hooks=RECEIVED), NOTHING),
}

EXACT = {
    "loopback": (
        packet("127.0.0.1", "127.0.0.1", "lo", "lo", hooks=LOOPED),
        counted(node("OUTPUT", OUT), node("INPUT", IN)),
    ),
    "node to the platform": (
        packet(NODE, PLATFORM, oif=UPLINK, hooks=SENT),
        counted(node("OUTPUT", OUT)),
    ),
    "a pod to the metadata's DNS": (
        packet(POD, METADATA, LINK, UPLINK, port=53),
        counted(node("FORWARD", OUT)),
    ),
    # The article counts before filters.
    **{
        f"an error {name}": (
            packet(POD, WEB, LINK, UPLINK, icmp=3, **whose),
            Outcome(frozenset({node("FORWARD", OUT)}), dropped_by="icmp4"),
        )
        for name, whose in {
            "that nobody caused, to the internet": {"is_of_nobody": True},
            "about others' connection": {"is_of_others": True},
        }.items()
    },
    "other private range": (
        packet("192.168.1.1", NODE, UPLINK, hooks=RECEIVED),
        counted(node("INPUT", IN)),
    ),
}

TABLE = [
    pytest.param(mode, sent, outcome, id=f"{mode}: {name}")
    for mode, table in (
        (NodeRules.CORRECTED, BOTH_MODES | CORRECTED),
        (NodeRules.EXACT, BOTH_MODES | EXACT),
    )
    for name, (sent, outcome) in table.items()
]


@pytest.fixture
def kernel_with() -> Callable[..., FakeBackend]:
    def make(node_rules: NodeRules, *, masquerade: bool = True) -> FakeBackend:
        ranges = (Prefix.parse("10.1.0.0/24"), Prefix.parse("2001:db8:1::/64"))
        policy = Policy(
            internal=tuple(merge((*SPECIAL_USE, *PRIVATE_USE, *ranges))),
            ranges=ranges,
            masquerade=masquerade,
            node_rules=node_rules,
            rule_owner="openai",
            exact_prefix=Prefix.parse("10.0.0.0/8"),
            protection=Protection(PLATFORMS, excepted=frozenset({"trusted"})),
            sources=Sources(
                own=tuple(merge((*ranges, *map(Prefix.parse, (NODE, "127.0.0.0/8", "::1"))))),
                fragments=10,
            ),
        )
        kernel = FakeBackend()
        rules = Rules(kernel, policy)
        rules.know([Address.parse(NEIGHBOUR)], "trusted", OTHER_LINK)
        rules.apply(rules.plan([Address.parse(one) for one in (POD, NEIGHBOUR, POD6, NEIGHBOUR6)]))
        return kernel

    return make


@pytest.mark.parametrize(("mode", "sent", "outcome"), TABLE)
def test_a_packet_hits_exactly_the_counters_it_should(kernel_with, mode, sent, outcome):
    kernel = kernel_with(mode)
    assert kernel.send(sent) == outcome
    hit = {
        sample.counter
        for sample in kernel.read_pods(pod_sets([sent.src, sent.dst], (*Traffic, PROTECTED)))
        if sample.bytes == sent.length
    }
    assert hit == {counter for counter in outcome.counted if counter.is_pod}


def test_without_masquerading_nothing_is_translated(kernel_with):
    kernel = kernel_with(NodeRules.CORRECTED, masquerade=False)
    assert not kernel.send(packet(POD, WEB, LINK, UPLINK)).masqueraded
