"""A real agent whose ranges change under its pods, by the cloud's metadata or by its document."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from netmgr.documents.node import Backend
from netmgr.prefixes import Family, Prefix
from netmgr.ranges.assigned import AssignedRanges
from netmgr.ranges.gcp import LEAST_WATCH
from netmgr.rules.choose import ONE_TABLE
from tests import waiting
from tests.fakes.metadata import (
    AWS_SECOND,
    AwsServer,
    GoogleServer,
    MetadataServer,
    aws_interface,
    http,
)
from tests.kernel.common import ONLY_NFTABLES, netmgr
from tests.kernel.conftest import LEGACY
from tests.kernel.namespaces import inside
from tests.lab.errors import LabError
from tests.lab.exchange import datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.world import World
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

SETTINGS = {
    "reconcile_seconds": 0.5,
    "pool": {"cooldown_seconds": 0, "conntrack_wait_seconds": 0},
    "accounting": {"reading_seconds": 0.5, "min_reading_seconds": 0.05},
}
PAYLOAD = 5
WORLD = {"nodes": 1, "settings": SETTINGS, "exporters": False}
NO_RANGE = "no range is known to give addresses of"
DATAGRAM = 20 + 8 + PAYLOAD


@pytest.fixture
def node(world: World) -> Iterator[LabNode]:
    """The world's node, its agent stopped and its document to be written by the test."""
    made = world.nodes[0]
    made.stop_agent()
    yield made
    made.stop_agent()
    made.write_document()
    (made.directory / "state" / "ranges.json").unlink(missing_ok=True)
    made.start_agent()
    for sandbox in made.runtime.sandboxes():
        made.runtime.delete(sandbox)


@pytest.fixture
def cloud(node: LabNode, request: pytest.FixtureRequest) -> Iterator[MetadataServer]:
    """Azure's service, where the test asks for no other."""
    with getattr(request, "param", MetadataServer)(node.namespace) as server:
        yield server


SOURCES = {MetadataServer: "azure", AwsServer: "aws", GoogleServer: "gcp"}


