"""The list of nodes is read as it was written, and anything else is refused with a reason."""

from __future__ import annotations

import pytest

from netmgr.documents.node_list import ListedNode, parse, write
from netmgr.prefixes import Address, Prefix

NODES = (
    ListedNode(
        "a",
        (Address.parse("10.0.0.1"), Address.parse("fd00::1")),
        (Prefix.parse("10.244.0.0/24"), Prefix.parse("fd00:10::/64")),
    ),
    ListedNode("b", (), ()),
)


def test_a_list_is_read_as_it_was_written() -> None:
    assert parse(write(NODES)) == NODES
    assert parse(write(())) == ()


def test_a_node_takes_a_hundred_bytes() -> None:
    assert len(write(NODES * 250)) < 500 * 100


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "it is no list of nodes"),
        ('{"version":2,"nodes":[]}', "its version is 2"),
        ('{"version":1,"nodes":[["a",["10.0.0.1"]]]}', "it is no list of nodes"),
        ('{"version":1,"nodes":[["a",["10.0.0.1"],["10.0.0.1/24"]]]}', "10.0.0.1/24"),
        ('{"version":1,"nodes":[["a",[["10.0.0.1"]],[]]]}', "is not an IP address"),
        ('{"version":1,"nodes":[["a",["10.0.0.1"],[null]]]}', "is not an IP address"),
        ("[" * 100_000, "it is no list of nodes"),
    ],
)
def test_what_is_no_list_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text)
