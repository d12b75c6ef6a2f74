"""Rendered Bicep and ARM: one read by Bicep's own grammar, the other held to the published shape."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import tree_sitter
import tree_sitter_bicep

from netmgr.errors import ConfigError
from netmgr.plan import nodes
from netmgr.plan.derive import segment_subnet
from netmgr.plan.document import Cloud, PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.network import Network
from netmgr.render.azure import PARAMETERS, resources, template
from netmgr.render.bicep import bicep, quote, symbol
from netmgr.render.nic import network_interface

ID = {"id": str}
SHAPES: dict[str, Any] = {
    "Microsoft.Network/virtualNetworks": {
        "addressSpace": {"addressPrefixes": [str]},
        "subnets": [
            {
                "name": str,
                "properties": {
                    "addressPrefixes": [str],
                    "defaultOutboundAccess": bool,
                    "routeTable?": ID,
                    "networkSecurityGroup?": ID,
                    "natGateway?": ID,
                },
            }
        ],
    },
    "Microsoft.Network/virtualNetworks/virtualNetworkPeerings": {
        "remoteVirtualNetwork": ID,
        "allowVirtualNetworkAccess": bool,
        "allowForwardedTraffic": bool,
        "allowGatewayTransit": bool,
        "useRemoteGateways": bool,
    },
    "Microsoft.Network/routeTables": {
        "disableBgpRoutePropagation": bool,
        "routes": [
            {"name": str, "properties": {"addressPrefix": str, "nextHopType": str, "nextHopIpAddress?": str}},
        ],
    },
    "Microsoft.Network/networkSecurityGroups": {
        "securityRules": [
            {
                "name": str,
                "properties": {
                    "priority": int,
                    "direction": str,
                    "access": str,
                    "protocol": str,
                    "sourcePortRange": str,
                    "destinationPortRange": str,
                    "sourceAddressPrefix?": str,
                    "sourceAddressPrefixes?": [str],
                    "destinationAddressPrefix?": str,
                    "destinationAddressPrefixes?": [str],
                },
            }
        ]
    },
    "Microsoft.Network/publicIPAddresses": {"publicIPAllocationMethod": str},
    "Microsoft.Network/natGateways": {"publicIpAddresses": [ID]},
    "Microsoft.Compute/virtualMachineScaleSets": {
        "overprovision": bool,
        "singlePlacementGroup": bool,
        "upgradePolicy": {"mode": str},
        "virtualMachineProfile": {
            "osProfile": {
                "computerNamePrefix": str,
                "adminUsername": str,
                "linuxConfiguration": {
                    "disablePasswordAuthentication": bool,
                    "ssh": {"publicKeys": [{"path": str, "keyData": str}]},
                },
            },
            "storageProfile": {"imageReference": ID, "osDisk": {"createOption": str, "caching": str}},
            "networkProfile": {
                "networkInterfaceConfigurations": [
                    {
                        "name": str,
                        "properties": {
                            "primary": bool,
                            "enableIPForwarding": bool,
                            "enableAcceleratedNetworking": bool,
                            "ipConfigurations": [
                                {
                                    "name": str,
                                    "properties": {"primary": bool, "subnet": ID, "privateIPAddressVersion": str},
                                }
                            ],
                        },
                    }
                ]
            },
        },
    },
}
"""Properties by resource type, as Azure's template reference names them; a question mark: may be missing."""


def faults(value: Any, shape: Any, where: str) -> Iterator[str]:
    """How a value departs from a shape."""
    if isinstance(shape, type):
        if type(value) is not shape:
            yield f"{where}: {value!r} is no {shape.__name__}"
    elif isinstance(shape, list):
        if not isinstance(value, list) or not value:
            yield f"{where}: is no list of something"
            return
        for number, item in enumerate(value):
            yield from faults(item, shape[0], f"{where}[{number}]")
    else:
        required = {name for name in shape if not name.endswith("?")}
        known = {name.rstrip("?"): inner for name, inner in shape.items()}
        yield from (f"{where}: lacks {name}" for name in required - value.keys())
        yield from (f"{where}: has {name}" for name in value.keys() - known.keys())
        for name in value.keys() & known.keys():
            yield from faults(value[name], known[name], f"{where}.{name}")


@pytest.fixture(scope="module")
def text(rendered_plan: PlanDocument, rendered_network: Network) -> str:
    return bicep(rendered_plan, rendered_network)


@pytest.fixture(scope="module")
def deployment(rendered_plan: PlanDocument, rendered_network: Network) -> dict[str, Any]:
    return json.loads(template(rendered_plan, rendered_network))


def _parse(text: str) -> tree_sitter.Node:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bicep.language())).parse(text.encode()).root_node


