"""Other programs' rules that are tagged for PyPI's iptables-exporter.

The tag is `--comment "iptables-exporter NAME"`. All existing tables of both variants of iptables
are read, of both families; reading creates none. Rules with our mark are left out, and so are
rules that count in place of ours.
"""

from __future__ import annotations

import re
from collections import Counter as Sums
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from netmgr.documents.node import Backend
from netmgr.kernel import nf_tables
from netmgr.kernel.netlink import NLM_F_DUMP, attribute
from netmgr.kernel.nf_tables import message, text
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.kernel.xtables import listing, nft
from netmgr.kernel.xtables.entries import Entry
from netmgr.kernel.xtables.nft import NFPROTO
from netmgr.model import CHAIN_PREFIX
from netmgr.prefixes import Family
from netmgr.rules import iptables_entries

MOST_CHAINS, MOST_RULES = 500, 2000
"""Bounds of what is reported of a machine: kube-proxy makes chains by the ten thousand."""

_TAG = b"iptables-exporter "
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


Serving = Callable[[Place, Sequence[Entry]], Collection[Entry]]
"""Which of a chain's tagged entries count in place of ours."""


def read(serving: Serving) -> Tagged:
    """Everything tagged in the calling thread's namespace that is not ours.

    Raises:
        TryAgainLater: others change rules all the time.
        KernelError: the kernel refused.
    """
    found = Tagged()
    for place, count, entries in (*_legacy(), *_nft()):
        chain = place.chain.lower()
        found.chains[Series(place.family, place.table, chain)] += count
        ours = serving(place, entries)
        for entry in entries:
            named = _COMMENT.fullmatch(entry.comment)
            # By identity: a second rule that equals one which serves us is reported.
            serves_us = any(entry is one for one in ours) or place.chain.startswith(CHAIN_PREFIX)
            if named and not serves_us and not iptables_entries.is_marked(entry):
                packets, octets = entry.counters
                series = Series(place.family, place.table, chain, named[1])
                found.packets[series] += packets
                found.bytes[series] += octets
    return _bounded(found)


def _bounded(found: Tagged) -> Tagged:
    """Beyond the bounds, chains without tagged rules that are not built in go first."""
    tagged = {(one.table, one.chain) for one in found.packets}
    chains = sorted(
        found.chains,
        key=lambda one: (one.chain.upper() not in nft.HOOKS, one[1:3] not in tagged, one),
    )
    rules = sorted(found.packets)
    for one in chains[MOST_CHAINS:]:
        del found.chains[one]
    for one in rules[MOST_RULES:]:
        del found.packets[one], found.bytes[one]
    return replace(found, left_out=len(chains[MOST_CHAINS:]) + len(rules[MOST_RULES:]))


def _legacy() -> Iterator[tuple[Place, int, list[Entry]]]:
    for family in Family:
        for table in listing.in_use(family):
            listed = listing.read(table, family)
            tagged = listed.having(_TAG)
            for chain, count in listed.rule_counts().items():
                yield (
                    Place(Backend.IPTABLES_LEGACY, family, table, chain),
                    count,
                    tagged.get(chain, []),
                )


def _nft() -> Iterator[tuple[Place, int, list[Entry]]]:
    with closing(NftSocket()) as channel:
        for family in Family:
            request = message(nf_tables.GET_CHAIN, b"", "list chains", NLM_F_DUMP, NFPROTO[family])
            names = [
                (table, chain) for table, chain, _ in channel.dump(request, nf_tables.chain_of)
            ]
            for table in nft.TABLES:
                chains = [chain for its, chain in names if its == table]
                if chains:
                    yield from _nft_table(channel, family, table, chains)


def _nft_table(
    channel: NftSocket, family: Family, table: str, chains: Iterable[str]
) -> Iterator[tuple[Place, int, list[Entry]]]:
    request = message(
        nf_tables.GET_RULE,
        attribute(1, text(table)),
        f"list table {table}",
        NLM_F_DUMP,
        NFPROTO[family],
    )

    def note(body: bytes) -> tuple[str, Entry | None]:
        # Decoding costs more than looking for the tag, and kube-proxy has rules by the ten
        # thousand.
        entry = nft.entry_of(body, family) if _TAG in body else None
        return nf_tables.chain_named_in(body), entry

    counts, tagged = dict.fromkeys(chains, 0), dict[str, list[Entry]]()
    for chain, entry in channel.list_whole(request, note, attempts=3):
        counts[chain] = counts.get(chain, 0) + 1
        if entry is not None:
            tagged.setdefault(chain, []).append(entry)
    for chain, count in counts.items():
        yield Place(Backend.IPTABLES_NFT, family, table, chain), count, tagged.get(chain, [])
