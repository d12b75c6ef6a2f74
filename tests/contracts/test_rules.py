"""What every rule backend must do, and what it must leave alone."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from netmgr.documents.accounting import NodeRules
from netmgr.errors import KernelError
from netmgr.model import Counter, Sample, Traffic
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.classifier import pod_set
from netmgr.rules.engine import Rules
from netmgr.rules.model import Hook
from tests.contracts.conftest import Kernel, put_right

POD = Address.parse("10.1.0.5")
POD6 = Address.parse("2001:db8:1::5")
OTHER = Address.parse("10.1.0.6")
IN = Counter.of_pod(POD, Traffic.INTERNET_IN)
OUT = Counter.of_pod(POD, Traffic.INTERNET_OUT)
NODE_COUNTERS = {
    Counter(hook, family, traffic)
    for family in Family
    for hook, ways in (
        *(("INPUT", "in"), ("OUTPUT", "out"), ("FORWARD", "")),
        *(("UNATTRIBUTED", ""), ("PODS", "")),
    )
    for traffic in Traffic
    if traffic.endswith(ways)
}


def counters_of(*addresses: Address) -> set[Counter]:
    return {Counter.of_pod(address, traffic) for address in addresses for traffic in Traffic}


def without_lives(samples: list[Sample]) -> list[Sample]:
    return [sample._replace(life=0) for sample in samples]


def settle(rules: Rules, *pods: Address) -> None:
    rules.apply(rules.plan(pods))


def counted(rules: Rules) -> set[Counter]:
    return {sample.counter for sample in rules.read()}


def counted_of(rules: Rules, *pods: Address) -> set[Counter]:
    return {sample.counter for sample in rules.read_pods(pods)}


def test_the_first_plan_makes_everything_and_names_every_counter_it_begins(rules):
    plan = rules.plan([POD, POD6])
    assert plan
    assert plan.created == NODE_COUNTERS | counters_of(POD, POD6)
    assert plan.repairs == ("the whole ruleset was missing",)
    assert rules.plan([POD, POD6]) == plan, "planning changes nothing"
    assert rules.read() == []


@pytest.mark.parametrize("node_rules", NodeRules)
@pytest.mark.parametrize("masquerade", [True, False])
def test_a_second_plan_is_empty(kernel, policy, node_rules, masquerade):
    rules = Rules(kernel.backend, replace(policy, node_rules=node_rules, masquerade=masquerade))
    settle(rules, POD, POD6)
    plan = rules.plan([POD, POD6])
    assert not plan
    assert (plan.repairs, plan.operations, plan.created) == ((), (), frozenset())


def test_an_admitted_pod_is_counted_and_an_expelled_one_is_not(rules):
    settle(rules)
    rules.admit([POD, POD6])
    assert counted_of(rules, POD, POD6, OTHER) == counters_of(POD, POD6)
    assert not rules.plan([POD, POD6])
    rules.expel([POD, POD6])
    assert rules.read_pods([POD, POD6]) == []
    assert not rules.plan([])


def test_admitting_again_keeps_the_count(kernel, rules):
    settle(rules)
    rules.admit([POD])
    kernel.set_counts("pod_out4", [POD], 4, 4000)
    rules.admit([POD])
    assert Sample(OUT, 4000, 4) in rules.read_pods([POD])
    assert Sample(OUT, 4000, 4) in rules.read()


def test_many_pods_that_return_all_begin_at_zero(kernel, rules):
    pods = [Address(POD.family, POD.value + offset) for offset in range(300)]
    settle(rules)
    rules.admit(pods)
    kernel.set_counts("pod_out4", pods, 4, 4000)
    for _ in range(2):
        rules.expel(pods[::2])
        rules.admit(pods[::2])
    assert {sample.bytes for sample in rules.read_pods(pods[::2])} == {0}


def test_expelling_twice_succeeds_and_so_it_does_where_there_are_no_rules(rules):
    rules.expel([POD, POD6])
    settle(rules, POD, OTHER)
    rules.expel([POD])
    rules.expel([POD])
    assert counted_of(rules, POD, OTHER) == counters_of(OTHER)


def test_expelling_some_that_are_there_and_some_that_are_not_takes_out_the_former(kernel, rules):
    settle(rules, POD, POD6)
    kernel.lose_element("pod_out4", POD)
    rules.expel([OTHER, POD, POD6])
    assert rules.read_pods([POD, POD6]) == []


def test_expelling_goes_on_where_a_set_is_missing(kernel, rules):
    settle(rules, POD, POD6)
    kernel.lose_set(pod_set(Traffic.INTERNET_OUT, Family.V4))
    rules.expel([POD, POD6])
    assert rules.read_pods([POD, POD6]) == []


def test_each_pod_of_a_full_node_is_read_to_the_byte(kernel, rules):
    """More than one message of either kernel interface has, and more than 32 or 63 bits."""
    pods = [Address(one.family, one.value + n) for one in (POD, POD6) for n in range(1500)]
    settle(rules, *pods)
    wanted = {counter: Sample(counter, 0, 0) for counter in NODE_COUNTERS | counters_of(*pods)}
    for number, pod in enumerate(pods[1::700]):
        packets, octets = (1 << 32) + number, (1 << 64) - 2 - number
        kernel.set_counts(f"pod_in{pod.family.value}", [pod], packets, octets)
        counter = Counter.of_pod(pod, Traffic.INTERNET_IN)
        wanted[counter] = Sample(counter, octets, packets)
    for _ in range(2):
        read = without_lives(rules.read())
        assert sorted(read, key=str) == sorted(wanted.values(), key=str)
    few = pods[0], pods[-1], pods[701]
    assert set(without_lives(rules.read_pods(few))) == {
        wanted[counter] for counter in counters_of(*few)
    }
    assert not rules.plan(pods)
    rules.expel(pods[:-1])
    assert counted(rules) == NODE_COUNTERS | counters_of(pods[-1])


def test_admitting_where_there_are_no_rules_is_refused_with_the_reason(rules):
    with pytest.raises(KernelError) as refusal:
        rules.admit([POD])
    assert refusal.value.errno == errno.ENOENT


def test_many_threads_may_come_and_go_at_once(rules):
    settle(rules)
    pods = [Address(POD.family, POD.value + offset) for offset in range(40)]

    def come_and_go(pod):
        for _ in range(3):
            rules.admit([pod])
            assert counted_of(rules, pod) == counters_of(pod)
            assert rules.check([pod]) == []
            rules.expel([pod])
        rules.admit([pod])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(come_and_go, pods))
    assert not rules.plan(pods)


def test_a_lost_rule_is_named_and_put_back_without_losing_a_pods_count(kernel, rules):
    settle(rules, POD)
    kernel.set_counts("pod_in4", [POD], 4, 4000)
    kernel.lose_rule(Hook.BEFORE_SRCNAT, "pod internet-in v4")
    plan = put_right(rules, [POD])
    # nftables counts all of it in one rule, so that all is lost with it.
    lost = {
        f"chain before_srcnat: rule '{name} v4' was missing"
        for name in ("pod internet-in", "node forward internet-in")
    }
    assert "chain before_srcnat: rule 'pod internet-in v4' was missing" in plan.repairs
    assert set(plan.repairs) <= lost
    # With iptables the rule is a counter itself: the sum of what pods' counters counted.
    assert plan.created <= {Counter("PODS", Family.V4, Traffic.INTERNET_IN)}
    assert Sample(IN, 4000, 4) in rules.read()


def lost(hook: Hook, rule: str) -> tuple[Callable[[Kernel], None], str]:
    """The loss of a rule, and what is said of it."""
    return lambda kernel: kernel.lose_rule(hook, rule), f"chain {hook}: rule '{rule}' was missing"


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        lost(Hook.PREROUTING, "anti-spoofing v4"),
        lost(Hook.PREROUTING, "anti-spoofing v6"),
        lost(Hook.INPUT, "node input internet-in v4"),
        lost(Hook.BEFORE_SRCNAT, "unattributed internet-out v4"),
        (
            lambda kernel: kernel.add_element("pod_in4", OTHER),
            f"set pod_in4: {OTHER} does not belong there",
        ),
        (
            lambda kernel: kernel.add_rule(Hook.BEFORE_SRCNAT),
            "chain before_srcnat: rule '(without a comment)' does not belong there",
        ),
        (
            lambda kernel: kernel.move_first_rule_to_the_end(Hook.PREROUTING),
            "chain prerouting: the rules were in another order",
        ),
    ],
    ids=["spoofing v4", "spoofing v6", "node", "leaving", "element", "strange", "order"],
)
def test_harm_is_told_in_one_sentence_and_put_right_without_losing_a_pods_count(
    kernel, rules, harm, told
):
    settle(rules, POD)
    for name in ("pod_in4", "pod_out4"):
        kernel.set_counts(name, [POD], 4, 4000)
    harm(kernel)
    assert put_right(rules, [POD]).repairs == (told,)
    assert {Sample(IN, 4000, 4), Sample(OUT, 4000, 4)} <= set(rules.read())
    assert counted(rules) == NODE_COUNTERS | counters_of(POD)


def test_a_lost_element_is_named_and_its_counter_begins_again(kernel, rules):
    settle(rules, POD, OTHER)
    kernel.set_counts("pod_in4", [OTHER], 2, 200)
    kernel.lose_element("pod_out4", POD)
    plan = put_right(rules, [POD, OTHER])
    assert plan.repairs == (f"set pod_out4: {POD} was missing",)
    assert plan.created == {OUT}
    assert Sample(Counter.of_pod(OTHER, Traffic.INTERNET_IN), 200, 2) in rules.read()


def test_a_set_of_another_make_is_made_anew(kernel, rules):
    settle(rules, POD)
    kernel.remake_set_wrongly(pod_set(Traffic.INTERNET_OUT, Family.V4))
    plan = put_right(rules, [POD])
    assert "set pod_out4 was of another type" in plan.repairs
    assert OUT in plan.created


def test_everything_lost_is_made_again(kernel, rules):
    settle(rules, POD)
    kernel.lose_everything()
    plan = put_right(rules, [POD])
    assert plan.repairs == ("the whole ruleset was missing",)
    assert plan.created == NODE_COUNTERS | counters_of(POD)


def test_a_changed_policy_changes_only_what_it_must(kernel, policy, rules):
    settle(rules, POD)
    kernel.set_counts("pod_out4", [POD], 4, 4000)
    wider = Rules(
        kernel.backend,
        replace(policy, internal=(*policy.internal, Prefix.parse("198.51.100.0/24"))),
    )
    plan = put_right(wider, [POD])
    compared = kernel.backend.abilities.compares > len(policy.internal)
    altered = [sentence for sentence in plan.repairs if sentence.endswith("v4' was altered")]
    assert plan.repairs == ("set internal4: 198.51.100.0/24 was missing", *altered)
    assert bool(altered) == compared, "the rules that look into no set name the prefixes themselves"
    assert plan.created == frozenset()
    put_right(rules, [POD])
    assert Sample(OUT, 4000, 4) in rules.read()


def test_check_says_what_one_pod_lacks_and_nothing_about_others(kernel, rules):
    settle(rules, POD, OTHER)
    assert rules.check([POD]) == []
    kernel.lose_element("pod_out4", OTHER)
    assert rules.check([POD]) == []
    assert rules.check([OTHER]) == [f"set pod_out4: {OTHER} was missing"]
    kernel.lose_rule(Hook.BEFORE_SRCNAT, "pod internet-in v6")
    assert "chain before_srcnat: rule 'pod internet-in v6' was missing" in rules.check([POD])


def test_others_rules_stay_as_they_are_through_everything(kernel, rules):
    kernel.settle_neighbours()
    before = kernel.neighbours()
    settle(rules, POD, POD6)
    assert kernel.neighbours() == before
    kernel.lose_rule(Hook.INPUT, "node input internet-in v4")
    kernel.add_rule(Hook.BEFORE_SRCNAT)
    settle(rules, POD)
    assert kernel.neighbours() == before
    for _ in range(2):
        rules.remove()
        assert kernel.neighbours() == before
        assert rules.read() == []
    assert rules.plan([]).repairs == ("the whole ruleset was missing",)
