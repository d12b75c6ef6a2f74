"""What holds on the nftables backend alone: nft can change a rule and leave its comment."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from netmgr.kernel import netns
from netmgr.prefixes import Address
from netmgr.rules.engine import Rules
from netmgr.rules.nftables import NftablesBackend

pytestmark = pytest.mark.root

PODS = [Address.parse("10.1.0.5"), Address.parse("2001:db8:1::5")]

LINK, OTHER_LINK = "nm0123456789ab", "nmba9876543210"


@pytest.fixture
def rules(namespaces, policy) -> Iterator[Rules]:
    with netns.entered(namespaces("node").descriptor):
        made = Rules(NftablesBackend(), policy)
        try:
            made.apply(made.plan(PODS))
            yield made
        finally:
            made.close()


def replace_rule(program, hook: str, name: str, text: str) -> None:
    """Put other words in place of a rule's, under the comment it had."""
    (line,) = [
        line
        for line in program(f"nft -a list chain inet netmgr {hook}").splitlines()
        if name in line
    ]
    found = re.search(r'(comment ".*") # handle (\d+)', line)
    program("nft -f -", f"replace rule inet netmgr {hook} handle {found[2]} {text} {found[1]}\n")


@pytest.mark.parametrize("planned_before", [True, False])
def test_a_rule_that_was_altered_under_its_comment_is_found_and_put_right(
    rules, program, planned_before
):
    if planned_before:
        assert not rules.plan(PODS)
    replace_rule(program, "prerouting", "anti-spoofing v4", "ip saddr 198.51.100.77 drop")
    assert rules.check(PODS) == ["chain prerouting: rule 'anti-spoofing v4' was altered"]
    plan = rules.plan(PODS)
    assert plan.repairs == ("chain prerouting: rule 'anti-spoofing v4' was altered",)
    assert plan.created == frozenset()
    rules.apply(plan)
    assert not rules.plan(PODS)
    assert "198.51.100.77" not in program("nft list table inet netmgr")


def test_an_altered_rule_stays_known_as_altered_while_another_chain_is_put_right(rules, program):
    replace_rule(program, "prerouting", "anti-spoofing v4", "ip saddr 203.0.113.1 drop")
    program("nft flush chain inet netmgr postrouting")
    plan = rules.plan(PODS)
    assert "chain prerouting: rule 'anti-spoofing v4' was altered" in plan.repairs
    assert "chain postrouting: rule 'masquerade v4' was missing" in plan.repairs
    rules.apply(plan)
    assert not rules.plan(PODS)


def test_a_table_that_was_put_to_sleep_is_woken_and_counts_on(rules, program):
    made = program("nft list table inet netmgr")
    program("nft add table inet netmgr { flags dormant ; }")
    plan = rules.plan(PODS)
    assert plan.repairs == ("the table was dormant, so that nothing of it was in effect",)
    assert plan.created == frozenset()
    rules.apply(plan)
    assert program("nft list table inet netmgr") == made
    assert not rules.plan(PODS)


def test_a_chain_that_another_program_put_into_our_table_is_told_and_goes(rules, program):
    program(
        "nft -f -",
        "add chain inet netmgr other { type filter hook forward priority -400; policy drop; }\n",
    )
    plan = rules.plan(PODS)
    assert plan.repairs == ("chain other does not belong there",)
    rules.apply(plan)
    assert "other" not in program("nft list table inet netmgr")


def test_a_pods_link_is_known_from_its_admission_to_its_end(rules, program):
    rules.know(PODS, "research", LINK)
    rules.admit(PODS)
    for family, pod in ((4, PODS[0]), (6, PODS[1])):
        listed = program(f"nft list set inet netmgr senders{family}")
        assert f'"{LINK}" . {pod}' in listed
    assert not rules.plan(PODS)
    rules.expel(PODS)
    assert all(LINK not in program(f"nft list set inet netmgr senders{n}") for n in (4, 6))


def test_a_link_that_another_program_put_beside_an_address_or_took_away_is_named_and_repaired(
    rules, program
):
    rules.know(PODS, "research", LINK)
    rules.admit(PODS)
    forged = f'"{OTHER_LINK}" . {PODS[0]}'
    program("nft -f -", f"add element inet netmgr senders4 {{ {forged} }}\n")
    program("nft -f -", f'delete element inet netmgr senders6 {{ "{LINK}" . {PODS[1]} }}\n')
    plan = rules.plan(PODS)
    assert plan.repairs == (
        f"set senders4: {OTHER_LINK} . {PODS[0]} does not belong there",
        f"set senders6: {LINK} . {PODS[1]} was missing",
    )
    assert plan.created == frozenset()
    rules.apply(plan)
    assert not rules.plan(PODS)
    assert OTHER_LINK not in program("nft list table inet netmgr")
