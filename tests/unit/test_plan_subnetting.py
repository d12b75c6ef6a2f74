"""A site's subnets: which are missing, how they are divided, and what the lock says of them."""

from __future__ import annotations

from typing import Any

import pytest

from netmgr.plan.allocate.demand import NewSegment, SubnetRequest
from netmgr.plan.allocate.space import Space
from netmgr.plan.allocate.subnetting import (
    ClusterDemand,
    FixedSubnet,
    host_addresses,
    missing_nodes,
    take_all,
    taken_by,
)
from netmgr.plan.clouds.cloud import Cloud, CloudLimits
from netmgr.plan.document import Cluster, NodePool, ServiceMode
from netmgr.plan.files import load_limits
from netmgr.plan.lock import (
    ClusterLock,
    Layout,
    NodePoolLock,
    PlanRefused,
    Segment,
    ServiceRangeLock,
    SubnetLock,
)
from netmgr.prefixes import Address, Family, Prefix

AZURE = load_limits(Cloud.AZURE)
V4, V6 = Family


def limited(mappings: int | None) -> CloudLimits:
    return AZURE.agreed({"mappings_per_network": mappings})


UNLIMITED = limited(None)


def prefix(text: str) -> Prefix:
    return Prefix.parse(text)


def demand(
    pools: dict[str, dict[str, Any]],
    held: dict[str, NodePoolLock] | None = None,
    families: tuple[Family, ...] = (V4,),
    limits: CloudLimits = UNLIMITED,
) -> ClusterDemand:
    return ClusterDemand(
        "a", Cluster.model_validate({"node_pools": pools}), held or {}, families, limits
    )


def gpu(nodes: int, **keys: Any) -> dict[str, Any]:
    return {"nodes": nodes, "surge": 0, "pods_per_node": 31, **keys}


def v4(subnet: str, pods: int = 16) -> Layout:
    """One of nodes of two /28 each; pods begin at an offset."""
    return laid_out(prefix(subnet), pods, 28)


def v6(number: int) -> Layout:
    return laid_out(prefix(f"fd00:0:0:{number}::/64"), 1 << 48, 80, 1)


def laid_out(subnet: Prefix, pods: int, block_length: int, blocks: int = 2) -> Layout:
    return Layout(
        subnet=subnet,
        host_base=Address(subnet.family, subnet.value + 4),
        pod_base=Address(subnet.family, subnet.value + pods),
        block_length=block_length,
        blocks=blocks,
    )


FIRST = Segment(first=0, nodes=7, network="a", v4=v4("10.0.1.0/24"))
SECOND = Segment(first=7, nodes=14, network="a_2", v4=v4("10.0.2.0/23", 32), v6=v6(2))


HELD = NodePoolLock(segments=(FIRST,))
BOTH_HELD = NodePoolLock(segments=(FIRST, SECOND))


def shown(requests: tuple[SubnetRequest, ...]) -> dict[str, tuple[int, str]]:
    return {"/".join(each.key): (each.length, ".".join(map(str, each.path))) for each in requests}


def test_a_node_pool_lacks_what_its_declared_growth_and_surge_take():
    spec = NodePool.model_validate(gpu(10, grow_to=20, surge=2))
    assert missing_nodes(spec, None) == 22
    assert missing_nodes(spec, BOTH_HELD) == 1
    assert missing_nodes(NodePool.model_validate(gpu(3)), HELD) == 0


def test_the_largest_node_pool_comes_first_and_each_gets_one_segment():
    found = demand({"z": gpu(3), "y": gpu(8), "x": gpu(3)}).missing()
    assert found.segments == (
        NewSegment("y", 0, 14, "a"),
        NewSegment("x", 0, 3, "a"),
        NewSegment("z", 0, 3, "a"),
    )
    assert shown(found.requests) == {
        f"node_pools/{name}/0/v4": (length, f"clusters.a.node_pools.{name}.nodes")
        for name, length in (("y", 23), ("x", 25), ("z", 25))
    }


