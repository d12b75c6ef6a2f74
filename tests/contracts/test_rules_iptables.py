"""What holds on the iptables backend alone: the article's words, iptables' lock, and rules as
iptables makes them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.documents.accounting import NodeRules
from netmgr.errors import KernelError, TryAgainLater
from netmgr.model import Counter, Sample, Traffic
from netmgr.prefixes import Address, Family
from netmgr.rules.engine import Rules
from netmgr.rules.model import Hook
from tests import legacy_lock
from tests.contracts.conftest import put_right, run, settled
from tests.fakes.accounts_node import NODE_RULES

pytestmark = pytest.mark.root

INPUT = Counter("INPUT", Family.V4, Traffic.INTERNET_IN)
PODS = [Address.parse("10.1.0.5"), Address.parse("2001:db8:1::5")]
ARTICLE = {
    f"-A {chain} ! -{end} 10.0.0.0/8 -m comment --comment "
    f'"iptables-exporter openai traffic=internet-{way}"'
    for end, way, chains in (("s", "in", ("INPUT", "FORWARD")), ("d", "out", ("OUTPUT", "FORWARD")))
    for chain in chains
}
COUNTED = [f"[5:500] {line}" for line in sorted(ARTICLE)]


def rules_of(saved: str, word: str = "-A") -> list[str]:
    return [line for line in saved.splitlines() if line.startswith("-A") and word in line]


def restore(variant_program, lines: Iterable[str]) -> None:
    """Add rules to the mangle table, with their counts if they have any."""
    command = "iptables-restore --noflush --counters"
    variant_program(command, "\n".join(["*mangle", *lines, "COMMIT\n"]))


def test_the_exact_rules_are_the_articles_word_for_word(backend, policy, variant_program):
    rules = settled(backend, replace(policy, node_rules=NodeRules.EXACT), PODS)
    saved = rules_of(variant_program("iptables-save -t mangle"))
    assert {line for line in saved if "iptables-exporter" in line} == ARTICLE
    more = (Address(Family.V4, 0x0A010064 + one) for one in range(90))
    rules.apply(rules.plan([*PODS, *more]))
    assert rules_of(variant_program("iptables-save -t mangle")) == saved, (
        "whatever the number of pods"
    )


def test_a_node_rule_given_twice_is_kept_once_with_its_count(
    backend, many_internal, variant_program
):
    """That it looks into a set of ours as ours do tells that it is ours: a save and a restore made
    two of it.
    """
    rules = settled(backend, many_internal)
    lines = rules_of(variant_program("iptables-save -t mangle"))
    (rule,) = [line for line in lines if line.startswith("-A INPUT") and "NETMGR" not in line]
    restore(variant_program, [f"[5:500] {rule}", f"[2:200] {rule}"])
    variant_program("iptables -t mangle -D INPUT 2")
    plan = put_right(rules)
    assert plan.repairs == (
        "chain input: rule 'node input internet-in v4' was there more than once",
    )
    assert plan.created == frozenset()
    assert Sample(INPUT, 500, 5) in rules.read()


def test_a_rule_of_the_users_own_is_never_removed_whatever_its_comment_says(
    backend, policy, variant_program
):
    comment = '-m comment --comment "iptables-exporter openai traffic=internet-in"'
    theirs = {
        f"-A INPUT ! -s 10.0.0.0/9 {comment}",
        f"-A INPUT -p udp {comment}",
        f"-A INPUT {comment} -j ACCEPT",
    }
    restore(variant_program, theirs)
    for node_rules, owner in (
        (NodeRules.CORRECTED, "openai"),
        (NodeRules.EXACT, "openai"),
        (NodeRules.EXACT, "other"),
    ):
        rules = Rules(backend, replace(policy, node_rules=node_rules, rule_owner=owner))
        put_right(rules, PODS)
        assert theirs <= set(rules_of(variant_program("iptables-save -t mangle")))
    rules.remove()
    assert theirs == set(rules_of(variant_program("iptables-save -t mangle")))


def test_an_altered_rule_is_nobodys_mistake_to_remove_and_ours_is_put_beside_it(
    backend, policy, variant_program
):
    rules = settled(backend, replace(policy, node_rules=NodeRules.EXACT))
    comment = "iptables-exporter openai traffic=internet-in"
    altered = f'! -s 10.0.0.0/9 -m comment --comment "{comment}"'
    restore(variant_program, [f"-R INPUT 2 {altered}"])
    plan = put_right(rules)
    assert plan.repairs == ("chain input: rule 'node input internet-in v4' was missing",)
    assert plan.created == {INPUT}
    assert f"-A INPUT {altered}" in rules_of(variant_program("iptables-save -t mangle"))


def test_the_articles_rules_of_the_users_own_serve_as_they_are_and_stay(
    backend, policy, variant_program
):
    """Who has the article's four rules already sees no second copy of them, and keeps them in the
    end.
    """
    restore(variant_program, COUNTED)
    rules = Rules(backend, replace(policy, node_rules=NodeRules.EXACT))
    put_right(rules)
    saved = rules_of(variant_program("iptables-save -t mangle"), "iptables-exporter")
    assert sorted(saved) == sorted(ARTICLE)
    assert Sample(INPUT, 500, 5) in rules.read()
    rules.remove()
    assert set(rules_of(variant_program("iptables-save -t mangle"))) == ARTICLE


def test_the_users_rule_that_equals_ours_stays_when_ours_goes(backend, policy, variant_program):
    rules = settled(backend, replace(policy, node_rules=NodeRules.EXACT))
    restore(variant_program, COUNTED)
    assert not rules.plan([])
    assert Sample(INPUT, 0, 0) in rules.read(), "of the two, ours"
    rules.remove()
    saved = variant_program("iptables-save -c -t mangle").splitlines()
    assert sorted(line for line in saved if "iptables-exporter" in line) == COUNTED


@pytest.mark.parametrize("node_rules", NodeRules)
def test_another_programs_save_and_restore_of_all_tables_alters_nothing_of_ours(
    backend, policy, variant_program, node_rules
):
    rules = settled(backend, replace(policy, node_rules=node_rules), PODS)
    for name in ("iptables", "ip6tables"):
        variant_program(f"{name}-restore --counters", variant_program(f"{name}-save -c"))
    assert not rules.plan(PODS)


def article_owners(variant_program) -> set[str]:
    saved = "".join(variant_program(f"ip{n}tables-save -t mangle") for n in ("", "6"))
    return {
        line.split("iptables-exporter ")[1].split()[0]
        for line in rules_of(saved, "iptables-exporter ")
    }


@pytest.mark.parametrize("now", NodeRules)
@pytest.mark.parametrize("before", NodeRules)
def test_the_rules_of_the_former_owner_go_when_the_owner_changes(
    backend, policy, variant_program, before, now
):
    settled(backend, replace(policy, node_rules=before), PODS)
    rules = Rules(backend, replace(policy, node_rules=now, rule_owner="other"))
    assert {
        "chain input: rule 'node input internet-in v4' was missing",
        "chain input: rule 'iptables-exporter openai traffic=internet-in' does not belong there",
    } <= set(put_right(rules, PODS).repairs)
    assert article_owners(variant_program) == {"other"}
    rules.remove()
    assert article_owners(variant_program) == set()
    assert variant_program("ipset list -n") == ""


def test_removal_takes_the_former_owners_rules_along(backend, policy, variant_program):
    settled(backend, policy)
    Rules(backend, replace(policy, rule_owner="other")).remove()
    assert article_owners(variant_program) == set()
    assert variant_program("ipset list -n") == ""


@pytest.mark.parametrize("node_rules", NodeRules)
def test_another_programs_rules_of_the_articles_kind_stay(
    backend, policy, variant_program, node_rules
):
    variant_program("ipset create theirs hash:net")
    tag = '-m comment --comment "iptables-exporter them traffic='
    foreign = [
        f'-A INPUT ! -s 172.16.0.0/12 {tag}internet-in"',
        f'-A INPUT ! -s 10.0.0.0/8 {tag}dns"',
        f'-A INPUT ! -s 10.0.0.0/8 {tag}internet-in" -j ACCEPT',
        f'-A INPUT -m set ! --match-set theirs src {tag}internet-in"',
    ]
    restore(variant_program, foreign)
    rules = Rules(backend, replace(policy, node_rules=node_rules))
    put_right(rules)
    rules.remove()
    assert rules_of(variant_program("iptables-save -t mangle")) == foreign


def test_a_lost_jump_means_that_the_rules_behind_it_are_not_in_force(
    backend, policy, variant_program
):
    rules = settled(backend, policy)
    variant_program("iptables -t raw -D PREROUTING -j NETMGR-PREROUTING")
    lost = [rule.id for rule in policy.sources.rules(Hook.PREROUTING, Family.V4, backend.abilities)]
    told = tuple(f"chain prerouting: rule '{name}' was missing" for name in lost)
    assert put_right(rules).repairs == told


@pytest.mark.parametrize("variant", ["legacy"], indirect=True)
def test_removal_takes_chains_of_ours_that_an_older_version_left(backend, policy, variant_program):
    older = """
