"""What `netmgr plan render node` writes is what a real agent runs on, and what its pods live by."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import hcl2
import pytest
import yaml

from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.plan import files, machines
from netmgr.plan.lock import LockDocument, Segment
from netmgr.plan.machines import PlannedNode
from netmgr.prefixes import Address, Family, Prefix
from tests.fakes.metadata import MetadataServer, document, http
from tests.kernel.namespaces import inside
from tests.lab.errors import LabError
from tests.lab.exchange import datagrams, seen_from
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import (
    BESIDE_INTERNET,
    EVERYTHING,
    INTERNET,
    Host,
    Interface,
    InterfaceAddress,
    Link,
    Node,
    Route,
    Topology,
)
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root

PLAN = Path(__file__).parent.parent / "golden" / "render" / "plan.yaml"
NAMES = ("training-gpu-17", "training-system-3", "evals-cpu-17")
"""Two nodes of one cluster, and one of another, whose Services see clients' own addresses."""
ON_LINK = {Family.V4: 24, Family.V6: 64}
SCALE_SET, SUBNET = ('"azurerm_linux_virtual_machine_scale_set"', '"azurerm_subnet"')
SIZES = [0, 700, 1400]


@cache
def rendered(name: str) -> str:
    """node.yaml as the command prints it."""
    return printed("node", name)


def printed(*what: str) -> str:
    """What `netmgr plan render` prints."""
    command = [sys.executable, "-m", "netmgr", "plan", "render", *what, "--file", str(PLAN)]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=PATIENCE
    ).stdout


def lock() -> LockDocument:
    found = files.load_lock(files.lock_path(PLAN))
    assert found is not None
    return found


def planned(name: str) -> PlannedNode:
    node = machines.node_named(lock(), name)
    assert node is not None
    return node


def nat_hosts(node: PlannedNode) -> tuple[Prefix, ...]:
    return lock().clusters[node.cluster].nat.prefixes


def gateways(segment: Segment) -> list[Address]:
    """The first address of each subnet: the cloud keeps it for its router."""
    return [Address(layout.subnet.family, layout.subnet.value + 1) for layout in segment.layouts]


def interface(
    host: str,
    name: str,
    addresses: list[Address],
    lengths: list[int],
    on_link: tuple[Prefix, ...] = (),
) -> Interface:
    return Interface(host, name, tuple(map(InterfaceAddress, addresses, lengths)), on_link)


def topology() -> Topology:
    """Nodes on one fabric, each where its own document says it is; a link has the NAT hosts of its
    cluster.
    """
    places = [planned(name) for name in NAMES]
    texts = [loader.parse(rendered(name), name, NodeDocument) for name in NAMES]
    lengths = [[layout.subnet.length for layout in place.segment.layouts] for place in places]
    inward = [
        Route(layout.subnet, BESIDE_INTERNET[layout.subnet.family])
        for p in places
        for layout in p.segment.layouts
    ]
    to_pods = [
        Route(block, next(a for a in text.node.addresses if a.family is block.family))
        for text in texts
        for block in text.ranges
    ]
    hosts = [
        Host(name, tuple(map(Route, EVERYTHING, gateways(place.segment))))
        for name, place in zip(NAMES, places, strict=True)
    ]
    links = [
        Link(
            (
                interface("fabric", f"to-{number}", gateways(place.segment), length),
                interface(name, "eth0", list(text.node.addresses), length, nat_hosts(place)),
            )
        )
        for number, (name, place, text, length) in enumerate(
            zip(NAMES, places, texts, lengths, strict=True)
        )
    ]
    outside = [ON_LINK[family] for family in Family]
    beside = Link(
        (
            interface("internet", "eth0", list(INTERNET.values()), outside),
            interface("fabric", "internet", list(BESIDE_INTERNET.values()), outside),
        )
    )
    return Topology(
        internet="internet",
        hosts=(
            Host("internet", tuple(inward)),
            Host("fabric", tuple(to_pods), forwards=True),
            *hosts,
        ),
        links=(beside, *links),
        nodes=tuple(
            Node(name, "eth0", text.node.addresses, text.ranges)
            for name, text in zip(NAMES, texts, strict=True)
        ),
    )


