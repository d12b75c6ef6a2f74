"""The lab's address plan agrees with itself, however large the lab."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmgr.documents.special_use import PRIVATE_USE
from netmgr.errors import ConfigError
from netmgr.prefixes import Family, overlaps
from tests.lab.topology import (
    INTERNET,
    MAX_NODES,
    MAX_PODS,
    SPARE_ADDRESSES,
    Topology,
    cluster,
)

SIZES = st.tuples(st.integers(1, MAX_NODES), st.integers(0, MAX_PODS))


def test_the_default_world_is_two_nodes_with_four_pods_each() -> None:
    world = cluster()
    assert [node.host for node in world.nodes] == ["node-1", "node-2"]
    assert [(pod.name, pod.node) for pod in world.pods[3:5]] == [
        ("pod-4", "node-1"),
        ("pod-5", "node-2"),
    ]
    assert len(world.pods) == 8


@given(SIZES)
def test_no_two_nodes_share_an_address_and_every_node_has_room(size: tuple[int, int]) -> None:
    nodes, pods = size
    world = cluster(nodes, pods)
    every_range = [block for node in world.nodes for block in node.ranges]
    own = [address for node in world.nodes for address in node.addresses]
    assert list(overlaps(every_range)) == []
    assert len(set(own)) == len(own)
    assert not any(block.holds(address) for block in every_range for address in own)
    for node in world.nodes:
        for family in Family:
            room = sum(block.size for block in node.ranges if block.family is family)
            assert room >= pods + SPARE_ADDRESSES


@given(SIZES)
def test_everything_but_the_internet_is_private(size: tuple[int, int]) -> None:
    world = cluster(*size)
    inside = [block for node in world.nodes for block in node.ranges]
    inside += [address.prefix for node in world.nodes for address in node.addresses]
    assert all(any(private.covers(block) for private in PRIVATE_USE) for block in inside)
    assert not any(
        private.holds(address) for private in PRIVATE_USE for address in INTERNET.values()
    )


@given(SIZES)
def test_every_gateway_is_on_a_link_of_its_host(size: tuple[int, int]) -> None:
    world = cluster(*size)
    for host in world.hosts:
        for route in host.routes:
            assert route.via in neighbours(world, host.name)


def neighbours(world: Topology, host: str) -> set[object]:
    """Addresses at the other ends of a host's links."""
    return {
        own.address
        for link in world.links
        for near, far in (link.ends, link.ends[::-1])
        if near.host == host
        for own in far.addresses
    }


@given(SIZES)
def test_the_internet_knows_no_way_to_a_pod(size: tuple[int, int]) -> None:
    world = cluster(*size)
    internet = next(host for host in world.hosts if host.name == world.internet)
    ranges = [block for node in world.nodes for block in node.ranges]
    assert not any(route.to.overlaps(block) for route in internet.routes for block in ranges)


@pytest.mark.parametrize("size", [(0, 1), (MAX_NODES + 1, 1), (1, -1), (1, MAX_PODS + 1)])
def test_a_world_too_large_for_the_plan_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="a lab has"):
        cluster(*size)