def test_a_node_pool_may_be_divided_into_sizes():
    found = demand({"y": gpu(8), "x": gpu(3)}).missing({"y": [5, 3]})
    divided = [(each.pool, each.number, each.nodes) for each in found.segments]
    # Subnets for five nodes hold seven.
    assert divided == [("y", 0, 7), ("y", 1, 3), ("x", 0, 3)]


def test_what_the_lock_has_room_for_is_not_asked_for_again():
    assert demand({"y": gpu(7)}, {"y": HELD}).missing().requests == ()
    found = demand({"y": gpu(9)}, {"y": HELD}).missing()
    assert found.segments == (NewSegment("y", 1, 3, "a"),)


def test_mappings_of_what_is_there_count_and_every_pool_gets_its_own_before_any_gets_more():
    # Sixteen mappings are the NAT hosts', 21 those of the first segment's nodes.
    def missing(left: int, **pools: dict[str, Any]) -> tuple[NewSegment, ...]:
        return demand(pools, {"y": HELD}, limits=limited(16 + 21 + left)).missing().segments

    assert missing(18, y=gpu(9), x=gpu(2)) == (
        # Of six mappings that are left, half go to the first that has room: one node.
        NewSegment("y", 1, 3, "a"),
        NewSegment("x", 0, 2, "a"),
    )
    assert [each.network for each in missing(8, y=gpu(9), x=gpu(2))] == ["a", "a_2"]
    assert [each.network for each in missing(5, x=gpu(2))] == ["a_2"]


def test_segments_from_before_ipv6_get_it_and_keep_their_numbers():
    found = demand({"y": gpu(18)}, {"y": BOTH_HELD}, (V4, V6)).missing()
    assert found.segments == ()
    asked = (64, "clusters.a.node_pools.y.nodes")
    assert shown(found.requests) == {"node_pools/y/0/v6": asked}


def test_a_pool_that_lacks_a_family_and_nodes_asks_for_both():
    found = demand({"y": gpu(9)}, {"y": HELD}, (V4, V6)).missing()
    assert list(shown(found.requests)) == [
        f"node_pools/y/{number}/{family}" for number, family in ((1, "v4"), (1, "v6"), (0, "v6"))
    ]


def test_what_a_segment_will_have_with_ipv6_counts_before_it_has_it():
    # Seven nodes of five mappings each in both families, where the lock has three of each.
    pools, limits = {"y": gpu(7), "x": gpu(1)}, limited(16 + 35 + 4)
    found = demand(pools, {"y": HELD}, (V4, V6), limits).missing()
    assert [each.network for each in found.segments] == ["a_2"]


def test_a_new_segment_asks_for_one_subnet_of_each_family():
    path = ("clusters", "a", "node_pools", "gpu", "nodes")
    both = demand({"gpu": gpu(10)}, families=(V4, V6), limits=AZURE)
    asked = list(both.requests("gpu", 3, 4, [V4, V6]))
    assert [(each.key, each.family, each.length, each.path) for each in asked] == [
        (("node_pools", "gpu", "3", "v4"), V4, 24, path),
        (("node_pools", "gpu", "3", "v6"), V6, 64, path),
    ]
    assert [each.size for each in asked] == [256, 1 << 64]


def completed(
    wanted: ClusterDemand, sizes: dict[str, list[int]] | None = None, **subnets: str
) -> dict[str, NodePoolLock]:
    """With subnets by what they are of: node pool, number and family."""
    placed = {("node_pools", *of.split("_")): prefix(subnet) for of, subnet in subnets.items()}
    return dict(wanted.complete(wanted.missing(sizes), placed))


