"""The nftables table that leads limited pods' internet packets to HTB, as nft commands.

Each direction of a pod's link has a chain at the link's own hook, so that other links' packets meet
nothing of it. Its rules send internet packets through one of our IFBs, in the class that they name;
the IFB gives them back behind the hook. Internal packets go on at once.

Where there are quotas, internet packets meet a second chain first, which charges them to each. It
drops what is beyond, or names another class for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from netmgr.model import Traffic
from netmgr.prefixes import Family, Prefix
from netmgr.rules import nft_chains
from netmgr.rules.nft_table import Listing

# Not of the family inet, as the one for accounting: that has no hook at a link's egress.
TABLE = "netdev netmgr"

# The link in which each direction waits.
IFBS = {Traffic.INTERNET_OUT: "netmgr-out", Traffic.INTERNET_IN: "netmgr-in"}

# Of the host's end: what the pod sends comes in there, what it gets goes out. And which of a
# packet's addresses is the internet's.
_HOOKS = {Traffic.INTERNET_OUT: ("ingress", "daddr"), Traffic.INTERNET_IN: ("egress", "saddr")}

# Before flowtables, whose hook is at 0: what is in one would never be limited.
_PRIORITY = -10

# So many prefixes are compared in 0.01 µs each; looking up costs 0.2.
_MOST_COMPARED = 16


@dataclass(frozen=True)
class KnownPeers:
    """What decides about a packet: the prefix that its peer is in.

    Attributes:
        known: what is not internet.
        classes: disjoint prefixes of each class of traffic, all of them known, by the class's name.
    """

    known: Sequence[Prefix]
    classes: Mapping[str, Sequence[Prefix]] = field(default_factory=dict)


class LinkChain(NamedTuple):
    """What leads one direction of a link to its class."""

    link: str
    # A link that is made anew under the same name needs a chain of its own: most kernels remove one
    # with its link, and Linux 6.18 keeps it for the next link of the name.
    link_index: int
    traffic: Traffic
    number: int
    rest: int = 0
    """The class of what is not internet, or in no class of traffic that has one; 0 for none."""
    quotas: tuple[tuple[str, int], ...] = ()
    """Objects that internet packets are charged to, and the class of what is beyond; 0: dropped."""
    classes: tuple[tuple[str, int], ...] = ()
    """Those of classes of traffic, by the traffic's name."""

    @property
    def name(self) -> str:
        return f"{self.traffic.replace('-', '_')}_{self.link}"

    @property
    def charging(self) -> str:
        """Name of the chain with its quotas."""
        return f"charge_{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of all its chains; each is led to by the one before."""
        return (self.name, self.charging) if self.quotas else (self.name,)


class QuotaObject(NamedTuple):
    """A quota as the kernel has it: the count at which it is spent, and the count; both bytes.

    The kernel shows no higher count than the bound, whatever it has counted.
    """

    bound: int
    counted: int

    @property
    def is_over(self) -> bool:
        return self.counted >= self.bound


def whole(
    chains: Iterable[LinkChain],
    peers: KnownPeers,
    present: Iterable[tuple[str, str]] = (),
    quotas: Mapping[str, QuotaObject] | None = None,
) -> str:
    """Commands that replace the table, in one transaction, so that no packet passes unlimited.

    Args:
        chains: what it is to have.
        peers: what decides which class a packet is in.
        present: kinds and names of what it has and is not to keep.
        quotas: objects to be made.
    """
    # Not deleted and made anew: quota objects would go, and with them what they have counted.
    lines = [f"add table {TABLE}", f"flush table {TABLE}"]
    for kind, name in present:
        lines += _removed(kind, name)
    lines += _quotas(quotas or {})
    for name, prefixes in sets(peers).items():
        kind = f"ipv{prefixes[0].family.value}_addr"
        lines.append(
            f"add set {TABLE} {name} {{ type {kind}; flags interval; "
            f"elements = {{ {', '.join(map(str, prefixes))} }}; }}"
        )
    for chain in chains:
        lines += _filled(chain, peers)
    return nft_chains.script(lines)


def changed(
    added: Iterable[LinkChain],
    removed: Iterable[LinkChain],
    peers: KnownPeers,
    quotas: Mapping[str, QuotaObject] | None = None,
    unused: Iterable[str] = (),
) -> str:
    """Commands that remove chains and unused quotas, and add others."""
    lines: list[str] = []
    for chain in removed:
        # All are emptied first, since one leads to the other.
        lines += [f"flush chain {TABLE} {name}" for name in chain.names]
        lines += [f"delete chain {TABLE} {name}" for name in chain.names]
    for name in unused:
        lines += _removed("quota", name)
    lines += _quotas(quotas or {})
    for chain in added:
        lines += _filled(chain, peers)
    return nft_chains.script(lines)


def names(chains: Iterable[LinkChain]) -> frozenset[str]:
    return frozenset(name for chain in chains for name in chain.names)


def sets(peers: KnownPeers) -> dict[str, list[Prefix]]:
    """The sets of what is not internet, for families with too many prefixes to compare."""
    return {
        _set(family): prefixes
        for family, prefixes in _by_family(peers.known).items()
        if len(prefixes) > _MOST_COMPARED
    }


