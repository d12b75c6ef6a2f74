"""A hub and three spokes on the real kernel: who reaches whom, as whom, and what keeps the others
out.
"""

from __future__ import annotations

import os
import select
import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import pytest

from netmgr.documents.node import Backend
from netmgr.documents.sites import HUB, Role
from netmgr.plan import files
from netmgr.plan.check import reach
from netmgr.plan.derive import network
from netmgr.plan.document import PlanDocument
from netmgr.prefixes import Address, Family
from tests.kernel.namespaces import inside
from tests.lab import matrix, planned, probing, services, verify
from tests.lab.exchange import End, open_socket, seen_from
from tests.lab.probing import Outcome
from tests.lab.topology import Spoke
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root

FAMILIES = pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
KINDS = {
    matrix.Target.RESEARCHER: reach.ReachTarget.NODES,
    matrix.Target.NODES: reach.ReachTarget.NODES,
    matrix.Target.PODS: reach.ReachTarget.NODES,
    matrix.Target.SERVICES: reach.ReachTarget.SERVICES,
    matrix.Target.INTERNET: reach.ReachTarget.INTERNET,
}
CONNECTIONS = 1000


@pytest.fixture(scope="module")
def world(backend) -> Iterator[World]:
    with World(
        planned.network(3, 2, 2), backend=backend, name=f"hub-{os.getpid()}", exporters=False
    ) as made:
        yield made


@pytest.fixture(scope="module")
def outcomes(world: World) -> Sequence[Outcome]:
    """What became of every probe, before any test did something else."""
    return probing.send(matrix.probes(world))


def test_the_whole_matrix_is_as_the_design_says(world: World) -> None:
    found = verify.verify(world)
    assert [each for each in found.drops if each.sent != each.counted] == []
    assert [row for row in found.rows if not row.agrees] == []
    assert list(found.half_open) == []
    assert found.agrees


@pytest.mark.slow
def test_spokes_of_other_kinds_are_as_the_design_and_their_plan_say_too(backend: Backend) -> None:
    with World(
        planned.network(3, 1, 2, planned.OTHER_KINDS),
        backend=backend,
        name=f"others-{os.getpid()}",
        exporters=False,
    ) as world:
        found = verify.verify(world)
        assert [row for row in found.rows if not row.agrees] == []
        assert found.agrees, found
        probes = matrix.probes(world)
    expected = [(probe, probe.expected_source is not None) for probe in probes]
    is_the_plans(expected, planned.plan(3, 1, planned.OTHER_KINDS))


def test_the_plan_s_matrix_is_what_was_measured(outcomes: Sequence[Outcome]) -> None:
    measured = [(outcome.probe, outcome.source is not None) for outcome in outcomes]
    is_the_plans(measured, planned.plan(3, 2))


def _outcome(cell: reach.Cell) -> str:
    if cell.target is not reach.ReachTarget.INTERNET:
        return cell.outcome
    # The cloud's gateways have no IPv6; the lab's have.
    paths = tuple(path for path in cell.paths if path.source.family is Family.V4)
    return replace(cell, paths=paths).outcome


def is_the_plans(probes: Iterable[tuple[matrix.Probe, bool]], plan: PlanDocument) -> None:
    """Check whether these reached their targets against the matrix of `plan check`."""
    cells = {
        (cell.origin, cell.owner, cell.target): _outcome(cell)
        for cell in reach.matrix(network(plan, planned.lock(plan), files.load_limits(plan.cloud)))
    }
    found = defaultdict(set)
    for probe, is_reached in probes:
        key = probe.origin.site, probe.site, KINDS[probe.kind]
        if key not in cells:
            key = probe.origin.site, reach.OTHERS, KINDS[probe.kind]
        found[key].add("reached" if is_reached else "dropped")
    assert {key: {cells[key]} for key in found} == found
    assert {origin for origin, _, _ in found} == {HUB, *plan.clusters}
    assert cells.keys() - found.keys() == {(HUB, HUB, reach.ReachTarget.NODES)}


@FAMILIES
def test_one_service_address_leads_to_two_spokes_through_two_ranges(
    world: World, outcomes: Sequence[Outcome], family: Family
) -> None:
    one, two = (services.service(spoke, world.nodes) for spoke in world.topology.spokes[:2])
    assert one.address(family, inside=True) == two.address(family, inside=True)
    seen = {one.address(family, inside=False): one, two.address(family, inside=False): two}
    assert len(seen) == 2
    reached = [
        each for each in outcomes if each.probe.origin.site == HUB and each.probe.target in seen
    ]
    assert {each.probe.target for each in reached} == seen.keys()
    assert all(each.answered for each in reached)


def talk(client: End, target: Address, servers: Sequence[End], times: int) -> set[int]:
    """Open and close connections, one after the other, each with a byte there and a byte back.

    Returns the client's ports: one that comes again takes over what was tracked of it.
    """
    ports = set()
    with ExitStack() as closing:
        listeners = [listening(closing, end) for end in servers]
        direct = len(servers) == 1 and servers[0].address == target
        for _ in range(times):
            near = open_socket(client.namespace, target.family, socket.SOCK_STREAM)
            with near:
                near.connect((str(target), services.TARGET_PORT if direct else services.PORT))
                ports.add(near.getsockname()[1])
                with accept(listeners) as far:
                    ping(near, far)
    return ports


def listening(closing: ExitStack, end: End) -> socket.socket:
    listener = closing.enter_context(
        open_socket(end.namespace, end.address.family, socket.SOCK_STREAM)
    )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((str(end.address), services.TARGET_PORT))
    listener.listen(16)
    listener.settimeout(0)
    return listener


