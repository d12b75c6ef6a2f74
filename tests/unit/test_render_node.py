"""Rendered node documents: valid, each node's own, and telling the internet from what is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netmgr import documents, plan_files
from netmgr.config import NodeDocument
from netmgr.plan import nodes
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.prefixes import Address, Prefix, PrefixTable, overlaps
from netmgr.render.node import internal, node_document


def render(plan: PlanDocument, lock: LockDocument, name: str) -> str:
    node = nodes.named(lock, name)
    assert node is not None
    return plan_files.to_yaml(node_document(plan, node))


def read(text: str) -> NodeDocument:
    return documents.parse(text, "node.yaml", NodeDocument)


@pytest.mark.parametrize("name", ["training-gpu-6999", "evals-cpu-0"])
def test_it_is_the_golden_file(
    rendered_plan: PlanDocument, rendered_lock: LockDocument, golden: Callable[[str, str], None], name: str
) -> None:
    golden(f"render/{name}.yaml", render(rendered_plan, rendered_lock, name))


@pytest.mark.parametrize("name", ["training-gpu-0", "training-gpu-6999", "training-system-39", "evals-cpu-299"])
def test_an_agent_accepts_it_and_its_pods_fit(
    rendered_plan: PlanDocument, rendered_lock: LockDocument, name: str
) -> None:
    document = read(render(rendered_plan, rendered_lock, name))
    assert document.node.name == name
    assert document.accounting.rule_owner == "openai"
    cluster, pool, _ = name.split("-")
    pods = rendered_plan.clusters[cluster].node_pools[pool].pods_per_node
    assert sum(block.size for block in document.ranges if block.family == 4) >= pods
    assert len(document.node.addresses) == len(document.families) == 2


def test_no_two_nodes_share_an_address(rendered_plan: PlanDocument, rendered_lock: LockDocument) -> None:
    held = []
    for name in [f"training-system-{n}" for n in range(40)] + [f"evals-cpu-{n}" for n in range(300)]:
        document = read(render(rendered_plan, rendered_lock, name))
        held += [*document.ranges, *(address.prefix for address in document.node.addresses)]
    assert len(held) > 1000
    assert list(overlaps(held)) == []


@pytest.mark.parametrize(
    ("address", "role"),
    [
        ("10.1.2.3", "internal"),
        ("172.16.0.1", "internal"),
        ("100.64.0.1", "internal"),
        ("fd00:10::1", "internal"),
        ("203.0.113.1", "internet"),
    ],
)
def test_what_the_plan_holds_is_not_internet(rendered_plan: PlanDocument, address: str, role: str) -> None:
    table = PrefixTable((prefix, "internal") for prefix in internal(rendered_plan))
    found = table.match(Address.parse(address))
    assert (found[1] if found else "internet") == role


def test_pinned_public_addresses_are_not_internet(rendered_plan: PlanDocument) -> None:
    own = Prefix.parse("198.51.100.0/24")
    assert own in internal(rendered_plan.model_copy(update={"pinned": {"partner": (own,)}}))


@pytest.mark.parametrize(("group", "value"), [("65534", 65534), ("netmgr", "netmgr")])
def test_a_reader_group_is_a_number_or_a_name(
    rendered_plan: PlanDocument, rendered_lock: LockDocument, group: str, value: object
) -> None:
    node = nodes.named(rendered_lock, "evals-cpu-0")
    assert node is not None
    assert read(plan_files.to_yaml(node_document(rendered_plan, node, group))).reader_group == value