def test_they_are_the_golden_files(
    rendered_plan: PlanDocument, rendered_network: Network, text: str, golden: Callable[[str, str], None]
) -> None:
    golden("render/main.bicep", text)
    golden("render/azuredeploy.json", template(rendered_plan, rendered_network))


def test_bicep_reads_without_an_error(text: str) -> None:
    tree = _parse(text)
    assert not tree.has_error
    kinds = [child.type for child in tree.children]
    assert kinds.count("resource_declaration") == text.count("\nresource ")
    assert kinds.count("parameter_declaration") == len(PARAMETERS)
    assert _parse(text.replace("properties: {", "properties: {{", 1)).has_error


def test_every_symbol_that_bicep_uses_is_declared_once(text: str) -> None:
    declared = re.findall(r"^resource (\w+) ", text, re.MULTILINE)
    used = set(re.findall(r"\b(\w+)\.id\b", text)) | set(re.findall(r"parent: (\w+)", text))
    assert len(declared) == len(set(declared))
    assert used
    assert used <= set(declared)


def test_an_arm_template_has_the_published_shape(deployment: dict[str, Any]) -> None:
    assert deployment["$schema"].endswith("/deploymentTemplate.json#")
    assert set(deployment["parameters"]) == set(PARAMETERS)
    found = [
        fault
        for resource in deployment["resources"]
        for fault in faults(resource["properties"], SHAPES[resource["type"]], resource["name"])
    ]
    assert found == []
    assert {resource["type"] for resource in deployment["resources"]} == set(SHAPES)


@pytest.mark.parametrize("damage", [{"addressSpaces": {}}, {"addressSpace": {"addressPrefixes": "10.0.0.0/8"}}])
def test_the_shape_is_not_satisfied_by_anything(deployment: dict[str, Any], damage: dict[str, Any]) -> None:
    vnet = next(r for r in deployment["resources"] if r["type"].endswith("virtualNetworks"))
    assert list(faults(vnet["properties"] | damage, SHAPES[vnet["type"]], "vnet"))


def test_what_a_resource_refers_to_is_deployed_before_it(deployment: dict[str, Any]) -> None:
    seen: set[str] = set()
    for resource in deployment["resources"]:
        references = set(re.findall(r"resourceId\('[^]]+'\)", json.dumps(resource["properties"])))
        whole = {re.sub(r"/subnets'(, '[^']+'), '[^']+'\)", r"'\1)", reference) for reference in references}
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


NIC = {
    "enableIPForwarding": bool,
    "enableAcceleratedNetworking": bool,
    "ipConfigurations": [
        {
            "name": str,
            "properties": {
                "primary": bool,
                "subnet": ID,
                "privateIPAddressVersion": str,
                "privateIPAllocationMethod": str,
                "privateIPAddress": str,
                "privateIPAddressPrefixLength?": int,
            },
        }
    ],
}


@pytest.mark.parametrize(("name", "lengths"), [("training-gpu-3", [28, 28, 112]), ("training-system-3", [112])])
def test_an_interface_carries_the_blocks_of_its_node(
    rendered_plan: PlanDocument, rendered_lock: LockDocument, deployment: dict[str, Any], name: str, lengths: list[int]
) -> None:
    node = nodes.named(rendered_lock, name)
    assert node is not None
    document = json.loads(network_interface(rendered_plan, node, segment_subnet(rendered_lock, node)))
    (resource,) = document["resources"]
    assert list(faults(resource["properties"], NIC, name)) == []
    each = [configuration["properties"] for configuration in resource["properties"]["ipConfigurations"]]
    assert [item["primary"] for item in each].count(True) == 1
    assert {item["subnet"]["id"] for item in each} <= set(
        re.findall(r"\[resourceId[^]]+subnets[^]]+\]", json.dumps(deployment))
    )
    found = [(item["privateIPAddress"], item.get("privateIPAddressPrefixLength")) for item in each]
    assert [length for _, length in found if length] == lengths
    assert {f"{address}/{length}" for address, length in found if length} <= set(map(str, node.blocks))
    assert {address for address, _ in found[: len(node.hosts)]} == set(map(str, node.hosts))


def test_two_names_never_give_one_symbol(rendered_plan: PlanDocument, rendered_network: Network) -> None:
    every = [resource.id for resource in resources(rendered_plan, rendered_network)]
    assert len({symbol(identity) for identity in every}) == len(every)


def test_text_cannot_become_an_interpolation_or_end_its_string() -> None:
    nasty = "it's\n${secret} \\"
    assert quote(nasty) == r"'it\'s\n\${secret} \\'"
    assert not _parse(f"var x = {quote(nasty)}\n").has_error


def test_a_plan_without_a_cloud_has_nothing_to_render(rendered_plan: PlanDocument, rendered_network: Network) -> None:
    with pytest.raises(ConfigError, match="cloud: none"):
        bicep(rendered_plan.model_copy(update={"cloud": Cloud.NONE}), rendered_network)
