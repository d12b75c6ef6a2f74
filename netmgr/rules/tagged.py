"""Other programs' rules that are tagged for PyPI's iptables-exporter.

The tag is `--comment "iptables-exporter NAME"`. All existing tables of both variants of iptables
are read, of both families, but for those that iptables cannot show; reading creates none. Rules of
ours are left out, and so are rules that count in place of ours.
"""

from __future__ import annotations

import re
from collections import Counter as Sums
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from netmgr.documents.backend import Backend
from netmgr.errors import SetupError
from netmgr.kernel.xtables.saved import SavedRule, SavedTable
from netmgr.kernel.xtables.variant import BUILT_IN, TABLES, Variant
from netmgr.model import CHAIN_PREFIX
from netmgr.prefixes import Family

# Bounds of what is reported of a machine: kube-proxy makes chains by the ten thousand.
MOST_CHAINS, MOST_RULES = 500, 2000

_TAG = "iptables-exporter "
_COMMENT = re.compile(r"iptables-exporter (.*)")


class Place(NamedTuple):
    """A chain of a table of a variant."""

    variant: Backend
    family: Family
    table: str
    chain: str


class Series(NamedTuple):
    """The exporter's name of a rule, or without `rule` of a chain; chains are in small letters."""

    family: Family
    table: str
    chain: str
    rule: str = ""


@dataclass
class Tagged:
    """Packets and bytes of tagged rules, and the number of rules of each chain, summed by name."""

    packets: Sums[Series] = field(default_factory=Sums)
    bytes: Sums[Series] = field(default_factory=Sums)
    chains: Sums[Series] = field(default_factory=Sums)
    left_out: int = 0
    """Rules and chains that are beyond the bounds."""


Serving = Callable[[Place, SavedTable], Collection[SavedRule]]
"""Which of a chain's rules are ours, or count in place of ours."""


def read(serving: Serving) -> Tagged:
    """Everything tagged in the calling thread's namespace that is not ours."""
    sums = Tagged()
    for place, table in _places():
        chain = place.chain.lower()
        sums.chains[Series(place.family, place.table, chain)] += len(table.lines[place.chain])
        tagged = [] if place.chain.startswith(CHAIN_PREFIX) else table.having(place.chain, _TAG)
        # A second rule that equals one which serves us is reported.
        others = Sums(tagged) - Sums(serving(place, table) if tagged else ())
        for rule in others.elements():
            if named := _COMMENT.fullmatch(rule.comment):
                series = Series(place.family, place.table, chain, named[1])
                sums.packets[series] += rule.packets
                sums.bytes[series] += rule.bytes
    return _bounded(sums)


def _places() -> Iterator[tuple[Place, SavedTable]]:
    """Every chain, and the table that it is in."""
    for kind, family in product((Backend.IPTABLES_LEGACY, Backend.IPTABLES_NFT), Family):
        try:
            tables = Variant(kind).all_counts(family)
        except SetupError:
            # Without its programs nobody uses it.
            continue
        for name, table in tables.items():
            if name in TABLES:
                yield from ((Place(kind, family, name, chain), table) for chain in table.lines)


def _bounded(sums: Tagged) -> Tagged:
    # Beyond the bounds, chains without tagged rules that are not built in go first.
    tagged = {(series.table, series.chain) for series in sums.packets}
    chains = sorted(
        sums.chains,
        key=lambda series: (
            series.chain.upper() not in BUILT_IN,
            series[1:3] not in tagged,
            series,
        ),
    )
    rules = sorted(sums.packets)
    for series in chains[MOST_CHAINS:]:
        del sums.chains[series]
    for series in rules[MOST_RULES:]:
        del sums.packets[series], sums.bytes[series]
    return replace(sums, left_out=len(chains[MOST_CHAINS:]) + len(rules[MOST_RULES:]))
