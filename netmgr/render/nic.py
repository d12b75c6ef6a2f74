"""One node's network interface with its blocks, as an ARM template.

A scale set's model has no block lengths: each of its IP configurations is one address. Only a
network interface of its own can carry blocks (`privateIPAddressPrefixLength`), and exactly
those that the plan gave the node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from netmgr.plan.document import PlanDocument
from netmgr.plan.nodes import PlannedNode
from netmgr.prefixes import Prefix
from netmgr.render.arm import SCHEMA, SubnetId, Value, as_json
from netmgr.render.azure import INTERFACE, NETWORK_VERSION
from netmgr.render.cloud import refuse_no_cloud


def network_interface(plan: PlanDocument, node: PlannedNode, subnet: str) -> str:
    """The template; `subnet` is the name of the node's subnet, which must be there already.

    Raises:
        ConfigError: the plan has no cloud.
    """
    refuse_no_cloud(plan)
    resource = {
        "type": INTERFACE,
        "apiVersion": NETWORK_VERSION,
        "name": node.name,
        "location": plan.clusters[node.cluster].location or plan.azure.location,
        "properties": {
            "enableIPForwarding": True,
            "enableAcceleratedNetworking": True,
            "ipConfigurations": list(_configurations(node, SubnetId(node.segment.vnet, subnet))),
        },
    }
    return json.dumps({"$schema": SCHEMA, "contentVersion": "1.0.0.0", "resources": [resource]}, indent=2) + "\n"


def _configurations(node: PlannedNode, subnet: SubnetId) -> Iterator[object]:
    for number, address in enumerate(node.hosts):
        yield _configuration(f"node-v{address.family}", address.prefix, subnet, primary=number == 0)
    for number, block in enumerate(node.blocks):
        yield _configuration(f"pods-{number}", block, subnet, primary=False)


def _configuration(name: str, block: Prefix, subnet: SubnetId, *, primary: bool) -> object:
    properties: dict[str, Value] = {
        "primary": primary,
        "subnet": {"id": subnet},
        "privateIPAddressVersion": f"IPv{block.family}",
        "privateIPAllocationMethod": "Static",
        "privateIPAddress": str(block.network),
    }
    if block.length < block.family.width:
        properties["privateIPAddressPrefixLength"] = block.length
    return {"name": name, "properties": as_json(properties)}
