"""What other programs may make of our own tables, and rules of theirs that are counted."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from unittest.mock import patch

from netmgr.documents.accounting import NodeRules
from netmgr.documents.node import Backend
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.errors import KernelError
from netmgr.kernel.xtables import listing
from netmgr.kernel.xtables.entries import Entry
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.rules import nft_listing, tagged
from netmgr.rules.diff import diff
from netmgr.rules.model import Abilities, Ruleset
from netmgr.rules.policy import Policy, desired
from tests.fuzz.mutation import Shape
from tests.fuzz.target import target

NFT = """
nftables set chain rule counter table flowtable map name family handle type hook prio policy
accept drop flags interval dormant size elem val prefix addr len range concat comment expr
dynamic timeout pod_in4 internal4 senders4 forward
"""
RANGES = (Prefix.parse("10.1.0.0/28"), Prefix.parse("2001:db8:1::/112"))
PODS = [Address.parse("10.1.0.5"), Address.parse("10.1.0.6"), Address.parse("2001:db8:1::5")]


@functools.cache
def _desired() -> Ruleset:
    policy = Policy(
        internal=tuple(merge((*SPECIAL_USE, Prefix.parse("10.0.0.0/8"), *RANGES))),
        ranges=RANGES,
        masquerade=True,
        node_rules=NodeRules.CORRECTED,
        rule_owner="netmgr",
        exact_prefix=Prefix.parse("10.0.0.0/8"),
    )
    return desired(policy, PODS, Abilities())


@target(Shape.JSON, rounds=500, longest=16384, tokens=NFT)
def nft_table(data: bytes) -> None:
    """Whatever nft lists of the table is a `KernelError`, or can be repaired by one transaction."""
    try:
        listed = json.loads(data)["nftables"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return
    fingerprints = nft_listing.Fingerprints()
    try:
        observed = nft_listing.observed(listed, _desired(), fingerprints)
    except KernelError:
        return
    plan = diff(_desired(), observed)
    assert plan.operations or not observed.malformed
    # What it shows twice alike is no drift.
    assert nft_listing.observed(listed, _desired(), fingerprints) == observed


@target(Shape.BYTES, rounds=1000, longest=16384)
def tagged_rules(data: bytes) -> None:
    """Others' rules with a tag are a `KernelError`, or series with names that are text."""
    if not data:
        return
    family = tuple(Family)[data[0] % 2]

    def legacy() -> Iterator[tuple[tagged.Place, int, list[Entry]]]:
        table = listing.Table(bytearray(data[1:]), {0: "INPUT"}, family)
        with_tag = table.having(b"iptables-exporter ")
        for chain, count in table.rule_counts().items():
            place = tagged.Place(Backend.IPTABLES_LEGACY, family, "mangle", chain)
            yield place, count, with_tag.get(chain, [])

    with patch.object(tagged, "_legacy", legacy), patch.object(tagged, "_nft", tuple):
        try:
            found = tagged.read(lambda _place, _entries: ())
        except KernelError:
            return
    assert len(found.chains) <= tagged.MOST_CHAINS
    assert len(found.packets) == len(found.bytes) <= tagged.MOST_RULES
    for series in (*found.chains, *found.packets):
        assert f"{series.chain}{series.rule}".encode()
