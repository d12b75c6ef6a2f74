"""Every classification can be explained by a prefix of a document."""

from __future__ import annotations

import re

import pytest

from netmgr.cli.node_tables import explanation
from netmgr.documents.explain import explain
from netmgr.documents.loader import parse
from netmgr.documents.node import NodeDocument
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address, Prefix

DOCUMENT = parse(
    """apiVersion: netmgr.io/v1alpha1
kind: Node
node: {name: node-a}
ranges: [10.1.0.0/28]
internal: [10.0.0.0/8, 198.51.100.0/24]
""",
    "node.yaml",
    NodeDocument,
)
POD = Attachment(
    AttachmentKey("c", "eth0"), PodRef("ns", "web"), (Address.parse("10.1.0.3"),), "nm0", ""
)


PROTECTED = "the default of protect[0] of node.yaml"
NO_PREFIX = "no prefix of node.yaml holds it"


@pytest.mark.parametrize(
    ("address", "role", "prefix", "because"),
    [
        ("10.1.0.3", "pod", "10.1.0.0/28", "ranges[0] of node.yaml"),
        ("10.1.0.4", "range", "10.1.0.0/28", "ranges[0] of node.yaml"),
        ("10.9.9.9", "internal", "10.0.0.0/8", "internal[0] of node.yaml"),
        ("198.51.100.1", "internal", "198.51.100.0/24", "internal[1] of node.yaml"),
        ("169.254.169.254", "protected", "169.254.169.254/32", PROTECTED),
        *(
            (address, "special-use", prefix, "special-use prefixes are never internet")
            for address, prefix in (
                *(("169.254.9.254", "169.254.0.0/16"), ("198.19.0.1", "198.18.0.0/15")),
                *(("240.0.0.1", "240.0.0.0/4"), ("100::1", "100::/64")),
            )
        ),
        *(
            (address, "internet", "", NO_PREFIX)
            for address in ("192.0.2.1", "203.0.113.1", "2001:db8::1")
        ),
    ],
)
def test_the_longest_prefix_says_what_an_address_is(address, role, prefix, because):
    answer = explain(DOCUMENT, Address.parse(address), [POD])
    assert (answer["role"], answer["prefix"], answer["because"]) == (role, prefix, because)
    assert answer["counted"] == answer["masqueraded"] == (role == "internet")
    assert answer["pod"] == ("ns/web" if role == "pod" else "")


def test_internal_machines_without_a_way_back_to_pods_see_the_node() -> None:
    lan = DOCUMENT.model_copy(update={"native": (Prefix.parse("10.7.0.0/16"),)})
    for address, masqueraded, packet in (
        ("10.9.9.9", True, "leaves as this node: native of node.yaml does not hold it"),
        ("10.7.0.9", False, "native, the sender's own address is kept"),
        ("10.1.0.4", False, "native, the sender's own address is kept"),
        ("203.0.113.1", True, "to the internet as this node"),
    ):
        answer = explain(lan, Address.parse(address), [])
        assert (answer["masqueraded"], answer["packet"]) == (masqueraded, packet)
        assert answer["counted"] == (address == "203.0.113.1")


LIMITED = parse(
    """apiVersion: netmgr.io/v1alpha1
kind: Node
node: {name: node-a}
ranges: [10.1.0.0/28]
accounting: {history_hours: 24}
limits:
- {pods: ns/*, internet-out: 1M, burst: 128Ki, connections: {at-once: 2000, new-per-second: 9}}
- {namespaces: n?, per-day: {internet-in: 1.5G}, when-spent: drop}
""",
    "node.yaml",
    NodeDocument,
)


def shown(document: NodeDocument, address: str) -> str:
    """The answer for people, without colours."""
    table = explanation(explain(document, Address.parse(address), [POD]))
    return re.sub(r"\x1b\[[0-9;]*m", "", str(table))


def test_a_pods_limits_are_shown_as_the_document_has_them_one_a_line() -> None:
    of_pod = shown(LIMITED, str(POD.addresses[0]))
    first, second = [line.strip() for line in of_pod.splitlines() if "limits[" in line]
    assert re.fullmatch(
        r"limited by +limits\[0\] of node.yaml: \{pods: ns/\*, internet-out: 1M, burst: 128Ki, "
        r"connections: \{at-once: 2000, new-per-second: 9\}\}",
        first,
    )
    quota = "{namespaces: n?, per-day: {internet-in: 1500M}, when-spent: drop}"
    assert second == f"limits[1] of node.yaml: {quota}"


