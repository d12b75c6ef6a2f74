"""What a NAT host does to connections from outside its spoke to the spoke's Services.

It exchanges the range that the hub sees for the spoke's own, address by address. Where the kernel
can rewrite packets outside of connection tracking, it is done before that begins and undone behind
it, so that kube-proxy on the same host still translates the Service's address: a connection is
translated once and no more. Elsewhere the exchange is that one translation, and kube-proxy must be
on another machine.

kube-proxy leads a Service wherever its EndpointSlices say. Whoever writes those could open a
kubelet, a metadata proxy or another spoke to the hub (CVE-2021-25740). So what a client from
outside sends to a Service is checked behind kube-proxy's translation, and dropped unless it goes to
a pod of this spoke. Only a host with kube-proxy of its own can check that, which takes rewriting.

What is still addressed to a VIP range when it is forwarded was not translated (a client within the
spoke, a packet of no connection) and is dropped: its way would lead back here, round and round.

With `snat` the host then puts its own address in the client's place, one after the other where
it has several: each has 64,512 ports toward one endpoint, so that they add up. `preserve` keeps
kube-proxy, too, from masquerading the client.

A rewritten packet is not known to connection tracking by the address that was rewritten, so an ICMP
error that quotes it reaches the client with the inner address unchanged, and is of no use to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import SourceAddress
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.rules import model


@dataclass(frozen=True)
class Exchange:
    """A Service range as the hub sees it, and as it is inside the spoke."""

    vip_range: Prefix
    service_cidr: Prefix

    @property
    def name(self) -> str:
        """The VIP range as a part of a counter's name."""
        return str(self.vip_range).translate({ord("/"): "_", ord(":"): "-"})

    @property
    def counter(self) -> str:
        """The name of the counter of what is translated."""
        return f"translated_{self.name}"


