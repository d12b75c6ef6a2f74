"""Every block of the pages is of a kind that is run or checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from netmgr import programs
from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.documents.prices import Prices
from netmgr.plan.document import PlanDocument
from tests.docs.blocks import ROOT, Block, blocks

BLOCKS = list(blocks())
CHECKED = {"console", "sh", "yaml", "promql"}
DRAWING = "text"
FOLDERS = re.compile(r"-k (configs/\S+)")
KINDS = {"Node": NodeDocument, "NetworkPlan": PlanDocument, "Prices": Prices}
MACHINE = {
    "apiVersion": "netmgr.io/v1alpha1",
    "kind": "Node",
    "node": {"name": "one", "addresses": ["10.0.0.1"]},
    "ranges": ["10.1.0.0/28"],
}


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in {*CHECKED, DRAWING}
    assert (block.language == DRAWING) == any(each in block.text for each in "─│")


@pytest.mark.programs
@pytest.mark.parametrize("block", of("yaml"), ids=lambda block: block.name)
def test_documents_are_valid(block: Block, tmp_path: Path) -> None:
    for document in yaml.safe_load_all(block.text):
        kind = document.get("kind", "") if isinstance(document, dict) else ""
        if kind in KINDS:
            loader.parse(block.text, block.name, KINDS[kind])
        elif isinstance(document, dict) and document.keys() <= NodeDocument.model_fields.keys():
            # A part of one, beside what each needs.
            text = yaml.safe_dump(MACHINE | document)
            loader.parse(text, block.name, NodeDocument)
        elif isinstance(document, dict) and "groups" in document:
            check_rules(block.text, tmp_path)


@pytest.mark.programs
def test_queries_are_prometheus(tmp_path: Path) -> None:
    groups = [
        {"name": block.name, "rules": [{"record": "level:metric:operation", "expr": block.text}]}
        for block in of("promql")
    ]
    check_rules(yaml.safe_dump({"groups": groups}), tmp_path)


def check_rules(text: str, folder: Path) -> None:
    (folder / "rules.yml").write_text(text)
    done = programs.run(
        [programs.locate("promtool", "prometheus"), "check", "rules", "rules.yml"], cwd=folder
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.programs
@pytest.mark.parametrize("block", of("sh"), ids=lambda block: block.name)
def test_commands_parse_and_what_they_apply_exists(block: Block) -> None:
    done = programs.run(["bash", "-n", "-c", block.text])
    assert done.returncode == 0, done.stderr.decode()
    for folder in FOLDERS.findall(block.text):
        assert (ROOT / folder / "kustomization.yaml").exists(), folder
