"""What is rendered for Azure: Terraform, read back by a real HCL parser and held to the provider's
schema and to itself, and a node's network interface, held to the cloud's own model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hcl2
import pytest

from netmgr.errors import ConfigError
from netmgr.plan import files, machines
from netmgr.plan.clouds.azure.interface import interface
from netmgr.plan.clouds.azure.terraform import computer_prefix, terraform
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.clouds.registry import rendered, rendered_interface
from netmgr.plan.derive import segment_subnet
from netmgr.plan.document import Addressing, PlanDocument
from netmgr.plan.locking import make_lock
from netmgr.plan.network import Network
from netmgr.plan.render.hcl import Block, render

SCHEMAS = Path(__file__).parents[1] / "schemas"
TERRAFORM = json.loads((SCHEMAS / "azurerm.json").read_text("utf-8"))
AZURE = json.loads((SCHEMAS / "azure.json").read_text("utf-8"))["Microsoft.Network"]
ROOT = SCHEMAS.parents[1]
EXAMPLES = [*sorted(ROOT.glob("configs/plan/*.yaml")), ROOT / "tests/golden/render/plan.yaml"]
KINDS = ("linux_virtual_machine", "network_interface", "route_table")
META = {"count", "lifecycle"}
"""Arguments that Terraform itself gives every resource."""
TYPES = {"string": str, "number": int, "boolean": bool, "stringList": list, "stringMap": dict}
HOPS = {"VirtualNetworkGateway", "VnetLocal", "Internet", "VirtualAppliance", "None"}


@pytest.fixture(scope="module")
def text(rendered_plan: PlanDocument, rendered_network: Network) -> str:
    """With the first scale set of each node pool alone: the parser is slow."""
    groups = [group for group in rendered_network.node_groups if "_0_" not in group.name]
    return terraform(rendered_plan, replace(rendered_network, node_groups=groups))


@pytest.fixture(scope="module")
def resources(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By type and label, as the parser read them."""
    found = {}
    for resource in _plain(hcl2.loads(text))["resource"]:
        ((kind, labelled),) = resource.items()
        ((label, body),) = labelled.items()
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


