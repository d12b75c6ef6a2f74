"""Who reaches whom, computed: every machine's rules along the lab's routes, held against design and
plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

from netmgr.documents.node import Backend
from netmgr.documents.sites import HUB, Role
from netmgr.plan import files
from netmgr.plan.check import reach
from netmgr.plan.derive import network
from netmgr.prefixes import Family
from tests.fakes.network import OTHER_KINDS, Journey, PaperNetwork, PaperWorld
from tests.lab import matrix, planned

WORLDS = pytest.mark.parametrize("kinds", [planned.KINDS, OTHER_KINDS], ids=["default", "others"])
BACKENDS = pytest.mark.parametrize("backend", [Backend.NFTABLES, Backend.IPTABLES_LEGACY], ids=str)
FAMILIES = pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
KINDS = {
    matrix.Target.RESEARCHER: reach.Target.NODES,
    matrix.Target.NODES: reach.Target.NODES,
    matrix.Target.PODS: reach.Target.NODES,
    matrix.Target.SERVICES: reach.Target.SERVICES,
    matrix.Target.INTERNET: reach.Target.INTERNET,
}


@pytest.fixture(scope="module")
def world() -> PaperWorld:
    return paper(Backend.NFTABLES)


def paper(backend: Backend, kinds: Sequence[planned.Kind] = planned.KINDS) -> PaperWorld:
    return PaperWorld(planned.network(3, 2, 2, kinds), backend)


def traced(on: PaperNetwork, probe: matrix.Probe) -> Journey:
    """The way of the first packet of a connection."""
    on.forget()
    return on.send(probe.origin.name, probe.near.address, probe.target)


@WORLDS
@BACKENDS
def test_the_rules_let_through_what_the_design_says_and_as_whom(
    backend: Backend, kinds: Sequence[planned.Kind]
) -> None:
    world = paper(backend, kinds)
    on = PaperNetwork(world)
    for probe in matrix.probes(world):
        journey = traced(on, probe)
        if probe.expected_source is None:
            pair = f"isolated_{probe.origin.site}_{probe.site}_v{probe.target.family.value}"
            assert (journey.dropped_at, journey.dropped_by) == (probe.origin.machine, pair)
        else:
            assert journey.reached in {end.namespace.name for end in probe.listeners}, (
                probe,
                journey,
            )
            assert journey.src == probe.expected_source, (probe, journey)


@WORLDS
@BACKENDS
def test_answers_find_their_way_back_translated_as_they_went(
    backend: Backend, kinds: Sequence[planned.Kind]
) -> None:
    world = paper(backend, kinds)
    on = PaperNetwork(world)
    for probe in matrix.probes(world):
        if probe.expected_source is not None:
            there = traced(on, probe)
            back = on.send(there.reached, there.dst, there.src)
            assert (back.reached, back.dst) == (probe.origin.name, probe.near.address), (
                probe,
                back,
            )


@WORLDS
def test_the_plan_s_matrix_is_the_matrix_of_the_rules(kinds: Sequence[planned.Kind]) -> None:
    world, plan = paper(Backend.NFTABLES, kinds), planned.plan(3, 2, kinds)
    cells = {
        (cell.origin, cell.owner, cell.target): cell.outcome
        for cell in reach.matrix(network(plan, planned.lock(plan), files.load_limits(plan.cloud)))
    }
    on = PaperNetwork(world)
    found = defaultdict(set)
    for probe in matrix.probes(world):
        journey = traced(on, probe)
        found[probe.origin.site, probe.site, KINDS[probe.kind]].add(
            "reached" if journey.reached else "dropped"
        )
    assert {key: {cells[key]} for key in found} == found
    assert {origin for origin, _, _ in found} == {HUB, *plan.clusters}
    assert cells.keys() - found.keys() == {(HUB, HUB, reach.Target.NODES)}


def between_rogues(world: PaperWorld, on: PaperNetwork, family: Family) -> Journey:
    """A packet between machines of two spokes that run no agent."""
    one, two = (world.topology.address(f"rogue.spoke-{number}", family) for number in (1, 2))
    return on.send("rogue.spoke-1", one, two)


@FAMILIES
def test_the_router_s_rules_alone_keep_spokes_apart(world: PaperWorld, family: Family) -> None:
    journey = between_rogues(world, PaperNetwork(world), family)
    assert (journey.dropped_at, journey.dropped_by) == (
        "router-0.hub",
        f"isolated_spoke-1_spoke-2_v{family.value}",
    )


@FAMILIES
def test_the_nodes_rules_alone_keep_spokes_apart(world: PaperWorld, family: Family) -> None:
    routers = [node.name for node in world.nodes if node.node.role is Role.HUB_ROUTER]
    on = PaperNetwork(world, lawless=routers)
    rogue = world.topology.address("rogue.spoke-1", family)
    targets = {
        "spoke-2-cpu-0": world.topology.address("spoke-2-cpu-0", family),
        "nat-0.spoke-2": world.topology.address("nat-0.spoke-2", family),
        "spoke-2-cpu-1": world.node("spoke-2-cpu-1").pods[0].address(family),
    }
    for machine, target in targets.items():
        inward = on.send("rogue.spoke-1", rogue, target)
        assert (inward.dropped_at, inward.dropped_by) == (
            machine,
            f"isolated_spoke-1_spoke-2_v{family.value}",
        )
        outward = on.send(machine, world.topology.address(machine, family), rogue)
        assert (outward.dropped_at, outward.dropped_by) == (
            machine,
            f"isolated_spoke-2_spoke-1_v{family.value}",
        )


@FAMILIES
def test_without_any_rules_the_spokes_would_be_joined(world: PaperWorld, family: Family) -> None:
    on = PaperNetwork(world, lawless=[node.name for node in world.nodes])
    assert between_rogues(world, on, family).reached == "rogue.spoke-2"
    one, two = (world.node(f"spoke-{number}-cpu-0").pods[0] for number in (1, 2))
    assert on.send(one.pod.name, one.address(family), two.address(family)).reached == two.pod.name
