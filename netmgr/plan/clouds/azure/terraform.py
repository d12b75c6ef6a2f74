"""The planned network for Terraform's azurerm provider, version 4.

Machines, images and keys stay the operator's: a scale set is rendered with its network
profile whole and everything else from variables. Its nodes have single addresses; those with
blocks have network interfaces of their own (`interface`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import chain, product

from netmgr.documents.diagnostics import listed
from netmgr.plan.document import PlanDocument
from netmgr.plan.network import (
    Appliance,
    CloudRoute,
    Direction,
    NatGateway,
    Network,
    NextHop,
    NodeGroup,
    Peering,
    SecurityRule,
    Subnet,
    VirtualNetwork,
)
from netmgr.plan.render.hcl import Block, HclExpression, Value, render
from netmgr.prefixes import Prefix

_RESOURCE_GROUP = HclExpression("azurerm_resource_group.this.name")
# `documents`: the folder that `netmgr plan render machines --to` wrote.
_VARIABLES = ("admin_username", "documents", "node_vm_size", "source_image_id", "ssh_public_key")
_NEXT_HOPS = {
    NextHop.APPLIANCE: "VirtualAppliance",
    NextHop.INTERNET: "Internet",
    NextHop.NONE: "None",
    NextHop.LOCAL: "VnetLocal",
}
_LONGEST_PREFIX = 58
"""Of 64 characters of a host name, Azure keeps six for the machine's number."""


def terraform(plan: PlanDocument, network: Network) -> str:
    """One file with every resource."""
    return render(_blocks(plan, network))


def narrowing(name: str, was: Sequence[Prefix], now: Sequence[Prefix], peers: Sequence[str]) -> str:
    """How to apply a VNet that loses address space."""
    targets = " ".join(
        f"-target=azurerm_virtual_network_peering.{peer}_to_{name}" for peer in peers
    )
    return (
        f"VNet {name} loses address space: {listed(was)} becomes {listed(now)}; no subnet of it is "
        f"touched. Apply that first and bring its peerings in step (terraform apply {targets}), "
        "then all the others: Azure refuses to peer a new VNet with what the old one still has"
    )


def _blocks(plan: PlanDocument, network: Network) -> Iterator[Block]:
    provider = {"source": "hashicorp/azurerm", "version": "~> 4.0"}
    yield Block("terraform", blocks=(_nested("required_providers", azurerm=provider),))
    for name in _VARIABLES:
        yield Block("variable", (name,), {"type": HclExpression("string")})
    yield _resource(
        "resource_group", "this", name=plan.azure.resource_group, location=plan.azure.location
    )
    locations = {vnet.owner: vnet.location for vnet in network.networks}
    for vnet in network.networks:
        yield from _vnet(vnet)
    for peering in network.peerings:
        yield _peering(peering)
    for table in network.tables:
        yield _in_group(
            "route_table",
            table.name,
            *map(_route, table.routes),
            location=locations[table.owner],
            # Else routes of a VPN or ExpressRoute gateway join the table, and longer ones win.
            bgp_route_propagation_enabled=False,
        )
    for group in network.groups:
        location = locations[group.owner]
        rules = map(_rule, group.rules)
        yield _in_group("network_security_group", group.name, *rules, location=location)
    yield from chain.from_iterable(map(_gateway, network.gateways))
    for vnet in network.networks:
        for subnet in vnet.subnets:
            yield from _associations(subnet)
    for appliance in network.appliances:
        yield from _appliance(appliance, plan.azure.vm_size, network.of(appliance.owner))
    # What has blocks is made one by one: `interface` renders its network interfaces.
    yield from map(_node_group, (held for held in network.node_groups if held.pods))


def _resource(kind: str, label: str, *blocks: Block, **attributes: Value) -> Block:
    return Block("resource", (f"azurerm_{kind}", label), attributes, blocks)


def _in_group(kind: str, name: str, *blocks: Block, **attributes: Value) -> Block:
    """A resource of the resource group, named as its label."""
    return _resource(
        kind, name, *blocks, name=name, resource_group_name=_RESOURCE_GROUP, **attributes
    )