def faults(body: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    """How a resource or a block departs from the provider's schema."""
    known = {name.rstrip("*"): kind for name, kind in schema.items()}
    required = {name.rstrip("*") for name in schema if name.endswith("*")}
    yield from (f"{where}: lacks {name}" for name in required - body.keys())
    for name, value in body.items():
        kind = known.get(name)
        if kind is None:
            yield f"{where}: has {name}, which is no argument of it"
        elif isinstance(kind, dict):
            for number, block in enumerate(value):
                yield from faults(block, kind, f"{where}.{name}[{number}]")
        elif type(value) is not TYPES[kind]:
            yield f"{where}.{name}: {value!r} is no {kind}"


def test_every_resource_and_block_is_as_the_provider_s_schema_has_it(text, resources):
    assert TERRAFORM["provider"].split()[1].startswith("4.")
    assert '"~> 4.0"' in text
    assert {kind for kind, _ in resources} == set(TERRAFORM["resources"])
    for (kind, label), body in resources.items():
        arguments = {name: value for name, value in body.items() if name not in META}
        assert not list(faults(arguments, TERRAFORM["resources"][kind], f"{kind}.{label}"))


def test_a_route_names_an_appliance_where_it_leads_to_one(resources):
    tables = [body for (kind, _), body in resources.items() if kind.endswith("_table")]
    routes = [route for body in tables for route in body["route"]]
    assert {route["next_hop_type"] for route in routes} <= HOPS
    for route in routes:
        assert ("next_hop_in_ip_address" in route) == (route["next_hop_type"] == "VirtualAppliance")


def test_every_next_hop_is_a_machine_that_forwards_and_reads_its_document(resources, rendered_lock):
    bodies = {
        kind: [b for (k, _), b in resources.items() if k == f"azurerm_{kind}"] for kind in KINDS
    }
    routes = [route for table in bodies["route_table"] for route in table["route"]]
    hops = {route["next_hop_in_ip_address"] for route in routes if len(route) == 4}
    interfaces = {
        own["private_ip_address"]: nic
        for nic in bodies["network_interface"]
        for own in nic["ip_configuration"]
    }
    assert hops
    assert hops <= interfaces.keys()
    assert all(nic["ip_forwarding_enabled"] for nic in interfaces.values())
    planned = {host.name: host.addresses for host in machines.hosts(rendered_lock)}
    assert interfaces.keys() == {str(own) for addresses in planned.values() for own in addresses}
    for machine in bodies["linux_virtual_machine"]:
        (document,) = re.findall(r"var\.documents}/([\w.-]+)\.yaml", machine["custom_data"])
        own = interfaces[str(planned[document][0])]
        assert machine["network_interface_ids"] == [
            f"${{azurerm_network_interface.{own['name']}.id}}"
        ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_scale_set_has_as_many_addresses_for_pods_as_the_plan_and_maxpods_say(path):
    plan = files.load_plan(path)
    limits = files.limits_of(plan, path)
    lock = files.load_lock(files.lock_path(path)) or make_lock(plan, None, limits)
    read = _plain(hcl2.loads(rendered(plan, lock, limits)))["resource"]
    of_subnet: dict[str, list[dict[str, Any]]] = {}
    for resource in read:
        for body in resource.get("azurerm_linux_virtual_machine_scale_set", {}).values():
            (nic,) = body["network_interface"]
            subnets = {own["subnet_id"] for own in nic["ip_configuration"]}
            assert len(subnets) == 1, "an interface has addresses of one subnet"
            of_subnet.setdefault(subnets.pop(), []).append(nic)
    for cluster, pool, segment in machines.segments(lock):
        spec = plan.clusters[cluster].node_pools[pool]
        node = machines.node(lock, cluster, pool, segment.first)
        subnet = segment_subnet(lock, node)
        sets = of_subnet.pop(f"${{azurerm_subnet.{subnet}.id}}", [])
        assert bool(sets) == (spec.addressing is Addressing.SINGLE), "no scale set has blocks"
        for nic in sets:
            # All of the cloud's choice: a scale set has no argument for an address.
            kinds = Counter(own["version"] for own in nic["ip_configuration"])
            assert kinds.keys() == {f"IPv{layout.family}" for layout in segment.layouts}
            # One of each family is the node's own.
            assert {count - 1 for count in kinds.values()} == {spec.pods_per_node}
            assert lock.clusters[cluster].node_pools[pool].addresses_per_node == spec.pods_per_node
            assert len(nic["ip_configuration"]) <= limits.limits.addresses_per_interface
    assert of_subnet == {}


def test_a_computer_name_s_prefix_is_no_longer_than_the_cloud_takes(rendered_network):
    longest = rendered_network.node_groups[0]
    names = [f"{'c' * 32}-{'p' * 31}{end}" for end in ("a", "b", "b_1")]
    prefixes = [computer_prefix(replace(longest, name=name)) for name in names]
    assert len(set(prefixes)) == len(names)
    assert all(len(prefix) <= 58 and re.fullmatch(r"[a-z0-9-]+-", prefix) for prefix in prefixes)
    assert computer_prefix(replace(longest, name="evals-cpu_1")) == "evals-cpu-1-"


def test_every_reference_leads_to_a_resource_of_the_file(text, resources):
    references = set(re.findall(r"= (?:join\(\",\", )?(azurerm_\w+)\.([\w-]+)[.\[]", text))
    assert len(references) >= 20
    assert references <= resources.keys()


def test_text_cannot_become_a_template_or_end_its_string():
    nasty = 'a"\n${file("/etc/passwd")} %{ if true } \\'
    text = render([Block("resource", ("x", "y"), {"name": nasty})])
    read = hcl2.loads(text)["resource"][0]['"x"']['"y"']["name"]
    plain = read[1:-1].encode().decode("unicode_escape")
    assert plain.replace("$${", "${").replace("%%{", "%{") == nasty
    assert "$${file" in text
    assert "%%{ if" in text


MODELS = AZURE["models"]
PLAIN = {"String": str, "Number": int, "Boolean": bool}


def model_faults(value: dict[str, Any], model: dict[str, str], above: str = "") -> Iterator[str]:
    """How a mapping departs from a model, whose keys have dots for mappings inside each other."""
    for key, item in value.items():
        path = f"{above}{key}"
        match model.get(path):
            case None if isinstance(item, dict) and any(k.startswith(f"{path}.") for k in model):
                yield from model_faults(item, model, f"{path}.")
            case None:
                yield f"{path} is no property"
            case "[NetworkInterfaceIPConfiguration]":
                for configuration in item:
                    yield from model_faults(
                        configuration, MODELS["NetworkInterfaceIPConfiguration"]
                    )
            case "Subnet":
                if item.keys() != {"id"}:
                    yield f"{path} is no reference"
            case kind if type(item) is not PLAIN[kind]:
                yield f"{path}: {item!r} is no {kind}"


def departures(resource: dict[str, Any]) -> list[str]:
    body = {key: resource[key] for key in resource.keys() - {"type", "apiVersion", "name"}}
    return list(model_faults(body, MODELS["NetworkInterface"]))


@pytest.mark.parametrize(
    ("name", "lengths"), [("training-gpu-3", [28, 28, 80]), ("training-system-3", [])]
)
def test_an_interface_carries_the_blocks_of_its_node(rendered_plan, rendered_lock, name, lengths):
    node = machines.node_named(rendered_lock, name)
    subnet = segment_subnet(rendered_lock, node)
    (resource,) = json.loads(interface(rendered_plan, node, subnet))["resources"]
    assert departures(resource) == []
    assert resource["apiVersion"] == AZURE["api"]
    configured = [item["properties"] for item in resource["properties"]["ipConfigurations"]]
    assert [item["primary"] for item in configured].count(True) == 1
    names = f"'Microsoft.Network/virtualNetworks/subnets', '{node.segment.network}', '{subnet}'"
    assert {item["subnet"]["id"] for item in configured} == {f"[resourceId({names})]"}
    length = "privateIPAddressPrefixLength"
    blocks = [item for item in configured if length in item]
    assert [item[length] for item in blocks] == lengths
    shown = {f"{item['privateIPAddress']}/{item[length]}" for item in blocks}
    assert shown <= set(map(str, node.blocks))
    first = configured[: len(node.hosts)]
    assert {item["privateIPAddress"] for item in first} == set(map(str, node.hosts))


def test_a_plan_without_a_cloud_has_nothing_to_render(rendered_plan, rendered_lock):
    plan = rendered_plan.model_copy(update={"cloud": Cloud.NONE})
    node = machines.node_named(rendered_lock, "training-gpu-3")
    refusal = "cloud: none has no cloud resources; set cloud: azure"
    with pytest.raises(ConfigError, match=refusal):
        rendered(plan, rendered_lock, files.load_limits(plan.cloud))
    with pytest.raises(ConfigError, match=refusal):
        rendered_interface(plan, rendered_lock, node)
