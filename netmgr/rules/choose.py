"""Which backend a node uses: decided once, then remembered.

`auto` looks at nftables alone, and `iptables` for the variant of it that is in use; the answer is
written down and kept. Only the document changes a node's backend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from netmgr import durable
from netmgr.documents.accounting import CountingAt
from netmgr.documents.backend import Backend
from netmgr.errors import KernelError, SetupError
from netmgr.kernel.capabilities import Capability
from netmgr.kernel.xtables import libiptc
from netmgr.kernel.xtables.variant import TABLES, Variant, legacy_tables, nft_is_supported
from netmgr.model import CHAIN_PREFIX
from netmgr.prefixes import Family
from netmgr.rules.engine import RuleBackend


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What is known of a backend without opening it."""

    modules: tuple[str, ...]
    """What its rules need that most kernels have as modules."""
    may_have_rules: Callable[[], bool]
    """Whether this kernel has what they would be in. Looking changes nothing."""
    capabilities: tuple[Capability, ...] = ()
    """What it needs beside CAP_NET_ADMIN."""
    has_sets: bool = False
    """Whether it counts pods in ipsets: two such backends cannot count beside each other."""


# iptables' programs look up tables and sets by a raw socket; legacy tables need modules.
FACTS: Mapping[Backend, BackendFacts] = {
    Backend.NFTABLES: BackendFacts(
        ("nf_tables", "nf_conntrack", "nft_ct", "nft_fib_inet", "nft_masq"), lambda: True
    ),
    Backend.LINKS: BackendFacts(
        (
            *("nf_tables", "nf_conntrack", "nft_ct", "nft_fib_inet", "nft_masq"),
            *("sch_ingress", "cls_bpf"),
        ),
        lambda: True,
        # A program is found by its number with CAP_SYS_ADMIN alone (bpf_prog_get_fd_by_id).
        (Capability.SYS_ADMIN,),
    ),
    Backend.IPTABLES_NFT: BackendFacts(
        ("nf_tables", "nft_compat", "ip_set", "xt_set", "ipt_rpfilter", "ip6t_rpfilter"),
        nft_is_supported,
        (Capability.NET_RAW,),
        has_sets=True,
    ),
    Backend.IPTABLES_LEGACY: BackendFacts(
        ("ip_tables", "ip6_tables", "ip_set", "xt_set", "ipt_rpfilter", "ip6t_rpfilter"),
        # Opening the legacy tables creates them, so only where they are already in use.
        lambda: any("mangle" in legacy_tables(family) for family in Family),
        (Capability.NET_RAW, Capability.SYS_MODULE),
        has_sets=True,
    ),
}

ONE_TABLE = frozenset({Backend.NFTABLES, Backend.LINKS})
"""Only what counts differs between these: rules that count go with a successor's next plan."""

# In the state directory: the name of the backend in use, and a line feed.
FILE_NAME = "rules-backend"

Place = tuple[str, str]
"""A table and a chain of it."""

# Every kubelet since Kubernetes 1.17 keeps these in the variant it uses.
_KUBELETS = frozenset({("mangle", "KUBE-IPTABLES-HINT"), ("mangle", "KUBE-KUBELET-CANARY")})


def open_backend(
    choice: Backend, state_dir: Path, at: CountingAt = CountingAt.RULES
) -> RuleBackend:
    """The backend for `choice`, ready for use.

    Raises:
        SetupError: a library that the backend needs is missing.
        StateError: the remembered decision cannot be read or written.
        KernelError: the kernel refuses the backend's sockets.
    """
    backend = would_use(choice, state_dir, at)
    if choice not in FACTS and remembered(state_dir) is None:
        remember(backend, state_dir)
    return open_kind(backend)


