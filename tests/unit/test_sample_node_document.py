"""configs/node.yaml is valid as it stands, and names every key there is with its true default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from netmgr.documents.loader import parse
from netmgr.documents.node import NodeDocument

SAMPLE = Path(__file__).parents[2] / "configs" / "node.yaml"
TEXT = SAMPLE.read_text(encoding="utf-8")
# A key that is commented out is a comment line that would be YAML: two words of prose are not.
UNCOMMENTED = re.sub(r"^(\s*)# ([a-z_]+: )", r"\1\2", TEXT, flags=re.MULTILINE)


def keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= keys(inner, path + ".")
        else:
            found.add(path)
    return found


def given(data: dict[str, object], prefix: str = "") -> set[str]:
    found = set()
    for name, value in data.items():
        found |= given(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name}
    return found


# An example of a key that the sample has no use for stands further in, below the key's default.
EXAMPLES = yaml.safe_load("\n".join(re.findall(r"^#   (?!netmgr )(.+)$", TEXT, flags=re.MULTILINE)))


@pytest.mark.parametrize("text", [TEXT, UNCOMMENTED], ids=["as it stands", "in full"])
def test_the_sample_is_valid(text):
    parse(text, "configs/node.yaml", NodeDocument)


def test_the_sample_names_every_key():
    assert given(yaml.safe_load(UNCOMMENTED)) >= keys(NodeDocument)


def test_commented_defaults_are_the_true_ones():
    # Those that have no default, or one that is the machine's own, are shown with an example.
    shown = parse(UNCOMMENTED, "full", NodeDocument)
    plain = parse(TEXT, "sample", NodeDocument)
    differing = {
        name for name in NodeDocument.model_fields if getattr(shown, name) != getattr(plain, name)
    } - {"node", "mtu", "reader_group", "nodes_file", "ranges_file"}
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
