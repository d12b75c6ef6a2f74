"""What a NAT host does to connections from outside its spoke to the spoke's Services.

It exchanges the range that the hub sees for the spoke's own, address by address. Where the kernel
can rewrite packets outside of connection tracking, that is done before it and undone behind it, so
that kube-proxy on the same host still translates the Service's address: a connection is translated
once and no more. An ICMP error that quotes a rewritten packet reaches the client with the inner
address unchanged, and is of no use to it. Elsewhere the exchange is the one translation, and
kube-proxy must be on another machine.

With `snat` the host puts its own address in the client's place, one after the other where it has
several, whose 64,512 ports toward one endpoint add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

    `inside` are the spoke's own prefixes, whose connections are left alone. `addresses` are the
    sources that connections get; the link's own where a family has none; None: they keep theirs.
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

    def sets(self, abilities: model.Abilities) -> model.Sets:
        sets: model.Sets = {}
        for family in Family:
            if len(members := _merged(self.inside, family)) > abilities.compares:
                sets[model.SetSpec.of_prefixes("inside", family)] = frozenset(members)
            if abilities.rewrites and (machines := _merged(self.machines, family)):
                sets[model.SetSpec.of_prefixes("machines", family)] = frozenset(machines)
        return sets

    def rules(
        self, hook: model.Hook, family: Family, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        exchanges = [exchange for exchange in self.services if exchange.vip_range.family is family]
        for exchange in exchanges:
            if hook is model.Hook.FORWARD:
                yield from self._forwarded(exchange, family, abilities)
            else:
                yield from self._translated(exchange, hook, family, abilities)
        if hook is model.Hook.FORWARD and not abilities.rewrites:
            for exchange in exchanges:
                original = (model.OriginallyTo(exchange.vip_range),)
                yield _rule("translated", exchange, original, model.Tally(exchange.counter))

    def _translated(
        self, exchange: Exchange, hook: model.Hook, family: Family, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        rewrites = abilities.rewrites
        vip_range, service_cidr = exchange.vip_range, exchange.service_cidr
        from_outside, to_outside = (self._outsider(side, family, abilities) for side in model.Side)
        to_service = (model.InPrefix(model.Side.DESTINATION, vip_range), *from_outside)
        match hook:
            case model.Hook.PREROUTING if rewrites:
                inward = model.Rewrite(model.Side.DESTINATION, service_cidr, exchange.counter)
                yield _rule("netmap in", exchange, to_service, inward)
            case model.Hook.DEPARTURE if rewrites:
                of_service = (model.InPrefix(model.Side.SOURCE, service_cidr), *to_outside)
                outward = model.Rewrite(model.Side.SOURCE, vip_range, exchange.counter)
                yield _rule("netmap out", exchange, of_service, outward)
            case model.Hook.INPUT if rewrites and self.machines is not None:
                yield _misled("this machine", exchange, from_outside)
            case model.Hook.DSTNAT if not rewrites:
                yield _rule("netmap", exchange, to_service, model.Netmap(service_cidr))
            case model.Hook.POSTROUTING:
                # What connection tracking has for original is the address after `Rewrite`, which
                # comes before it.
                original = model.OriginallyTo(service_cidr if rewrites else vip_range)
                yield from self._sources(exchange, (original, *from_outside), abilities)
            case _:
                pass

    def _forwarded(
        self, exchange: Exchange, family: Family, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        if exchange.vip_range != exchange.service_cidr:
            # Not translated: from a client within the spoke, or of no connection. The route to a
            # VIP range leads here, so it would come back until its hops are used up.
            stranded = (model.InPrefix(model.Side.DESTINATION, exchange.vip_range),)
            drop = model.Drop(f"stranded_{exchange.name}", reason="stranded")
            yield _rule("stranded", exchange, stranded, drop)
        if not abilities.rewrites:
            return
        # kube-proxy leads a Service wherever its EndpointSlices say. Whoever writes those could
        # open a kubelet, a metadata proxy or another spoke to the hub (CVE-2021-25740). So what
        # goes to no pod of this spoke is dropped. Only a host with kube-proxy of its own sees that,
        # which takes rewriting. What kube-proxy did not translate still has the Service's address.
        from_outside, to_outside = (self._outsider(side, family, abilities) for side in model.Side)
        yield _misled("outside", exchange, (*from_outside, *to_outside), redirected=True)
        if _merged(self.machines, family):
            to_machine = model.InSet(model.Side.DESTINATION, f"machines{family}")
            yield _misled("machine", exchange, (*from_outside, to_machine))

    def _sources(
        self, exchange: Exchange, known: tuple[model.Match, ...], abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        if self.addresses is None:
            if abilities.rewrites:
                # So that kube-proxy masquerades nobody, either.
                yield _rule("preserve", exchange, known, model.SourceNat(None))
            return
        family = exchange.vip_range.family
        addresses = [address for address in self.addresses if address.family is family]
        actions: list[model.Action] = [model.SourceNat(address) for address in addresses] or [
            model.Masquerade()
        ]
        for number, action in enumerate(actions, start=1):
            # The first rule takes one connection in n, the next one in n-1 of the rest, and so on:
            # equal shares. Chains of nat get the first packet of each connection alone.
            left = len(actions) - number + 1
            share = (model.OneIn(left),) if left > 1 else ()
            name = f"snat {exchange.vip_range} {number}"
            yield model.Rule.named(name, family, (*known, *share), action)

    def _outsider(
        self, side: model.Side, family: Family, abilities: model.Abilities
    ) -> tuple[model.Match, ...]:
        return model.outside(
            side, f"inside{family}", _merged(self.inside, family), abilities.compares
        )


def _merged(prefixes: Iterable[Prefix] | None, family: Family) -> list[Prefix]:
    return merge(model.of_family(prefixes or (), family))


def _rule(
    name: str, exchange: Exchange, matches: tuple[model.Match, ...], action: model.Action
) -> model.Rule:
    vip_range = exchange.vip_range
    return model.Rule.named(f"{name} {vip_range}", vip_range.family, matches, action)


def _misled(
    location: str, exchange: Exchange, matches: tuple[model.Match, ...], *, redirected: bool = False
) -> model.Rule:
    # Answers have no part in it: this machine itself may use a Service whose endpoint is outside.
    original = model.OriginallyTo(exchange.service_cidr, redirected)
    asked = (original, model.OriginalDirection(), *matches)
    drop = model.Drop(f"endpoint_{exchange.name}", reason="endpoint")
    return _rule(f"endpoint {location}", exchange, asked, drop)
