"""A rule of iptables is the same bytes after it was written as expressions of nf_tables and read
back.
"""

from __future__ import annotations

from itertools import count

import pytest

from netmgr.kernel.nf_tables import Expression, number, plain
from netmgr.kernel.xtables import expressions
from netmgr.kernel.xtables.entries import LAYOUTS, Entry
from netmgr.prefixes import Family
from netmgr.rules import iptables_entries
from netmgr.rules.model import Abilities
from netmgr.rules.policy import desired
from tests.unit.test_rules_text import MACHINES

LEGACY = Abilities(rewrites=False, verdict_maps=False, senders=False, fuses=False)


def entries(machine: str) -> list[tuple[str, Entry]]:
    policy, pods = MACHINES[machine]
    numbers = count(1)
    ruleset = desired(policy, pods, LEGACY)
    indexes = {spec.name: next(numbers) for spec in ruleset.sets}
    made = [(rule.id, iptables_entries.encode(rule, indexes)) for rule in ruleset.rules()]
    return [(name, entry) for name, entry in made if entry is not None]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_rule_of_ours_comes_back_byte_for_byte_with_its_counts(machine: str) -> None:
    found = entries(machine)
    assert found
    for name, entry in found:
        counted = entry.with_counts(7, 700)
        back = expressions.decode(expressions.encode(counted), entry.family)
        assert back == counted, name
        assert back.target == entry.target_extension()[0]


def test_what_iptables_did_not_write_equals_nothing_of_ours_and_keeps_its_comment() -> None:
    for name, entry in entries("spoke-"):
        foreign = Expression("ct", {1: number(1), 2: number(3)})
        compared = Expression("cmp", {1: number(1), 2: number(0), 3: plain(b"\0\0\0\2")})
        mixed = [foreign, compared, *expressions.encode(entry)]
        back = expressions.decode(mixed, entry.family)
        assert back.conditions() != entry.conditions(), name
        assert back.comment == entry.comment


def test_a_comment_beside_the_expressions_is_one() -> None:
    back = expressions.decode([], Family.V6, "iptables-exporter web")
    assert back.comment == "iptables-exporter web"
    assert back.target == ""


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff" * 40])
def test_attributes_that_make_no_sense_are_kept_as_foreign(data: bytes) -> None:
    for name in (
        "meta",
        "payload",
        "bitwise",
        "cmp",
        "counter",
        "immediate",
        "match",
        "target",
        "lookup",
    ):
        for kinds in ((), (1,), (1, 2, 3)):
            back = expressions.decode([Expression(name, dict.fromkeys(kinds, data))] * 2, Family.V4)
            assert len(back.raw) >= LAYOUTS[Family.V4].size


def test_a_protocol_that_is_taken_from_the_header_is_that_protocol() -> None:
    """As iptables writes it since 1.8.10."""
    loading = Expression("payload", {1: number(1), 2: number(1), 3: number(9), 4: number(1)})
    compared = Expression("cmp", {1: number(1), 2: number(0), 3: plain(b"\x11")})
    back = expressions.decode([loading, compared], Family.V4)
    assert expressions.protocol_of(back) == (17, False)


ADDRESS_OFFSETS = {Family.V4: 12, Family.V6: 8}


def compared(loaded: Expression, data: bytes) -> list[Expression]:
    return [loaded, Expression("cmp", {1: number(1), 2: number(0), 3: plain(data)})]


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize(
    ("length", "data"), [(b"\xff" * 4, b"x"), (b"\xff" * 8, b"x"), (number(4), b"x" * 200)]
)
def test_a_comparison_longer_than_its_field_is_kept_as_foreign(
    family: Family, length: bytes, data: bytes
) -> None:
    """Written over what is behind it in the head, the entry could not be read any more."""
    address = {1: number(1), 2: number(1), 3: number(ADDRESS_OFFSETS[family]), 4: length}
    back = expressions.decode(compared(Expression("payload", address), data), family)
    assert [name for name, *_ in back.matches()] == ["nft", "nft"]
    assert back.conditions()[0] == bytes(LAYOUTS[family].offsets_at - 4)


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("size", [16, 17, 200])
def test_a_name_longer_than_any_links_is_kept_as_foreign(family: Family, size: int) -> None:
    loaded = Expression("meta", {1: number(1), 2: number(6)})
    back = expressions.decode(compared(loaded, b"e" * size), family)
    assert [name for name, *_ in back.matches()] == ["nft", "nft"]
    assert back.conditions()[0] == bytes(LAYOUTS[family].offsets_at - 4)
