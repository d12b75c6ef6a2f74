"""The planned network as Azure Resource Manager resources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from netmgr.plan.document import PlanDocument
from netmgr.plan.network import (
    Direction,
    NatGateway,
    Network,
    Peering,
    Route,
    RouteTable,
    ScaleSet,
    SecurityGroup,
    SecurityRule,
    Subnet,
    Vnet,
)
from netmgr.render import arm
from netmgr.render.arm import VNET, Filled, Id, Parameter, Resource, SubnetId, Value
from netmgr.render.cloud import computer_prefix, configurations, refuse_no_cloud

NETWORK_VERSION, COMPUTE_VERSION = "2024-05-01", "2024-07-01"
PARAMETERS = ("adminUsername", "nodeVmSize", "sourceImageId", "sshPublicKey")
"""What the operator gives."""

PEERING = "Microsoft.Network/virtualNetworks/virtualNetworkPeerings"
TABLE, GROUP = "Microsoft.Network/routeTables", "Microsoft.Network/networkSecurityGroups"
GATEWAY, PUBLIC_IP = "Microsoft.Network/natGateways", "Microsoft.Network/publicIPAddresses"
INTERFACE = "Microsoft.Network/networkInterfaces"
SCALE_SET = "Microsoft.Compute/virtualMachineScaleSets"


def template(plan: PlanDocument, network: Network) -> str:
    """The ARM template of a planned network.

    Raises:
        ConfigError: the plan has no cloud.
    """
    return arm.template(PARAMETERS, resources(plan, network))


def resources(plan: PlanDocument, network: Network) -> list[Resource]:
    """Every resource, each after those it refers to.

    Raises:
        ConfigError: the plan has no cloud.
    """
    refuse_no_cloud(plan)
    locations = {vnet.owner: vnet.location for vnet in network.networks}
    return [
        *(_table(table, locations[table.owner]) for table in network.tables),
        *(_security_group(group, locations[group.owner]) for group in network.groups),
        *(resource for gateway in network.gateways for resource in _gateway(gateway)),
        *map(_vnet, network.networks),
        *_peerings(network.peerings),
        *map(_scale_set, network.scale_sets),
    ]


def _table(table: RouteTable, location: str) -> Resource:
    properties: dict[str, Value] = {"disableBgpRoutePropagation": True, "routes": [_route(r) for r in table.routes]}
    return Resource(TABLE, NETWORK_VERSION, table.name, properties, location)


def _route(route: Route) -> Value:
    properties: dict[str, Value] = {"addressPrefix": str(route.prefix), "nextHopType": route.hop.value}
    if route.via:
        properties["nextHopIpAddress"] = str(route.via)
    return {"name": route.name, "properties": properties}


def _security_group(group: SecurityGroup, location: str) -> Resource:
    return Resource(GROUP, NETWORK_VERSION, group.name, {"securityRules": [_rule(r) for r in group.rules]}, location)


def _rule(rule: SecurityRule) -> Value:
    peers: Value = [str(prefix) for prefix in rule.peers]
    sides: dict[str, Value] = (
        {"sourceAddressPrefixes": peers, "destinationAddressPrefix": "*"}
        if rule.direction is Direction.INBOUND
        else {"sourceAddressPrefix": "*", "destinationAddressPrefixes": peers}
    )
    common: dict[str, Value] = {
        "priority": rule.priority,
        "direction": rule.direction.value,
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


def _vnet(vnet: Vnet) -> Resource:
    properties: dict[str, Value] = {
        "addressSpace": {"addressPrefixes": [str(prefix) for prefix in vnet.address_space]},
        "subnets": [_subnet(subnet) for subnet in vnet.subnets],
    }
    return Resource(VNET, NETWORK_VERSION, vnet.name, properties, vnet.location)


def _subnet(subnet: Subnet) -> Value:
    properties: dict[str, Value] = {
        "addressPrefixes": [str(prefix) for prefix in subnet.prefixes],
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


def _scale_set(scale_set: ScaleSet) -> Resource:
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
        "overprovision": False,
        "singlePlacementGroup": False,
        "upgradePolicy": {"mode": "Manual"},
        "virtualMachineProfile": machine,
    }
    size: dict[str, Value] = {"name": Parameter("nodeVmSize"), "capacity": scale_set.instances}
    return Resource(SCALE_SET, COMPUTE_VERSION, scale_set.name, properties, scale_set.location, size)


def _os_profile(scale_set: ScaleSet) -> Value:
    username = Parameter("adminUsername")
    path = Filled("/home/{}/.ssh/authorized_keys", username)  # the one place the cloud puts keys
    key: Value = {"path": path, "keyData": Parameter("sshPublicKey")}
    return {
        "computerNamePrefix": computer_prefix(scale_set),
        "adminUsername": username,
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
    }
