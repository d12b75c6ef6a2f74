"""JSON Schemas of the documents that people write: they take what the code takes, and no more."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.errors import ConfigError
from netmgr.plan.document import PlanDocument
from tests.builders import NODE_KEYS, SMALL_PLAN
from tests.docs import schemas

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[2]
PLANS = [
    *sorted((ROOT / "configs" / "plan").glob("*.yaml")),
    ROOT / "tests" / "golden" / "render" / "plan.yaml",
]
NODE = {**NODE_KEYS, "node": {"name": "one"}, "ranges": ["10.9.0.0/28"]}


@functools.cache
def validator(name: str) -> Draft202012Validator:
    """Of the schema in the file that an editor reads."""
    from jsonschema import Draft202012Validator

    schema = json.loads((schemas.FOLDER / f"{name}.{schemas.VERSION}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_the_files_are_those_of_the_code():
    files = {path.name: path.read_text() for path in schemas.FOLDER.iterdir()}
    assert files == schemas.files(), "run: .venv/bin/python -m tests.docs.reference"


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema and isinstance(schema["properties"], dict):
            yield schema
        for part in schema.values():
            yield from _objects(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _objects(part)


@pytest.mark.parametrize("name", schemas.DOCUMENTS)
def test_a_schema_names_every_key_that_there_is(name):
    objects = list(_objects(validator(name).schema))
    assert objects
    assert all(part["additionalProperties"] is False for part in objects)


def _overlays() -> Iterator[Any]:
    for path in sorted((ROOT / "configs" / "kubernetes" / "overlays").rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if isinstance(document, dict) and document.get("kind") == "Node":
                # A template, to which `netmgr kube node` adds the rest.
                template = {**document, "node": {"name": "x"}}
                yield pytest.param(template, id=f"{path.parent.name}/{path.name}")


@pytest.mark.parametrize("document", [*_overlays()])
def test_the_overlays_nodes_keep_to_their_schema(document):
    validator("node.yaml").validate(document)


SAMPLES = [ROOT / "configs" / "node.yaml", ROOT / "configs" / "budgets.yaml", *PLANS]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_samples_keep_to_their_schema(path):
    schema = validator("plan.yaml" if path in PLANS else path.name)
    schema.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("path", SAMPLES[:-1], ids=str)
def test_an_editor_finds_a_samples_schema(path):
    first = path.read_text().splitlines()[0]
    named = path.parent / first.removeprefix("# yaml-language-server: $schema=")
    assert named.resolve().parent == schemas.FOLDER
    assert named.name in schemas.files()


def test_what_netmgr_writes_keeps_to_its_schema(netmgr, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in ("plan init", "plan lock --yes", "plan render machines --to machines"):
        code, *_ = netmgr(*line.split())
        assert not code
    validator("plan.yaml").validate(yaml.safe_load((tmp_path / "plan.yaml").read_text()))
    for machine in ("router-0.hub", "nat-0.cluster-1", "cluster-1-default-0"):
        text = (tmp_path / "machines" / f"{machine}.yaml").read_text()
        validator("node.yaml").validate(yaml.safe_load(text))


NODES = [
    {"cni": False},
    {"cni": "off"},
    {"ranges": ["10.9.0.3"]},
    {"reader_group": 7},
    {"reader_group": "netmgr"},
    {"limits": [{"pods": "*/*", "internet-in": "1G", "burst": 100_000}]},
    {"limits": [{"pods": "*/*", "per-day": {"internet-out": "10G"}, "when-spent": "drop"}]},
    {"limits": [{"pods": "*/*", "connections": {"at-once": 10, "new-per-second": 5}}]},
    {"accounting": {"classes": [{"name": "hub", "prefixes": ["10.0.0.0/16"]}]}},
]
WRONG = [
    {"rnages": []},
    {"mtu": 12},
    {"backend": "pf"},
    {"cni": "perhaps"},
    {"pool": {"cooldown": 3}},
    {"limits": [{"pods": "*/*", "internet-in": "fast"}]},
    {"limits": [{"pods": "*/*", "internet_inn": 1}]},
]


@pytest.mark.parametrize(
    ("keys", "is_valid"),
    [*((keys, True) for keys in NODES), *((keys, False) for keys in WRONG)],
    ids=str,
)
def test_the_schema_takes_what_a_node_may_say_and_nothing_else(keys, is_valid):
    document = {**NODE, **keys}
    with nullcontext() if is_valid else pytest.raises(ConfigError):
        loader.parse(yaml.safe_dump(document), "node.yaml", NodeDocument)
    assert validator("node.yaml").is_valid(document) is is_valid


@pytest.mark.parametrize("surge", [3, "10%", "10", -1])
def test_a_plans_own_forms_are_in_its_schema(surge):
    plan = yaml.safe_load(SMALL_PLAN)
    plan["clusters"]["alpha"]["node_pools"]["gpu"]["surge"] = surge
    plan["shared_services"] = "100.64.0.0/16"
    is_valid = surge not in ("10", -1)
    with nullcontext() if is_valid else pytest.raises(ConfigError):
        loader.parse(yaml.safe_dump(plan), "plan.yaml", PlanDocument)
    assert validator("plan.yaml").is_valid(plan) is is_valid
