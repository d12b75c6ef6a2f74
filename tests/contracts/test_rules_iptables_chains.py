"""Chains that compare prefixes, after other programs or older versions changed them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmgr.model import Counter, Sample, Traffic
from netmgr.prefixes import Family
from netmgr.rules.engine import Rules
from netmgr.rules.iptables import IptablesBackend
from tests.contracts.conftest import put_right, settled, tables_of
from tests.contracts.test_rules_iptables import PODS, rules_of

pytestmark = pytest.mark.root

UNATTRIBUTED_IN = Counter("UNATTRIBUTED", Family.V4, Traffic.INTERNET_IN)


LEADING, INWARD = "NETMGR-BEFORE_SRCNAT-3", "NETMGR-BEFORE_SRCNAT-4"
"""The chain that counts what comes from the internet, and the one that leads there."""


def give_counts(variant_program) -> None:
    """Have what came from the internet for no pod, of IPv4, be 5 packets of 500 bytes."""
    saved = variant_program("iptables-save -c -t mangle").splitlines()
    counted = [
        line.replace("[0:0]", "[5:500]") if '"netmgr unattributed internet-in v4"' in line else line
        for line in saved
    ]
    assert counted != saved
    # As an agent's rules have them: without the mark that a restore loses.
    variant_program("iptables-restore --counters", "\n".join([*counted, ""]))


@pytest.mark.parametrize(
    ("damage", "repairs"),
    [
        (f"-D {INWARD} 1", "unattributed internet-in v4' was altered"),
        (f"-D {LEADING} 1", "unattributed internet-in v4' was altered"),
        (
            "-R NETMGR-BEFORE_SRCNAT-4 1 -d 10.0.0.0/9",
            "'(without a comment)' does not belong there",
        ),
        (f"-I {INWARD} -j ACCEPT", "'ACCEPT' does not belong there"),
        ("-D POSTROUTING -j NETMGR-BEFORE_SRCNAT", "unattributed internet-in v4' was missing"),
        ("-N NETMGR-BEFORE_SRCNAT-9999", "'chain NETMGR-BEFORE_SRCNAT-9999' does not belong there"),
    ],
)
def test_a_chain_that_another_program_edits_is_repaired_and_keeps_its_counts(
    backend, policy, variant_program, damage, repairs
):
    rules = settled(backend, policy, PODS)
    give_counts(variant_program)
    assert not rules.plan(PODS)
    variant_program(f"iptables -t mangle {damage}")
    plan = put_right(rules, PODS)
    assert repairs in "\n".join(plan.repairs)
    assert plan.created == frozenset()
    assert Sample(UNATTRIBUTED_IN, 500, 5) in rules.read()


@pytest.mark.parametrize(
    ("place", "hook", "rule"),
    [
        ("mangle -I FORWARD", "forward", "-j ACCEPT"),
        ("mangle -I FORWARD", "forward", "-s 10.1.0.2/32 -j RETURN"),
        ("mangle -I POSTROUTING", "before_srcnat", "-j ACCEPT"),
        ("mangle -I OUTPUT", "output", "-o eth0 -g others"),
        ("raw -I PREROUTING", "prerouting", "-j ACCEPT"),
    ],
)
def test_ours_come_before_what_may_decide_and_keep_their_counts(
    backend, policy, variant_program, place, hook, rule
):
    rules = settled(backend, policy, PODS)
    give_counts(variant_program)
    before = rules.read()
    variant_program("iptables -t mangle -N others")
    # What goes on to the next rule is no obstacle, and stays where it is.
    goes_on = "-m comment --comment other -j MARK --set-xmark 0x1/0xffffffff"
    variant_program(f"iptables -t {place} {goes_on}")
    assert not rules.plan(PODS)
    variant_program(f"iptables -t {place} {rule}")
    plan = put_right(rules, PODS)
    assert f"chain {hook}: rule '{rule}, before ours' does not belong there" in plan.repairs
    assert plan.created == frozenset()
    assert rules.read() == before
    # Theirs stay, in their order.
    table, _, builtin = place.split()
    saved = variant_program(f"iptables-save -t {table}").splitlines()
    theirs = [line for line in saved if line.endswith((rule, goes_on.partition(" -j")[2]))]
    assert theirs == [f"-A {builtin} {each}" for each in (rule, goes_on)]


def test_where_addresses_are_translated_others_rules_come_first(backend, policy, variant_program):
    rules = settled(backend, policy, PODS)
    variant_program("iptables -t nat -I POSTROUTING -j ACCEPT")
    assert not rules.plan(PODS)


def test_a_chain_that_another_program_removes_is_made_again_and_counts_from_zero(
    backend, policy, variant_program
):
    rules = settled(backend, policy, PODS)
    give_counts(variant_program)
    for command in (
        "-D NETMGR-BEFORE_SRCNAT-3 1",
        "-F NETMGR-BEFORE_SRCNAT-4",
        "-X NETMGR-BEFORE_SRCNAT-4",
    ):
        variant_program(f"iptables -t mangle {command}")
    plan = put_right(rules, PODS)
    assert "chain before_srcnat: rule 'unattributed internet-in v4' was missing" in plan.repairs
    assert plan.created == {UNATTRIBUTED_IN, UNATTRIBUTED_IN._replace(subject="PODS")}
    assert Sample(UNATTRIBUTED_IN, 0, 0) in rules.read()


class Former(IptablesBackend):
    """As versions wrote the rules that looked up every prefix."""

    abilities = replace(IptablesBackend.abilities, compares=0)


@pytest.mark.parametrize("restored", [False, True])
def test_rules_of_a_former_version_are_replaced_without_losing_a_count(
    backend, policy, variant_program, variant, restored
):
    older = Former(tables_of(variant))
    former = settled(older, policy, PODS)
    older.close()
    if restored:
        give_counts(variant_program)
    rules = Rules(backend, policy)
    plan = put_right(rules, PODS)
    assert "chain before_srcnat: rule 'unattributed internet-in v4' was altered" in plan.repairs
    assert plan.created == frozenset()
    saved = rules_of(variant_program("iptables-save -t mangle"))
    assert not [line for line in saved if "exporter" in line and "NETMGR" in line]
    assert Sample(UNATTRIBUTED_IN, 500 * restored, 5 * restored) in rules.read()
    former.backend.close()


def test_chains_that_fewer_prefixes_need_are_made_and_those_of_before_go(
    backend, policy, many_internal, variant_program
):
    wide, narrow = Rules(backend, many_internal), Rules(backend, policy)
    wide.apply(wide.plan(PODS))
    before = variant_program("iptables-save -t mangle") + variant_program("ip6tables-save -t raw")
    narrow.apply(narrow.plan(PODS))
    assert f":{INWARD}" in variant_program("iptables-save -t mangle")
    put_right(wide, PODS)
    after = variant_program("iptables-save -t mangle") + variant_program("ip6tables-save -t raw")
    assert without_head(after) == without_head(before)
    narrow.apply(narrow.plan(PODS))
    narrow.remove()
    for table in ("raw", "mangle", "nat"):
        for name in ("iptables", "ip6tables"):
            assert "NETMGR" not in variant_program(f"{name}-save -t {table}")


def without_head(saved: str) -> list[str]:
    return sorted(line for line in saved.splitlines() if not line.startswith("#"))