*nat
:NETMGR-SERVICES - [0:0]
:NETMGR-S-0123 - [0:0]
-A PREROUTING -j NETMGR-SERVICES
-A PREROUTING -p tcp -j ACCEPT
-A NETMGR-SERVICES -d 10.200.0.1/32 -p tcp -g NETMGR-S-0123
-A NETMGR-S-0123 -p tcp -j DNAT --to-destination 10.9.0.1:8080
COMMIT
*filter
:NETMGR-REFUSED - [0:0]
-A FORWARD -j NETMGR-REFUSED
COMMIT
"""
    variant_program("iptables-restore", older)
    rules = settled(backend, policy, PODS)
    rules.remove()
    saved = variant_program("iptables-save")
    assert "NETMGR" not in saved
    assert rules_of(saved) == ["-A PREROUTING -p tcp -j ACCEPT"]


@pytest.mark.parametrize("variant", ["nft"], indirect=True)
def test_removal_leaves_others_chains_and_no_rule_of_ours(backend, policy, variant_program):
    variant_program("iptables -t mangle -A OUTPUT -m mark --mark 1")
    rules = settled(backend, policy, PODS)
    variant_program("ip6tables -t raw -A PREROUTING -m mark --mark 2")
    rules.remove()
    assert rules_of(variant_program("iptables-save")) == ["-A OUTPUT -m mark --mark 0x1"]
    assert rules_of(variant_program("ip6tables-save")) == ["-A PREROUTING -m mark --mark 0x2"]
    assert "NETMGR" not in run("nft list ruleset")


@pytest.mark.parametrize("variant", ["nft"], indirect=True)
def test_rules_are_changed_and_read_while_another_program_changes_its_own_without_a_pause(
    backend, policy
):
    """As kube-proxy does on a large cluster: the kernel has another generation each time that it is
    asked.
    """
    rules = Rules(backend, policy)
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_A_PAUSE], stdout=subprocess.PIPE
    ) as others:
        try:
            assert others.stdout is not None
            others.stdout.read(1)
            for _ in range(5):
                rules.apply(rules.plan(PODS))
                of_node = NODE_RULES + 2 * len(Traffic)
                assert len(rules.read()) == len(rules.counters(PODS)) + of_node * len(Family)
                assert not rules.plan(PODS)
                rules.remove()
        finally:
            others.kill()


WITHOUT_A_PAUSE = """
from netmgr.kernel import nf_tables
from netmgr.kernel.nf_tables_socket import NftSocket
channel = NftSocket()
print("ready", flush=True)
while True:
    channel.commit([nf_tables.new_table("busy")])
    channel.commit([nf_tables.delete_table("busy")])
