"""JSON Schemas: the files are those of the code, each is strict, and documents keep to theirs.

That commands answer as their schemas say is tested where they are run (`test_output_formats.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema.exceptions import ValidationError

from netmgr.cli.main import main
from netmgr.cli.schemas import DOCUMENTS, PUBLISHED, generate, text
from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.errors import ConfigError
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LOCK_VERSION
from tests.answers import SCHEMAS, validate, validator
from tests.builders import NODE_KEYS, SMALL_PLAN
from tests.fakes.agent_socket import snapshot

ROOT = Path(__file__).parents[2]
PLANS = [
    *sorted((ROOT / "configs" / "plan").glob("*.yaml")),
    ROOT / "tests" / "golden" / "render" / "plan.yaml",
]
NODE = {**NODE_KEYS, "node": {"name": "one"}, "ranges": ["10.9.0.0/28"]}


def test_the_published_schemas_are_those_of_the_code() -> None:
    wanted = {each.file: text(each) for each in PUBLISHED.values()}
    found = {path.name: path.read_text() for path in SCHEMAS.iterdir()}
    assert found.keys() == wanted.keys()
    stale = [name for name, schema in wanted.items() if found[name] != schema]
    assert not stale, "judge the difference, then run: netmgr schema --to configs/schemas"


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema and isinstance(schema["properties"], dict):
            yield schema
        for part in schema.values():
            yield from _objects(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _objects(part)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_schema_is_one_is_strict_and_says_its_version(name: str) -> None:
    schema = validator(name).schema
    objects = list(_objects(schema))
    assert objects
    assert all(each["additionalProperties"] is False for each in objects)
    assert schema["$id"] == f"urn:netmgr:{name}:{PUBLISHED[name].version}"
    if name not in DOCUMENTS:
        tops = [schema] if "properties" in schema else schema["anyOf"]
        for top in tops:
            own = schema["$defs"][top["$ref"].rpartition("/")[2]] if "$ref" in top else top
            version = own["properties"]["version"]
            assert "version" in own["required"]
            assert version.get("const", version.get("minimum")) == 1


def test_a_key_without_a_schema_is_refused() -> None:
    answer = {"version": 1, "changes": [], "narrowed": []}
    validator("plan-diff").validate(answer)
    for wrong in ({**answer, "more": 1}, {**answer, "version": 2}, {"version": 1, "changes": []}):
        with pytest.raises(ValidationError):
            validator("plan-diff").validate(wrong)


def test_a_node_in_which_everything_occurred_keeps_to_its_schema() -> None:
    answer = json.loads(json.dumps(snapshot(pods=5)))
    pods = answer.pop("pods")
    validate("node status", answer)
    validate("node pods", {"version": 1, "pods": pods, "attachments": []})


def test_the_lock_is_shown_in_its_own_version() -> None:
    assert PUBLISHED["plan-show"].version == f"v{LOCK_VERSION}"


def _overlays() -> Iterator[Any]:
    for path in sorted((ROOT / "configs" / "kubernetes" / "overlays").rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if isinstance(document, dict) and document.get("kind") == "Node":
                # A template, to which `netmgr kube node` adds the rest.
                yield pytest.param(
                    {**document, "node": {"name": "x"}}, id=f"{path.parent.name}/{path.name}"
                )


@pytest.mark.parametrize("document", [*_overlays()])
def test_the_overlays_nodes_keep_to_their_schema(document: dict[str, Any]) -> None:
    validator("node.yaml").validate(document)


def test_the_sample_of_a_node_keeps_to_its_schema() -> None:
    sample = (ROOT / "configs" / "node.yaml").read_text()
    validator("node.yaml").validate(yaml.safe_load(sample))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_plans_keep_to_their_schema(path: Path) -> None:
    validator("plan.yaml").validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("path", [ROOT / "configs" / "node.yaml", *PLANS[:-1]], ids=str)
def test_an_editor_finds_a_samples_schema(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    named = path.parent / first.removeprefix("# yaml-language-server: $schema=")
    assert named.resolve().parent == SCHEMAS
    assert named.name in {each.file for each in PUBLISHED.values()}


@pytest.fixture
def netmgr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str]]:
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["netmgr", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out or shown.err

    return run


def test_what_netmgr_writes_keeps_to_its_schema(
    netmgr: Callable[[str], tuple[int, str]], tmp_path: Path
) -> None:
    for line in ("plan init", "plan lock --yes", "plan render machines --to machines"):
        assert netmgr(line)[0] == 0
    validator("plan.yaml").validate(yaml.safe_load((tmp_path / "plan.yaml").read_text()))
    validator("plan-show").validate(yaml.safe_load((tmp_path / "plan.lock.yaml").read_text()))
    machines = list((tmp_path / "machines").iterdir())
    assert len(machines) > 100
    for role in ("router-0.hub", "nat-0.cluster-1", "cluster-1-default-0"):
        validator("node.yaml").validate(
            yaml.safe_load((tmp_path / "machines" / f"{role}.yaml").read_text())
        )


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


@pytest.mark.parametrize("keys", NODES, ids=str)
def test_what_a_node_may_say_its_schema_takes(keys: dict[str, Any]) -> None:
    document = {**NODE, **keys}
    loader.parse(yaml.safe_dump(document), "node.yaml", NodeDocument)
    validator("node.yaml").validate(document)


@pytest.mark.parametrize("keys", WRONG, ids=str)
def test_what_a_node_may_not_say_its_schema_refuses(keys: dict[str, Any]) -> None:
    document = {**NODE, **keys}
    with pytest.raises(ConfigError):
        loader.parse(yaml.safe_dump(document), "node.yaml", NodeDocument)
    assert not validator("node.yaml").is_valid(document)


@pytest.mark.parametrize("surge", [3, "10%", "10", -1])
def test_a_plans_own_forms_are_in_its_schema(surge: object) -> None:
    plan = yaml.safe_load(SMALL_PLAN)
    plan["clusters"]["alpha"]["node_pools"]["gpu"]["surge"] = surge
    plan["shared_services"] = "100.64.0.0/16"
    try:
        loader.parse(yaml.safe_dump(plan), "plan.yaml", PlanDocument)
        is_valid = True
    except ConfigError:
        is_valid = False
    assert validator("plan.yaml").is_valid(plan) is is_valid


def test_every_key_that_a_person_writes_is_described_by_its_comment() -> None:
    keys = generate(PUBLISHED["node.yaml"])["properties"]
    assert keys["mtu"]["description"].startswith("MTU of the pods' interfaces, in bytes")
    pool = generate(PUBLISHED["node.yaml"])["$defs"]["Pool"]["properties"]
    assert pool["cooldown_seconds"]["default"] == 30
    assert keys["internal"]["default"][0] == "10.0.0.0/8"


def test_the_command_prints_lists_and_refuses(netmgr: Callable[[str], tuple[int, str]]) -> None:
    code, said = netmgr("schema plan-check")
    assert code == 0
    assert json.loads(said) == generate(PUBLISHED["plan-check"])
    code, said = netmgr("schema")
    assert [line.split()[0] for line in said.splitlines()] == list(PUBLISHED)
    code, said = netmgr("schema plan-chek")
    assert code == 1
    assert "there is no schema plan-chek; there are connectivity-test, doctor" in said