@dataclass(frozen=True)
class Translation:
    """What is translated here.

    `inside` are the spoke's own prefixes, whose connections are left alone.

    `addresses` are the sources that connections get; the link's own where a family has none; None:
    they keep theirs.
    `machines`, this one included, may not be endpoints; None: they may.
    """

    services: tuple[Exchange, ...]
    inside: tuple[Prefix, ...]
    addresses: tuple[Address, ...] | None
    machines: tuple[Prefix, ...] | None = None

    @classmethod
    def of(cls, document: NodeDocument) -> Translation | None:
        """What a node document asks for; None for any machine but a NAT host."""
        nat = document.nat
        if nat is None:
            return None
        return cls(
            services=tuple(
                Exchange(service.vip_range, service.service_cidr) for service in nat.services
            ),
            inside=tuple(
                prefix
                for site in document.sites
                if site.name == document.site
                for prefix in site.prefixes
            ),
            addresses=(nat.addresses or document.node.addresses)
            if nat.source is SourceAddress.SNAT
            else None,
            machines=None if nat.host_endpoints else nat.machines,
        )

    def sets(self, abilities: model.Abilities) -> dict[model.SetSpec, frozenset[model.Element]]:
        sets: dict[model.SetSpec, frozenset[model.Element]] = {}
        for family in Family:
            if len(members := self._own(family)) > abilities.compares:
                sets[_inside(family)] = frozenset(members)
            if abilities.rewrites and (machines := self._machines(family)):
                sets[_machine_set(family)] = frozenset(machines)
        return sets

    def rules(
        self, hook: model.Hook, family: Family, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        exchanges = [exchange for exchange in self.services if exchange.vip_range.family is family]
        if hook is model.Hook.FORWARD:
            yield from self._forwarded(exchanges, abilities)
            return
        for exchange in exchanges:
            yield from self._translated(exchange, hook, abilities)

    def _translated(
        self, exchange: Exchange, hook: model.Hook, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        rewrites = abilities.rewrites
        from_outside, to_outside = (
            self._outsider(side, exchange.vip_range.family, abilities) for side in model.Side
        )
        match hook:
            case model.Hook.PREROUTING if rewrites:
                yield self._inward(exchange, from_outside)
            case model.Hook.DEPARTURE if rewrites:
                yield self._outward(exchange, to_outside)
            case model.Hook.INPUT if rewrites and self.machines is not None:
                yield _misled("this machine", exchange, from_outside)
            case model.Hook.DSTNAT if not rewrites:
                yield self._netmap(exchange, from_outside)
            case model.Hook.POSTROUTING:
                original = exchange.service_cidr if rewrites else exchange.vip_range
                yield from self._sources(exchange.vip_range, original, from_outside, abilities)
            case _:
                pass

    def _forwarded(
        self, exchanges: Sequence[Exchange], abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        for exchange in exchanges:
            if exchange.vip_range != exchange.service_cidr:
                yield _stranded(exchange)
            if abilities.rewrites:
                yield from self._checked(exchange, abilities)
        if not abilities.rewrites:
            yield from map(_tally, exchanges)

    def _checked(self, exchange: Exchange, abilities: model.Abilities) -> Iterator[model.Rule]:
        """Drop what kube-proxy led to no pod of this spoke."""
        family = exchange.vip_range.family
        from_outside, to_outside = (self._outsider(side, family, abilities) for side in model.Side)
        # What kube-proxy did not translate still has the Service's address.
        yield _misled("outside", exchange, (*from_outside, *to_outside), redirected=True)
        if self._machines(family):
            to_machine = model.InSet(model.Side.DESTINATION, _machine_set(family).name)
            yield _misled("machine", exchange, (*from_outside, to_machine))

    def _inward(self, exchange: Exchange, from_outside: tuple[model.Match, ...]) -> model.Rule:
        matches = (model.InPrefix(model.Side.DESTINATION, exchange.vip_range), *from_outside)
        return _rule(
            "netmap in",
            exchange,
            matches,
            model.Rewrite(model.Side.DESTINATION, exchange.service_cidr, exchange.counter),
        )

    def _outward(self, exchange: Exchange, to_outside: tuple[model.Match, ...]) -> model.Rule:
        matches = (model.InPrefix(model.Side.SOURCE, exchange.service_cidr), *to_outside)
        return _rule(
            "netmap out",
            exchange,
            matches,
            model.Rewrite(model.Side.SOURCE, exchange.vip_range, exchange.counter),
        )

    def _netmap(self, exchange: Exchange, from_outside: tuple[model.Match, ...]) -> model.Rule:
        matches = (model.InPrefix(model.Side.DESTINATION, exchange.vip_range), *from_outside)
        return _rule("netmap", exchange, matches, model.Netmap(exchange.service_cidr))

    def _sources(
        self,
        vip_range: Prefix,
        original: Prefix,
        from_outside: tuple[model.Match, ...],
        abilities: model.Abilities,
    ) -> Iterator[model.Rule]:
        # What connection tracking has for original is the address after `Rewrite`, which comes
        # before it.
        known = (model.OriginallyTo(original), *from_outside)
        if self.addresses is None:
            if abilities.rewrites:
                identity = f"preserve {vip_range} v{vip_range.family.value}"
                yield model.Rule(identity, vip_range.family, known, model.SourceNat(None))
            return
        addresses = [address for address in self.addresses if address.family is vip_range.family]
        actions: list[model.Action] = [model.SourceNat(address) for address in addresses] or [
            model.Masquerade()
        ]
        for number, action in enumerate(actions):
            # The first rule takes one connection in n, the next one in n-1 of the rest, and so on:
            # equal shares. Chains of nat get the first packet of each connection alone.
            left = len(actions) - number
            share = (model.OneIn(left),) if left > 1 else ()
            identity = f"snat {vip_range} {number + 1} v{vip_range.family.value}"
            yield model.Rule(identity, vip_range.family, (*known, *share), action)

    def _outsider(
        self, side: model.Side, family: Family, abilities: model.Abilities
    ) -> tuple[model.Match, ...]:
        return model.outside(side, _inside(family).name, self._own(family), abilities.compares)

    def _own(self, family: Family) -> list[Prefix]:
        return merge(prefix for prefix in self.inside if prefix.family is family)

    def _machines(self, family: Family) -> list[Prefix]:
        return merge(prefix for prefix in self.machines or () if prefix.family is family)


def _rule(
    name: str, exchange: Exchange, matches: tuple[model.Match, ...], action: model.Action
) -> model.Rule:
    return model.Rule(
        f"{name} {exchange.vip_range} v{exchange.vip_range.family.value}",
        exchange.vip_range.family,
        matches,
        action,
    )


def _stranded(exchange: Exchange) -> model.Rule:
    # The route to a VIP range leads here, so an untranslated packet would come back until its hops
    # are used up.
    return _rule(
        "stranded",
        exchange,
        (model.InPrefix(model.Side.DESTINATION, exchange.vip_range),),
        model.Drop(f"stranded_{exchange.name}", reason="stranded"),
    )


def _misled(
    location: str, exchange: Exchange, matches: tuple[model.Match, ...], *, redirected: bool = False
) -> model.Rule:
    # Answers have no part in it: this machine itself may use a Service whose endpoint is outside.
    asked = (
        model.OriginallyTo(exchange.service_cidr, redirected),
        model.OriginalDirection(),
        *matches,
    )
    return _rule(
        f"endpoint {location}",
        exchange,
        asked,
        model.Drop(f"endpoint_{exchange.name}", reason="endpoint"),
    )


def _tally(exchange: Exchange) -> model.Rule:
    return _rule(
        "translated",
        exchange,
        (model.OriginallyTo(exchange.vip_range),),
        model.Tally(exchange.counter),
    )


def _inside(family: Family) -> model.SetSpec:
    return model.SetSpec(f"inside{family.value}", family)


def _machine_set(family: Family) -> model.SetSpec:
    return model.SetSpec(f"machines{family.value}", family)
