"""A diagnostic names file, line, key, what it disagrees with, and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from netmgr.documents.diagnostics import Diagnostic, Location, error
from netmgr.documents.loader import describe


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text("node:\n  name: a\nranges:\n- 10.0.0.0/28\n")
    return path


def test_a_diagnostic_about_two_keys_of_one_file_names_the_others_line(path: Path) -> None:
    found = error("is taken", ("ranges", 0), ("node", "name"), "give another")
    assert describe(found, path) == f"{path}:4: ranges[0]: is taken (line 2); give another"


def test_a_diagnostic_about_two_files_names_both(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("# a comment\nnode: {name: a}\n")
    beside = Location(("node", "name"), str(other))
    found = Diagnostic("is taken", Location(("node", "name"), str(path)), beside)
    expected = f"{path}:2: node.name: is taken ({other}:2: node.name)"
    assert describe(found, tmp_path / "unread.yaml") == expected


def test_a_key_that_the_document_lacks_is_located_at_the_nearest_one_above(path: Path) -> None:
    found = error("is missing", ("node", "uplink"))
    assert describe(found, path) == f"{path}:1: node.uplink: is missing"
    assert describe(error("is empty"), path) == f"{path}: is empty"
