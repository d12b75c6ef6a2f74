"""Rendered node documents: valid, each node's own, and telling the internet from what is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from netmgr.documents import loader
from netmgr.documents.classes import INTERNAL
from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import Role
from netmgr.plan import files, machines
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import Allocation, LockDocument
from netmgr.plan.render.node import Documents, internal
from netmgr.prefixes import Address, Prefix, PrefixTable
from netmgr.rules.policy import Policy
from tests.locks import lock_for

CONFIGS = Path(__file__).parents[2] / "configs"


def render(plan: PlanDocument, lock: LockDocument, name: str) -> str:
    documents = Documents(plan, lock)
    node = machines.node_named(lock, name)
    host = next((host for host in machines.hosts(lock) if host.name == name), None)
    assert node or host
    return files.to_yaml(documents.of(node) if node else documents.of(host))


def read(text: str) -> NodeDocument:
    return loader.parse(text, "node.yaml", NodeDocument)


@pytest.mark.parametrize(
    "name", ["training-gpu-0", "training-gpu-6999", "training-system-39", "evals-cpu-299"]
)
def test_an_agent_accepts_it_and_its_pods_fit(rendered_plan, rendered_lock, name):
    document = read(render(rendered_plan, rendered_lock, name))
    assert document.node.name == name
    assert document.accounting.rule_owner == "openai"
    cluster, pool, _ = name.split("-")
    pods = rendered_plan.clusters[cluster].node_pools[pool].pods_per_node
    assert sum(block.size for block in document.ranges if block.family == 4) >= pods
    assert len(document.node.addresses) == len(document.families) == 2


def test_what_the_plan_holds_is_not_internet(rendered_plan):
    own = Prefix.parse("198.51.100.0/24")
    plan = rendered_plan.model_copy(update={"pinned": {"partner": (own,)}})
    table = PrefixTable((prefix, "internal") for prefix in internal(plan))
    for address in ("10.1.2.3", "172.16.0.1", "100.64.0.1", "fd00:10::1", "198.51.100.7"):
        assert table.match(Address.parse(address)), address
    assert table.match(Address.parse("203.0.113.1")) is None


@pytest.mark.parametrize(("group", "value"), [("65534", 65534), ("netmgr", "netmgr")])
def test_a_reader_group_is_a_number_or_a_name(rendered_plan, rendered_lock, group, value):
    node = machines.node_named(rendered_lock, "evals-cpu-0")
    rendered = Documents(rendered_plan, rendered_lock, group).of(node)
    assert read(files.to_yaml(rendered)).reader_group == value


def test_every_machine_has_a_document_that_an_agent_accepts(rendered_plan, rendered_lock):
    written = rendered_plan.model_dump(by_alias=True)
    for cluster in written["clusters"].values():
        for pool in cluster["node_pools"].values():
            pool |= {"nodes": 3, "grow_to": None}
    plan = PlanDocument.model_validate(written)
    documents = Documents(plan, rendered_lock)
    every = {
        machine.name: read(files.to_yaml(documents.of(machine))) for machine in documents.machines()
    }
    roles = [(document.role, document.site) for document in every.values()]
    assert {place: roles.count(place) for place in roles} == {
        (Role.HUB_ROUTER, "hub"): 2,
        (Role.NAT_HOST, "evals"): 1,
        (Role.NAT_HOST, "training"): 2,
        (Role.NODE, "evals"): 3,
        (Role.NODE, "training"): 6,
    }
    assert all(document.node.name == name for name, document in every.items())
    assert len({document.sites for document in every.values()}) == 1


def test_a_dropped_cluster_is_kept_apart_until_it_is_released(rendered_plan, rendered_lock):
    gone = rendered_lock.clusters["evals"].model_copy(update={"tombstone": True})
    lock = rendered_lock.model_copy(update={"clusters": {**rendered_lock.clusters, "evals": gone}})
    left = {"training": rendered_plan.clusters["training"]}
    plan = rendered_plan.model_copy(update={"clusters": left})
    document = read(render(plan, lock, "router-0.hub"))
    assert [site.name for site in document.sites] == ["hub", "evals", "training"]
    assert not any("evals" in machine.name for machine in Documents(plan, lock).machines())


def test_growing_into_its_own_reserve_changes_no_other_clusters_documents(
    rendered_plan, rendered_lock
):
    evals = rendered_plan.clusters["evals"]
    pool = evals.node_pools["cpu"].model_copy(update={"nodes": 1500})
    grown = evals.model_copy(update={"node_pools": {"cpu": pool}})
    plan = rendered_plan.model_copy(update={"clusters": {**rendered_plan.clusters, "evals": grown}})
    lock = lock_for(plan, rendered_lock)
    assert lock.clusters["evals"] != rendered_lock.clusters["evals"]
    for name in ("training-gpu-0", "router-1.hub", "nat-0.training"):
        assert render(plan, lock, name) == render(rendered_plan, rendered_lock, name)


def test_the_document_of_a_node_among_twenty_clusters_stays_small():
    plan = files.load_plan(CONFIGS / "plan" / "twenty-clusters.yaml")
    lock = lock_for(plan)
    documents = Documents(plan, lock)
    document = documents.of(next(documents.machines()))
    assert len(document["sites"]) == 21
    assert len(files.to_yaml(document)) < 4096


ZONES = """\
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: zones
cloud: none
pools: {nodes: [10.0.0.0/8], services: [172.16.0.0/12]}
hub: {location: east}
clusters:
  a:
    location: east
    node_pools:
      one: {nodes: 20, zone: east-1}
      two: {nodes: 20, zone: east-2}
      wide: {nodes: 20}
  b: {location: east, node_pools: {one: {nodes: 20, zone: east-1}}}
  c: {location: west, node_pools: {one: {nodes: 20, zone: east-1}}}