def test_a_pods_own_traffic_is_never_said_not_to_be_counted() -> None:
    of_pod = shown(LIMITED, str(POD.addresses[0]))
    assert re.search("its own internet traffic +is counted", of_pod)
    assert re.search("is internet, and counted +yes", shown(LIMITED, "203.0.113.1"))


SITES = """sites:
- {name: hub, prefixes: [10.0.0.0/16]}
- {name: a, prefixes: [10.1.0.0/16], services: [10.100.0.0/24]}
- {name: b, prefixes: [10.2.0.0/16], services: [10.100.1.0/24]}
"""
HEAD = "apiVersion: netmgr.io/v1alpha1\nkind: Node\nnode: {name: machine, addresses: [10.1.0.1]}\n"
NODE_OF_A = HEAD + "site: a\nranges: [10.1.9.0/28]\n" + SITES
ROUTER = HEAD + "role: hub-router\nsite: hub\n" + SITES
NAT = HEAD + "role: nat-host\nsite: a\n" + SITES
NATIVE = "native, the sender's own address is kept"
DROPPED = "dropped here and counted as from a to b"
NETMAP = NAT + "nat: {services: [{vip_range: 10.100.0.0/24, service_cidr: 10.96.0.0/24}]}\n"
PRESERVED = NETMAP.replace("}]}", "}], source: preserve}")
BY_PLACE = "translated here to 10.96.0.9, by its place in 10.96.0.0/24; the client"
NATS_RANGE, ITS_CIDR = "nat.services[0].vip_range", "nat.services[0].service_cidr"
OTHER_NAME = "passed on as it is; from outside the spoke this Service is 10.100.0.9"
OF_A, OF_B, VIPS_OF_B = "sites[1].services[0]", "sites[2].prefixes[0]", "sites[2].services[0]"


@pytest.mark.parametrize(
    ("text", "address", "role", "site", "because", "packet"),
    [
        (NODE_OF_A, "10.0.3.1", "hub", "hub", "sites[0].prefixes[0]", NATIVE),
        (NODE_OF_A, "10.1.3.1", "spoke", "a", "sites[1].prefixes[0]", NATIVE),
        (NODE_OF_A, "10.1.9.3", "range", "a", "ranges[0]", NATIVE),
        (NODE_OF_A, "10.2.3.1", "spoke", "b", OF_B, DROPPED),
        (NODE_OF_A, "10.100.1.9", "service", "b", VIPS_OF_B, DROPPED),
        (NODE_OF_A, "10.100.0.9", "service", "a", OF_A, "for clients outside a, by its NAT host"),
        (NODE_OF_A, "203.0.113.1", "internet", "", NO_PREFIX, "to the internet as this node"),
        (ROUTER, "10.2.3.1", "spoke", "b", OF_B, f"{NATIVE}; from any"),
        (ROUTER, "10.100.1.9", "service", "b", VIPS_OF_B, "through the NAT host of b, which"),
        (ROUTER, "10.0.3.1", "hub", "hub", "sites[0].prefixes[0]", NATIVE),
        (ROUTER, "203.0.113.1", "internet", "", "no prefix", "to the internet as this router"),
        (NETMAP, "10.100.0.9", "service", "a", NATS_RANGE, f"{BY_PLACE} appears as 10.1.0.1"),
        (PRESERVED, "10.100.0.9", "service", "a", NATS_RANGE, f"{BY_PLACE}'s address is kept"),
        (NETMAP, "10.96.0.9", "service", "", ITS_CIDR, OTHER_NAME),
        (NETMAP, "10.2.3.1", "spoke", "b", OF_B, DROPPED),
        (NETMAP, "203.0.113.1", "internet", "", "no prefix", "to the internet with the sender's"),
    ],
)
def test_an_address_is_of_a_site_and_a_packet_to_it_has_a_fate(
    text: str, address: str, role: str, site: str, because: str, packet: str
) -> None:
    answer = explain(parse(text, "node.yaml", NodeDocument), Address.parse(address), [])
    assert (answer["role"], answer["site"]) == (role, site)
    assert answer["because"].startswith(because)
    assert answer["packet"].startswith(packet)
    assert answer["masqueraded"] == (role == "internet" and "nat-host" not in text)
