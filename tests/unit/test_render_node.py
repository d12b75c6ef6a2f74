"""Rendered node documents: valid, each node's own, and telling the internet from what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import Role
from netmgr.plan import files, machines
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.locking import make_lock
from netmgr.plan.render.node import Documents, internal
from netmgr.prefixes import Address, Prefix, PrefixTable

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
    "name", ["training-gpu-6999", "evals-cpu-0", "router-0.hub", "nat-0.evals"]
)
def test_it_is_the_golden_file(rendered_plan, rendered_lock, golden, name):
    golden(f"render/{name}.yaml", render(rendered_plan, rendered_lock, name))


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
    lock = make_lock(plan, rendered_lock, files.load_limits(plan.cloud))
    assert lock.clusters["evals"] != rendered_lock.clusters["evals"]
    for name in ("training-gpu-0", "router-1.hub", "nat-0.training"):
        assert render(plan, lock, name) == render(rendered_plan, rendered_lock, name)


def test_the_document_of_a_node_among_twenty_clusters_stays_small():
    plan = files.load_plan(CONFIGS / "plan" / "twenty-clusters.yaml")
    lock = make_lock(plan, None, files.load_limits(plan.cloud))
    documents = Documents(plan, lock)
    document = documents.of(next(documents.machines()))
    assert len(document["sites"]) == 21
    assert len(files.to_yaml(document)) < 4096
