"""Packets through the fake kernel: which counters each hits, and whether it is dropped or
translated.
"""

from __future__ import annotations

from functools import partial

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


received, outgoing, looped = (partial(packet, hooks=hooks) for hooks in (RECEIVED, SENT, LOOPED))


def pod(address: str, traffic: Traffic) -> Counter:
    return Counter.of_pod(Address.parse(address), traffic)


def node(hook: str, traffic: Traffic, family: Family = Family.V4) -> Counter:
    return Counter(hook, family, traffic)


def counted(*counters: Counter, masqueraded: bool = False) -> Outcome:
    return Outcome(frozenset(counters), masqueraded=masqueraded)


def dropped(by: str, *counters: Counter) -> Outcome:
    return Outcome(frozenset(counters), dropped_by=by)


NOTHING = counted()
FORGED, FORGED6 = dropped("spoofed4"), dropped("spoofed6")
AWAY = dropped("protected4", pod(POD, PROTECTED))
AWAY6 = dropped("protected6", pod(POD6, PROTECTED))
NEAR, ELSEWHERE = dropped("link_local6"), dropped("forged4")
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
    "pod to the node": (received(POD, NODE, LINK), NOTHING),
    "node to a pod": (outgoing(NODE, POD, oif=LINK), NOTHING),
    "node to the internet": (outgoing(NODE, WEB, oif=UPLINK), counted(node("OUTPUT", OUT))),
    "internet to the node": (received(WEB, NODE, UPLINK), counted(node("INPUT", IN))),
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
        received(NEIGHBOUR, NODE, LINK, way_back=OTHER_LINK),
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
    "neighbour discovery": (received("fe80::5", "fe80::1", LINK, icmp=135), NEAR),
    "duplicate address detection": (received("::", "ff02::1:ff00:5", LINK, icmp=135), NEAR),
    "neighbour discovery of the uplink": (
        received("fe80::5", "ff02::1", UPLINK, icmp=135),
        NOTHING,
    ),
    "a router of the uplink": (received("fe80::5", "ff02::1", UPLINK, icmp=134), NOTHING),
    "a pod as router": (received("fe80::5", "ff02::1", LINK, icmp=134), dropped("router6")),
    "a redirect": (received(POD, NODE, LINK, icmp=5), dropped("redirect4")),
    "a redirect of the uplink": (received(NODE2, NODE, UPLINK, icmp=5), NOTHING),
    "a redirect, v6": (received("fe80::5", "fe80::1", LINK, icmp=137), dropped("redirect6")),
    "a DHCP answer": (received(POD, EVERYBODY, LINK, udp=(67, 68)), dropped("dhcp4")),
    "a DHCP answer of the uplink": (received(NODE2, EVERYBODY, UPLINK, udp=(67, 68)), NOTHING),
    "a DHCP answer, v6": (received(POD6, "ff02::1", LINK, udp=(547, 546)), dropped("dhcp6")),
    "a pod's address from elsewhere": (packet(POD, WEB, UPLINK, UPLINK), ELSEWHERE),
    "a pod's address from elsewhere, to the node": (received(POD, NODE, UPLINK), ELSEWHERE),
    "a pod's address from elsewhere, v6": (packet(POD6, WEB6, "eth1", UPLINK), dropped("forged6")),
    "a pod to the metadata, v6": (packet(POD6, METADATA6, LINK, UPLINK), AWAY6),
    "loopback from elsewhere": (received("127.0.0.1", NODE, UPLINK, way_back="lo"), ELSEWHERE),
    "as many fragments as a pod may send": (packet(POD, WEB, LINK, UPLINK, fragments=200), OUTWARD),
    "more fragments than a pod may send": (
        packet(POD, WEB, LINK, UPLINK, fragments=201),
        dropped("fragments4"),
    ),
    "more fragments than a pod may send, v6": (
        packet(POD6, WEB6, LINK, UPLINK, fragments=201),
        dropped("fragments6"),
    ),
    "many fragments of the uplink": (packet(NODE2, POD, UPLINK, LINK, fragments=201), NOTHING),
    "a forged fragment": (
        packet(NEIGHBOUR, WEB, LINK, UPLINK, way_back=OTHER_LINK, fragments=1),
        FORGED,
    ),
    "a pod to loopback": (received(POD, "127.0.0.1", LINK), dropped("loopback4")),
    "the uplink to loopback": (received(NODE2, "127.0.0.1", UPLINK), dropped("loopback4")),
    "an error of a connection": (packet(POD, NEIGHBOUR, LINK, OTHER_LINK, icmp=3), NOTHING),
    "an error that nobody caused": (
        packet(POD, NEIGHBOUR, LINK, OTHER_LINK, icmp=3, is_of_nobody=True),
        dropped("icmp4"),
    ),
    "an error that nobody caused, to the internet": (
        packet(POD, WEB, LINK, UPLINK, icmp=3, is_of_nobody=True),
        dropped("icmp4"),
    ),
    "an error that nobody caused, to the node, v6": (
        received(POD6, "2001:db8:ff::1", LINK, icmp=2, is_of_nobody=True),
        dropped("icmp6"),
    ),
    "an error about others' connection": (
        packet(POD, WEB, LINK, UPLINK, icmp=3, is_of_others=True),
        dropped("icmp4"),
    ),
    "an error about the node's connection, v6": (
        received(POD6, "2001:db8:ff::1", LINK, icmp=2, is_of_others=True),
        dropped("icmp6"),
    ),
    "an error of the uplink about the node's connection": (
        received(NODE2, NODE, UPLINK, icmp=3, is_of_others=True),
        NOTHING,
    ),
    "an error that nobody caused, of the uplink": (
        received(NODE2, NODE, UPLINK, icmp=3, is_of_nobody=True),
        dropped("icmp4"),
    ),
    "an error that nobody caused, of the uplink to a pod": (
        packet(NODE2, POD, UPLINK, LINK, icmp=3, is_of_nobody=True),
        NOTHING,
    ),
    "loopback from a pod": (received("127.0.0.1", NODE, LINK, way_back="lo"), FORGED),
    "the node's own address to many, heard by itself": (
        received(NODE, "224.0.0.251", UPLINK),
        NOTHING,
    ),
    "the node's own address from elsewhere": (
        packet(NODE, POD, UPLINK, LINK, way_back="lo"),
        ELSEWHERE,
    ),
    "loopback, v6": (looped("::1", "::1", "lo", "lo"), NOTHING),
}