def test_new_segments_go_behind_those_there_are_and_hold_what_their_subnets_do():
    before = {"y": HELD, "old": NodePoolLock(segments=(SECOND,))}
    wanted = demand({"y": gpu(12), "x": gpu(2)}, before)
    found = completed(wanted, y_1_v4="10.0.4.0/24", x_0_v4="10.0.5.0/25")
    assert list(found) == ["old", "x", "y"]
    assert found["old"] == NodePoolLock(tombstone=True, segments=(SECOND,))
    assert found["y"].segments == (
        FIRST,
        Segment(first=7, nodes=7, network="a", v4=v4("10.0.4.0/24")),
    )
    assert found["x"].segments == (Segment(first=0, nodes=3, network="a", v4=v4("10.0.5.0/25")),)


def test_the_family_with_less_room_and_the_networks_mappings_bound_a_segment():
    pools = {"y": gpu(5, block_length_v6=80)}
    subnets = {"y_0_v4": "10.0.4.0/24", "y_0_v6": "fd00:0:0:2::/64"}
    tight = demand(pools, families=(V4, V6), limits=limited(16 + 25 + 8))
    (segment,) = completed(tight, **subnets)["y"].segments
    assert segment.nodes == 5
    assert segment.v6 is not None
    assert (segment.v6.subnet, segment.v6.block_length) == (prefix("fd00:0:0:2::/64"), 80)
    # Without a bound as many as fit: 14 blocks of IPv4, two of each node.
    (segment,) = completed(demand(pools, families=(V4, V6)), **subnets)["y"].segments
    assert segment.nodes == 7


def test_a_family_that_comes_later_is_added_to_its_segment():
    wanted = demand({"y": gpu(18)}, {"y": BOTH_HELD}, (V4, V6))
    found = completed(wanted, y_0_v6="fd00:0:0:8::/64")
    assert found["y"].segments == (FIRST.model_copy(update={"v6": v6(8)}), SECOND)


LARGE, SMALL = "10.0.4.0/24", "10.0.5.0/25"
"""Subnets with room for seven nodes, and for three."""


@pytest.mark.parametrize(
    ("nodes", "held", "sizes", "subnets", "segments"),
    [
        (8, (), [5, 3], {"y_0_v4": LARGE, "y_1_v4": SMALL}, [(0, 7), (7, 3)]),
        (23, (FIRST, SECOND), None, {"y_2_v4": SMALL}, [(0, 7), (7, 14), (21, 3)]),
        (15, (FIRST,), [5, 3], {"y_1_v4": LARGE, "y_2_v4": SMALL}, [(0, 7), (7, 7), (14, 3)]),
    ],
    ids=["one larger than was asked for", "those of the lock", "those of the lock and of one run"],
)
def test_a_segment_begins_where_all_before_it_end(nodes, held, sizes, subnets, segments):
    wanted = demand({"y": gpu(nodes)}, {"y": NodePoolLock(segments=held)} if held else {})
    found = completed(wanted, {"y": sizes} if sizes else None, **subnets)
    assert [(each.first, each.nodes) for each in found["y"].segments] == segments


PIN = "10.0.1.0/24"
BOTH = ["10.0.2.0/23", "fd00:0:0:2::/64"]


def pinned(
    limits: CloudLimits, held: dict[str, NodePoolLock] | None = None, **pools: dict[str, Any]
) -> dict[str, NodePoolLock]:
    return dict(demand(pools, held, limits=limits).with_pinned().held)


def test_pinned_subnets_are_a_node_pools_first_segments():
    found = pinned(UNLIMITED, y=gpu(18, subnets=[PIN, BOTH]), x=gpu(3))
    both = SECOND.model_copy(update={"network": "a"})
    assert found == {"y": NodePoolLock(segments=(FIRST, both))}
    # Those that the lock has are not made again, and another one goes behind them.
    held = {"y": HELD, "x": NodePoolLock(segments=(SECOND,))}
    assert pinned(UNLIMITED, held, y=gpu(18, subnets=[PIN, BOTH])) == {
        "y": NodePoolLock(segments=(FIRST, both)),
        "x": held["x"],
    }
    assert pinned(UNLIMITED, held, y=gpu(7, subnets=[PIN])) == held