def restart_on_the_rendered_document(node: LabNode) -> None:
    node.stop_agent()
    here = {"state_dir": str(node.directory / "state"), "run_dir": str(node.run_dir)}
    here["reader_group"] = "nogroup"
    node.document.write_text(rendered(node.name) + yaml.safe_dump(here))
    node.start_agent()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(topology(), name=f"test-{os.getpid()}-plan", exporters=False) as made:
        for node in made.nodes:
            restart_on_the_rendered_document(node)
        for node in made.nodes:
            node.wait_until_ready()
        yield made


@pytest.fixture
def pods(world: World) -> Iterator[list[Sandbox]]:
    made = [world.node(name).add(f"pod-on-{name}") for name in NAMES]
    yield made
    for sandbox in made:
        world.node(sandbox.pod.node).runtime.delete(sandbox)


def ledger_of(world: World, pod: Sandbox) -> dict[str, int]:
    snapshot = world.node(pod.pod.node).ask("snapshot")
    found = [item for item in snapshot["pods"] if item["pod"] == pod.pod.name]
    return {item["traffic"]: item["bytes"] for item in found}


def test_pods_get_addresses_of_the_blocks_that_the_plan_gave_their_node(
    world: World, pods: list[Sandbox]
) -> None:
    for pod in pods:
        blocks = planned(pod.pod.node).blocks
        for family in Family:
            assert any(block.holds(pod.address(family)) for block in blocks)
    assert world.node(NAMES[0]).ask("snapshot")["node"] == NAMES[0]


@pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
def test_the_internet_is_counted_and_the_plan_is_not(
    world: World, pods: list[Sandbox], family: Family
) -> None:
    one, other, _ = pods
    before = ledger_of(world, one)
    near, far = (pod.end(family) for pod in (one, other))
    assert datagrams(near, far, SIZES, SIZES).forth.packets == len(SIZES)
    heard = datagrams(near, world.outside(family), SIZES, SIZES[::-1])
    expected = {
        "internet-out": before.get("internet-out", 0) + heard.forth.bytes,
        "internet-in": before.get("internet-in", 0) + heard.back.bytes,
    }
    eventually(lambda: ledger_of(world, one) == expected)


@pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
def test_another_cluster_is_not_reached_and_what_it_sends_is_dropped(
    world: World, pods: list[Sandbox], family: Family
) -> None:
    one, _, other = pods
    for near, far in ((one, other), (other, one)):
        origin, destination = (pod.pod.node.partition("-")[0] for pod in (near, far))
        pair = {"origin": origin, "destination": destination}
        before = dropped(world, near.pod.node, pair)
        assert not arrives(near, far, family)
        eventually(lambda: dropped(world, near.pod.node, pair) == before + 1)  # noqa: B023  called in this round
    eventually(lambda: arrives(one, pods[1], family))


def arrives(near: Sandbox, far: Sandbox, family: Family) -> bool:
    return seen_from(near.end(family), far.end(family), seconds=0.4) == near.address(family)


def dropped(world: World, node: str, pair: dict[str, str]) -> int:
    found = world.node(node).ask("snapshot")["isolation"]
    return sum(item["packets"] for item in found if item.items() >= pair.items())


def test_the_way_back_to_researchers_is_the_nat_host(world: World) -> None:
    (researchers,), (host, *_) = lock().hub.researchers, lock().clusters["evals"].nat.addresses
    assert routes(world, NAMES[2]) == [f"{researchers.prefix} via {host} dev eth0"]
    assert routes(world, NAMES[0]) == []


def test_a_node_of_a_rendered_scale_set_attaches_as_many_pods_as_its_kubelet_takes(
    world: World,
) -> None:
    """From the rendering to a metadata server of the documented shape, and from there to pods."""
    node = world.node(NAMES[1])
    cluster, pool, _ = NAMES[1].split("-")
    most = yaml.safe_load(printed("kubelet", cluster, pool))["maxPods"]
    addresses = chosen_by_the_cloud(node)
    with asking_the_cloud(node, addresses), attached(node, most) as pods:
        held = {str(pod.address(family)) for pod in pods for family in Family}
        assert held == set(addresses)
        assert_reached(pods[0], pods[-1])
        with pytest.raises(LabError, match="no IPv4 address is free"):
            node.add("one-more")


