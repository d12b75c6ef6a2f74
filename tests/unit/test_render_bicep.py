"""Rendered Bicep and ARM: one read by Bicep's own grammar, the other held to the cloud's own
models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tree_sitter
import tree_sitter_bicep

from netmgr.errors import ConfigError
from netmgr.plan import files, machines
from netmgr.plan.clouds.azure.resources import (
    PARAMETERS,
    arm,
    bicep,
    network_interface,
    resources,
)
from netmgr.plan.clouds.azure.templates import (
    GATEWAY,
    GROUP,
    INTERFACE,
    PEERING,
    PUBLIC_IP,
    SCALE_SET,
    TABLE,
    VNET,
    quote,
    symbol,
)
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.clouds.registry import rendered
from netmgr.plan.derive import segment_subnet
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.network import Network

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas" / "azure.json").read_text("utf-8"))
ENVELOPE = {"type", "apiVersion", "name", "dependsOn"}
"""What a template says of a resource beside the resource's own model."""
MODELS = {
    VNET: "VirtualNetwork",
    PEERING: "VirtualNetworkPeering",
    TABLE: "RouteTable",
    GROUP: "NetworkSecurityGroup",
    PUBLIC_IP: "PublicIPAddress",
    GATEWAY: "NatGateway",
    SCALE_SET: "VirtualMachineScaleSet",
    INTERFACE: "NetworkInterface",
}
PLAIN = {"String": str, "Enum": str, "Number": int, "Boolean": bool, "Dictionary": dict}


def faults(resource: dict[str, Any]) -> Iterator[str]:
    """How a resource of a template departs from the cloud's own model of it."""
    provider = resource["type"].partition("/")[0]
    if resource["apiVersion"] != SCHEMA[provider]["api"]:
        yield (
            f"{resource['name']}: the schema file is of {SCHEMA[provider]['api']}; see "
            "tests/schemas/extract.py"
        )
    body = {key: value for key, value in resource.items() if key not in ENVELOPE}
    yield from _departures(
        body, MODELS[resource["type"]], SCHEMA[provider]["models"], resource["name"]
    )


def _departures(
    value: Any, kind: str, models: dict[str, dict[str, str]], where: str
) -> Iterator[str]:
    if kind.startswith("["):
        if not isinstance(value, list) or not value:
            yield f"{where}: is no list of something"
            return
        for number, item in enumerate(value):
            yield from _departures(item, kind[1:-1], models, f"{where}[{number}]")
    elif kind in PLAIN:
        if type(value) is not PLAIN[kind]:
            yield f"{where}: {value!r} is no {kind}"
    elif kind not in models:
        yield f"{where}: is a {kind}, which the schema file lacks; see tests/schemas/extract.py"
    else:
        yield from _members(
            value, {key.rstrip("*"): each for key, each in models[kind].items()}, models, where
        )
        required = [key.rstrip("*") for key in models[kind] if key.endswith("*")]
        yield from (f"{where}: lacks {key}" for key in required if not _has(value, key))


def _members(
    value: Any, model: dict[str, str], models: dict[str, dict[str, str]], where: str
) -> Iterator[str]:
    """Keys of a model have dots where a request has mappings inside each other."""
    if not isinstance(value, dict):
        yield f"{where}: is no mapping"
        return
    for key, item in value.items():
        inner = {
            name.removeprefix(f"{key}."): kind
            for name, kind in model.items()
            if name.startswith(f"{key}.")
        }
        if key in model:
            yield from _departures(item, model[key], models, f"{where}.{key}")
        elif inner:
            yield from _members(item, inner, models, f"{where}.{key}")
        else:
            yield f"{where}: has {key}, which is no property of it"


