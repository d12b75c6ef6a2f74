"""Ranges of the Node in a file beside node.yaml: which of the two is in force."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netmgr.documents.node import NodeDocument
from netmgr.errors import RangesUnknown
from netmgr.prefixes import Prefix
from netmgr.ranges.assigned import MAX_BYTES, AssignedRanges, current, describe_change, read
from tests.builders import NODE_KEYS

OWN, OTHER = Prefix.parse("10.1.0.0/24"), Prefix.parse("10.2.0.0/24")


@pytest.fixture
def document(tmp_path: Path) -> NodeDocument:
    """A document that was made from the Node's version 100."""
    return NodeDocument.model_validate(
        {
            **NODE_KEYS,
            "node": {"name": "a"},
            "ranges": [str(OWN)],
            "ranges_file": str(tmp_path / "ranges"),
            "ranges_version": 100,
        }
    )


def write(document: NodeDocument, text: object) -> None:
    assert document.ranges_file is not None
    document.ranges_file.write_text(str(text))


@pytest.mark.parametrize(
    ("node", "version", "expected"),
    [("uid-b", 101, (OTHER,)), ("uid-b", 100, (OWN,)), ("uid-a", 99, (OWN,)), ("", 0, ())],
    ids=["newer", "same", "older", "deleted"],
)
def test_the_newer_of_file_and_document_is_in_force_and_a_deleted_node_has_no_range(
    document, node, version, expected
):
    write(document, AssignedRanges(node, version, (OTHER,)))
    assert current(document) == expected


def test_without_a_file_or_an_annotation_the_documents_own_are_in_force(document):
    assert current(document) == (OWN,)
    write(document, "\n")
    assert current(document) == (OWN,)
    assert current(document.model_copy(update={"ranges_file": None})) == (OWN,)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"node": "b", "version": 101}',
        '{"node": "b", "version": "x", "ranges": []}',
        '{"node": "b", "version": 1e999, "ranges": []}',
        '{"node": "b", "version": 101, "ranges": ["10.1.0.1/24"]}',
        '{"node": "b", "version": 101, "ranges": [7]}',
        "[" * 60_000,
        "\x00",
    ],
)
def test_a_file_that_is_no_annotation_is_refused_by_name(document, text):
    write(document, text)
    with pytest.raises(RangesUnknown, match=r"ranges: .*; remove the annotation netmgr.io/"):
        current(document)


@pytest.mark.parametrize("missing", ["node", "version", "ranges"])
def test_an_annotation_without_a_key_is_refused_with_all_three(missing):
    content = {"node": "b", "version": 101, "ranges": []}
    del content[missing]
    with pytest.raises(
        ValueError, match=f"^it is no object with node, version and ranges: '{missing}'$"
    ):
        AssignedRanges.parse(json.dumps(content))


def test_no_more_is_read_than_an_annotation_may_have(document):
    write(document, " " * MAX_BYTES + str(AssignedRanges("uid-b", 101, (OTHER,))))
    assert current(document) == (OWN,)


def test_all_ranges_of_before_and_after_are_named():
    found = AssignedRanges("uid-b", 101, (OTHER, Prefix.parse("fd00:2::/64")))
    assert describe_change(found, (OWN, Prefix.parse("fd00:1::/64"))) == (
        "the Node has other ranges since this pod was started: "
        "10.2.0.0/24, fd00:2::/64 instead of 10.1.0.0/24, fd00:1::/64"
    )


def test_a_change_says_what_is_given_out_now_and_what_was_before(document):
    write(document, AssignedRanges("uid-b", 101, (OTHER,)))
    assert "10.2.0.0/24 instead of 10.1.0.0/24" in describe_change(read(document), document.ranges)
    write(document, AssignedRanges("", 0, (OWN,)))
    gone = describe_change(read(document), document.ranges)
    assert "the Node was deleted: no new pod gets an address of 10.1.0.0/24" in gone
    write(document, AssignedRanges("uid-b", 101, (OWN,)))
    assert describe_change(read(document), document.ranges) == ""
