"""Whatever the plan asks for, its network keeps spokes apart and lets the hub in."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import Role, SourceAddress, site_of
from netmgr.plan.check.fleet import contradictions, drift
from netmgr.plan.check.reach import OTHERS, ReachTarget, matrix
from netmgr.plan.check.trace import Tracer
from netmgr.plan.derive import network
from netmgr.plan.document import PlanDocument
from netmgr.plan.network import Network
from netmgr.plan.render.node import Documents
from tests.builders import plan_of
from tests.locks import agreed_limits, lock_for
from tests.weakened import Layer, weakened

V6 = "fd00:10::/40"
SERVICES = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["unique", "shared"]),
        "source": st.sampled_from(["snat", "preserve"]),
        "length": st.integers(18, 24),
    }
)
POOL = st.fixed_dictionaries(
    {
        "nodes": st.integers(0, 60),
        "pods_per_node": st.integers(1, 40),
        "addressing": st.sampled_from(["blocks", "single"]),
    }
)
CLUSTER = st.fixed_dictionaries(
    {
        "node_pools": st.dictionaries(st.sampled_from(["cpu", "gpu", "nat"]), POOL, min_size=1),
        "nat_hosts": st.integers(1, 4),
        "nat_gateway_ips": st.integers(0, 2),
        "services": SERVICES,
    }
)
PLANS = st.fixed_dictionaries(
    {
        "clusters": st.dictionaries(st.sampled_from(["a", "b", "c", "a-nat"]), CLUSTER, max_size=4),
        "pools": st.sampled_from(
            [
                {"nodes": ["10.0.0.0/8"], "services": ["172.16.0.0/12"]},
                {"nodes": ["10.0.0.0/12", "10.64.0.0/12", V6], "services": ["172.16.0.0/12"]},
                {"nodes": ["100.64.0.0/11"], "services": ["192.168.0.0/16"]},
                {"nodes": ["10.0.0.0/8", V6], "services": ["172.16.0.0/12", "fd00:5e::/100"]},
            ]
        ),
    }
)


def document(drawn: dict[str, Any]) -> PlanDocument:
    is_beside = "172.16.0.0/12" in drawn["pools"]["services"]
    shared = ["100.127.0.0/17" if is_beside else "172.31.0.0/17", "fd00:5a::/100"]
    return PlanDocument.model_validate(plan_of({}, shared_services=shared) | drawn)


def derived(plan: PlanDocument) -> Network:
    return network(plan, lock_for(plan), agreed_limits(plan))


@settings(max_examples=25)
@given(PLANS, st.sets(st.sampled_from(["routes", "groups", "routers"]), max_size=1))
def test_spokes_stay_apart_even_with_one_layer_missing(drawn, missing):
    plan = document(drawn)
    cells = matrix(weakened(derived(plan), missing))
    assert [cell.wrong for cell in cells if cell.wrong] == []
    apart = {(cell.origin, cell.target) for cell in cells if cell.owner == OTHERS}
    both = (ReachTarget.NODES, ReachTarget.SERVICES)
    spokes = plan.clusters if len(plan.clusters) > 1 else ()
    assert apart == set(product(spokes, both))
    assert {cell.origin for cell in cells if cell.outcome == "dropped"} == set(spokes)


@settings(max_examples=25)
@given(PLANS, st.sets(st.sampled_from(list(Layer))))
def test_the_matrix_says_of_spokes_what_packets_followed_one_by_one_do(drawn, missing):
    plan = document(drawn)
    weak = weakened(derived(plan), missing)
    cells = {
        (cell.origin, cell.owner): cell for cell in matrix(weak) if cell.target == "nodes and pods"
    }
    tracer = Tracer(weak)
    for here, there in product(weak.networks, repeat=2):
        cell = cells.get((here.owner, there.owner)) or cells[here.owner, OTHERS]
        outcomes = {
            tracer.trace(here, start, source.network, target.network).owner == there.owner
            for start, end in product(here.subnets, there.subnets)
            for source, target in product(start.prefixes, end.prefixes)
            if source.family is target.family
        }
        names = ["reached" if arrives else "dropped" for arrives in outcomes]
        assert cell.outcome == (names[0] if len(names) == 1 else "in part")


@settings(max_examples=25)
@given(PLANS, st.sampled_from(["azure", "none"]))
def test_every_machines_document_is_valid_and_suits_all_others(drawn, cloud):
    plan = document(drawn | {"cloud": cloud})
    lock = lock_for(plan)
    documents = Documents(plan, lock)
    machines = {
        machine.name: NodeDocument.model_validate(documents.of(machine))
        for machine in documents.machines()
    }
    assert list(contradictions(machines)) == []
    assert list(drift(machines, plan, lock, "plan.lock.yaml")) == []
    families = plan.pools.service_families
    for machine in machines.values():
        assert [site.name for site in machine.sites] == ["hub", *sorted(plan.clusters)]
        own = {site_of(machine.sites, address).site for address in machine.node.addresses}
        assert own <= {machine.site}
        if machine.role is not Role.NODE:
            assert tuple(address.family for address in machine.node.addresses) == families
        elif plan.clusters[machine.site].services.source is SourceAddress.PRESERVE:
            assert {route.to.family for route in machine.routes} == set(families)
        else:
            assert machine.routes == ()
