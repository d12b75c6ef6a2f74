"""What a Node says of itself leads no packets astray that were for somebody else."""

from __future__ import annotations

import pytest

from netmgr.dataplane.routes_to_nodes import Way, decide
from netmgr.documents.node import NodeDocument
from netmgr.documents.node_list import ListedNode
from netmgr.kernel.routes import Route
from netmgr.prefixes import Address, Prefix
from tests.builders import NODE_KEYS

LAN, LAN6 = "192.168.1.0/24", "fd00:1::/64"
DOCUMENT: dict[str, object] = {
    **NODE_KEYS,
    "node": {"name": "own", "addresses": ["192.168.1.1", "fd00:1::1"]},
    "ranges": ["10.244.1.0/24", "fd00:244:1::/64"],
}


def route(to: str, via: str | None = None) -> Route:
    gateway = Address.parse(via) if via else None
    return Route(Prefix.parse(to), 2, gateway, protocol=2, scope=0, metric=0)


FOREIGN = [
    route("0.0.0.0/0", "192.168.1.254"),
    route("10.0.0.0/8", "192.168.1.254"),
    route("10.128.0.0/9")._replace(has_foreign_gateway=True),
    route("10.192.0.0/10")._replace(oif=0),
    route("0.0.0.0/0"),
    route("10.244.2.1"),
    route(LAN),
    route(LAN6),
    route("172.17.0.0/16"),
]


def listed(name: str, addresses: str, ranges: str) -> ListedNode:
    return ListedNode(
        name, tuple(map(Address.parse, addresses.split())), tuple(map(Prefix.parse, ranges.split()))
    )


def decided(*nodes: ListedNode, **keys: object) -> tuple[dict[Way, str], list[str]]:
    return decide(nodes, NodeDocument.model_validate(DOCUMENT | keys), FOREIGN)


def test_every_other_node_gets_a_route_of_each_family_and_the_own_none():
    routes, refused = decided(
        listed("own", "192.168.1.1 fd00:1::1", "10.244.1.0/24 fd00:244:1::/64"),
        listed("other", "fd00:1::2 192.168.1.2", "10.244.2.0/24 fd00:244:2::/64"),
    )
    assert not refused
    assert [(str(to), str(via)) for to, via in routes] == [
        ("10.244.2.0/24", "192.168.1.2"),
        ("fd00:244:2::/64", "fd00:1::2"),
    ]


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("10.244.1.128/25", "overlaps this node's own range 10.244.1.0/24"),
        ("10.0.0.0/8", "overlaps this node's own range"),
        ("0.0.0.0/0", "overlaps this node's own range"),
        ("192.168.0.0/16", "overlaps this node's address 192.168.1.1/32"),
        ("192.168.1.254/32", "overlaps the network of a link, 192.168.1.0/24"),
        ("192.168.1.128/25", "overlaps the network of a link, 192.168.1.0/24"),
        ("172.17.0.0/24", "overlaps the network of a link, 172.17.0.0/16"),
        ("169.254.169.254/32", "overlaps the special-use prefix 169.254.0.0/16"),
        ("fe80::/64", "overlaps the special-use prefix fe80::/10"),
        ("fd00:ec2::254/128", "overlaps the protected prefix"),
        ("203.0.113.0/24", "would count as internet; add the pod network to internal in node.yaml"),
        ("2001:db8::/64", "would count as internet"),
        ("1.0.0.0/8", "would count as internet"),
    ],
)
def test_a_range_that_is_somebody_elses_gets_no_route(to, reason):
    routes, (refused,) = decided(listed("odd", "192.168.1.9 fd00:1::9", to))
    assert not routes
    assert refused.startswith(f"no route to {to} of Node odd: it {reason}")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("", "it has no InternalIP of IPv4"),
        ("fd00:1::9", "it has no InternalIP of IPv4"),
        ("192.168.1.1", "is this node's own"),
        ("10.244.1.7", "is on no network of this node's links"),
        ("10.244.9.7", "is on no network of this node's links"),
        ("127.0.0.1", "is on no network of this node's links"),
        ("8.8.8.8", "is on no network of this node's links"),
    ],
)
def test_a_next_hop_is_a_neighbour_and_no_pod(address, reason):
    routes, (refused,) = decided(listed("odd", address, "10.244.9.0/24"))
    assert not routes
    assert reason in refused


def test_an_odd_node_costs_no_other_its_route():
    routes, refused = decided(
        listed("odd", "192.168.1.9", "0.0.0.0/0"), listed("other", "192.168.1.2", "10.244.2.0/24")
    )
    assert (list(routes.values()), len(refused)) == (["other"], 1)


def test_with_sites_other_nodes_are_of_the_own_site():
    sites = [
        {"name": "hub", "prefixes": ["10.200.0.0/16"]},
        {"name": "train", "prefixes": ["10.244.0.0/16", "fd00:244::/32"]},
    ]
    node = listed("other", "192.168.1.2", "10.244.2.0/24 10.200.2.0/24")
    keys = {"site": "train", "sites": sites, "node": {"name": "own", "addresses": []}}
    routes, (refused,) = decided(node, **keys)
    assert [str(to) for to, _ in routes] == ["10.244.2.0/24"]
    assert refused.endswith(": it lies in no prefix of this node's site")


def test_a_route_with_several_next_hops_is_no_network_of_a_link():
    """The kernel lists such a route without link and gateway."""
    several = Route(Prefix.parse("10.0.0.0/8"), 0, None, protocol=3, scope=0, metric=0)
    document = NodeDocument.model_validate(DOCUMENT)
    nodes = [
        listed("other", "192.168.1.2", "10.244.2.0/24"),
        listed("odd", "10.9.0.2", "10.244.3.0/24"),
    ]
    routes, (refused,) = decide(nodes, document, [*FOREIGN, several])
    assert [str(to) for to, _ in routes] == ["10.244.2.0/24"]
    assert "10.9.0.2 is on no network of this node's links" in refused
