"""The isolation matrix: what it says of a planned network, and that it sees every way that
isolation can break.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmgr.plan.check.reach import OTHERS, ReachTarget, matrix
from netmgr.plan.check.trace import INTERNET, Path, Tracer
from netmgr.plan.network import CloudRoute, Network, NextHop, Subnet, VirtualNetwork
from netmgr.prefixes import Address, Prefix
from tests.weakened import weakened

LAYERS = ("routes", "groups", "routers", "peerings")
EVERYTHING = Prefix.parse("0.0.0.0/0")


def wrong(network: Network) -> list[str]:
    return [cell.wrong for cell in matrix(network) if cell.wrong]


def verdicts(network: Network) -> dict[tuple[str, str, ReachTarget], str]:
    return {(cell.origin, cell.owner, cell.target): cell.outcome for cell in matrix(network)}


def subnet_named(network: Network, name: str) -> tuple[VirtualNetwork, Subnet]:
    every = ((vnet, subnet) for vnet in network.networks for subnet in vnet.subnets)
    return next(pair for pair in every if pair[1].name == name)


def follow(network: Network, subnet: str, destination: str) -> Path:
    """A packet from the first address of a subnet."""
    vnet, origin = subnet_named(network, subnet)
    address = origin.prefixes[0].network
    return Tracer(network).trace(vnet, origin, address, Address.parse(destination))


def with_routes(network: Network, name: str, *routes: CloudRoute) -> Network:
    tables = tuple(
        replace(t, routes=(*t.routes, *routes)) if t.name == name else t for t in network.tables
    )
    return replace(network, tables=tables)


def first_address(network: Network, subnet: str) -> str:
    return str(subnet_named(network, subnet)[1].prefixes[0].network)


def router_of(network: Network) -> Address:
    return next(host.addresses[0] for host in network.appliances if host.name == "hub_router_0")


def test_a_planned_network_isolates_its_spokes_and_lets_the_hub_in(rendered_network):
    found = verdicts(rendered_network)
    for one, other in (("training", "evals"), ("evals", "training")):
        assert found[one, OTHERS, ReachTarget.NODES] == "dropped"
        assert found[one, OTHERS, ReachTarget.SERVICES] == "dropped"
        assert (one, other, ReachTarget.NODES) not in found
        assert found["hub", one, ReachTarget.NODES] == "reached"
        assert found["hub", one, ReachTarget.SERVICES] == "reached"
        assert found[one, "hub", ReachTarget.NODES] == "reached"
        assert found[one, one, ReachTarget.NODES] == "reached"
        # By IPv4 alone, as a NAT gateway does.
        assert found[one, INTERNET, ReachTarget.INTERNET] == "in part"
    assert wrong(rendered_network) == []


def test_nothing_leaves_for_the_internet_but_by_a_gateway_that_is_rendered(rendered_network):
    path = follow(rendered_network, "evals-cpu", "203.0.113.1")
    assert path.steps[0].startswith("evals-cpu sends it to hub_router_0")
    assert path.steps[-1] == "leaves hub_routers for the internet"
    assert follow(rendered_network, "training-gpu", "203.0.113.1").arrived == INTERNET
    without = replace(rendered_network, gateways=())
    for origin, last in (("evals-cpu", "hub_routers"), ("training-gpu", "training-gpu")):
        path = follow(without, origin, "203.0.113.1")
        assert path.steps[-1] == f"dropped: {last} has no IPv4 NAT gateway"


def test_no_single_layer_is_what_isolation_hangs_on(rendered_network):
    for layer in LAYERS:
        assert wrong(weakened(rendered_network, [layer])) == []


def test_a_spoke_behind_the_hub_reaches_another_once_nothing_stops_it(rendered_network):
    """evals has no NAT gateway: its default route leads to the hub's router, which reaches
    everybody.
    """
    broken = weakened(rendered_network, LAYERS)
    faults = wrong(broken)
    assert any(fault.startswith("evals reaches nodes and pods of training") for fault in faults)
    assert any(
        " sends it to hub_router_0 (0.0.0.0/0, route table evals_" in text for text in faults
    )
    # training has a NAT gateway and no default route: the cloud's own None routes hold.
    assert not any(fault.startswith("training reaches") for fault in faults)


@pytest.mark.parametrize("kept", LAYERS)
def test_each_layer_holds_alone_for_nodes_and_pods(rendered_network, kept):
    weak = weakened(rendered_network, [layer for layer in LAYERS if layer != kept])
    assert verdicts(weak)["evals", OTHERS, ReachTarget.NODES] == "dropped"


def test_a_default_route_makes_the_clouds_none_routes_vanish(rendered_network):
    bare = weakened(rendered_network, ["routes", "groups"])
    target = first_address(bare, "evals-cpu")
    before = follow(bare, "training-gpu", target)
    assert before.steps[-1].endswith("10.0.0.0/8 leads to None (the cloud's own route)")
    route = CloudRoute("internet", EVERYTHING, NextHop.APPLIANCE, router_of(bare))
    after = with_routes(bare, "training_nodes", route)
    path = follow(after, "training-gpu", target)
    assert path.steps[0].startswith("training-gpu sends it to hub_router_0 (0.0.0.0/0")
    assert path.steps[-1] == "dropped and counted by hub_router_0: spoke to spoke"


def test_a_default_route_to_the_internet_does_not_carry_private_addresses(rendered_network):
    bare = weakened(rendered_network, ["routes", "groups"])
    open_wide = with_routes(
        bare, "training_nodes", CloudRoute("internet", EVERYTHING, NextHop.INTERNET)
    )
    path = follow(open_wide, "training-gpu", first_address(bare, "evals-cpu"))
    assert "no private addresses" in path.steps[-1]


def test_the_longest_prefix_wins_over_the_order_of_routes(rendered_network):
    bare = weakened(rendered_network, ["groups", "routers", "peerings"])
    victim = Address.parse(first_address(bare, "training-gpu"))
    hole = CloudRoute("hole", victim.prefix, NextHop.APPLIANCE, router_of(bare))
    assert wrong(bare) == []
    (fault,) = wrong(with_routes(bare, "evals_nodes", hole))
    assert f"to {victim}: evals-cpu sends it to hub_router_0 ({victim}/32" in fault


def test_a_peering_between_spokes_is_found(rendered_network):
    bare = weakened(rendered_network, ["routes", "groups"])
    pairs = (("evals", "training"), ("training", "evals"))
    direct = [replace(bare.peerings[0], name="x", network=a, remote=b) for a, b in pairs]
    faults = wrong(replace(bare, peerings=(*bare.peerings, *direct)))
    assert any(fault.startswith("training reaches nodes and pods of evals") for fault in faults)


def test_a_hub_that_lost_its_way_to_a_service_is_found(rendered_network):
    tables = tuple(
        replace(table, routes=()) if table.owner == "hub" else table
        for table in rendered_network.tables
    )
    faults = wrong(replace(rendered_network, tables=tables))
    assert any(fault.startswith("hub does not reach Services of training") for fault in faults)


def test_the_hub_sees_a_shared_service_range_where_it_is_this_clusters_own(rendered_network):
    host = next(host for host in rendered_network.appliances if host.name == "evals_nat_0")
    (translation,) = host.translations
    vip = Address(translation.vip_range.family, translation.vip_range.value + 77)
    path = follow(rendered_network, "hub_researchers-0", str(vip))
    assert path.owner == "evals"
    assert path.steps[-1] == "evals_nat_0 translates it to Service 100.64.0.77"


def test_answers_that_keep_the_clients_address_return_through_the_nat_host(rendered_network):
    researcher = first_address(rendered_network, "hub_researchers-0")
    path = follow(rendered_network, "evals-cpu", researcher)
    assert path.steps[0].startswith("evals-cpu sends it to evals_nat_0")
    assert path.arrived == "hub_researchers-0"
    assert len(follow(rendered_network, "training-gpu", researcher).steps) == 1


def test_a_route_loop_ends(rendered_network):
    one, other = (host.addresses[0] for host in rendered_network.appliances if host.owner == "hub")
    public = Prefix.parse("203.0.113.0/24")
    looped = rendered_network
    for table in ("hub", "hub_researchers"):
        looped = with_routes(looped, table, CloudRoute("loop", public, NextHop.APPLIANCE, one))
    assert other != one
    assert "still on its way" in follow(looped, "hub_researchers-0", "203.0.113.1").steps[-1]