def open_kind(kind: Backend) -> RuleBackend:
    """The backend of this kind, as `remembered` gives it; raises as `open_backend`."""
    # Each backend's libraries are imported only on the node that uses them.
    if kind is Backend.LINKS:
        from netmgr.rules.links import LinksBackend  # noqa: PLC0415  one backend's libraries are loaded, not both

        return LinksBackend()
    if kind is Backend.NFTABLES:
        from netmgr.rules.nftables import NftablesBackend  # noqa: PLC0415  one backend's libraries are loaded, not both

        return NftablesBackend()
    from netmgr.rules.iptables import IptablesBackend  # noqa: PLC0415  one backend's libraries are loaded, not both

    if kind is Backend.IPTABLES_NFT and not nft_is_supported():
        raise SetupError(
            "backend: iptables-nft cannot be used: this kernel lacks nft_compat or xt_set; "
            "load them with `modprobe -a nft_compat xt_set`, or choose another backend"
        )
    if kind is Backend.IPTABLES_LEGACY:
        # Before any rule is changed: it reads their counts.
        libiptc.load()
    return IptablesBackend(Variant(kind))


def remember(name: str, state_dir: Path) -> None:
    """Note the backend in use: `auto` keeps to it, and a later change finds what to remove."""
    durable.make_folder(state_dir)
    durable.write(state_dir / FILE_NAME, f"{name}\n".encode(), 0o600)


def would_use(choice: Backend, state_dir: Path, at: CountingAt = CountingAt.RULES) -> Backend:
    """What `open_backend` would open: one that can hold rules. Changes nothing, raises as it."""
    if at is CountingAt.LINKS:
        return Backend.LINKS
    if choice in FACTS:
        return choice
    # A node that changed its mind would count on one backend and repair on the other.
    former = remembered(state_dir)
    if former is Backend.LINKS:
        # Whose other rules are in nftables.
        former = Backend.NFTABLES
    if former is None or (choice is Backend.IPTABLES and former is Backend.NFTABLES):
        return Backend.NFTABLES if choice is Backend.AUTO and _nftables_works() else in_use()
    return former


def remembered(state_dir: Path) -> Backend | None:
    """The backend that this node used last; None if it used none. StateError: it is unreadable."""
    return durable.read(state_dir / FILE_NAME, _parsed)


def _parsed(text: str) -> Backend:
    name = text.strip()
    if name not in FACTS:
        raise ValueError(
            f"{name!r} is no backend; put there what this node used before: {', '.join(FACTS)}"
        )
    return Backend(name)


def _nftables_works() -> bool:
    from netmgr.kernel.libnftables import LibNftables  # noqa: PLC0415 - as above

    try:
        library = LibNftables()
    except (SetupError, KernelError):
        return False
    try:
        # Unlike other listings this reads no rules, of which a machine may have 100,000.
        library.run("list chains")
    except KernelError:
        return False
    finally:
        library.close()
    return True


def in_use() -> Backend:
    """The variant in use in the calling thread's namespace; KernelError if it cannot be listed."""
    if not nft_is_supported():
        return Backend.IPTABLES_LEGACY
    counts_by_variant = {
        kind: _rule_counts(kind) for kind in (Backend.IPTABLES_NFT, Backend.IPTABLES_LEGACY)
    }
    # As the images of kube-proxy and its like decide it (kubernetes-sigs/iptables-wrappers). But
    # chains of ours come first, so that an agent which lost its state finds its rules.
    for is_decisive in (_is_ours, _KUBELETS.__contains__):
        for variant, places in counts_by_variant.items():
            if any(map(is_decisive, places)):
                return variant
    # The first one has nf_tables' rules, which decide between equals: without any rules, nf_tables
    # is what today's distributions use.
    return max(counts_by_variant, key=lambda variant: counts_by_variant[variant].total())


def _is_ours(place: Place) -> bool:
    table, chain = place
    return table in TABLES and chain.startswith(CHAIN_PREFIX)


def _rule_counts(kind: Backend) -> Counter[Place]:
    """How many rules each chain has, over both families."""
    counts: Counter[Place] = Counter()
    try:
        variant = Variant(kind)
    except SetupError:
        # Without its programs nobody uses it.
        return counts
    for family in Family:
        # Only those that exist: looking at another legacy table creates it, which would turn the
        # next look's answer around.
        for name, table in variant.tables(family).items():
            for chain, lines in table.lines.items():
                # A chain without rules decides, too: the kubelet's hint has none.
                counts[name, chain] += len(lines)
    return counts