def _has(value: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


@pytest.fixture(scope="module")
def text(rendered_plan: PlanDocument, rendered_network: Network) -> str:
    return bicep(rendered_plan, rendered_network)


@pytest.fixture(scope="module")
def deployment(rendered_plan: PlanDocument, rendered_network: Network) -> dict[str, Any]:
    return json.loads(arm(rendered_plan, rendered_network))


def _parse(text: str) -> tree_sitter.Node:
    return (
        tree_sitter.Parser(tree_sitter.Language(tree_sitter_bicep.language()))
        .parse(text.encode())
        .root_node
    )


def test_they_are_the_golden_files(
    rendered_plan: PlanDocument,
    rendered_network: Network,
    text: str,
    golden: Callable[[str, str], None],
) -> None:
    golden("render/main.bicep", text)
    golden("render/azuredeploy.json", arm(rendered_plan, rendered_network))


def test_bicep_reads_without_an_error(text: str) -> None:
    tree = _parse(text)
    assert not tree.has_error
    kinds = [child.type for child in tree.children]
    assert kinds.count("resource_declaration") == text.count("\nresource ")
    assert kinds.count("parameter_declaration") == len(PARAMETERS)
    assert _parse(text.replace("properties: {", "properties: {{", 1)).has_error


def test_bicep_says_what_the_template_says(text: str, deployment: dict[str, Any]) -> None:
    """One is held to the cloud's models, so the other is."""

    def keys(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from value
        for item in (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        ):
            yield from keys(item)

    def properties(node: tree_sitter.Node) -> Iterator[str]:
        if node.type == "object_property" and node.children:
            yield (node.children[0].text or b"").decode()
        for child in node.children:
            yield from properties(child)

    said = list(keys([resource["properties"] for resource in deployment["resources"]]))
    found = list(properties(_parse(text)))
    # What a resource has beside its properties.
    above = {"name", "properties", "location", "sku", "parent", "dependsOn", "capacity"}
    assert {name: found.count(name) for name in set(said) - above} == {
        name: said.count(name) for name in set(said) - above
    }
    assert set(found) - set(said) <= above


def test_every_symbol_that_bicep_uses_is_declared_once(text: str) -> None:
    declared = re.findall(r"^resource (\w+) ", text, re.MULTILINE)
    used = set(re.findall(r"\b(\w+)\.id\b", text)) | set(re.findall(r"parent: (\w+)", text))
    assert len(declared) == len(set(declared))
    assert used
    assert used <= set(declared)


def test_every_resource_of_a_template_is_as_the_cloud_s_model_has_it(
    deployment: dict[str, Any],
) -> None:
    assert deployment["$schema"].endswith("/deploymentTemplate.json#")
    assert set(deployment["parameters"]) == set(PARAMETERS)
    assert [fault for resource in deployment["resources"] for fault in faults(resource)] == []
    assert {resource["type"] for resource in deployment["resources"]} == MODELS.keys() - {INTERFACE}


@pytest.mark.parametrize(
    "damage",
    [
        {"properties": {"addressSpaces": {}}},
        {"properties": {"addressSpace": {"addressPrefixes": "10.0.0.0/8"}}},
        {"properties": {"subnets": [{"name": "a", "addressPrefixes": ["10.0.0.0/8"]}]}},
        {"addressSpace": {"addressPrefixes": ["10.0.0.0/8"]}},
        {"apiVersion": "2015-05-01"},
    ],
)
def test_the_model_is_not_satisfied_by_anything(
    deployment: dict[str, Any], damage: dict[str, Any]
) -> None:
    vnet = next(r for r in deployment["resources"] if r["type"].endswith("virtualNetworks"))
    assert list(faults(vnet | damage))


def test_what_a_resource_refers_to_is_deployed_before_it(deployment: dict[str, Any]) -> None:
    seen: set[str] = set()
    for resource in deployment["resources"]:
        references = set(re.findall(r"resourceId\('[^]]+'\)", json.dumps(resource["properties"])))
        whole = {
            re.sub(r"/subnets'(, '[^']+'), '[^']+'\)", r"'\1)", reference)
            for reference in references
        }
        awaited = {name.strip("[]") for name in resource.get("dependsOn", [])}
        assert whole <= awaited, resource["name"]
        assert awaited <= seen, resource["name"]
        names = ", ".join(f"'{part}'" for part in resource["name"].split("/"))
        seen.add(f"resourceId('{resource['type']}', {names})")


def test_peerings_come_one_after_the_other(deployment: dict[str, Any]) -> None:
    peerings = [r for r in deployment["resources"] if r["type"].endswith("virtualNetworkPeerings")]
    assert len(peerings) > 2
    for before, after in pairwise(peerings):
        assert any(f"'{before['name'].split('/')[1]}'" in name for name in after["dependsOn"])


@pytest.mark.parametrize(
    ("name", "lengths"), [("training-gpu-3", [28, 28, 112]), ("training-system-3", [112])]
)
def test_an_interface_carries_the_blocks_of_its_node(
    rendered_plan: PlanDocument,
    rendered_lock: LockDocument,
    deployment: dict[str, Any],
    name: str,
    lengths: list[int],
) -> None:
    node = machines.node_named(rendered_lock, name)
    assert node is not None
    document = json.loads(
        network_interface(rendered_plan, node, segment_subnet(rendered_lock, node))
    )
    (resource,) = document["resources"]
    assert list(faults(resource)) == []
    each = [
        configuration["properties"] for configuration in resource["properties"]["ipConfigurations"]
    ]
    assert [item["primary"] for item in each].count(True) == 1
    assert {item["subnet"]["id"] for item in each} <= set(
        re.findall(r"\[resourceId[^]]+subnets[^]]+\]", json.dumps(deployment))
    )
    found = [(item["privateIPAddress"], item.get("privateIPAddressPrefixLength")) for item in each]
    assert [length for _, length in found if length] == lengths
    assert {f"{address}/{length}" for address, length in found if length} <= set(
        map(str, node.blocks)
    )
    assert {address for address, _ in found[: len(node.hosts)]} == set(map(str, node.hosts))


def test_two_names_never_give_one_symbol(rendered_network: Network) -> None:
    every = [resource.id for resource in resources(rendered_network)]
    assert len({symbol(identity) for identity in every}) == len(every)


def test_text_cannot_become_an_interpolation_or_end_its_string() -> None:
    nasty = "it's\n${secret} \\"
    assert quote(nasty) == r"'it\'s\n\${secret} \\'"
    assert not _parse(f"var x = {quote(nasty)}\n").has_error


@pytest.mark.parametrize("form", ["terraform", "bicep", "arm"])
def test_a_plan_without_a_cloud_has_nothing_to_render(
    rendered_plan: PlanDocument, rendered_lock: LockDocument, form: str
) -> None:
    plan = rendered_plan.model_copy(update={"cloud": Cloud.NONE})
    with pytest.raises(ConfigError, match="cloud: none has no cloud resources; set cloud: azure"):
        rendered(plan, rendered_lock, files.load_limits(plan.cloud), form)
