"""The nftables table that leads limited pods' internet packets to HTB, as nft commands.

Each direction of a pod's link has a chain at the link's own hook, so that other links' packets meet
nothing of it. Its rules send internet packets through one of our IFBs, in the class that they name;
the IFB gives them back behind the hook. Internal packets go on at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


class Chain(NamedTuple):
    """What leads one direction of a link to its class.

    `link_index` is the link's: one that is made anew under the same name needs a chain of its own.
    """

    link: str
    link_index: int
    traffic: Traffic
    number: int
    rest: int = 0
    """The class of what is not internet; 0 for none."""

    @property
    def name(self) -> str:
        """Its name in the table."""
        return f"{self.traffic.replace('-', '_')}_{self.link}"


def whole(chains: Iterable[Chain], internal: Sequence[Prefix]) -> str:
    """Commands that replace the table, in one transaction, so that no packet passes unlimited."""
    lines = [f"add table {TABLE}", f"delete table {TABLE}", f"add table {TABLE}"]
    for family, prefixes in _by_family(internal).items():
        if len(prefixes) > _MOST_COMPARED:
            kind = "ipv4_addr" if family is Family.V4 else "ipv6_addr"
            lines.append(
                f"add set {TABLE} {_set(family)} {{ type {kind}; flags interval; "
                f"elements = {{ {', '.join(map(str, prefixes))} }}; }}"
            )
    for chain in chains:
        lines += _made(chain, internal)
    return _text(lines)


def changed(added: Iterable[Chain], removed: Iterable[Chain], internal: Sequence[Prefix]) -> str:
    """Commands that remove chains and add others."""
    lines: list[str] = []
    for chain in removed:
        lines += [f"flush chain {TABLE} {chain.name}", f"delete chain {TABLE} {chain.name}"]
    for chain in added:
        lines += _made(chain, internal)
    return _text(lines)


def leads(listed: str, chain: Chain) -> bool:
    """Whether a chain, as nft shows it, has all that leads to its classes."""
    wanted = [chain.number] * len(Family) + ([chain.rest] * len(Family) if chain.rest else [])
    return re.findall(r"meta priority set 1:([0-9a-f]+) fwd to", listed) == [
        f"{number:x}" for number in wanted
    ]


def _made(chain: Chain, internal: Sequence[Prefix]) -> Iterator[str]:
    hook, peer = _HOOKS[chain.traffic]
    base = f'type filter hook {hook} device "{chain.link}" priority {_PRIORITY}; policy accept;'
    yield f"add chain {TABLE} {chain.name} {{ {base} }}"
    for family, prefixes in _by_family(internal).items():
        protocol = "ip" if family is Family.V4 else "ip6"
        if len(prefixes) > _MOST_COMPARED:
            others = f"{protocol} {peer} != @{_set(family)}"
        else:
            others = " ".join(f"{protocol} {peer} != {prefix}" for prefix in prefixes)
        yield f"add rule {TABLE} {chain.name} {others} {_forward(chain.traffic, chain.number)}"
    if chain.rest:
        # ARP and neighbour discovery's like are not IP, or too little to wait.
        for protocol in ("ip", "ip6"):
            forward = _forward(chain.traffic, chain.rest)
            yield f"add rule {TABLE} {chain.name} meta protocol {protocol} {forward}"


def _forward(traffic: Traffic, number: int) -> str:
    return f'meta priority set 1:{number:x} fwd to "{IFBS[traffic]}"'


def _by_family(prefixes: Sequence[Prefix]) -> Mapping[Family, list[Prefix]]:
    return {each: [one for one in prefixes if one.family is each] for each in Family}


def _set(family: Family) -> str:
    return f"internal{family.value}"


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