def _nested(kind: str, *blocks: Block, **attributes: Value) -> Block:
    return Block(kind, (), attributes, blocks)


def _reference(kind: str, label: str, attribute: str = "id") -> HclExpression:
    return HclExpression(f"azurerm_{kind}.{label}.{attribute}")


def _vnet(vnet: VirtualNetwork) -> Iterator[Block]:
    space = [str(prefix) for prefix in vnet.address_space]
    yield _in_group("virtual_network", vnet.name, location=vnet.location, address_space=space)
    for subnet in vnet.subnets:
        yield _in_group(
            "subnet",
            subnet.name,
            virtual_network_name=_reference("virtual_network", vnet.name, "name"),
            address_prefixes=[str(prefix) for prefix in subnet.prefixes],
            # Else Azure gives machines a public address of its choice, past NAT gateway and router.
            default_outbound_access_enabled=False,
        )


def _peering(peering: Peering) -> Block:
    # A peer does not learn of new address space by itself: the trigger brings it in step.
    space = _reference("virtual_network", peering.remote, "address_space").text
    return _in_group(
        "virtual_network_peering",
        peering.name,
        virtual_network_name=_reference("virtual_network", peering.network, "name"),
        remote_virtual_network_id=_reference("virtual_network", peering.remote),
        allow_virtual_network_access=True,
        allow_forwarded_traffic=peering.forwarded,
        allow_gateway_transit=False,
        use_remote_gateways=False,
        triggers={"remote_address_space": HclExpression(f'join(",", {space})')},
    )


def _route(route: CloudRoute) -> Block:
    via: dict[str, Value] = {"next_hop_in_ip_address": str(route.via)} if route.via else {}
    return _nested(
        "route",
        name=route.name,
        address_prefix=str(route.prefix),
        next_hop_type=_NEXT_HOPS[route.hop],
        **via,
    )


def _rule(rule: SecurityRule) -> Block:
    peers = [str(prefix) for prefix in rule.peers]
    sides: dict[str, Value] = (
        {"source_address_prefixes": peers, "destination_address_prefix": "*"}
        if rule.direction is Direction.INBOUND
        else {"source_address_prefix": "*", "destination_address_prefixes": peers}
    )
    return _nested(
        "security_rule",
        name=rule.name,
        priority=rule.priority,
        direction=rule.direction.capitalize(),
        access="Allow" if rule.allow else "Deny",
        protocol="*",
        source_port_range="*",
        destination_port_range="*",
        **sides,
    )


def _gateway(gateway: NatGateway) -> Iterator[Block]:
    name, location = gateway.name, gateway.location
    yield _resource(
        "public_ip",
        name,
        count=gateway.addresses,
        name=HclExpression(f'"{name}_${{count.index}}"'),
        resource_group_name=_RESOURCE_GROUP,
        location=location,
        allocation_method="Static",
        sku="Standard",
    )
    yield _in_group("nat_gateway", name, location=location, sku_name="Standard")
    yield _resource(
        "nat_gateway_public_ip_association",
        name,
        count=gateway.addresses,
        nat_gateway_id=_reference("nat_gateway", name),
        public_ip_address_id=HclExpression(f"azurerm_public_ip.{name}[count.index].id"),
    )


def _associations(subnet: Subnet) -> Iterator[Block]:
    """What a subnet is tied to; each tie is a resource of its own."""
    ties = {
        "route_table": subnet.table,
        "network_security_group": subnet.group,
        "nat_gateway": subnet.gateway,
    }
    for kind, label in ties.items():
        if label:
            own = _reference("subnet", subnet.name)
            other: dict[str, Value] = {f"{kind}_id": _reference(kind, label)}
            yield _resource(f"subnet_{kind}_association", subnet.name, subnet_id=own, **other)


_USERNAME = HclExpression("var.admin_username")
_MACHINE = (
    _nested("admin_ssh_key", username=_USERNAME, public_key=HclExpression("var.ssh_public_key")),
    _nested("os_disk", caching="ReadOnly", storage_account_type="Premium_LRS"),
)
"""What every kind of machine has."""


