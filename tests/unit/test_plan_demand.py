"""How large subnets are, what fits into them, and which network has room for their mappings."""

from __future__ import annotations

import pytest

from netmgr.plan.allocate.demand import (
    NAT_MAPPINGS,
    Blocks,
    MappingBudget,
    NewSegment,
    blocks,
    fitting,
    holds,
    hosts_length,
    layout,
    mappings_of,
    mappings_per_node,
    promised_mappings,
    subnet_length,
)
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.document import NodePool
from netmgr.plan.files import load_limits
from netmgr.plan.lock import Layout, NodePoolLock, Segment
from netmgr.prefixes import Address, Family, Prefix

AZURE, NONE = load_limits(Cloud.AZURE), load_limits(Cloud.NONE)
V4, V6 = Family


def pool(**keys: object) -> NodePool:
    return NodePool.model_validate({"nodes": 10, **keys})


def test_a_node_has_blocks_of_v4_by_its_pods_and_one_of_v6():
    assert blocks(pool(pods_per_node=31, block_length=28), V4) == Blocks(V4, 28, 2)
    assert blocks(pool(pods_per_node=32), V4) == Blocks(V4, 28, 2)
    assert blocks(pool(pods_per_node=33), V4) == Blocks(V4, 28, 3)
    assert blocks(pool(pods_per_node=31, addressing="single"), V4) == Blocks(V4, 32, 31)
    assert blocks(pool(pods_per_node=31, block_length_v6=100), V6) == Blocks(V6, 100, 1)
    assert blocks(pool(pods_per_node=31, addressing="single"), V6) == Blocks(V6, 128, 31)
    assert (Blocks(V4, 28, 2).size, Blocks(V6, 112, 1).size) == (16, 65_536)


@pytest.mark.parametrize(("hosts", "length"), [(1, 29), (3, 29), (4, 28), (11, 28), (12, 27)])
def test_a_subnet_of_hosts_has_room_for_them_and_for_what_the_cloud_keeps(hosts, length):
    assert hosts_length(hosts, V4, AZURE) == length
    assert hosts_length(hosts, V6, AZURE) == 64


@pytest.mark.parametrize(
    ("nodes", "cut", "length"),
    [
        # Four addresses that the cloud keeps and the host lie in the first block, one in the last.
        (1, Blocks(V4, 28, 2), 26),
        (3, Blocks(V4, 28, 2), 25),
        (4, Blocks(V4, 28, 2), 24),
        (7, Blocks(V4, 28, 2), 24),
        (8, Blocks(V4, 28, 2), 23),
        (12, Blocks(V4, 28, 1), 24),
        (13, Blocks(V4, 28, 1), 24),
        (14, Blocks(V4, 28, 1), 23),
        (1, Blocks(V4, 32, 1), 29),
        (2, Blocks(V4, 32, 1), 28),
        # The figures of a kubelet's default, and of 7,500 nodes with their surge.
        (110, Blocks(V4, 28, 2), 20),
        (7_875, Blocks(V4, 28, 2), 14),
        (1, Blocks(V6, 112, 1), 64),
        (1 << 20, Blocks(V6, 80, 1), 59),
    ],
)
def test_a_subnet_has_room_for_every_node_and_its_blocks(nodes, cut, length):
    assert subnet_length(nodes, cut, AZURE) == length
    assert holds(length, cut, AZURE) >= nodes
    assert holds(length + 1, cut, AZURE) < nodes or length in {AZURE.smallest_subnet, 64}


def test_no_subnet_is_smaller_than_the_cloud_allows():
    assert subnet_length(1, Blocks(V4, 32, 1), NONE) == NONE.smallest_subnet
    assert subnet_length(1, Blocks(V6, 112, 1), NONE) == 64


SUBNET = Prefix.parse("10.1.0.0/24")


def test_hosts_begin_behind_what_the_cloud_keeps_and_pods_with_the_first_block_behind_them():
    assert layout(SUBNET, 7, Blocks(V4, 28, 2), AZURE) == Layout(
        subnet=SUBNET,
        host_base=Address.parse("10.1.0.4"),
        pod_base=Address.parse("10.1.0.16"),
        block_length=28,
        blocks=2,
    )
    # The thirteenth host is in the second block.
    assert str(layout(SUBNET, 12, Blocks(V4, 28, 1), AZURE).pod_base) == "10.1.0.16"
    assert str(layout(SUBNET, 13, Blocks(V4, 28, 1), AZURE).pod_base) == "10.1.0.32"
    # Single addresses begin right behind the hosts.
    assert str(layout(SUBNET, 13, Blocks(V4, 32, 9), AZURE).pod_base) == "10.1.0.17"


def test_what_lies_below_the_pods_is_named_by_as_few_prefixes_as_can_be():
    def below(nodes: int, cut: Blocks) -> list[str]:
        return [str(part) for part in layout(SUBNET, nodes, cut, AZURE).below_pods]

    assert below(12, Blocks(V4, 28, 1)) == ["10.1.0.0/28"]
    assert below(29, Blocks(V4, 28, 1)) == ["10.1.0.0/27", "10.1.0.32/28"]
    assert below(15, Blocks(V4, 32, 9)) == ["10.1.0.0/28", "10.1.0.16/31", "10.1.0.18/32"]


