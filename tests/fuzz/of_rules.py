"""What other programs may make of our own tables, and rules of theirs that are counted."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from unittest.mock import patch

from netmgr.documents.accounting import NodeRules
from netmgr.documents.node import Backend
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.errors import KernelError
from netmgr.kernel.xtables import saved
from netmgr.kernel.xtables.saved import SavedTable
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.rules import iptables_chains, nft_listing, tagged
from netmgr.rules.diff import diff
from netmgr.rules.iptables import IptablesBackend
from netmgr.rules.iptables_chains import HookRules
from netmgr.rules.model import Abilities, Ruleset
from netmgr.rules.nft_table import Fingerprints, Listing
from netmgr.rules.policy import Policy, desired
from tests.fuzz.mutation import Shape
from tests.fuzz.target import target

NFT = """
nftables set chain rule counter table flowtable map name family handle type hook prio policy
accept drop flags interval dormant size elem val prefix addr len range concat comment expr
dynamic timeout pod_in4 internal4 senders4 forward
"""
SAVED = """
*mangle *raw COMMIT :INPUT ACCEPT [0:0] :FORWARD :NETMGR-FORWARD :NETMGR-RULE-INPUT-0123abcd -
[3:40] -A INPUT FORWARD NETMGR-FORWARD -s -d 10.0.0.0/8 ! -m set --match-set netmgr-internal4 src
comment --comment
"iptables-exporter netmgr traffic=internet-in" "netmgr unattributed internet-in v4" -j -g RETURN
# Table `mangle' is incompatible, use 'nft' tool.
"""
RANGES = (Prefix.parse("10.1.0.0/28"), Prefix.parse("2001:db8:1::/112"))
PODS = [Address.parse("10.1.0.5"), Address.parse("10.1.0.6"), Address.parse("2001:db8:1::5")]


@functools.cache
def _desired() -> Ruleset:
    return desired(_policy(), PODS, Abilities())


@functools.cache
def _of_iptables() -> Ruleset:
    return desired(_policy(), PODS, IptablesBackend.abilities)


def _policy() -> Policy:
    return Policy(
        internal=tuple(merge((*SPECIAL_USE, Prefix.parse("10.0.0.0/8"), *RANGES))),
        ranges=RANGES,
        masquerade=True,
        node_rules=NodeRules.CORRECTED,
        rule_owner="netmgr",
        exact_prefix=Prefix.parse("10.0.0.0/8"),
    )


@target(Shape.JSON, rounds=500, longest=16384, tokens=NFT)
def nft_table(data: bytes) -> None:
    """Whatever nft lists of the table is a `KernelError`, or can be repaired by one transaction."""
    try:
        listed = json.loads(data)["nftables"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return
    fingerprints = Fingerprints()
    try:
        observed = nft_listing.observed(Listing.of(fingerprints.compared(listed)), _desired())
    except KernelError:
        return
    plan = diff(_desired(), observed)
    assert plan.operations or not observed.malformed
    # What it shows twice alike is no drift.
    again = Listing.of(fingerprints.compared(listed))
    assert nft_listing.observed(again, _desired()) == observed


@target(Shape.TEXT, rounds=2000, longest=16384, tokens=SAVED)
def saved_tables(data: bytes) -> None:
    """What iptables-save prints is a `KernelError`, or every line of it is a chain or a rule, and
    ours can be repaired by one script.
    """
    text = data.decode("utf-8", errors="replace")
    try:
        tables, _ = saved.parse(text)
        rules = {name: list(map(table.rules, table.lines)) for name, table in tables.items()}
        edits = [edit for name, table in tables.items() for edit in _edits(name, table)]
        edits += iptables_chains.removal(tables).splitlines()
    except KernelError:
        return
    count = sum(len(listed) for chains in rules.values() for listed in chains)
    assert count == sum(" -A " in line and line[0] not in "#*:" for line in text.split("\n"))
    assert all("\n" not in edit for edit in edits)
    _tagged(tables)


def _edits(name: str, table: SavedTable) -> Iterator[str]:
    for hook, of_table in iptables_chains.TABLES.items():
        if of_table == name:
            there = HookRules(table, hook, _of_iptables().chains.get(hook, ()), Family.V4)
            list(there.observed())
            yield from there.edits()


def _tagged(tables: Mapping[str, SavedTable]) -> None:
    places = [
        (tagged.Place(Backend.IPTABLES_LEGACY, Family.V4, name, chain), table)
        for name, table in tables.items()
        for chain in table.lines
    ]
    with patch.object(tagged, "_places", lambda: places):
        found = tagged.read(lambda _place, _table: ())
    assert len(found.chains) <= tagged.MOST_CHAINS
    assert len(found.packets) == len(found.bytes) <= tagged.MOST_RULES
