"""The planned network as Azure Resource Manager resources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from netmgr.plan.clouds.azure.naming import NEXT_HOPS, computer_prefix, configurations
from netmgr.plan.clouds.azure.templates import (
    COMPUTE_VERSION,
    GATEWAY,
    GROUP,
    INTERFACE,
    NETWORK_VERSION,
    PEERING,
    PUBLIC_IP,
    SCALE_SET,
    TABLE,
    VNET,
    Filled,
    Id,
    Parameter,
    Resource,
    SubnetId,
    Value,
    as_json,
    template,
    template_text,
)
from netmgr.plan.clouds.azure.templates import bicep as bicep_file
from netmgr.plan.document import PlanDocument
from netmgr.plan.machines import PlannedNode
from netmgr.plan.network import (
    Direction,
    NatGateway,
    Network,
    NodeGroup,
    Peering,
    Route,
    RouteTable,
    SecurityGroup,
    SecurityRule,
    Subnet,
    VirtualNetwork,
)
from netmgr.prefixes import Prefix

PARAMETERS = ("adminUsername", "nodeVmSize", "sourceImageId", "sshPublicKey")
"""What the operator gives."""


def arm(_plan: PlanDocument, network: Network) -> str:
    """The ARM template of a planned network, as JSON."""
    return template(PARAMETERS, resources(network))


def bicep(_plan: PlanDocument, network: Network) -> str:
    """One Bicep file of a planned network."""
    return bicep_file(PARAMETERS, "sshPublicKey", resources(network))


def resources(network: Network) -> list[Resource]:
    """Every resource, each after those it refers to."""
    locations = {vnet.owner: vnet.location for vnet in network.networks}
    return [
        *(_table(table, locations[table.owner]) for table in network.tables),
        *(_security_group(group, locations[group.owner]) for group in network.groups),
        *(resource for gateway in network.gateways for resource in _gateway(gateway)),
        *map(_vnet, network.networks),
        *_peerings(network.peerings),
        *map(_node_group, network.node_groups),
    ]


def _table(table: RouteTable, location: str) -> Resource:
    properties: dict[str, Value] = {
        # Routes of a VPN or ExpressRoute gateway would otherwise join the table, and a longer one
        # win over ours.
        "disableBgpRoutePropagation": True,
        "routes": [_route(r) for r in table.routes],
    }
    return Resource(TABLE, NETWORK_VERSION, table.name, properties, location)


def _route(route: Route) -> Value:
    properties: dict[str, Value] = {
        "addressPrefix": str(route.prefix),
        "nextHopType": NEXT_HOPS[route.hop],
    }
    if route.via:
        properties["nextHopIpAddress"] = str(route.via)
    return {"name": route.name, "properties": properties}


def _security_group(group: SecurityGroup, location: str) -> Resource:
    return Resource(
        GROUP,
        NETWORK_VERSION,
        group.name,
        {"securityRules": [_rule(r) for r in group.rules]},
        location,
    )


def _rule(rule: SecurityRule) -> Value:
    peers: Value = [str(prefix) for prefix in rule.peers]
    sides: dict[str, Value] = (
        {"sourceAddressPrefixes": peers, "destinationAddressPrefix": "*"}
        if rule.direction is Direction.INBOUND
        else {"sourceAddressPrefix": "*", "destinationAddressPrefixes": peers}
    )
    common: dict[str, Value] = {
        "priority": rule.priority,
        "direction": rule.direction.capitalize(),
        "access": "Allow" if rule.allow else "Deny",
        "protocol": "*",
        "sourcePortRange": "*",
        "destinationPortRange": "*",
    }
    return {"name": rule.name, "properties": common | sides}


def _gateway(gateway: NatGateway) -> Iterator[Resource]:
    standard: dict[str, Value] = {"name": "Standard"}
    public = [
        Resource(
            PUBLIC_IP,
            NETWORK_VERSION,
            f"{gateway.name}_{number}",
            {"publicIPAllocationMethod": "Static"},
            gateway.location,
            standard,
        )
        for number in range(gateway.addresses)
    ]
    yield from public
    addresses: dict[str, Value] = {"publicIpAddresses": [{"id": address.id} for address in public]}
    yield Resource(GATEWAY, NETWORK_VERSION, gateway.name, addresses, gateway.location, standard)


def _vnet(vnet: VirtualNetwork) -> Resource:
    properties: dict[str, Value] = {
        "addressSpace": {"addressPrefixes": [str(prefix) for prefix in vnet.address_space]},
        "subnets": [_subnet(subnet) for subnet in vnet.subnets],
    }
    return Resource(VNET, NETWORK_VERSION, vnet.name, properties, vnet.location)


def _subnet(subnet: Subnet) -> Value:
    properties: dict[str, Value] = {
        "addressPrefixes": [str(prefix) for prefix in subnet.prefixes],
        # Otherwise Azure gives machines a public address of its own choice, past NAT gateway and
        # router.
        "defaultOutboundAccess": False,
    }
    ties = (("routeTable", TABLE, subnet.table), ("networkSecurityGroup", GROUP, subnet.group))
    for key, kind, name in (*ties, ("natGateway", GATEWAY, subnet.gateway)):
        if name:
            properties[key] = {"id": Id(kind, name)}
    return {"name": subnet.name, "properties": properties}


def _peerings(peerings: Sequence[Peering]) -> Iterator[Resource]:
    """One after the other: the cloud refuses to change two peerings of a network at once."""
    before: tuple[Id, ...] = ()
    for peering in peerings:
        properties: dict[str, Value] = {
            "remoteVirtualNetwork": {"id": Id(VNET, peering.remote)},
            "allowVirtualNetworkAccess": True,
            "allowForwardedTraffic": peering.forwarded,
            "allowGatewayTransit": False,
            "useRemoteGateways": False,
        }
        after = (Id(VNET, peering.network), *before)
        name = f"{peering.network}/{peering.name}"
        resource = Resource(PEERING, NETWORK_VERSION, name, properties, after=after)
        before = (resource.id,)
        yield resource


def _node_group(scale_set: NodeGroup) -> Resource:
    interface: Value = {
        "name": "eth0",
        "properties": {
            "primary": True,
            "enableIPForwarding": True,
            "enableAcceleratedNetworking": True,
            "ipConfigurations": [
                {
                    "name": each.name,
                    "properties": {
                        "primary": each.primary,
                        "subnet": {"id": SubnetId(scale_set.network, scale_set.subnet)},
                        "privateIPAddressVersion": each.version,
                    },
                }
                for each in configurations(scale_set)
            ],
        },
    }
    machine: Value = {
        "osProfile": _os_profile(scale_set),
        "storageProfile": {
            "imageReference": {"id": Parameter("sourceImageId")},
            "osDisk": {"createOption": "FromImage", "caching": "ReadOnly"},
        },
        "networkProfile": {"networkInterfaceConfigurations": [interface]},
    }
    properties: dict[str, Value] = {
        # Azure would start more machines than asked for and delete some again, and numbers of nodes
        # would have gaps.
        "overprovision": False,
        # A single placement group holds 100 machines at most.
        "singlePlacementGroup": False,
        # Azure must not replace nodes by itself: pods are drained first.
        "upgradePolicy": {"mode": "Manual"},
        "virtualMachineProfile": machine,
    }
    size: dict[str, Value] = {"name": Parameter("nodeVmSize"), "capacity": scale_set.instances}
    return Resource(
        SCALE_SET, COMPUTE_VERSION, scale_set.name, properties, scale_set.location, size
    )


def _os_profile(scale_set: NodeGroup) -> Value:
    username = Parameter("adminUsername")
    path = Filled("/home/{}/.ssh/authorized_keys", username)  # the one place the cloud puts keys
    key: Value = {"path": path, "keyData": Parameter("sshPublicKey")}
    return {
        "computerNamePrefix": computer_prefix(scale_set),
        "adminUsername": username,
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
    }


def network_interface(plan: PlanDocument, node: PlannedNode, subnet: str) -> str:
    """One node's network interface with its blocks, as an ARM template.

    A scale set's model has no block lengths: each of its IP configurations is one address. Only a
    network interface of its own can carry blocks (`privateIPAddressPrefixLength`), and exactly
    those that the plan gave the node. The `subnet` of that name must exist already.
    """
    resource = {
        "type": INTERFACE,
        "apiVersion": NETWORK_VERSION,
        "name": node.name,
        "location": plan.clusters[node.cluster].location or plan.default_location,
        "properties": {
            "enableIPForwarding": True,
            "enableAcceleratedNetworking": True,
            "ipConfigurations": [
                as_json(each)
                for each in _configurations(node, SubnetId(node.segment.network, subnet))
            ],
        },
    }
    return template_text([resource])


def _configurations(node: PlannedNode, subnet: SubnetId) -> Iterator[Value]:
    for number, address in enumerate(node.hosts):
        yield _configuration(f"node-v{address.family}", address.prefix, subnet, primary=number == 0)
    for number, block in enumerate(node.blocks):
        yield _configuration(f"pods-{number}", block, subnet, primary=False)


def _configuration(name: str, block: Prefix, subnet: SubnetId, *, primary: bool) -> Value:
    properties: dict[str, Value] = {
        "primary": primary,
        "subnet": {"id": subnet},
        "privateIPAddressVersion": f"IPv{block.family}",
        "privateIPAllocationMethod": "Static",
        "privateIPAddress": str(block.network),
    }
    # A block counts as one of the interface's private addresses, whatever its length.
    if block.length < block.family.width:
        properties["privateIPAddressPrefixLength"] = block.length
    return {"name": name, "properties": properties}
