"""Other people's rules that are tagged for iptables-exporter, in all tables, of both families and
both variants.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from netmgr.documents.accounting import NodeRules
from netmgr.prefixes import Family
from netmgr.rules import tagged
from netmgr.rules.engine import Rules
from netmgr.rules.tagged import Series
from tests.contracts.conftest import run, settled

pytestmark = pytest.mark.root

PROGRAMS = {Family.V4: "iptables", Family.V6: "ip6tables"}
PLACES = [
    ("raw", "PREROUTING"),
    ("mangle", "INPUT"),
    ("nat", "POSTROUTING"),
    ("filter", "Theirs"),
    ("security", "INPUT"),
]
TAG = "-m comment --comment"


@pytest.fixture
def rules(real_kernel, policy) -> Rules:
    return Rules(real_kernel.backend, policy)


def add(variant: str, family: Family, table: str, lines: str) -> None:
    run(
        f"{PROGRAMS[family]}-{variant}-restore --noflush --counters", f"*{table}\n{lines}\nCOMMIT\n"
    )


def saved_counts(variant: str, family: Family, table: str) -> tuple[int, int]:
    """Packets and bytes of the table's one tagged rule, as its own program prints them."""
    saved = run(f"{PROGRAMS[family]}-{variant}-save -c -t {table}")
    (found,) = re.findall(r"^\[(\d+):(\d+)\] .*iptables-exporter web of", saved, re.MULTILINE)
    return int(found[0]), int(found[1])


@pytest.mark.parametrize("variant", ["legacy", "nft"])
def test_tagged_rules_of_every_table_and_family_are_read(variant, rules):
    rules.apply(rules.plan([]))
    expected = {}
    for number, family in enumerate(Family):
        for place, (table, chain) in enumerate(PLACES):
            head = f":{chain} - [0:0]\n" if chain == "Theirs" else ""
            tail = {
                "filter": " -p tcp -m tcp --dport 80 -j DROP",
                "raw": " -m mark --mark 0x5",
            }.get(table, "")
            name = f"web of {table}"
            add(
                variant,
                family,
                table,
                f'{head}[{place}:{number}7] -A {chain} {TAG} "iptables-exporter {name}"{tail}',
            )
            counts = saved_counts(variant, family, table)
            # ip6tables-nft 1.8.9 drops the counts that it is given; later ones take them.
            if (variant, family) != ("nft", Family.V6):
                assert counts == (place, 10 * number + 7)
            expected[Series(family, table, chain.lower(), name)] = counts
    found = rules.tagged()
    assert {one: (found.packets[one], found.bytes[one]) for one in found.packets} == expected
    assert found.left_out == 0


@pytest.mark.parametrize("variant", ["legacy", "nft"])
def test_chains_are_counted_as_they_are_and_untagged_rules_are_not_told(variant, rules):
    add(
        variant,
        Family.V4,
        "filter",
        f':OTHER - [0:0]\n-A OTHER {TAG} "not for exporters"\n-A OTHER -j ACCEPT',
    )
    found = rules.tagged()
    assert not found.packets
    assert found.chains[Series(Family.V4, "filter", "other")] == 2
    assert {one.family for one in found.chains} == {Family.V4}


def test_rules_of_one_name_in_one_chain_are_added_up(rules):
    for variant in ("legacy", "nft"):
        line = f'-A INPUT {TAG} "iptables-exporter web"'
        add(variant, Family.V4, "mangle", f"[1:10] {line}\n[2:200] {line} -j ACCEPT")
    found = rules.tagged()
    (series,) = found.packets
    assert (found.packets[series], found.bytes[series]) == (6, 420)


@pytest.mark.parametrize("node_rules", NodeRules)
def test_ours_are_not_among_them_marked_or_not(node_rules, real_kernel, policy):
    rules = settled(real_kernel.backend, replace(policy, node_rules=node_rules))
    assert not rules.tagged().packets
    if real_kernel.backend.name == "nftables":
        return
    for program in PROGRAMS.values():
        tool = real_kernel.backend.name.replace("iptables", program)
        saved = run(f"{tool}-save -c -t mangle")
        assert "iptables-exporter openai" in saved
        run(f"{tool}-restore --counters", saved)
    assert not rules.plan([])
    assert not rules.tagged().packets, (
        "what a save and a restore left without our mark counts in place of ours"
    )


def test_a_rule_of_the_same_owner_over_other_packets_is_told_beside_ours(rules, real_kernel):
    rules.apply(rules.plan([]))
    variant = "nft" if real_kernel.backend.name == "iptables-nft" else "legacy"
    add(
        variant,
        Family.V4,
        "mangle",
        f'[3:30] -A INPUT -p udp {TAG} "iptables-exporter openai traffic=internet-in"',
    )
    found = rules.tagged()
    assert found.bytes == {Series(Family.V4, "mangle", "input", "openai traffic=internet-in"): 30}


def test_looking_makes_no_table(rules):
    before = run("nft list tables"), run("cat /proc/thread-self/net/ip_tables_names")
    rules.tagged()
    assert (run("nft list tables"), run("cat /proc/thread-self/net/ip_tables_names")) == before


def test_what_is_told_of_a_machine_is_bounded(rules, monkeypatch):
    monkeypatch.setattr(tagged, "MOST_CHAINS", 9)
    monkeypatch.setattr(tagged, "MOST_RULES", 3)
    chains = "".join(f":C{number} - [0:0]\n" for number in range(20))
    lines = "\n".join(f'-A C{number} {TAG} "iptables-exporter web"' for number in range(10, 15))
    add("nft", Family.V4, "filter", f"{chains}{lines}")
    found = rules.tagged()
    assert [one.chain for one in found.packets] == ["c10", "c11", "c12"]
    assert len(found.chains) == 9
    assert {"c10", "c11", "c12", "c13", "c14"} <= {one.chain for one in found.chains}
    assert found.left_out == 14 + 2