def _appliance(
    appliance: Appliance, size: str, networks: Sequence[VirtualNetwork]
) -> Iterator[Block]:
    """A router or NAT host at the address that routes lead to, with its node.yaml."""
    name, first = appliance.name, appliance.addresses[0]
    home, subnet = next((vnet, held) for vnet in networks if (held := vnet.subnet_of(first)))
    configurations = (
        _nested(
            "ip_configuration",
            name=f"v{address.family}",
            primary=address == first,
            subnet_id=_reference("subnet", subnet.name),
            private_ip_address_version=f"IPv{address.family}",
            private_ip_address_allocation="Static",
            private_ip_address=str(address),
        )
        for address in appliance.addresses
    )
    yield _in_group(
        "network_interface",
        name,
        *configurations,
        location=home.location,
        ip_forwarding_enabled=True,
        accelerated_networking_enabled=True,
    )
    yield _in_group(
        "linux_virtual_machine",
        name,
        *_MACHINE,
        # Else a new document, which every new cluster brings, would replace the machine.
        _nested("lifecycle", ignore_changes=[HclExpression("custom_data")]),
        location=home.location,
        size=size,
        computer_name=name.replace("_", "-"),
        network_interface_ids=[_reference("network_interface", name)],
        admin_username=_USERNAME,
        source_image_id=HclExpression("var.source_image_id"),
        custom_data=_cloud_config(f"${{var.documents}}/{appliance.machine}.yaml"),
    )


def _cloud_config(document: str) -> HclExpression:
    """For cloud-init, which puts the document where the agent reads it."""
    file = f'{{ path = "/etc/netmgr/node.yaml", content = file("{document}") }}'
    text = f"#cloud-config\\n${{yamlencode({{ write_files = [{file}] }})}}"
    return HclExpression(f'base64encode("{text}")')


def _node_group(scale_set: NodeGroup) -> Block:
    return _in_group(
        "linux_virtual_machine_scale_set",
        scale_set.name,
        *_MACHINE,
        _nested(
            "network_interface",
            *_ip_configurations(scale_set),
            name="eth0",
            primary=True,
            # Elsewhere azurerm 4 calls these ip_forwarding_enabled and so on; scale sets keep the
            # names of azurerm 3 until azurerm 5.
            enable_ip_forwarding=True,
            enable_accelerated_networking=True,
        ),
        location=scale_set.location,
        sku=HclExpression("var.node_vm_size"),
        instances=scale_set.instances,
        computer_name_prefix=computer_prefix(scale_set),
        admin_username=_USERNAME,
        source_image_id=HclExpression("var.source_image_id"),
        # Azure would start more machines than asked for and delete some again: numbers of nodes
        # would have gaps.
        overprovision=False,
        # A single placement group takes 100 machines.
        single_placement_group=False,
    )


def _ip_configurations(scale_set: NodeGroup) -> Iterator[Block]:
    """The node's own address of each family, then those of its pods, all of Azure's choice."""
    own = [(f"node-v{family}", family) for family in scale_set.families]
    numbers = range(scale_set.pods)
    pods = [(f"pods-v{f}-{number}", f) for f, number in product(scale_set.families, numbers)]
    for number, (name, family) in enumerate([*own, *pods]):
        yield _nested(
            "ip_configuration",
            name=name,
            # The cloud accepts only IPv4 as primary, and exactly one primary an interface.
            primary=number == 0,
            subnet_id=_reference("subnet", scale_set.subnet),
            version=f"IPv{family}",
        )


def computer_prefix(scale_set: NodeGroup) -> str:
    """What its machines' names begin with; one that would be too long ends in a digest."""
    # A host name has no underscores (RFC 1123).
    prefix = scale_set.name.replace("_", "-") + "-"
    # One of several sets of a segment has two underscores: with hyphens in their place,
    # `<cluster>-<node pool>_0_1` could be what another node pool is called.
    if len(prefix) <= _LONGEST_PREFIX and scale_set.name.count("_") < len("__"):
        return prefix
    digest = f"-{sha256(scale_set.name.encode()).hexdigest()[:8]}-"
    return prefix[: _LONGEST_PREFIX - len(digest)] + digest
