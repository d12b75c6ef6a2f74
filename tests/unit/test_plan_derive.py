"""From plan and lock to the cloud's network: what is asked for, and in the cloud's own terms."""

from __future__ import annotations

from typing import Any

import pytest

from netmgr.errors import ConfigError
from netmgr.plan.check.reach import matrix
from netmgr.plan.derive import network
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.network import CloudRoute, Network, NextHop
from netmgr.prefixes import Prefix, overlaps
from tests.builders import plan_of
from tests.locks import agreed_limits, lock_for

NODES = {"cpu": {"nodes": 20, "pods_per_node": 15}}


def planned(**keys: Any) -> PlanDocument:
    both = {"a": {"node_pools": NODES}, "b": {"node_pools": NODES}}
    pools = {"nodes": ["10.0.0.0/12"], "services": ["172.16.0.0/12"]}
    return PlanDocument.model_validate(plan_of(both) | {"pools": pools} | keys)


def derived(plan: PlanDocument | None = None, lock: LockDocument | None = None, **keys: Any):
    plan = plan or planned(**keys)
    return network(plan, lock or lock_for(plan), agreed_limits(plan))


def routes(net: Network, table: str) -> dict[str, CloudRoute]:
    return {route.name: route for each in net.tables if each.name == table for route in each.routes}


def test_hosts_and_pods_of_a_segment_share_a_prefix_because_an_interface_has_one_of_a_family():
    net = derived()
    (scale_set,) = (each for each in net.node_groups if each.owner == "a")
    (subnet,) = (s for vnet in net.of("a") for s in vnet.subnets if s.name == scale_set.subnet)
    assert len(subnet.prefixes) == 1
    assert scale_set.instances == 20
    assert scale_set.pods == 0, "blocks, which no scale set has"


def test_a_node_pool_past_a_scale_set_s_limit_gets_several_of_them():
    pool = {"nodes": 2_350, "pods_per_node": 15, "addressing": "single", "surge": 200}
    net = derived(clusters={"a": {"node_pools": {"gpu": pool}}})
    sizes = {group.name: group.instances for group in net.node_groups}
    # The surge of an upgrade is part of what has to fit.
    assert sizes == {"a-gpu": 1000, "a-gpu_0_1": 1000, "a-gpu_0_2": 350}
    assert {(group.network, group.subnet) for group in net.node_groups} == {("a", "a-gpu")}
    full = derived(clusters={"a": {"node_pools": {"gpu": {**pool, "nodes": 2_900}}}})
    assert [each.instances for each in full.node_groups] == [1000, 1000, 900, 0]
    clusters = {"a": {"node_pools": {"gpu": pool}}}
    own = derived(clusters=clusters, limits={"nodes_per_node_group": 600})
    assert [group.instances for group in own.node_groups] == [600, 600, 600, 550, 0]
    without = derived(clusters=clusters, cloud="none")
    assert [each.instances for each in without.node_groups] == [2_350]


