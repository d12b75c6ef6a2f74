"""A rendered network interface: held to the cloud's own model, with the blocks of its node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netmgr.errors import ConfigError
from netmgr.plan import files, machines
from netmgr.plan.clouds.azure.interface import interface
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.clouds.registry import rendered, rendered_interface
from netmgr.plan.derive import segment_subnet

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas" / "azure.json").read_text("utf-8"))[
    "Microsoft.Network"
]
PLAIN = {"String": str, "Number": int, "Boolean": bool}


def faults(value: dict[str, Any], model: dict[str, str], above: str = "") -> Iterator[str]:
    """How a mapping departs from a model, whose keys have dots for mappings inside each other."""
    for key, item in value.items():
        path = f"{above}{key}"
        match model.get(path):
            case None if isinstance(item, dict) and any(k.startswith(f"{path}.") for k in model):
                yield from faults(item, model, f"{path}.")
            case None:
                yield f"{path} is no property"
            case "[NetworkInterfaceIPConfiguration]":
                for each in item:
                    yield from faults(each, SCHEMA["models"]["NetworkInterfaceIPConfiguration"])
            case "Subnet":
                if item.keys() != {"id"}:
                    yield f"{path} is no reference"
            case kind if type(item) is not PLAIN[kind]:
                yield f"{path}: {item!r} is no {kind}"


def departures(resource: dict[str, Any]) -> list[str]:
    body = {key: resource[key] for key in resource.keys() - {"type", "apiVersion", "name"}}
    return list(faults(body, SCHEMA["models"]["NetworkInterface"]))


@pytest.mark.parametrize(
    ("name", "lengths"), [("training-gpu-3", [28, 28, 112]), ("training-system-3", [112])]
)
def test_an_interface_carries_the_blocks_of_its_node(rendered_plan, rendered_lock, name, lengths):
    node = machines.node_named(rendered_lock, name)
    assert node is not None
    subnet = segment_subnet(rendered_lock, node)
    (resource,) = json.loads(interface(rendered_plan, node, subnet))["resources"]
    assert departures(resource) == []
    assert resource["apiVersion"] == SCHEMA["api"]
    each = [item["properties"] for item in resource["properties"]["ipConfigurations"]]
    assert [item["primary"] for item in each].count(True) == 1
    kind, network = "Microsoft.Network/virtualNetworks/subnets", node.segment.network
    assert {item["subnet"]["id"] for item in each} == {
        f"[resourceId('{kind}', '{network}', '{subnet}')]"
    }
    found = [(item["privateIPAddress"], item.get("privateIPAddressPrefixLength")) for item in each]
    assert [length for _, length in found if length] == lengths
    assert {f"{address}/{length}" for address, length in found if length} <= set(
        map(str, node.blocks)
    )
    assert {address for address, _ in found[: len(node.hosts)]} == set(map(str, node.hosts))


def test_a_plan_without_a_cloud_has_nothing_to_render(rendered_plan, rendered_lock):
    plan = rendered_plan.model_copy(update={"cloud": Cloud.NONE})
    node = machines.node_named(rendered_lock, "training-gpu-3")
    assert node is not None
    refusal = "cloud: none has no cloud resources; set cloud: azure"
    with pytest.raises(ConfigError, match=refusal):
        rendered(plan, rendered_lock, files.load_limits(plan.cloud))
    with pytest.raises(ConfigError, match=refusal):
        rendered_interface(plan, rendered_lock, node)
