"""configs/node.yaml and configs/plan/plan.yaml are valid as they stand and show every key there is,
the node's with its true default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from netmgr.documents.budgets import BudgetsDocument
from netmgr.documents.loader import load, parse
from netmgr.documents.node import NodeDocument
from netmgr.plan.document import PlanDocument

CONFIGS = Path(__file__).parents[2] / "configs"
TEXT = (CONFIGS / "node.yaml").read_text(encoding="utf-8")
# A key that is commented out is a comment line that would be YAML: two words of prose are not.
UNCOMMENTED = re.sub(r"^(\s*)# ([a-z_]+: )", r"\1\2", TEXT, flags=re.MULTILINE)
# An example of a key that the sample has no use for stands further in, below the key's default.
EXAMPLES = yaml.safe_load("\n".join(re.findall(r"^#   (?!netmgr )(.+)$", TEXT, flags=re.MULTILINE)))


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key by its path; names and numbers, of which there may be any, are `*`."""
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        yield path
        for inner, star in models(field.annotation):
            yield from keys(inner, f"{path}.{star}")


def models(annotation: object, star: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        # A surge is written in one word.
        yield from [(annotation, star)] if annotation.__name__ != "Surge" else []
    for argument in get_args(annotation):
        yield from models(argument, "*.")


def given(data: Any, prefix: str, known: set[str]) -> Iterator[str]:
    for name, value in data.items() if isinstance(data, dict) else enumerate(data):
        path = f"{prefix}{name}" if f"{prefix}{name}" in known else f"{prefix}*"
        yield path
        if isinstance(value, dict | list):
            yield from given(value, f"{path}.", known)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("plan/plan.yaml", PlanDocument),
        ("plan/twenty-clusters.yaml", PlanDocument),
        ("budgets.yaml", BudgetsDocument),
    ],
)
def test_the_samples_of_plans_and_budgets_are_valid(name, document):
    load(CONFIGS / name, document)


def test_the_sample_of_a_node_names_every_key():
    # What is below a list or in a part without default is shown by an example.
    known = {path for path in keys(NodeDocument) if "*" not in path}
    assert "pool.cooldown_seconds" in known
    assert known - set(given(yaml.safe_load(UNCOMMENTED), "", known)) == set()


def test_the_sample_of_a_plan_names_every_key():
    known = set(keys(PlanDocument))
    assert {"clusters.*.services.length_v6", "exclude.*.reason", "hub.routers"} <= known
    data = yaml.safe_load((CONFIGS / "plan" / "plan.yaml").read_text(encoding="utf-8"))
    assert known - set(given(data, "", known)) == set()


def test_commented_defaults_are_the_true_ones():
    # Those that have no default, or one that is the machine's own, are shown with an example.
    shown = parse(UNCOMMENTED, "full", NodeDocument)
    plain = parse(TEXT, "sample", NodeDocument)
    differing = {
        name for name in NodeDocument.model_fields if getattr(shown, name) != getattr(plain, name)
    } - {"node", "mtu", "reader_group", "nodes_file", "ranges_file", "native"}
    assert not differing


def test_the_examples_are_those_of_a_node_and_of_a_nat_host():
    sample = yaml.safe_load(TEXT)
    shared = {key: EXAMPLES[key] for key in ("sites", "routes")}
    node = sample | shared | {"site": "training"}
    host = {key: sample[key] for key in ("apiVersion", "kind")} | {
        "node": {"name": "evals-nat-0", "addresses": EXAMPLES["nat"]["addresses"]},
        "role": "nat-host",
        "site": "evals",
        "sites": EXAMPLES["sites"],
        "nat": EXAMPLES["nat"],
    }
    assert parse(yaml.dump(node), "node", NodeDocument).routes
    assert parse(yaml.dump(host), "host", NodeDocument).nat
