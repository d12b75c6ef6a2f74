"""What a NAT host does to connections from outside its spoke to the spoke's Services.

`netmap` exchanges the range that the hub sees for the spoke's own, address by address. Where the
kernel can rewrite packets outside of connection tracking, it is done before that begins and
undone behind it, so that kube-proxy on the same host still translates the Service's address: a
connection is translated once and no more. Elsewhere the exchange is that one translation, and
kube-proxy must be on another machine. `endpoints` leaves destinations to netmgr.services.

What is still addressed to a seen range when it is forwarded was not translated (a client within the
spoke, a packet of no connection) and is dropped: its way would lead back here, round and round.

With `snat` the host then puts its own address in the client's place, one after the other where
it has several: each has 64,512 ports toward one endpoint, so that they add up.

A rewritten packet is not known to connection tracking by the address that was rewritten, so an ICMP
error that quotes it reaches the client with the inner address unchanged, and is of no use to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.config import NodeDocument
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.rules.model import (
    Action,
    Drop,
    Element,
    Hook,
    InPrefix,
    InSet,
    Masquerade,
    Match,
    Netmap,
    OneIn,
    OriginallyTo,
    Rewrite,
    Rule,
    SetSpec,
    Side,
    SourceNat,
    Tally,
)
from netmgr.sites import Mapping, SourceAddress


@dataclass(frozen=True)
class Exchange:
    """A Service range as the hub sees it, and as it is inside the spoke."""

    seen: Prefix
    real: Prefix

    @property
    def name(self) -> str:
        """The seen range as a part of a counter's name."""
        return str(self.seen).translate({ord("/"): "_", ord(":"): "-"})

    @property
    def counter(self) -> str:
        """The name of the counter of what is translated."""
        return f"translated_{self.name}"


@dataclass(frozen=True)
class Translation:
    """What is translated here. `inside` are the spoke's own prefixes, whose connections are left alone.

    `netmap` is false where destinations are translated by somebody else. `addresses` are the
    sources that connections get; the link's own where a family has none; None: they keep theirs.
    """

    services: tuple[Exchange, ...]
    inside: tuple[Prefix, ...]
    netmap: bool
    addresses: tuple[Address, ...] | None

    @classmethod
    def of(cls, document: NodeDocument) -> Translation | None:
        """What a node document asks for; None for any machine but a NAT host."""
        nat = document.nat
        if nat is None:
            return None
        return cls(
            services=tuple(Exchange(service.seen, service.real) for service in nat.services),
            inside=tuple(prefix for site in document.sites if site.name == document.site for prefix in site.prefixes),
            netmap=nat.translation is Mapping.NETMAP,
            addresses=(nat.addresses or document.node.addresses) if nat.source is SourceAddress.SNAT else None,
        )

    def sets(self) -> dict[SetSpec, frozenset[Element]]:
        """The sets of the rules, and what is in them."""
        found = {family: frozenset(merge(p for p in self.inside if p.family is family)) for family in Family}
        return {_inside(family): frozenset(members) for family, members in found.items() if members}

    def rules(self, hook: Hook, family: Family, *, rewrites: bool) -> list[Rule]:
        """The rules of one hook; `rewrites`: whether packets can be rewritten outside of connection tracking."""
        exchanges = [one for one in self.services if one.seen.family is family]
        stranded = [_stranded(one) for one in exchanges if self._must_translate(one, rewrites=rewrites)]
        rewrites = rewrites and self.netmap
        match hook:
            case Hook.PREROUTING if rewrites:
                return [self._inward(one) for one in exchanges]
            case Hook.DEPARTURE if rewrites:
                return [self._outward(one) for one in exchanges]
            case Hook.DSTNAT if self.netmap and not rewrites:
                return [self._netmap(one) for one in exchanges]
            case Hook.FORWARD:
                return stranded + ([] if rewrites else [_tally(one) for one in exchanges])
            case Hook.POSTROUTING:
                return [
                    rule for one in exchanges for rule in self._sources(one.seen, one.real if rewrites else one.seen)
                ]
            case _:
                return []

    def _must_translate(self, one: Exchange, *, rewrites: bool) -> bool:
        """Whether nothing may be forwarded to the seen range; on iptables, netmgr.services refuses it itself."""
        return one.seen != one.real if self.netmap else rewrites

    def _inward(self, one: Exchange) -> Rule:
        matches = (InPrefix(Side.DESTINATION, one.seen), *self._outsider(Side.SOURCE, one.seen.family))
        return _rule("netmap in", one, matches, Rewrite(Side.DESTINATION, one.real, one.counter))

    def _outward(self, one: Exchange) -> Rule:
        matches = (InPrefix(Side.SOURCE, one.real), *self._outsider(Side.DESTINATION, one.seen.family))
        return _rule("netmap out", one, matches, Rewrite(Side.SOURCE, one.seen, one.counter))

    def _netmap(self, one: Exchange) -> Rule:
        matches = (InPrefix(Side.DESTINATION, one.seen), *self._outsider(Side.SOURCE, one.seen.family))
        return _rule("netmap", one, matches, Netmap(one.real))

    def _sources(self, seen: Prefix, original: Prefix) -> Iterator[Rule]:
        if self.addresses is None:
            return
        known = (OriginallyTo(original), *self._outsider(Side.SOURCE, seen.family))
        addresses = [address for address in self.addresses if address.family is seen.family]
        actions: list[Action] = [SourceNat(address) for address in addresses] or [Masquerade()]
        for number, action in enumerate(actions):
            left = len(actions) - number
            share = (OneIn(left),) if left > 1 else ()
            identity = f"snat {seen} {number + 1} v{seen.family.value}"
            yield Rule(identity, seen.family, (*known, *share), action)

    def _outsider(self, side: Side, family: Family) -> tuple[Match, ...]:
        inside = any(prefix.family is family for prefix in self.inside)
        return (InSet(side, _inside(family).name, negated=True),) if inside else ()


def _rule(what: str, one: Exchange, matches: tuple[Match, ...], action: Action) -> Rule:
    return Rule(f"{what} {one.seen} v{one.seen.family.value}", one.seen.family, matches, action)


def _stranded(one: Exchange) -> Rule:
    """The way to a seen range leads here, so what was not translated would come back until its hops are used up."""
    return _rule(
        "stranded", one, (InPrefix(Side.DESTINATION, one.seen),), Drop(f"stranded_{one.name}", reason="stranded")
    )


def _tally(one: Exchange) -> Rule:
    return _rule("translated", one, (OriginallyTo(one.seen),), Tally(one.counter))


def _inside(family: Family) -> SetSpec:
    return SetSpec(f"inside{family.value}", family)
