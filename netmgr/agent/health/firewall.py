"""Whether another program's chains drop what pods exchange: by their policy, or by a last rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from netmgr.kernel import nf_tables
from netmgr.kernel.netlink import NLM_F_DUMP
from netmgr.kernel.nf_tables import BaseChain
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.kernel.xtables.variant import LEGACY, Variant, legacy_tables
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Family

_DROPS_ALL = re.compile("-A FORWARD -j (DROP|REJECT)\\b")


class Obstacle(NamedTuple):
    """A chain that drops whatever none of its rules accepts."""

    what: str
    acceptance: str
    """A command with a place for `i` or `o`, which has the chain accept pods' packets."""

    @property
    def message(self) -> str:
        return f"{self.what} drops what pods exchange, unless a rule before it accepts that"

    @property
    def remedy(self) -> str:
        """Commands that have the chain accept what comes from pods, and goes to them."""
        come, go = (self.acceptance.format(way) for way in "io")
        return f"see whether one does, or: {come}; {go}"


def obstacles() -> Iterator[Obstacle]:
    """Chains that drop forwarded packets in the calling thread's namespace."""
    yield from _of_nftables()
    for family in Family:
        if "filter" in legacy_tables(family):
            yield from _of_legacy(family)


def _of_nftables() -> Iterator[Obstacle]:
    with closing(NftSocket()) as channel:
        listing = nf_tables.message(
            nf_tables.GET_CHAIN, b"", "list chains", NLM_F_DUMP, nf_tables.NFPROTO_UNSPEC
        )
        chains = channel.list_of(
            listing, lambda body: nf_tables.base_chain_of(body, nf_tables.FORWARD_HOOK)
        )
        yield from filter(None, (_of_chain(channel, chain) for chain in chains))


def _of_chain(channel: NftSocket, chain: BaseChain) -> Obstacle | None:
    own = nf_tables.list_rules(chain, of_table=False)
    last = next(filter(None, channel.list_of(own, nf_tables.dropping_rule_of)), None)
    # A table with a rule about pods' links is left to that rule's author.
    if not (last or chain.drops) or _knows_pods(channel, chain):
        return None
    # Behind all rules but the one that drops: network policies are among them.
    verb = f"insert rule {chain} handle {last}" if last else f"add rule {chain}"
    return _obstacle(last, str(chain), f"nft {verb} {{}}ifname '{LINK_PREFIX}*' accept")


def _knows_pods(channel: NftSocket, chain: BaseChain) -> bool:
    """Whether a rule of the chain's table is about pods' links."""
    listing = nf_tables.list_rules(chain, of_table=True)
    return any(
        LINK_PREFIX.encode() in value
        for _, _, rule in channel.list_of(listing, nf_tables.rule_of)
        for expression in rule
        if expression.name == "cmp"
        for value in expression.attributes.values()
    )


def _of_legacy(family: Family) -> Iterator[Obstacle]:
    variant = Variant(LEGACY)
    program, table = variant.program(family), variant.table("filter", family)
    rules = "\n".join(line for lines in table.lines.values() for line in lines)
    places = (n for n, line in enumerate(table.lines["FORWARD"], 1) if _DROPS_ALL.search(line))
    last = next(places, None)
    if (last or table.policies["FORWARD"] == "DROP") and f" {LINK_PREFIX}" not in rules:
        verb = f"-I FORWARD {last}" if last else "-A FORWARD"
        yield _obstacle(last, program, f"{program} {verb} -{{}} {LINK_PREFIX}+ -j ACCEPT")


def _obstacle(last: int | None, chain: str, acceptance: str) -> Obstacle:
    return Obstacle(f"{'a rule' if last else 'the policy'} of {chain}", acceptance)
