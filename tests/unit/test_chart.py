"""The chart's values, schema and versions agree with each other and with what they are about.

What helm makes of them is tested by `make artifacts` (`tests/helm/chart.py`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import netmgr

CONFIGS = Path(__file__).parents[2] / "configs"
CHART = CONFIGS / "helm" / "netmgr"
KUBERNETES = CONFIGS / "kubernetes"
OF_OVERLAYS = {"controller", "image", "nat-host", "node-routes", "wiring"}
"""Components without which an overlay would not be what it is; the others are options."""

FROM_THE_NODE = {"apiVersion", "kind", "node", "ranges", "ranges_file", "ranges_version"}
"""Keys of node.yaml that no values have."""


@pytest.fixture(scope="module")
def schema() -> Any:
    return json.loads((CHART / "values.schema.json").read_text())["properties"]


def test_default_values_are_complete_and_follow_the_schema():
    from jsonschema import Draft7Validator

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    Draft7Validator.check_schema(schema)
    assert list(Draft7Validator(schema).iter_errors(values)) == []
    assert schema["properties"].keys() - {"global"} == values.keys()
    for name, value in values.items():
        described = schema["properties"][name]
        if reference := described.get("$ref"):
            described = schema["definitions"][reference.rpartition("/")[2]]
        if described.get("additionalProperties") is False:
            assert described["properties"].keys() == value.keys()


def test_every_option_of_the_overlays_is_a_component_of_the_chart(schema: Any):
    options = {path.name for path in (KUBERNETES / "components").iterdir()} - OF_OVERLAYS
    known = schema["components"]["items"]["enum"]
    assert set(known) == options
    # In what order they are applied.
    ordered = re.findall(
        r"list ((?:\"[a-z0-9-]+\" ?){5,})", (CHART / "templates/netmgr.yaml").read_text()
    )
    assert re.findall(r'"([^"]+)"', "".join(ordered)) == known
    told = (CHART / "values.yaml").read_text()
    assert [
        name for name in known if not re.search(rf"^#   .*\b{name}\b", told, re.MULTILINE)
    ] == []


def test_the_pages_values_ask_for_nothing_that_a_new_cluster_does_not_have():
    page = (CONFIGS.parent / "docs/how-to/helm.md").read_text()
    values = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    for name in values["components"]:
        for path in (KUBERNETES / "components" / name).glob("*.yaml"):
            assert "monitoring.coreos.com" not in path.read_text()


def test_node_knows_the_keys_of_node_yaml(schema: Any):
    document = json.loads((CONFIGS / "schemas" / "node.yaml.v1alpha1.json").read_text())
    known = schema["node"]["propertyNames"]["enum"]
    assert set(known) == document["properties"].keys() - FROM_THE_NODE


def test_resources_know_every_container(schema: Any):
    named = {
        name
        for path in KUBERNETES.rglob("*.yaml")
        for name, _ in re.findall(r"name: ([\w-]+)\n +image: (netmgr)\n", path.read_text())
    }
    assert set(schema["resources"]["propertyNames"]["enum"]) == named


def test_chart_and_image_have_the_version_of_netmgr():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    image = yaml.safe_load((KUBERNETES / "components/image/kustomization.yaml").read_text())
    (named,) = image["images"]
    assert {chart["version"], chart["appVersion"], named["newTag"]} == {netmgr.__version__}