def test_a_node_of_a_rendered_interface_gives_pods_the_addresses_of_its_blocks(
    world: World,
) -> None:
    """The same for blocks: the metadata has them as the interface's rendering does."""
    node, beside = world.node(NAMES[0]), world.node(NAMES[1])
    (rendering,) = json.loads(printed("nic", node.name))["resources"]
    configurations = [own["properties"] for own in rendering["properties"]["ipConfigurations"]]
    blocks = [
        f"{own['privateIPAddress']}/{own['privateIPAddressPrefixLength']}"
        for own in configurations
        if "privateIPAddressPrefixLength" in own
    ]
    assert set(map(Prefix.parse, blocks)) == set(planned(node.name).blocks)
    most = sum(block.size for block in map(Prefix.parse, blocks) if block.family is Family.V4)
    with (
        asking_the_cloud(node, blocks, range_source="azure"),
        attached(node, most) as pods,
        attached(beside, 1) as far,
    ):
        held = {pod.address(Family.V4) for pod in pods}
        assert len(held) == most
        assert all(
            any(block.holds(address) for block in map(Prefix.parse, blocks)) for address in held
        )
        assert_reached(pods[0], pods[-1])
        assert_reached(pods[-1], far[0])


@contextmanager
def asking_the_cloud(node: LabNode, configured: list[str], **keys: str) -> Iterator[None]:
    """The agent of a node without a document of its own, whose interface has these for its pods."""
    cluster, pool, _ = node.name.split("-")
    node.stop_agent()
    here = {"state_dir": str(node.directory / "cloud"), "run_dir": str(node.run_dir)}
    # What `netmgr kube node` adds of the Node object.
    own = {"name": node.name, "addresses": list(map(str, node.node.addresses))}
    template = yaml.safe_load(printed("template", cluster, "--pool", pool))
    node.document.write_text(yaml.safe_dump(template | here | {"node": own} | keys))
    with MetadataServer(node.namespace, http(document(own["addresses"] + configured))):
        node.start_until_ready()
        try:
            yield
        finally:
            restart_on_the_rendered_document(node)
            node.wait_until_ready()


@contextmanager
def attached(node: LabNode, count: int) -> Iterator[list[Sandbox]]:
    pods = [node.add(f"{node.name}-{number}") for number in range(count)]
    try:
        yield pods
    finally:
        for pod in pods:
            node.runtime.delete(pod)


def assert_reached(near: Sandbox, far: Sandbox) -> None:
    for family in Family:
        ends = (pod.end(family) for pod in (near, far))
        assert datagrams(*ends, SIZES, SIZES).forth.packets == len(SIZES)


def chosen_by_the_cloud(node: LabNode) -> list[str]:
    """Addresses for a machine of the rendered scale set, out of the rendered subnet."""
    read = hcl2.loads(printed("terraform"))["resource"]
    label = f'"{node.name.rpartition("-")[0]}"'
    (scale_set,) = (r[SCALE_SET][label] for r in read if label in r.get(SCALE_SET, {}))
    (subnet,) = (r[SUBNET][label] for r in read if label in r.get(SUBNET, {}))
    (interface,) = scale_set["network_interface"]
    chosen = []
    for prefix in (Prefix.parse(text.strip('"')) for text in subnet["address_prefixes"]):
        versions = [own["version"] for own in interface["ip_configuration"]]
        # The first of a family is the machine's own. No place of the lock has the last ones.
        pods = versions.count(f'"IPv{prefix.family}"') - 1
        last = prefix.value + min(prefix.size, 1 << 20) - 2
        chosen += [str(Address(prefix.family, last - number)) for number in range(pods)]
    return chosen


def routes(world: World, node: str) -> list[str]:
    """Those of ours by a gateway."""
    listed = inside(world.namespace(node), "ip", "-4", "route", "show", "proto", "110")
    return [line.strip() for line in listed.splitlines() if " via " in line]