def accept(listeners: Sequence[socket.socket]) -> socket.socket:
    """The connection that has just come to one of them."""
    ready, _, _ = select.select(listeners, (), (), PATIENCE)
    assert ready, "nobody came"
    accepted, _ = ready[0].accept()
    accepted.settimeout(PATIENCE)
    return accepted


@FAMILIES
def test_after_a_thousand_connections_each_way_none_is_half_open(
    world: World, family: Family
) -> None:
    researcher, *others = matrix.origins(world)
    hub = researcher.end(family)
    pods = [origin.end(family) for origin in others if origin.who is matrix.Who.POD]
    share = CONNECTIONS // len(pods) + 1
    before = set(verify.half_open(world))  # of other tests
    for spoke, pod in zip(world.topology.spokes, pods, strict=True):
        found = services.service(spoke, world.nodes)
        ends = [one.end(family) for one in found.backends]
        nat_host = world.node(spoke.nat_host).namespace
        # The kernel forgets them after two minutes; a busy machine may take longer to make them.
        inside(nat_host, "sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_timeout_time_wait=3600")
        ports = talk(hub, found.address(family, inside=False), ends, share)
        tracked = verify.tracked(nat_host)
        assert tracked >= len(ports), "connections did not pass the NAT host"
        talk(pod, hub.address, [hub], share)
        talk(hub, pod.address, [pod], share // 10)
    assert set(verify.half_open(world)) <= before


@contextmanager
def opened(
    world: World, spoke: Spoke, family: Family
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from the researcher to a spoke's Service: both ends."""
    researcher = next(matrix.origins(world)).end(family)
    found = services.service(spoke, world.nodes)
    with open_socket(researcher.namespace, family, socket.SOCK_STREAM) as near:
        with ExitStack() as closing:
            listeners = [listening(closing, one.end(family)) for one in found.backends]
            near.connect((str(found.address(family, inside=False)), services.PORT))
            far = accept(listeners)
        with far:
            yield near, far


def ping(near: socket.socket, far: socket.socket) -> None:
    near.send(b"?")
    assert far.recv(1) == b"?"
    far.send(b"!")
    assert near.recv(1) == b"!"


@FAMILIES
def test_connections_survive_the_nat_hosts_agents_and_new_ones_need_none(
    world: World, family: Family
) -> None:
    hosts = [world.node(spoke.nat_host) for spoke in world.topology.spokes]
    with ExitStack() as closing:
        ends = [
            closing.enter_context(opened(world, spoke, family)) for spoke in world.topology.spokes
        ]
        for host in hosts:
            host.kill_agent()
        for spoke, pair in zip(world.topology.spokes, ends, strict=True):
            ping(*pair)
            ping(*closing.enter_context(opened(world, spoke, family)))
        for host in hosts:
            host.start_agent()
        starting = set(range(len(hosts)))
        while starting:
            for pair in ends:
                ping(*pair)
            starting = {place for place in starting if hosts[place].status()}
        for pair in ends:
            ping(*pair)


def lawless(world: World, name: str) -> None:
    """End a machine's agent and take its rules away."""
    node = world.node(name)
    node.kill_agent()
    inside(node.namespace, "nft", "flush", "ruleset")
    for tool in ("iptables", "ip6tables"):
        inside(node.namespace, f"{tool}-legacy", "-t", "mangle", "-F")


def sent(world: World, origin: str, target: str, family: Family) -> bool:
    """Send a datagram between two hosts; whether it arrived."""
    near, far = (
        End(world.namespace(host), world.topology.address(host, family))
        for host in (origin, target)
    )
    return seen_from(near, far, services.TARGET_PORT, seconds=0.3) is not None


def risen(world: World, before: verify.Counter[verify.Pair]) -> dict[verify.Pair, int]:
    return dict(verify.dropped(world) - before)


@FAMILIES
def test_the_router_s_rules_alone_keep_spokes_apart(world: World, family: Family) -> None:
    before = verify.dropped(world)
    assert not sent(world, "rogue.spoke-1", "rogue.spoke-2", family)
    dropped = {verify.Pair("router-0.hub", "spoke-1", "spoke-2"): 1}
    eventually(lambda: risen(world, before) == dropped)


def test_the_nodes_rules_alone_keep_spokes_apart_and_without_any_they_would_be_joined(
    world: World,
) -> None:
    router = next(node for node in world.nodes if node.node.role is Role.HUB_ROUTER)
    lawless(world, router.name)
    try:
        for family in Family:
            eventually(
                partial(sent, world, "rogue.spoke-1", "rogue.spoke-2", family),
                "the fabric does not join what no rule parts",
            )
            for machine in ("spoke-2-cpu-0", "nat-0.spoke-2"):
                pair = verify.Pair(machine, "spoke-1", "spoke-2")
                after = dropped_by(world, machine) + verify.Counter({pair: 1})
                assert not sent(world, "rogue.spoke-1", machine, family)
                eventually(lambda: dropped_by(world, machine) == after)  # noqa: B023  called in this round
    finally:
        router.start_agent()
        router.wait_until_ready()


def dropped_by(world: World, machine: str) -> verify.Counter[verify.Pair]:
    node = world.node(machine)
    return verify.Counter(
        {
            verify.Pair(machine, each["origin"], each["destination"]): each["packets"]
            for each in node.snapshot()["isolation"]
        }
    )