@pytest.mark.parametrize(
    ("length", "cut", "nodes"),
    [
        # 16 blocks: hosts are in one, the address that the cloud keeps at the end in another.
        (24, Blocks(V4, 28, 2), 7),
        (24, Blocks(V4, 28, 3), 4),
        # 13 blocks of pods, of 16: hosts take two.
        (24, Blocks(V4, 28, 1), 13),
        (28, Blocks(V4, 32, 1), 5),
        (27, Blocks(V4, 28, 1), 0),
        # More than a floating-point number counts to.
        (64, Blocks(V6, 120, 1), ((1 << 64) - 5) // 257 - 1),
    ],
)
def test_hosts_and_blocks_together_say_how_many_nodes_fit(length, cut, nodes):
    assert holds(length, cut, AZURE) == nodes


def test_what_fits_into_a_segments_subnets_is_at_least_what_it_was_made_for():
    two = pool(pods_per_node=31)
    assert fitting(5, two, [V4], AZURE) == 7
    assert fitting(8, two, [V4], AZURE) == 14
    assert fitting(8, two, [V4, V6], AZURE) == 14
    dense = pool(pods_per_node=31, block_length_v6=80)
    assert fitting(70_000, dense, [V6], AZURE) == (1 << 17) - 2


def new(number: int, nodes: int, network: str) -> NewSegment:
    return NewSegment("gpu", number, nodes, network)


def held(*segments: Segment) -> NodePoolLock:
    return NodePoolLock(segments=segments)


def segment(nodes: int = 7, network: str = "a", *, both: bool = False) -> Segment:
    v4 = layout(SUBNET, nodes, Blocks(V4, 28, 2), AZURE)
    v6 = layout(Prefix.parse("fd00::/64"), nodes, Blocks(V6, 112, 1), AZURE) if both else None
    return Segment(first=0, nodes=nodes, network=network, v4=v4, v6=v6)


def test_a_new_segment_follows_those_there_are_and_its_mappings_are_promised_at_once():
    budget = MappingBudget("a", None, {})
    made = list(budget.segments("gpu", [5, 3], 2, 3))
    assert made == [new(2, 5, "a"), new(3, 3, "a")]
    assert budget.promised == {"a": 24}
    assert list(MappingBudget("a", None, {}).segments("gpu", [4], 0, 3)) == [new(0, 4, "a")]


def test_a_network_that_is_full_is_followed_by_another_one():
    budget = MappingBudget("a", NAT_MAPPINGS + 30, {"a": 15})
    # Five more fit into the first one, and no part of a segment goes there.
    assert list(budget.segments("gpu", [5], 0, 3)) == [new(0, 5, "a")]
    budget = MappingBudget("a", NAT_MAPPINGS + 30, {"a": 15})
    # Of a new network the whole limit is free: it has no NAT hosts.
    assert list(budget.segments("gpu", [6, 20], 0, 3)) == [
        new(0, 6, "a_2"),
        new(1, 15, "a_3"),
        new(2, 5, "a"),
    ]
    assert budget.promised == {"a": 30, "a_2": 18, "a_3": 45}
    budget = MappingBudget("a", NAT_MAPPINGS + 32, {"a": 32})
    assert list(budget.segments("gpu", [16], 0, 3)) == [new(0, 16, "a_2")]


def test_a_node_too_large_for_any_network_is_put_alone_into_each():
    """Limits of a document are checked elsewhere; this has to end."""
    budget = MappingBudget("a", NAT_MAPPINGS + 2, {"a": 2})
    assert list(budget.segments("gpu", [2], 0, 40)) == [new(0, 1, "a_2"), new(1, 1, "a_3")]


def test_what_is_left_of_subnets_is_given_out_up_to_half_of_what_the_network_has_left():
    budget = MappingBudget("a", NAT_MAPPINGS + 50, {"a": 20})
    one = new(0, 5, "a")
    # 30 mappings are left: 15 of them are 5 nodes.
    assert budget.widened(one, 20, 3) == new(0, 10, "a")
    assert budget.promised == {"a": 35}
    assert budget.widened(one, 7, 3).nodes == 7
    assert budget.widened(one, 4, 3).nodes == 5
    assert MappingBudget("a", None, {"a": 15}).widened(one, 20, 3).nodes == 20
    over = MappingBudget("a", NAT_MAPPINGS + 10, {"a": 20})
    assert over.widened(one, 20, 3).nodes == 5


def test_a_node_has_a_mapping_for_itself_and_each_block_in_each_family():
    assert mappings_per_node(pool(pods_per_node=40), [V4]) == 4
    assert mappings_per_node(pool(pods_per_node=40), [V4, V6]) == 6
    assert mappings_of(segment()) == 3
    assert mappings_of(segment(both=True)) == 5


def test_existing_segments_have_promised_what_their_nodes_may_come_to_use():
    two = pool(pods_per_node=31)
    found = promised_mappings(
        {"here": two},
        {
            "here": held(segment(7, "a"), segment(2, "b")),
            "gone": held(segment(4, "a", both=True)),
        },
        [V4, V6],
    )
    # From before IPv6, the first ones get blocks of that, too.
    assert found == {"a": 7 * 5 + 4 * 5, "b": 2 * 5}
    wider = promised_mappings({"x": pool(pods_per_node=100)}, {"x": held(segment(1))}, [V4])
    assert wider == {"a": 8}
    narrower = promised_mappings({"x": pool(pods_per_node=1)}, {"x": held(segment(1))}, [V4])
    assert narrower == {"a": 3}
