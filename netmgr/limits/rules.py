"""The nftables table that leads limited pods' internet packets to HTB, as nft commands.

Each direction of a pod's link has a chain at the link's own hook, so that other links' packets meet
nothing of it. Its rules send internet packets through one of our IFBs, in the class that they name;
the IFB gives them back behind the hook. Internal packets go on at once.

Where there are quotas, internet packets meet a second chain first, which charges them to each. It
drops what is beyond, or names another class for it. Quota objects outlive every change of chains:
what they have counted is lost with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from netmgr.model import Traffic
from netmgr.prefixes import Family, Prefix

TABLE = "netdev netmgr"
"""Beside the one for accounting, which is of the family inet."""

IFBS = {Traffic.INTERNET_OUT: "netmgr-out", Traffic.INTERNET_IN: "netmgr-in"}
"""The link in which each direction waits."""

_HOOKS = {Traffic.INTERNET_OUT: ("ingress", "daddr"), Traffic.INTERNET_IN: ("egress", "saddr")}
"""Of the host's end: what the pod sends comes in there, what it gets goes out. And which of a
packet's addresses is the internet's."""

_PRIORITY = -10
"""Before flowtables, whose hook is at 0: what is in one would never be limited."""

_MOST_COMPARED = 16
"""So many prefixes are compared in 0.01 µs each; looking up costs 0.2."""


@dataclass(frozen=True)
class Peers:
    """What decides about a packet: the prefix that its peer is in.

    Attributes:
        known: what is not internet.
        classes: disjoint prefixes of each class of traffic, all of them known, by the class's name.
    """

    known: Sequence[Prefix]
    classes: Mapping[str, Sequence[Prefix]] = field(default_factory=dict)


class Chain(NamedTuple):
    """What leads one direction of a link to its class.

    `link_index` is the link's: one that is made anew under the same name needs a chain of its own.
    """

    link: str
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
        """Whether packets are beyond it."""
        return self.counted >= self.bound


def whole(
    chains: Iterable[Chain],
    peers: Peers,
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
    lines = [f"add table {TABLE}", f"flush table {TABLE}"]
    for kind, name in present:
        lines += _removed(kind, name)
    lines += _quotas(quotas or {})
    for family, prefixes in _by_family(peers.known).items():
        if len(prefixes) > _MOST_COMPARED:
            kind = "ipv4_addr" if family is Family.V4 else "ipv6_addr"
            lines.append(
                f"add set {TABLE} {_set(family)} {{ type {kind}; flags interval; "
                f"elements = {{ {', '.join(map(str, prefixes))} }}; }}"
            )
    for chain in chains:
        lines += _made(chain, peers)
    return _text(lines)


def changed(
    added: Iterable[Chain],
    removed: Iterable[Chain],
    peers: Peers,
    quotas: Mapping[str, QuotaObject] | None = None,
    unused: Iterable[str] = (),
) -> str:
    """Commands that remove chains and unused quotas, and add others."""
    lines: list[str] = []
    for chain in removed:
        lines += [f"flush chain {TABLE} {name}" for name in chain.names]
        lines += [f"delete chain {TABLE} {name}" for name in chain.names]
    for name in unused:
        lines += _removed("quota", name)
    lines += _quotas(quotas or {})
    for chain in added:
        lines += _made(chain, peers)
    return _text(lines)


def names(chains: Iterable[Chain]) -> frozenset[str]:
    return frozenset(name for chain in chains for name in chain.names)


def leads(listed: Mapping[str, str], chain: Chain, peers: Peers) -> bool:
    """Whether chains, as nft shows them by name, have all that leads to the classes of one."""
    internet = f"goto {chain.charging}" if chain.quotas else _class(chain.number)
    wanted = [
        _class(number)
        for traffic, number in chain.classes
        for _ in _of_class(chain.traffic, peers.classes[Traffic(traffic).kind])
    ]
    wanted += [internet] * len(Family) if chain.number or chain.quotas else []
    wanted += [_class(chain.rest)] * len(Family) if chain.rest else []
    statements = re.findall(
        r"goto \S+|meta priority set 1:[0-9a-f]+(?= fwd to)", listed.get(chain.name, "")
    )
    charging = [line.strip() for line in listed.get(chain.charging, "").splitlines()]
    return statements == wanted and charging == (list(_charging(chain)) if chain.quotas else [])


def _made(chain: Chain, peers: Peers) -> Iterator[str]:
    hook, _ = _HOOKS[chain.traffic]
    base = f'type filter hook {hook} device "{chain.link}" priority {_PRIORITY}; policy accept;'
    yield f"add chain {TABLE} {chain.name} {{ {base} }}"
    # Classes of traffic come first: their prefixes are not internet.
    for traffic, number in chain.classes:
        for member in _of_class(chain.traffic, peers.classes[Traffic(traffic).kind]):
            yield f"add rule {TABLE} {chain.name} {member} {_forward(chain.traffic, number)}"
    yield from _led(chain, peers)
    if chain.rest:
        # ARP and neighbour discovery's like are not IP, or too little to wait.
        for protocol in ("ip", "ip6"):
            rest = _forward(chain.traffic, chain.rest)
            yield f"add rule {TABLE} {chain.name} meta protocol {protocol} {rest}"


def _of_internet(traffic: Traffic, peers: Peers) -> Iterator[str]:
    """What matches internet packets of each family."""
    _, peer = _HOOKS[traffic]
    for family, prefixes in _by_family(peers.known).items():
        protocol = "ip" if family is Family.V4 else "ip6"
        if len(prefixes) > _MOST_COMPARED:
            yield f"{protocol} {peer} != @{_set(family)}"
        else:
            yield " ".join(f"{protocol} {peer} != {prefix}" for prefix in prefixes)


def _led(chain: Chain, peers: Peers) -> Iterator[str]:
    """What leads internet packets on, and what these then meet."""
    if not chain.quotas and not chain.number:
        return
    action = _forward(chain.traffic, chain.number)
    if chain.quotas:
        action = f"goto {chain.charging}"
        yield f"add chain {TABLE} {chain.charging}"
        yield from (f"add rule {TABLE} {chain.charging} {rule}" for rule in _charging(chain))
    for others in _of_internet(chain.traffic, peers):
        yield f"add rule {TABLE} {chain.name} {others} {action}"


def _of_class(traffic: Traffic, prefixes: Sequence[Prefix]) -> Iterator[str]:
    """What matches packets with the prefixes of one class."""
    _, peer = _HOOKS[traffic]
    for family, family_prefixes in _by_family(prefixes).items():
        if family_prefixes:
            protocol = "ip" if family is Family.V4 else "ip6"
            yield f"{protocol} {peer} {{ {', '.join(map(str, family_prefixes))} }}"


def _charging(chain: Chain) -> Iterator[str]:
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
    return _text(_quotas({name: QuotaObject(bound, 0) for name, bound in changes.items()}))


def resets(names: Iterable[str]) -> str:
    """Commands that set what quotas have counted to 0."""
    return _text([f"reset quota {TABLE} {name}" for name in names])


def _quotas(quotas: Mapping[str, QuotaObject]) -> list[str]:
    # The kernel takes the count only of an object that it has not, and changes the bound of others.
    return [
        f"add quota {TABLE} {name} {{ over {quota.bound} bytes used {quota.counted} bytes }}"
        for name, quota in quotas.items()
    ]


def _removed(kind: str, name: str) -> list[str]:
    # A chain may have gone with its link.
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


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