def test_growth_changes_the_last_scale_set_and_adds_others():
    def sets(nodes: int, previous: LockDocument | None) -> tuple[dict[str, int], LockDocument]:
        pool = {"nodes": nodes, "pods_per_node": 5, "addressing": "single", "surge": 0}
        plan = planned(clusters={"a": {"node_pools": {"gpu": pool}}})
        lock = lock_for(plan, previous)
        return {group.name: group.instances for group in derived(plan, lock).node_groups}, lock

    few, lock = sets(1_500, None)
    more, lock = sets(5_200, lock)
    assert few == {"a-gpu": 1000, "a-gpu_0_1": 500}
    segments = lock.clusters["a"].node_pools["gpu"].segments
    assert len(segments) > 1
    assert segments[0].nodes > 1_500
    assert {name: more[name] for name in few} == {
        "a-gpu": 1000,
        "a-gpu_0_1": min(segments[0].nodes - 1000, 1000),
    }
    assert sum(more.values()) == 5_200
    assert len(more) == sum(-(-min(s.nodes, 5_200 - s.first) // 1000) for s in segments)


def test_subnets_lie_within_their_networks_and_never_overlap():
    prefixes = []
    for vnet in derived().networks:
        inside = [prefix for subnet in vnet.subnets for prefix in subnet.prefixes]
        assert all(any(space.covers(prefix) for space in vnet.address_space) for prefix in inside)
        prefixes += inside
    assert len(prefixes) > 5
    assert list(overlaps(prefixes, lambda prefix: prefix)) == []


def test_a_spoke_without_a_gateway_reaches_the_internet_through_the_hub():
    net = derived(
        clusters={"a": {"node_pools": NODES, "nat_gateway_ips": 0}, "b": {"node_pools": NODES}}
    )
    assert [gateway.name for gateway in net.gateways] == ["hub", "b"]
    default = routes(net, "a_nodes")["internet"]
    assert (str(default.prefix), default.hop) == ("0.0.0.0/0", NextHop.APPLIANCE)
    assert default.via == next(
        each.addresses[0] for each in net.appliances if each.name == "hub_router_0"
    )
    assert "internet" not in routes(net, "b_nodes")
    # Only the hub, and who is behind it, takes packets that a peer passes on.
    forwarded = {peering.name for peering in net.peerings if peering.forwarded}
    assert forwarded == {"hub_to_a", "hub_to_b", "a_to_hub"}


@pytest.mark.parametrize(("hosts", "shares"), [(1, [1]), (2, [1, 1]), (3, [2, 1, 1]), (8, [1] * 8)])
def test_the_service_range_is_shared_out_among_the_nat_hosts(hosts, shares):
    net = derived(clusters={"a": {"node_pools": NODES, "nat_hosts": hosts}})
    found = list(routes(net, "hub").values())
    (vip_range,) = {each.vip_range for host in net.appliances for each in host.translations}
    assert sum(route.prefix.size for route in found) == vip_range.size
    assert list(overlaps(found, lambda route: route.prefix)) == []
    addresses = [host.addresses[0] for host in net.appliances if host.owner == "a"]
    assert [sum(route.via == address for route in found) for address in addresses] == shares


def test_with_the_clients_address_kept_one_nat_host_has_all_and_answers_return_to_it():
    net = derived(clusters={"a": {"node_pools": NODES, "services": {"source": "preserve"}}})
    (route,) = routes(net, "hub").values()
    back = routes(net, "a_nodes")["researchers-0"]
    assert back.via == route.via
    # The NAT host itself must not be sent to itself.
    assert "researchers-0" not in routes(net, "a_nat")


def test_a_cluster_that_answers_by_its_nat_host_is_reached_by_it_from_where_its_clients_are():
    keeping = {"node_pools": NODES, "services": {"source": "preserve"}}
    net = derived(clusters={"a": keeping, "b": {"node_pools": NODES}})
    host = next(each for each in net.appliances if each.owner == "a")
    every = routes(net, "hub_researchers").items()
    there = [route for name, route in every if name.startswith("nodes-")]
    own = [prefix for vnet in net.of("a") for prefix in vnet.address_space]
    assert [route.prefix for route in there] == own
    assert {route.via for route in there} == {host.addresses[0]}
    tables = {subnet.role: subnet.table for vnet in net.of("hub") for subnet in vnet.subnets}
    assert tables == {"routers": "hub", "researchers": "hub_researchers"}
    assert [cell.wrong for cell in matrix(net) if cell.wrong] == []


def test_a_pool_that_is_one_spokes_alone_is_not_routed_away_from_it():
    own = "10.64.0.0/20"
    pools = {"nodes": ["10.0.0.0/12", own], "services": ["172.16.0.0/12"]}
    net = derived(pools=pools, pinned={"a": [own]})
    apart = {route.prefix for route in routes(net, "a_nodes").values()}
    assert Prefix.parse(own) not in apart
    assert Prefix.parse(own) in {route.prefix for route in routes(net, "b_nodes").values()}
    assert [cell.wrong for cell in matrix(net) if cell.wrong] == []


def test_what_left_the_plan_is_asked_of_the_cloud_no_more():
    smaller = planned(clusters={"b": {"node_pools": NODES}})
    lock = lock_for(smaller, lock_for(planned()))
    assert lock.clusters["a"].tombstone
    net = derived(smaller, lock)
    assert {vnet.owner for vnet in net.networks} == {"hub", "b"}
    assert not [table for table in net.tables if table.name.startswith("a_")]


def test_a_lock_of_another_plan_is_refused_with_what_to_run():
    before = planned(clusters={"b": {"node_pools": NODES}})
    with pytest.raises(ConfigError, match="'a' has no addresses in the lock yet; run: netmgr pl"):
        derived(planned(), lock_for(before))
    with pytest.raises(ConfigError, match="has a cluster 'a' that the plan has not; run: netmgr"):
        derived(before, lock_for(planned()))


def test_names_that_differ_never_become_one():
    clusters = {name: {"node_pools": {"nat": NODES["cpu"]}} for name in ("a", "a-nat", "a-nodes")}
    net = derived(clusters=clusters)
    for names in (
        [subnet.name for vnet in net.networks for subnet in vnet.subnets],
        [table.name for table in net.tables],
        [peering.name for peering in net.peerings],
        [appliance.name for appliance in net.appliances],
    ):
        assert len(set(names)) == len(names)


def test_security_rules_never_mix_families_and_have_a_priority_of_their_own():
    net = derived(pools={"nodes": ["10.0.0.0/12", "fd00:10::/40"], "services": ["172.16.0.0/12"]})
    for group in net.groups:
        for direction in {rule.direction for rule in group.rules}:
            priorities = [rule.priority for rule in group.rules if rule.direction is direction]
            assert len(set(priorities)) == len(priorities)
        assert all(len({prefix.family for prefix in rule.peers}) == 1 for rule in group.rules)


def test_the_second_network_of_a_cluster_is_never_another_clusters():
    large = {"cpu": {"nodes": 3000, "pods_per_node": 31, "addressing": "single"}}
    net = derived(clusters={"a": {"node_pools": large}, "a-2": {"node_pools": NODES}})
    names = [vnet.name for vnet in net.networks]
    assert len(net.of("a")) > 1
    assert len(set(names)) == len(names)
    assert [cell.wrong for cell in matrix(net) if cell.wrong] == []
