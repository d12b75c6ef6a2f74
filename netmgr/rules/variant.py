"""Which variant of iptables a machine uses: the legacy tables, or nf_tables.

Chosen as the images of kube-proxy and its like choose (kubernetes-sigs/iptables-wrappers): the variant
that holds the kubelet's chain is the machine's; without one, that with more rules, and nf_tables when both have
none. Chains of ours decide before all that, so that an agent which lost its state finds its rules. Nothing is
created by looking: only legacy tables that exist are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from netmgr.config import Backend
from netmgr.dataplane import nft_messages
from netmgr.dataplane.nft_messages import message
from netmgr.dataplane.nft_socket import NftSocket
from netmgr.dataplane.rtnetlink import NLM_F_DUMP
from netmgr.prefixes import Family
from netmgr.rules import nft_tables, xt_listing
from netmgr.rules.xt_entries import OWN_CHAINS

KUBELET = ("mangle", frozenset({"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}))
"""The table and the chains that every kubelet since Kubernetes 1.17 keeps in the variant it uses."""

Counts = dict[tuple[str, str], int]
"""Rules by table and chain."""


def in_use() -> Backend:
    """The variant in use in the calling thread's namespace.

    Raises:
        KernelError: the kernel refused to list what it has.
    """
    if not nft_tables.is_supported():
        return Backend.IPTABLES_LEGACY
    return _decide(list(_nft()), list(_legacy()))


def _decide(nft: Iterable[Counts], legacy: Iterable[Counts]) -> Backend:
    found = {Backend.IPTABLES_NFT: list(nft), Backend.IPTABLES_LEGACY: list(legacy)}
    for is_telling in (_is_ours, _is_kubelets):
        for variant, listed in found.items():
            if any(is_telling(*place) for counts in listed for place in counts):
                return variant
    rules = {variant: sum(sum(counts.values()) for counts in listed) for variant, listed in found.items()}
    more_legacy = rules[Backend.IPTABLES_LEGACY] > rules[Backend.IPTABLES_NFT]
    return Backend.IPTABLES_LEGACY if more_legacy else Backend.IPTABLES_NFT


def _is_ours(table: str, chain: str) -> bool:
    return table in nft_tables.TABLES and chain.startswith(OWN_CHAINS)


def _is_kubelets(table: str, chain: str) -> bool:
    return table == KUBELET[0] and chain in KUBELET[1]


def _legacy() -> Iterator[Counts]:
    for family in Family:
        for table in xt_listing.in_use(family):
            counts = xt_listing.read(table, family).rule_counts()
            yield {(table, chain): count for chain, count in counts.items()}


def _nft() -> Iterator[Counts]:
    with closing(NftSocket()) as channel:
        for family in Family:
            counts: Counts = {}
            chains = message(nft_messages.GET_CHAIN, b"", "list chains", NLM_F_DUMP, nft_tables.NFPROTO[family])
            for table, chain, _ in channel.dump(chains, nft_messages.chain_of):
                if table in nft_tables.TABLES:
                    counts[table, chain] = 0
            rules = message(nft_messages.GET_RULE, b"", "list rules", NLM_F_DUMP, nft_tables.NFPROTO[family])
            for place in channel.dump(rules, nft_messages.place_of):
                if place in counts:
                    counts[place] += 1
            yield counts
