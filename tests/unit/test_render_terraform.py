"""Rendered Terraform: read back by a real HCL parser and held to the provider's schema and to
itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hcl2
import pytest

from netmgr.plan.clouds.azure.naming import computer_prefix
from netmgr.plan.clouds.azure.terraform import terraform
from netmgr.plan.document import PlanDocument
from netmgr.plan.network import Network
from netmgr.plan.render.hcl import Attribute, Block, render

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas" / "azurerm.json").read_text("utf-8"))
META = {"count"}
"""Arguments that Terraform itself gives every resource."""
TYPES = {"string": str, "number": int, "boolean": bool, "stringList": list, "stringMap": dict}
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


def test_it_is_the_golden_file(text, golden):
    golden("render/main.tf", text)


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
    assert SCHEMA["provider"].split()[1].startswith("4.")
    assert '"~> 4.0"' in text
    assert {kind for kind, _ in resources} == set(SCHEMA["resources"])
    found = [
        fault
        for (kind, label), body in resources.items()
        for fault in faults(
            {name: value for name, value in body.items() if name not in META},
            SCHEMA["resources"][kind],
            f"{kind}.{label}",
        )
    ]
    assert found == []


def test_a_route_names_an_appliance_where_it_leads_to_one(resources):
    routes = [
        route
        for (kind, _), body in resources.items()
        if kind.endswith("_table")
        for route in body["route"]
    ]
    assert {route["next_hop_type"] for route in routes} <= HOPS
    for route in routes:
        assert ("next_hop_in_ip_address" in route) == (route["next_hop_type"] == "VirtualAppliance")


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
    text = render([Block("resource", ("x", "y"), (Attribute("name", nasty),))])
    read = hcl2.loads(text)["resource"][0]['"x"']['"y"']["name"]
    assert (
        read[1:-1].encode().decode("unicode_escape").replace("$${", "${").replace("%%{", "%{")
        == nasty
    )
    assert "$${file" in text
    assert "%%{ if" in text
