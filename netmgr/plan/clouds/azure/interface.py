"""One node's network interface with its blocks, as an Azure Resource Manager template.

A scale set's model has no block lengths: each of its IP configurations is one address. Only a
network interface of its own can carry blocks (`privateIPAddressPrefixLength`), and exactly those
that the plan gave the node.
"""

from __future__ import annotations

import json

from netmgr.plan.derive import location_of
from netmgr.plan.document import PlanDocument
from netmgr.plan.machines import PlannedNode

_SCHEMA = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
_SUBNETS = "Microsoft.Network/virtualNetworks/subnets"


def interface(plan: PlanDocument, node: PlannedNode, subnet: str) -> str:
    """The template of a node's network interface; the `subnet` of that name must exist already."""
    subnet_id = f"[resourceId('{_SUBNETS}', '{node.segment.network}', '{subnet}')]"
    own = [(f"node-v{address.family}", address.prefix) for address in node.hosts]
    pods = [(f"pods-{number}", block) for number, block in enumerate(node.blocks)]
    configurations = []
    for number, (name, block) in enumerate([*own, *pods]):
        properties: dict[str, object] = {
            "primary": number == 0,
            "subnet": {"id": subnet_id},
            "privateIPAddressVersion": f"IPv{block.family}",
            "privateIPAllocationMethod": "Static",
            "privateIPAddress": str(block.network),
        }
        # A block counts as one of the interface's private addresses, whatever its length.
        if not block.is_address:
            properties["privateIPAddressPrefixLength"] = block.length
        configurations.append({"name": name, "properties": properties})
    resource = {
        "type": "Microsoft.Network/networkInterfaces",
        "apiVersion": "2024-05-01",
        "name": node.name,
        "location": location_of(plan, node.cluster),
        "properties": {
            "enableIPForwarding": True,
            "enableAcceleratedNetworking": True,
            "ipConfigurations": configurations,
        },
    }
    template = {"$schema": _SCHEMA, "contentVersion": "1.0.0.0", "resources": [resource]}
    return json.dumps(template, indent=2) + "\n"