def on_clouds(*servers: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cloud", servers, indirect=True, ids=lambda one: SOURCES[one])


SLOWLY = [pytest.param(server, marks=pytest.mark.slow) for server in (AwsServer, GoogleServer)]
ON_EVERY_CLOUD = on_clouds(MetadataServer, *SLOWLY)
ON_AWS, ON_GOOGLE = on_clouds(AwsServer), on_clouds(GoogleServer)
AT_LINKS = pytest.param(Backend.LINKS, marks=pytest.mark.slow)


def write(node: LabNode, **keys: Any) -> None:
    text = yaml.safe_load(node.document.read_text()) | keys
    given = {key: value for key, value in text.items() if value is not None}
    node.document.write_text(yaml.safe_dump(given))


def follow_cloud(node: LabNode, cloud: MetadataServer, seconds: int = 1) -> None:
    write(node, range_source=SOURCES[type(cloud)], range_refresh_seconds=seconds, ranges=None)
    node.start_agent()


def own_addresses(node: LabNode) -> list[str]:
    return [*map(str, node.node.addresses)]


def offer(cloud: MetadataServer, node: LabNode, *octets: int) -> None:
    cloud.offer(own_addresses(node), *(f"10.128.0.{octet}" for octet in octets))


def free(node: LabNode) -> int:
    return sum(pool["free"] for pool in node.snapshot()["pool"])


def address(sandbox: Sandbox) -> str:
    return ", ".join(map(str, sandbox.addresses))


def seen_by_the_internet(world: World, sandbox: Sandbox) -> str:
    """Whose address a datagram of the pod's has when it arrives there, and that its answer comes
    back.
    """
    ends = sandbox.end(Family.V4), world.outside(Family.V4)
    return str(datagrams(*ends, [PAYLOAD], [PAYLOAD]).peer)


def sent(node: LabNode, pod: str) -> int:
    wanted = (pod, "internet-out")
    rows = node.snapshot()["pods"]
    return sum(row["bytes"] for row in rows if (row["pod"], row["traffic"]) == wanted)


def has_rule_for(node: LabNode, text: str) -> bool:
    nft = node.snapshot()["backend"] in ONE_TABLE
    command = ["nft", "list", "table", "inet", "netmgr"] if nft else ["ipset", "list"]
    return text in inside(node.namespace, *command).replace(",", " ").split()


def log(node: LabNode) -> str:
    return (node.directory / "agent.log").read_text()


def ranges(node: LabNode) -> Any:
    return node.snapshot()["ranges"]


def eventually(node: LabNode, holds: Callable[[], object]) -> None:
    waiting.eventually(holds, lambda: log(node))


def refuses_for_want_of_ranges(node: LabNode) -> bool:
    return NO_RANGE in node.runtime.status()


@pytest.mark.parametrize("backend", [Backend.NFTABLES, AT_LINKS, LEGACY], indirect=True, ids=str)
@ON_EVERY_CLOUD
def test_the_pool_grows_and_shrinks_while_pods_live(
    world: World, node: LabNode, cloud: MetadataServer
):
    offer(cloud, node, 11, 12)  # which no other test has used
    follow_cloud(node, cloud)
    node.wait_until_ready()
    first, second = node.add("first"), node.add("second")
    assert [address(first), address(second)] == ["10.128.0.11", "10.128.0.12"]
    with pytest.raises(LabError, match="no IPv4 address is free"):
        node.add("third")
    before = sent(node, "first")  # by pods of this name in other tests
    seen_by_the_internet(world, first)
    eventually(node, lambda: sent(node, "first") == before + DATAGRAM)

    offer(cloud, node, 12, 13)
    eventually(node, lambda: ranges(node)["withdrawn"] != [])
    assert ranges(node)["withdrawn"] == [
        {"address": "10.128.0.11", "namespace": "research", "pod": "first"}
    ]
    (pool,) = node.snapshot()["pool"]
    assert [pool[state] for state in ("allocated", "free", "withdrawn")] == [1, 1, 1]
    assert address(node.add("third")) == "10.128.0.13"
    assert (
        node.ask("explain", address="10.128.0.13")["because"]
        == f"the machine's metadata (range_source: {SOURCES[type(cloud)]})"
    )
    assert seen_by_the_internet(world, first) == str(node.node.addresses[0])
    eventually(node, lambda: sent(node, "first") == before + 2 * DATAGRAM)
    assert "withdrawn-address-held address=10.128.0.11 pod=research/first" in log(node)

    node.stop_agent()
    node.start_until_ready()
    assert "no IPv4 address is free" in node.snapshot()["reason"]
    assert has_rule_for(node, "10.128.0.11")
    assert seen_by_the_internet(world, first) == str(node.node.addresses[0])
    node.runtime.delete(first)
    eventually(node, lambda: not has_rule_for(node, "10.128.0.11"))
    eventually(node, lambda: ranges(node)["withdrawn"] == [])
    with pytest.raises(LabError, match="no IPv4 address is free"):
        node.add("fourth")
    assert sum(item["count"] for item in node.snapshot()["drift_repaired"]) == 0


@pytest.mark.slow
@ONLY_NFTABLES
@ON_EVERY_CLOUD
def test_a_source_that_fails_costs_nobody_anything_and_is_asked_with_back_off(
    node: LabNode, cloud: MetadataServer
):
    offer(cloud, node, 21, 22)
    follow_cloud(node, cloud)
    node.wait_until_ready()
    node.add("first")
    cloud.answer = http(b"{}", "429 Too Many Requests")
    eventually(node, lambda: "asks to be asked less often (429" in ranges(node)["failing"])
    began = time.monotonic()
    # 1, 2 and 4 seconds apart, and more: who sees the first failure late waits long for the next.
    eventually(node, lambda: len(asked_since(cloud, began)) >= 2)
    many = len(asked_since(cloud, began))
    assert 2 ** (many - 1) - 1 <= time.monotonic() - began
    assert address(node.add("second")) == "10.128.0.22"
    node.stop_agent()
    node.start_agent()
    node.runtime.delete(node.runtime.sandboxes()[0])
    node.wait_until_ready()
    assert free(node) == 1, "the last good answer outlived the agent"
    offer(cloud, node, 21, 22, 23)
    eventually(node, lambda: free(node) == 2)
    eventually(node, lambda: ranges(node)["failing"] == "")


def asked_since(cloud: MetadataServer, began: float) -> list[float]:
    return [at for at, _ in list(cloud.requests) if at > began]


@pytest.mark.slow
@ONLY_NFTABLES
def test_what_contradicts_the_plan_or_the_node_is_not_used_and_told(
    node: LabNode, cloud: MetadataServer
):
    sites = [
        {"name": "hub", "prefixes": ["10.200.0.0/16"]},
        {"name": "a", "prefixes": ["10.64.0.0/16", "10.128.0.0/30"]},
    ]
    write(node, sites=sites, site="a")
    offer(cloud, node, 1, 2, 200)
    link = ("10.128.0.2/32", "dev", "lo")
    inside(node.namespace, "ip", "address", "add", *link)
    try:
        follow_cloud(node, cloud)
        node.wait_until_ready()
        eventually(node, lambda: bool(ranges(node)["failing"]))
        failing = ranges(node)["failing"]
        assert "10.128.0.200/32 is not used: it lies outside the prefixes of site a" in failing
        assert "10.128.0.2/32 is not used: 10.128.0.2 is set on lo" in failing
        assert free(node) == 1
    finally:
        inside(node.namespace, "ip", "address", "del", *link)


@pytest.mark.slow
@ONLY_NFTABLES
def test_an_answer_of_which_nothing_can_be_used_is_not_remembered(
    node: LabNode, cloud: MetadataServer
):
    offer(cloud, node, 1, 2)
    follow_cloud(node, cloud)
    node.wait_until_ready()
    cloud.offer(own_addresses(node), "127.0.0.5")
    eventually(node, lambda: "127.0.0.5/32 is not used" in ranges(node)["failing"])
    node.stop_agent()
    node.start_agent()  # is told the same
    eventually(node, lambda: refuses_for_want_of_ranges(node))
    node.stop_agent()
    cloud.answer = None
    node.start_until_ready()
    assert free(node) == 2, "the last good answer"


@ONLY_NFTABLES
@ON_GOOGLE
def test_google_says_at_once_that_something_has_changed_and_nobody_waits_to_stop(
    node: LabNode, cloud: GoogleServer
):
    offer(cloud, node, 41)
    follow_cloud(node, cloud, seconds=3600)
    node.wait_until_ready()

    def has_waited() -> bool:
        # A request that ends sooner is taken for a server's that does not wait.
        at, text = cloud.requests[-1]
        return "wait_for_change=true" in text and time.monotonic() - at > LEAST_WATCH

    eventually(node, has_waited)
    offer(cloud, node, 41, 42)
    eventually(node, lambda: free(node) == 2)
    began = time.monotonic()
    node.stop_agent()
    assert time.monotonic() - began < PATIENCE


@ONLY_NFTABLES
@ON_GOOGLE
def test_an_alias_range_that_google_s_guest_agent_routes_to_the_node_is_not_used_and_told(
    node: LabNode, cloud: GoogleServer
):
    cloud.offer(own_addresses(node), "10.128.0.48/29", "10.128.0.56/30")
    # As the guest agent's addLocalRoute does.
    route = ("to", "local", "10.128.0.48/29", "scope", "host", "dev", "lo", "proto", "66")
    inside(node.namespace, "ip", "route", "add", *route)
    try:
        follow_cloud(node, cloud)
        node.wait_until_ready()
        eventually(node, lambda: bool(ranges(node)["failing"]))
        failing = ranges(node)["failing"]
        assert "10.128.0.48/29 is not used" in failing
        assert "protocol 66 (66 is google-guest-agent's" in failing
        assert "ip_aliases = false in /etc/default/instance_configs.cfg" in failing
        assert free(node) == 4
    finally:
        inside(node.namespace, "ip", "route", "del", *route)
    eventually(node, lambda: free(node) == 12)


@ONLY_NFTABLES
@ON_AWS
def test_what_aws_gives_another_interface_is_not_used_and_told(node: LabNode, cloud: AwsServer):
    cloud.offer(own_addresses(node), "10.128.0.64/28")
    cloud.interfaces[AWS_SECOND] = aws_interface(["10.128.0.90"], "10.128.0.80/28")
    follow_cloud(node, cloud)
    node.wait_until_ready()
    eventually(node, lambda: bool(ranges(node)["failing"]))
    assert f"10.128.0.80/28 of interface {AWS_SECOND} is not used" in ranges(node)["failing"]
    assert free(node) == 16


@ONLY_NFTABLES
@ON_EVERY_CLOUD
def test_without_any_answer_yet_adds_are_refused_and_served_as_soon_as_there_is_one(
    node: LabNode, cloud: MetadataServer
):
    cloud.answer = http(b"<html>", "200 OK")
    follow_cloud(node, cloud)
    eventually(node, lambda: refuses_for_want_of_ranges(node))
    with pytest.raises(LabError, match=NO_RANGE):
        node.add("early")
    offer(cloud, node, 5)
    eventually(node, lambda: free(node) == 1)
    assert address(node.add("late")) == "10.128.0.5"


@pytest.mark.slow
@ONLY_NFTABLES
def test_a_document_that_is_edited_is_followed_and_a_broken_one_is_told(node: LabNode):
    write(node, ranges=["10.128.0.31/32"])
    node.start_until_ready()
    node.add("first")
    write(node, ranges=["10.128.0.31/32", "10.128.0.32/31"])
    eventually(node, lambda: free(node) == 2)
    whole = node.document.read_text()
    node.document.write_text(whole.replace("10.128.0.32/31", "10.128.0.33/31"))
    eventually(node, lambda: "10.128.0.33/31" in ranges(node)["failing"])
    assert "node.yaml:" in ranges(node)["failing"]
    assert address(node.add("second")) == "10.128.0.32"
    node.document.write_text(whole)
    eventually(node, lambda: ranges(node)["failing"] == "")


@pytest.mark.slow
@ONLY_NFTABLES
def test_a_node_that_is_registered_anew_gives_out_its_new_ranges_alone(world: World, node: LabNode):
    """The kubelet replaces the file by a rename, as here."""
    file = node.directory / "node-ranges"

    def assign(text: object) -> None:
        beside = file.with_suffix(".new")
        beside.write_text(str(text))
        beside.replace(file)

    assign("")
    write(node, ranges=["10.128.0.1/32"], ranges_file=str(file), ranges_version=100)
    node.start_until_ready()
    first = node.add("first")
    assert address(first) == "10.128.0.1"

    assign(AssignedRanges("", 0, (Prefix.parse("10.128.0.1/32"),)))
    eventually(node, lambda: ranges(node)["withdrawn"] != [])
    with pytest.raises(LabError, match=NO_RANGE):
        node.add("second")
    assert "the Node was deleted" in ranges(node)["changed"]
    assert seen_by_the_internet(world, first) == str(node.node.addresses[0]), "it keeps its address"
    node.stop_agent()
    write(node, reconcile_seconds=60)  # so that only the start itself reads the file
    node.start_agent()
    eventually(node, lambda: refuses_for_want_of_ranges(node))
    node.stop_agent()
    write(node, reconcile_seconds=0.5)
    assign(AssignedRanges("uid-b", 101, (Prefix.parse("10.128.0.2/32"),)))
    node.start_until_ready()
    second = node.add("second")
    assert address(second) == "10.128.0.2"
    with pytest.raises(LabError, match="no IPv4 address is free"):
        node.add("third")

    assign(AssignedRanges("uid-c", 102, (Prefix.parse("10.128.0.3/32"),)))
    eventually(node, lambda: free(node) == 1)
    assert address(node.add("third")) == "10.128.0.3"
    assert "10.128.0.3/32 instead of 10.128.0.1/32" in ranges(node)["changed"]
    assert len(ranges(node)["withdrawn"]) == 2
    for pod in (first, second):
        node.runtime.delete(pod)
    eventually(node, lambda: ranges(node)["withdrawn"] == [])
    assert ranges(node)["changed"] == "", "no pod has an address of former ranges any more"

    assign("half an annot")
    eventually(node, lambda: "node-ranges: " in ranges(node)["failing"])
    assert sum(pool["allocated"] for pool in node.snapshot()["pool"]) == 1, "as it was before"


@pytest.mark.slow
@ONLY_NFTABLES
def test_status_shows_withdrawn_addresses_and_a_failing_source(
    node: LabNode, cloud: MetadataServer
):
    offer(cloud, node, 1)
    follow_cloud(node, cloud)
    node.wait_until_ready()
    node.add("first")
    offer(cloud, node, 2)
    eventually(node, lambda: ranges(node)["withdrawn"] != [])
    cloud.answer = None
    eventually(node, lambda: ranges(node)["failing"] != "")
    shown = netmgr("node", "status", f"--socket={node.ledger_socket}").stdout
    words = " ".join(shown.split())
    assert "AddressesWithdrawn: pods hold addresses of no range" in words
    assert "10.128.0.1 of research/first; delete these pods" in words
    assert "ranges cannot be followed: http://169.254.169.254" in words