def test_a_pin_behind_a_segment_of_the_lock_counts_what_that_will_have_with_ipv6():
    pools = {"y": gpu(18, subnets=[PIN, "10.0.2.0/23"])}
    # 35 mappings of the first segment in both families, and three for each node of the second.
    found = demand(pools, {"y": HELD}, (V4, V6), limited(16 + 35 + 11)).with_pinned().held
    assert [(each.first, each.nodes) for each in found["y"].segments] == [(0, 7), (7, 3)]


def test_a_pinned_subnet_holds_no_more_nodes_than_its_network_has_mappings_for():
    for left in (9, 11):
        (segment,) = pinned(limited(16 + left), y=gpu(3, subnets=[PIN]))["y"].segments
        assert segment.nodes == 3
    (_, second) = pinned(limited(16 + 21 + 11), y=gpu(9, subnets=[PIN, BOTH]))["y"].segments
    # Five mappings each, since it has IPv6.
    assert (second.first, second.nodes) == (7, 2)
    other = gpu(3, subnets=["10.0.9.0/24"])
    (segment,) = pinned(limited(16 + 21 + 4), {"x": HELD}, y=other)["y"].segments
    assert segment.nodes == 1


@pytest.mark.parametrize(
    ("pin", "limits"),
    [(PIN, limited(16 + 2)), ("10.0.1.0/27", UNLIMITED), ("10.0.1.0/30", UNLIMITED)],
)
def test_a_pinned_subnet_that_holds_no_node_is_refused(pin, limits):
    with pytest.raises(PlanRefused) as caught:
        pinned(limits, y=gpu(3, subnets=[pin]))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.at.key == ("clusters", "a", "node_pools", "y", "subnets", 0)
    assert diagnostic.message == "no node fits into this subnet beside what its VNet has"
    assert diagnostic.remedy == "pin a subnet that holds what a node takes"


def space(*free: str) -> Space:
    return Space(V4, map(prefix, free))


def blocks(found: Space) -> list[str]:
    return [str(each) for each in found.blocks()]


def test_subnets_are_taken_all_or_none_the_largest_first():
    first, second = space("10.0.0.0/25"), space("10.1.0.0/24")
    assert take_all([first, second], [26, 25, 25])
    assert (blocks(first), blocks(second)) == ([], ["10.1.0.192/26"])
    assert not take_all([first, second], [27, 26])
    assert blocks(second) == ["10.1.0.192/26"]
    assert take_all([first, second], [])


def divided(
    *free: str, fixed: tuple[int, ...] = (), pods: int = 31, **nodes: int
) -> dict[str, list[int]] | None:
    pools = {name: gpu(count, pods_per_node=pods) for name, count in nodes.items()}
    requests = [SubnetRequest(("x",), V4, length, ()) for length in fixed]
    return demand(pools, limits=AZURE).pieces([space(*free)], requests)


def test_a_demand_is_divided_into_the_largest_pieces_that_fill_a_subnet():
    # A /24 holds 7 nodes, a /25 3, a /26 1.
    assert divided("10.0.0.0/24", "10.1.0.0/24", "10.2.0.0/27", y=15) is None
    assert divided("10.0.0.0/24", "10.1.0.0/24", "10.2.0.0/27", y=13) == {"y": [7, 6]}
    assert divided("10.0.0.0/24", "10.1.0.0/24", "10.2.0.0/27", y=10) == {"y": [7, 3]}
    # No pool in one piece: that was tried before.
    assert divided("10.0.0.0/24", "10.1.0.0/24", "10.2.0.0/26", y=7, x=2) == {
        "y": [3, 3, 1],
        "x": [1, 1],
    }
    assert divided("10.0.0.0/23", y=1) == {"y": [1]}
    assert divided("10.0.0.0/23", "10.2.0.0/26", fixed=(24,), y=4) == {"y": [3, 1]}
    assert divided("10.0.0.0/23", fixed=(22,), y=1) is None
    assert divided("10.0.0.0/26", y=2) is None


