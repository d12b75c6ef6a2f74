"""What is done about a ruleset that is not as desired, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmgr.model import PROTECTED, Traffic
from netmgr.prefixes import Address, Family
from netmgr.rules.classifier import pod_set
from netmgr.rules.diff import diff
from netmgr.rules.model import Abilities, Hook, Sender
from netmgr.rules.observed import Observed, ObservedRule
from netmgr.rules.policy import Policy, desired
from netmgr.rules.sources import sender_set
from netmgr.rules.transaction import DeleteOrphan, DropChain, FillChain
from tests.fakes.sites import document

POD_4, POD_6 = Address.parse("10.1.0.5"), Address.parse("fd00:1::5")
POLICY = Policy.of(document("node"))
WANTED = desired(POLICY, [POD_4, POD_6])
SOUND = Observed(
    members=WANTED.members,
    chains={
        hook: tuple(ObservedRule(rule.id) for rule in rules)
        for hook, rules in WANTED.chains.items()
    },
    counters=frozenset({*WANTED.node_counters(), *WANTED.tallies()}),
)


def test_what_is_as_desired_is_left_alone():
    assert not diff(WANTED, SOUND).operations


def test_what_no_rule_uses_goes_after_the_rules_are_filled_and_chains_from_the_last():
    found = diff(
        WANTED,
        replace(
            SOUND,
            chains={**SOUND.chains, Hook.FORWARD: ()},
            orphans=frozenset({"set-b", "set-a"}),
            orphan_chains=frozenset({"chain-1", "chain-2"}),
            orphan_flowtables=frozenset({"flows-b", "flows-a"}),
        ),
    )
    assert found.operations == (
        FillChain(Hook.FORWARD, WANTED.chains[Hook.FORWARD]),
        DeleteOrphan("chain-2", "chain"),
        DeleteOrphan("chain-1", "chain"),
        DeleteOrphan("set-a", "set"),
        DeleteOrphan("set-b", "set"),
        DeleteOrphan("flows-a", "flowtable"),
        DeleteOrphan("flows-b", "flowtable"),
    )
    assert found.repairs[:4] == (
        "set set-a does not belong there",
        "set set-b does not belong there",
        "chain chain-1 does not belong there",
        "chain chain-2 does not belong there",
    )


def test_a_chain_of_another_make_is_dropped_with_what_it_should_hold():
    found = diff(WANTED, replace(SOUND, malformed=frozenset({Hook.FORWARD})))
    rules = WANTED.chains[Hook.FORWARD]
    assert found.operations == (DropChain(Hook.FORWARD, rules), FillChain(Hook.FORWARD, rules))
    assert found.repairs == ("chain forward was of another type, priority or policy",)


def test_a_dormant_table_is_filled_again_whole():
    found = diff(WANTED, replace(SOUND, asleep=True))
    assert found.operations == tuple(
        FillChain(hook, rules) for hook, rules in WANTED.chains.items() if rules
    )
    assert found.repairs == ("the table was dormant, so that nothing of it was in effect",)


@pytest.mark.parametrize("times", [2, 3])
def test_a_rule_that_is_there_more_than_once_is_named(times):
    first, *others = SOUND.chains[Hook.FORWARD]
    found = diff(
        WANTED, replace(SOUND, chains={**SOUND.chains, Hook.FORWARD: (*[first] * times, *others)})
    )
    assert found.repairs == (f"chain forward: rule '{first.id}' was there more than once",)


def test_who_may_reach_what_is_protected_is_in_every_set_but_one():
    assert PROTECTED in POLICY.traffics
    both, one = (
        desired(POLICY, [POD_4, POD_6], excepted=excepted).members for excepted in ((), (POD_4,))
    )
    kept_away = pod_set(PROTECTED, Family.V4).name
    assert both[kept_away] == {POD_4}
    assert one == {**both, kept_away: frozenset()}
    assert both[pod_set(Traffic.INTERNET_OUT, Family.V4).name] == {POD_4}


def test_links_are_known_with_the_addresses_of_each_family_where_the_kernel_can():
    links = {POD_4: "nm1", POD_6: "nm2"}
    pods = [POD_4, POD_6, Address.parse("10.1.0.6")]
    known = desired(POLICY, pods, links=links).members
    assert known[sender_set(Family.V4).name] == {Sender("nm1", POD_4)}
    assert known[sender_set(Family.V6).name] == {Sender("nm2", POD_6)}
    without = desired(POLICY, pods, Abilities(senders=False), links=links).members
    assert sender_set(Family.V4).name not in without