"""


@pytest.mark.parametrize("variant", ["nft"], indirect=True)
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (" { flags dormant; }", "it is dormant.*wake it with: nft add table ip mangle"),
        ("\nadd chain ip mangle FORWARD", "chain FORWARD is not where iptables has it"),
        (
            "\nadd chain ip mangle INPUT { type filter hook input priority 7; }",
            "a chain of it is not where iptables has it.*nft list table ip mangle",
        ),
    ],
)
def test_tables_in_which_rules_would_have_no_effect_are_refused_with_the_reason(
    backend, policy, made, told
):
    run("nft -f -", f"add table ip mangle{made}\n")
    with pytest.raises(KernelError, match=told):
        Rules(backend, policy).plan([])


@pytest.mark.parametrize("variant", ["legacy"], indirect=True)
def test_changes_of_rules_wait_for_the_lock_only_so_long_and_pods_do_not_wait_at_all(
    backend, policy
):
    rules = settled(backend, policy)
    rules.remove()
    with legacy_lock.held():
        with pytest.raises(TryAgainLater, match=r"xtables\.lock is held by another program"):
            rules.apply(rules.plan([]))
        rules.admit(PODS)
        assert rules.read_pods(PODS)
        rules.expel(PODS)
    put_right(rules)


def test_only_the_tables_in_use_come_into_being(backend, policy, variant):
    settled(backend, policy, PODS)
    legacy = Path("/proc/thread-self/net/ip_tables_names").read_text(encoding="ascii").split()
    tables = map(str.split, run("nft list tables").splitlines())
    nft = [name for _, family, name in tables if family == "ip"]
    used, unused = (legacy, nft) if variant == "legacy" else (nft, legacy)
    assert sorted(used) == ["mangle", "nat", "raw"]
    assert unused == []
