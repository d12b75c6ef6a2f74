"""Who is listed for the routes of a flat network, and whom a false Node cannot keep out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmgr.kube.controller.assigning import RefusalReason
from netmgr.kube.controller.node_listing import MOST_NODES, choose
from netmgr.kube.controller.nodes import NodeView, node_view
from netmgr.prefixes import Prefix


def view(number: int, *cidrs: str, address: str = "", **keys: object) -> NodeView:
    ranges = tuple(map(Prefix.parse, cidrs or (f"10.{244 + number // 256}.{number % 256}.0/24",)))
    made = NodeView(
        f"n{number}",
        f"u{number}",
        f"2026-01-01T00:{number:05}Z",
        None,
        ranges,
        addresses=(address or f"192.168.{number // 250}.{number % 250 + 1}",),
    )
    return replace(made, **keys)


def names(views: list[NodeView]) -> tuple[list[str], dict[str, str]]:
    listed, refusals = choose(views)
    messages = {one.node.name: f"{one.reason}: {one.message}" for one in refusals}
    return [one.name for one in listed], messages


def test_nodes_are_listed_with_their_first_address_of_each_family() -> None:
    addresses = [
        ("Hostname", "a"),
        ("InternalIP", "no address"),
        ("InternalIP", "192.168.0.1"),
        ("ExternalIP", "203.0.113.1"),
        ("InternalIP", "192.168.0.2"),
        ("InternalIP", "fd00::1"),
    ]
    node = {
        "metadata": {"name": "a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"podCIDRs": ["10.244.0.0/24", "fd00:10::/64"]},
        "status": {"addresses": [{"type": kind, "address": text} for kind, text in addresses]},
    }
    ((listed,), refusals) = choose([node_view(node, "pool")])
    assert not refusals
    assert [str(address) for address in listed.addresses] == ["192.168.0.1", "fd00::1"]
    assert [str(block) for block in listed.ranges] == ["10.244.0.0/24", "fd00:10::/64"]


def test_nodes_without_ranges_addresses_or_pods_are_left_out_without_an_event() -> None:
    views = [view(1, cidrs=()), view(2, addresses=()), view(3, runs_pods=False), view(4)]
    assert names(views) == (["n4"], {})


@pytest.mark.parametrize("cidr", ["10.244.2.0/24", "10.244.2.128/25", "10.244.0.0/20"])
def test_of_two_nodes_with_overlapping_ranges_the_older_one_is_listed(cidr: str) -> None:
    listed, refused = names([view(9, cidr), view(2), view(3)])
    assert listed == ["n2", "n3"]
    whose = "10.244.2.0/24 of Node n2, an older one"
    assert refused["n9"].startswith(
        f"{RefusalReason.NO_ROUTE}: podCIDR {cidr} overlaps {whose}: no other"
    )


def test_an_older_node_keeps_few_others_out() -> None:
    listed, refused = names([view(0, "10.0.0.0/8"), view(1), view(2, "fd00::/63"), view(3)])
    assert listed == ["n1", "n3"]
    assert "larger than a /20" in refused["n0"]
    assert "larger than a /64" in refused["n2"]


def test_a_node_cannot_push_another_out_by_its_address() -> None:
    listed, refused = names([view(1, address="10.244.2.5"), view(2, address="192.168.0.2")])
    assert (listed, refused) == (["n1", "n2"], {})


def test_above_the_limit_the_oldest_nodes_stay_listed() -> None:
    views = [view(number) for number in range(MOST_NODES + 2)]
    listed, refused = names(views[::-1])
    assert listed == [f"n{number}" for number in range(MOST_NODES)]
    assert refused.keys() == {f"n{MOST_NODES}", f"n{MOST_NODES + 1}"}
    assert f"--routes nodes serves the {MOST_NODES} oldest Nodes" in refused[f"n{MOST_NODES}"]
    assert refused[f"n{MOST_NODES}"].startswith(
        f"{RefusalReason.TOO_MANY}: no other node gets a route"
    )