def bases(chain: LinkChain) -> dict[str, nft_chains.Base]:
    """What makes the base chain among those of a link, by its name."""
    hook, _ = _HOOKS[chain.traffic]
    return {chain.name: nft_chains.Base("filter", hook, _PRIORITY, chain.link)}


def contents(chain: LinkChain, peers: KnownPeers) -> dict[str, tuple[str, ...]]:
    """The rules of all its chains, by name; what others lead to comes first."""
    rules = [*_of_classes(chain, peers), *_of_internet(chain, peers)]
    if chain.rest:
        # ARP and neighbour discovery's like are not IP, or too little to wait.
        rest = _forward(chain.traffic, chain.rest)
        rules += [f"meta protocol {protocol} {rest}" for protocol in ("ip", "ip6")]
    charging = {chain.charging: tuple(_charging(chain))} if chain.quotas else {}
    return {**charging, chain.name: tuple(rules)}


def holds(
    listing: Listing, chains: Iterable[LinkChain], gone: Collection[str], peers: KnownPeers
) -> bool:
    """Whether a listing has these chains as they are written, and no others but `gone` ones."""
    marks: dict[str, list[str]] = {}
    made: dict[str, nft_chains.Base] = {}
    for chain in chains:
        made |= bases(chain)
        for name, rules in contents(chain, peers).items():
            marks[name] = nft_chains.marks(name, rules)
    prefixes = {name: listing.prefixes(name) for name in listing.sets}
    known = {name: frozenset(members) for name, members in sets(peers).items()}
    return listing.holds(marks, made, gone) and prefixes == known


def _filled(chain: LinkChain, peers: KnownPeers) -> Iterator[str]:
    base = bases(chain)
    for name, rules in contents(chain, peers).items():
        yield from nft_chains.fill(TABLE, name, rules, base.get(name))


def _of_classes(chain: LinkChain, peers: KnownPeers) -> Iterator[str]:
    # They come first: their prefixes are not internet.
    _, peer = _HOOKS[chain.traffic]
    for traffic, number in chain.classes:
        prefixes_by_family = _by_family(peers.classes[Traffic(traffic).kind])
        for family, prefixes in prefixes_by_family.items():
            if prefixes:
                members = ", ".join(map(str, prefixes))
                forward = _forward(chain.traffic, number)
                yield f"{nft_chains.protocol(family)} {peer} {{ {members} }} {forward}"


def _of_internet(chain: LinkChain, peers: KnownPeers) -> Iterator[str]:
    """What leads internet packets of each family on."""
    if not chain.quotas and not chain.number:
        return
    _, peer = _HOOKS[chain.traffic]
    charged = f"goto {chain.charging}"
    action = charged if chain.quotas else _forward(chain.traffic, chain.number)
    for family, prefixes in _by_family(peers.known).items():
        field = f"{nft_chains.protocol(family)} {peer}"
        if len(prefixes) > _MOST_COMPARED:
            yield f"{field} != @{_set(family)} {action}"
        else:
            yield " ".join([*(f"{field} != {prefix}" for prefix in prefixes), action])


def _charging(chain: LinkChain) -> Iterator[str]:
    if chain.number:
        yield _class(chain.number)
    for name, slow in chain.quotas:
        # Set and not sent at once: each packet is charged to every quota.
        yield f'quota name "{name}" {_class(slow) if slow else "drop"}'
    if chain.number:
        yield _send(chain.traffic)
    else:
        # A priority that is no class of ours stays as it was.
        slow_classes = {slow for _, slow in chain.quotas if slow}
        for slow in sorted(slow_classes):
            yield f"meta priority 1:{slow:x} {_send(chain.traffic)}"


def bounds(changes: Mapping[str, int]) -> str:
    """Commands that set the counts at which quotas are spent; what they have counted stays."""
    return nft_chains.script(
        _quotas({name: QuotaObject(bound, 0) for name, bound in changes.items()})
    )


def resets(names: Iterable[str]) -> str:
    """Commands that set what quotas have counted to 0."""
    return nft_chains.script([f"reset quota {TABLE} {name}" for name in names])


def _quotas(quotas: Mapping[str, QuotaObject]) -> list[str]:
    # The kernel takes the count only of an object that it has not, and changes the bound of others.
    return [
        f"add quota {TABLE} {name} {{ over {quota.bound} bytes used {quota.counted} bytes }}"
        for name, quota in quotas.items()
    ]


def _removed(kind: str, name: str) -> list[str]:
    # A chain may have gone with its link, and what is not there cannot be deleted.
    made = [f"add chain {TABLE} {name}"] if kind == "chain" else []
    return [*made, f"delete {kind} {TABLE} {name}"]


def _forward(traffic: Traffic, number: int) -> str:
    return f"{_class(number)} {_send(traffic)}"


def _class(number: int) -> str:
    return f"meta priority set 1:{number:x}"


def _send(traffic: Traffic) -> str:
    return f'fwd to "{IFBS[traffic]}"'


def _by_family(prefixes: Sequence[Prefix]) -> Mapping[Family, list[Prefix]]:
    return {family: [prefix for prefix in prefixes if prefix.family is family] for family in Family}


def _set(family: Family) -> str:
    return f"internal{family.value}"