def test_the_largest_demand_is_divided_first_and_of_equal_ones_the_name_decides():
    free = ("10.0.0.0/24", "10.1.0.0/24", "10.2.0.0/26")
    assert list(divided(*free, x=2, y=7) or ()) == ["y", "x"]
    assert list(divided(*free, y=2, x=2) or ()) == ["x", "y"]


def test_only_what_the_lock_lacks_is_divided():
    wanted = demand({"y": gpu(9)}, {"y": HELD}, limits=AZURE)
    assert wanted.pieces([space("10.0.4.0/24")], []) == {"y": [1, 1]}


def test_one_node_is_a_piece_even_if_it_fills_no_subnet():
    # With three blocks a node a /26 of pods holds none, a /25 two.
    assert divided("10.0.0.0/24", pods=33, y=1) == {"y": [1]}
    assert divided("10.0.0.0/24", "10.1.0.0/25", pods=33, y=2) == {"y": [1, 1]}


NAT = FixedSubnet(("nat",), ("clusters", "a", "nat_hosts"), "a", None, hosts=2)


def test_a_subnet_of_fixed_addresses_has_room_for_eight_from_the_first_one_on():
    (asked,) = NAT.requests([V4], AZURE)
    assert asked == SubnetRequest(("nat", "v4"), V4, 28, ("clusters", "a", "nat_hosts"))
    assert NAT.taken == ()
    made = NAT.complete({("nat", "v4"): prefix("10.0.0.0/28")}, AZURE)
    assert made == SubnetLock(
        prefix=prefix("10.0.0.0/28"),
        network="a",
        addresses=(Address.parse("10.0.0.4"), Address.parse("10.0.0.5")),
    )
    seats = FixedSubnet(("researchers", "0"), (), "hub", None, seats=300)
    assert [each.length for each in seats.requests([V4, V6], AZURE)] == [23, 64]


def test_what_it_has_stays_and_a_family_it_lacks_is_added():
    held = SubnetLock(prefix=prefix("10.0.0.0/28"), network="there")
    nat = FixedSubnet(("nat",), (), "a", held, hosts=1)
    assert nat.taken == (prefix("10.0.0.0/28"),)
    assert [each.key for each in nat.requests([V4, V6], AZURE)] == [("nat", "v6")]
    made = nat.complete({("nat", "v6"): prefix("fd00::/64")}, AZURE)
    assert made == SubnetLock(
        prefix=prefix("10.0.0.0/28"),
        prefix_v6=prefix("fd00::/64"),
        network="there",
        addresses=(Address.parse("10.0.0.4"),),
        addresses_v6=(Address.parse("fd00::4"),),
    )
    again = FixedSubnet(("nat",), (), "a", made, hosts=1)
    assert list(again.requests([V4, V6], AZURE)) == []
    assert again.complete({}, AZURE) == made


def test_fixed_addresses_are_the_first_that_the_cloud_leaves_free():
    found = host_addresses(prefix("10.0.0.0/28"), 3, AZURE)
    assert list(map(str, found)) == ["10.0.0.4", "10.0.0.5", "10.0.0.6"]
    assert host_addresses(prefix("10.0.0.0/28"), 0, AZURE) == ()


def test_a_cluster_has_its_nat_hosts_subnets_and_those_of_every_node_pool():
    own = prefix("10.96.0.0/16")
    held = ClusterLock(
        prefixes=(),
        services=ServiceRangeLock(mode=ServiceMode.UNIQUE, prefix=own, hub_prefix=own),
        nat=SubnetLock(prefix=prefix("10.0.0.64/28"), network="a"),
        node_pools={"y": HELD, "x": NodePoolLock(segments=(SECOND,))},
    )
    assert set(taken_by(held)) == {prefix("10.0.0.64/28"), *FIRST.prefixes, *SECOND.prefixes}
    assert taken_by(None) == []