"""


@pytest.fixture(scope="module")
def zoned() -> tuple[PlanDocument, LockDocument]:
    plan = loader.parse(ZONES, "plan.yaml", PlanDocument)
    return plan, lock_for(plan)


def class_of(document: NodeDocument, address: Address) -> str:
    """The class that the rules would count it in."""
    pieces = Policy.of(document).classifier.pieces
    entries = [(prefix, name) for name, prefixes in pieces for prefix in prefixes]
    match = PrefixTable(entries).match(address)
    return match[1] if match else "none"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-one-0", {"a-one-1": 0, "b-one-0": 0, "a-two-0": 1, "a-wide-0": 1, "c-one-0": 2}),
        ("a-two-3", {"a-one-1": 1, "a-two-0": 0, "b-one-0": 1, "c-one-0": 2}),
        ("a-wide-0", {"a-one-1": 1, "a-wide-1": 1, "b-one-0": 1, "c-one-0": 2}),
        ("c-one-0", {"c-one-1": 0, "a-one-0": 2, "b-one-0": 2}),
    ],
)
def test_a_pools_nodes_count_by_zone_and_region(zoned, name, expected):
    plan, lock = zoned
    kinds = ("same-zone", "same-region", "other-region")
    document = read(render(plan, lock, name))
    for other, distance in expected.items():
        node = machines.node_named(lock, other)
        for address in (*node.hosts, *(block.network for block in node.blocks)):
            assert class_of(document, address) == kinds[distance], (name, other)
    assert document.accounting.rule_owner == plan.rule_owner
    service = lock.clusters["c"].services.vip_ranges[0].network
    near = "same-region" if name.startswith("c") else "other-region"
    assert class_of(document, service) == near


def test_a_pools_template_has_its_zone_and_a_clusters_none(zoned):
    plan, lock = zoned
    documents = Documents(plan, lock)

    def names(document: dict[str, Any]) -> list[str]:
        return [each["name"] for each in document["accounting"].get("classes", ())]

    assert names(documents.template("a", pool="one")) == [
        "same-zone",
        "same-region",
        "other-region",
    ]
    assert names(documents.template("a")) == ["same-region", "other-region"]
    assert names(documents.template("a", Role.NAT_HOST)) == []


def test_a_prefix_that_is_all_one_zones_is_of_one_class(zoned):
    plan, lock = zoned
    held = lock.clusters["c"]
    (subnet,) = held.node_pools["one"].segments[0].prefixes
    grown = Allocation(prefix=subnet, reserve=subnet)
    clusters = {**lock.clusters, "c": held.model_copy(update={"prefixes": (grown,)})}
    full = lock.model_copy(update={"clusters": clusters})
    document = read(render(plan, full, "c-one-0"))
    assert document.traffic_classes["same-zone"] == (subnet,)
    assert subnet not in document.traffic_classes["same-region"]


def test_without_a_zone_no_class_is_rendered(rendered_plan, rendered_lock):
    assert "classes" not in render(rendered_plan, rendered_lock, "training-gpu-0")


def test_opencosts_rules_know_the_rendered_classes(zoned):
    rules = (CONFIGS / "billing" / "opencost-rules.yml").read_text()
    document = read(render(*zoned, "a-one-0"))
    inside = [set(names.split("|")) for names in re.findall(r'traffic=~"\(([^)]*)\)', rules)]
    assert set.union(*inside) == {*document.traffic_classes, INTERNAL}
