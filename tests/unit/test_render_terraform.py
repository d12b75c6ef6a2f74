"""Rendered Terraform: read back by a real HCL parser and held to the provider's schema and to itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import hcl2
import pytest

from netmgr.errors import ConfigError
from netmgr.plan.document import Cloud, PlanDocument
from netmgr.plan.network import Network
from netmgr.render.hcl import Attribute, Block, render
from netmgr.render.terraform import terraform

REQUIRED = {
    "azurerm_resource_group": {"name", "location"},
    "azurerm_virtual_network": {"name", "resource_group_name", "location", "address_space"},
    "azurerm_subnet": {
        "name",
        "resource_group_name",
        "virtual_network_name",
        "address_prefixes",
        "default_outbound_access_enabled",
    },
    "azurerm_virtual_network_peering": {
        "name",
        "resource_group_name",
        "virtual_network_name",
        "remote_virtual_network_id",
        "allow_virtual_network_access",
        "allow_forwarded_traffic",
        "allow_gateway_transit",
        "use_remote_gateways",
        "triggers",
    },
    "azurerm_route_table": {"name", "resource_group_name", "location", "bgp_route_propagation_enabled"},
    "azurerm_network_security_group": {"name", "resource_group_name", "location"},
    "azurerm_public_ip": {"count", "name", "resource_group_name", "location", "allocation_method", "sku"},
    "azurerm_nat_gateway": {"name", "resource_group_name", "location", "sku_name"},
    "azurerm_nat_gateway_public_ip_association": {"count", "nat_gateway_id", "public_ip_address_id"},
    "azurerm_subnet_route_table_association": {"subnet_id", "route_table_id"},
    "azurerm_subnet_network_security_group_association": {"subnet_id", "network_security_group_id"},
    "azurerm_subnet_nat_gateway_association": {"subnet_id", "nat_gateway_id"},
    "azurerm_linux_virtual_machine_scale_set": {
        "name",
        "resource_group_name",
        "location",
        "sku",
        "instances",
        "computer_name_prefix",
        "admin_username",
        "source_image_id",
        "overprovision",
        "single_placement_group",
    },
}
"""Arguments of each resource (registry documentation of azurerm 4): all of them, and no other."""

NESTED = {
    "route": {"name", "address_prefix", "next_hop_type"},
    "security_rule": {"name", "priority", "direction", "access", "protocol"},
    "network_interface": {"name", "primary", "ip_forwarding_enabled", "accelerated_networking_enabled"},
    "ip_configuration": {"name", "primary", "subnet_id", "version"},
    "admin_ssh_key": {"username", "public_key"},
    "os_disk": {"caching", "storage_account_type"},
}
HOPS = {"VirtualNetworkGateway", "VnetLocal", "Internet", "VirtualAppliance", "None"}


@pytest.fixture(scope="module")
def text(rendered_plan: PlanDocument, rendered_network: Network) -> str:
    return terraform(rendered_plan, rendered_network)


@pytest.fixture(scope="module")
def resources(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By type and label, as the parser read them."""
    found = {}
    for resource in _plain(hcl2.loads(text))["resource"]:
        ((kind, labelled),) = ((k, v) for k, v in resource.items() if k != "__is_block__")
        ((label, body),) = ((k, v) for k, v in labelled.items() if k != "__is_block__")
        assert (kind, label) not in found, f"{kind}.{label} twice"
        found[kind, label] = body
    return found


def _plain(value: Any) -> Any:
    """The parser keeps the quotes of strings; what is left of them tells text from references."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items() if key != "__is_block__"}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str) and value.startswith('"'):
        return value[1:-1]
    return value


def test_it_is_the_golden_file(text: str, golden: Callable[[str, str], None]) -> None:
    golden("render/main.tf", text)


def test_every_resource_has_the_arguments_of_its_schema(resources: dict[tuple[str, str], dict[str, Any]]) -> None:
    kinds = {kind for kind, _ in resources}
    assert kinds == set(REQUIRED)
    for (kind, label), body in resources.items():
        plain = {name for name, value in body.items() if name not in NESTED}
        assert plain == REQUIRED[kind], f"{kind}.{label}"


def _blocks(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in NESTED:
        for block in body.get(name, []):
            yield name, block
            yield from _blocks(block)


def test_every_block_has_the_arguments_of_its_schema(resources: dict[tuple[str, str], dict[str, Any]]) -> None:
    seen = set()
    for body in resources.values():
        for name, block in _blocks(body):
            seen.add(name)
            assert block.keys() >= NESTED[name], block
            if name == "route":
                assert block["next_hop_type"] in HOPS
                assert ("next_hop_in_ip_address" in block) == (block["next_hop_type"] == "VirtualAppliance")
    assert seen == set(NESTED)


def test_every_reference_leads_to_a_resource_of_the_file(
    text: str, resources: dict[tuple[str, str], dict[str, Any]]
) -> None:
    references = set(re.findall(r"= (?:join\(\",\", )?(azurerm_\w+)\.([\w-]+)[.\[]", text))
    assert len(references) >= 20
    assert references <= resources.keys()


def test_an_interface_has_one_primary_and_as_many_configurations_as_its_pods_need(
    resources: dict[tuple[str, str], dict[str, Any]],
) -> None:
    counts = {}
    for (kind, label), body in resources.items():
        if kind == "azurerm_linux_virtual_machine_scale_set":
            (interface,) = body["network_interface"]
            configurations = interface["ip_configuration"]
            assert [c["primary"] for c in configurations].count(True) == 1
            assert len({c["subnet_id"] for c in configurations}) == 1
            counts[label] = sum(c["name"].startswith("pods-") for c in configurations if c["version"] == "IPv4")
    # 31 pods take two /28s; a dozen single addresses are a dozen; 15 pods fit one /28.
    assert counts == {"training-gpu": 2, "training-system": 12, "evals-cpu": 1}


def test_equals_signs_that_stand_together_are_aligned(text: str) -> None:
    run: set[int] = set()
    depth_of_run = None
    for line in text.splitlines():
        found = re.match(r"^( *)([a-z_]+) *= (?!\{$|\[$)", line)
        depth = len(found.group(1)) if found else None
        if found is None or depth != depth_of_run:
            run = set()
        if found:
            run.add(line.index("="))
            assert len(run) == 1, line
        depth_of_run = depth
        assert line == line.rstrip()
        assert "\t" not in line


def test_text_cannot_become_a_template_or_end_its_string() -> None:
    nasty = 'a"\n${file("/etc/passwd")} %{ if true } \\'
    text = render([Block("resource", ("x", "y"), (Attribute("name", nasty),))])
    read = hcl2.loads(text)["resource"][0]['"x"']['"y"']["name"]
    assert read[1:-1].encode().decode("unicode_escape").replace("$${", "${").replace("%%{", "%{") == nasty
    assert "$${file" in text
    assert "%%{ if" in text


def test_a_plan_without_a_cloud_has_nothing_to_render(rendered_plan: PlanDocument, rendered_network: Network) -> None:
    with pytest.raises(ConfigError, match="cloud: none"):
        terraform(rendered_plan.model_copy(update={"cloud": Cloud.NONE}), rendered_network)
