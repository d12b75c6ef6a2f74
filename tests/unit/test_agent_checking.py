"""A process without pydantic has the same documents as one that has it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr import documents, programs
from netmgr.agent.core.checking import DocumentCheck
from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.errors import ConfigError, StateError

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]
NAMES = ("evals-cpu-0", "nat-0.evals", "router-0.hub", "training-gpu-6999")
EXAMPLES = [
    ROOT / "configs/node.yaml",
    *(ROOT / f"tests/golden/render/{name}.yaml" for name in NAMES),
]
FULL = {
    "apiVersion": "netmgr.io/v1alpha1",
    "kind": "Node",
    "node": {"name": "a", "addresses": ["192.0.2.1"]},
    "ranges": ["10.1.0.0/24", "fd00:1::/120"],
    "site": "b",
    "sites": [{"name": "b", "prefixes": ["10.1.0.0/16", "fd00:1::/64"]}],
    "accounting": {
        "classes": [{"name": "mirror", "prefixes": ["198.51.100.0/24"]}],
        "history_hours": 744,
        "history_rows": 1_000_000,
    },
    "limits": [
        {"pods": "a/*", "internet-in": "10M", "classes": {"mirror-in": "1G"}},
        {"namespaces": "*", "per-day": {"internet-out": "1G"}, "when-spent": "1M"},
        {"namespaces": "c", "connections": {"at-once": 10, "new-per-second": 5}},
    ],
}
SEEN = """
from netmgr.documents.fields import Document
from netmgr.documents.limits import Limit

def seen(value):
    if isinstance(value, Document):
        properties = [name for name, own in vars(type(value)).items() if isinstance(own, property)]
        parts = {**dict(value), **{name: getattr(value, name) for name in properties}}
        return [type(value).__name__, str(value) if isinstance(value, Limit) else "", seen(parts)]
    if isinstance(value, dict):
        return {str(key): seen(member) for key, member in value.items()}
    return [*map(seen, value)] if isinstance(value, (tuple, list)) else repr(value)
"""
"""What a document says to those who ask: fields, properties, and a limit's text."""
PLAINLY = f"""
import sys
from pathlib import Path
from netmgr import documents
documents.HAS_PYDANTIC = False
from netmgr.agent.core.checking import DocumentCheck
{SEEN}
document = DocumentCheck(Path(sys.argv[1])).document()
assert "pydantic" not in sys.modules
assert document == document.model_copy(update={{}}) != document.model_copy(update={{"ranges": 1}})
assert hash(document.node) == hash(document.model_copy(update={{}}).node)
print(seen(document))
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(yaml.safe_dump(FULL))
    return path


@pytest.mark.parametrize(
    "path", [*EXAMPLES, None], ids=lambda path: path.stem if path else "limits and classes"
)
def test_a_document_says_the_same_without_pydantic(document: Path, path: Path | None) -> None:
    namespace: dict[str, Any] = {}
    exec(SEEN, namespace)  # noqa: S102  what the other process defines, too
    expected = str(namespace["seen"](loader.load(path or document, NodeDocument)))
    outcome = programs.run([sys.executable, "-c", PLAINLY, str(path or document)])
    assert outcome.returncode == 0, outcome.stderr.decode()
    assert outcome.stdout.decode().strip() == expected
    assert len(expected) > 1000


def test_every_fault_of_a_document_is_told(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document.write_text(yaml.safe_dump(FULL | {"rangse": [], "mtu": 12}))
    monkeypatch.setattr(documents, "HAS_PYDANTIC", False)
    with pytest.raises(ConfigError) as theirs:
        DocumentCheck(document).document()
    monkeypatch.undo()
    with pytest.raises(ConfigError) as ours:
        DocumentCheck(document).document()
    assert str(theirs.value) == str(ours.value)
    assert str(theirs.value).count("node.yaml:") == 2


def test_a_document_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "HAS_PYDANTIC", False)
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        DocumentCheck(tmp_path / "none.yaml").document()


def test_a_check_that_is_killed_is_told(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def killed(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        process = start(command, **options)
        os.kill(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(documents, "HAS_PYDANTIC", False)
    monkeypatch.setattr(subprocess, "Popen", killed)
    with pytest.raises(StateError, match=r"ended with -9; see to the memory"):
        DocumentCheck(document).document()