CORRECTED = {
    "the platform to a pod": (packet(PLATFORM, POD, UPLINK, LINK), NOTHING),
    "a pod to the metadata's DNS": (packet(POD, METADATA, LINK, UPLINK, port=53), NOTHING),
    "an excepted pod to the metadata": (packet(NEIGHBOUR, METADATA, OTHER_LINK, UPLINK), NOTHING),
    "a pod to the metadata": (packet(POD, METADATA, LINK, UPLINK), AWAY),
    "loopback": (looped("127.0.0.1", "127.0.0.1", "lo", "lo"), NOTHING),
    "node to its own public address": (looped(PUBLIC_NODE, PUBLIC_NODE, "lo", "lo"), NOTHING),
    "node to the platform": (outgoing(NODE, PLATFORM, oif=UPLINK), NOTHING),
    "node to instance metadata": (outgoing(NODE, METADATA, oif=UPLINK), NOTHING),
    "other private range": (received("192.168.1.1", NODE, UPLINK), NOTHING),
}

EXACT = {
    "loopback": (
        looped("127.0.0.1", "127.0.0.1", "lo", "lo"),
        counted(node("OUTPUT", OUT), node("INPUT", IN)),
    ),
    "node to the platform": (outgoing(NODE, PLATFORM, oif=UPLINK), counted(node("OUTPUT", OUT))),
    "a pod to the metadata's DNS": (
        packet(POD, METADATA, LINK, UPLINK, port=53),
        counted(node("FORWARD", OUT)),
    ),
    # The article counts before filters.
    **{
        f"an error {name}": (
            packet(POD, WEB, LINK, UPLINK, icmp=3, **whose),
            dropped("icmp4", node("FORWARD", OUT)),
        )
        for name, whose in {
            "that nobody caused, to the internet": {"is_of_nobody": True},
            "about others' connection": {"is_of_others": True},
        }.items()
    },
    "other private range": (received("192.168.1.1", NODE, UPLINK), counted(node("INPUT", IN))),
}

TABLE = [
    pytest.param(mode, sent, outcome, id=f"{mode}: {name}")
    for mode, table in (
        (NodeRules.CORRECTED, BOTH_MODES | CORRECTED),
        (NodeRules.EXACT, BOTH_MODES | EXACT),
    )
    for name, (sent, outcome) in table.items()
]


def kernel_with(node_rules: NodeRules, *, masquerade: bool = True) -> FakeBackend:
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


@pytest.mark.parametrize(("mode", "sent", "outcome"), TABLE)
def test_a_packet_hits_exactly_the_counters_it_should(mode, sent, outcome):
    kernel = kernel_with(mode)
    assert kernel.send(sent) == outcome
    hit = {
        sample.counter
        for sample in kernel.read_pods(pod_sets([sent.src, sent.dst], (*Traffic, PROTECTED)))
        if sample.bytes == sent.length
    }
    assert hit == {counter for counter in outcome.counted if counter.is_pod}


def test_without_masquerading_nothing_is_translated():
    kernel = kernel_with(NodeRules.CORRECTED, masquerade=False)
    assert not kernel.send(packet(POD, WEB, LINK, UPLINK)).masqueraded
