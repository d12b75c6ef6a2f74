"""Which source address a packet may have on which link, and what pods may not send to their node.

Few rules decide a node's common packets: one for packets from elsewhere that claim no address of
this machine or its pods; one for pods' packets whose link and source are known to belong together;
and for others of pods', one that has the kernel look whether it would answer the source by the same
link (RFC 3704, strict), which takes several times as long. All others are dropped, and counted by
reason:

- `loopback`: to 127.0.0.0/8, which a setting (`route_localnet`) would let in;
- `router`, `redirect`: a pod advertises itself as a router, or a better way (RFC 4861, RFC 792);
- `link_local`: a pod sends from a link-local address or none;
- `fragments`: a pod sends more of them than it may; incomplete ones fill the memory of all pods;
- `spoofed`: a pod sends from any other address that is not its own;
- `forged`: this machine's or its pods' addresses, or loopback, come from elsewhere;
- `dhcp`: a pod sends answers of a DHCP server to the node (RFC 2131, RFC 8415);
- `icmp`: a pod sends, or the node gets, an ICMP message of no connection; or a pod an error about a
  connection of no pod, whose ports it knows. Whoever believes an error that nobody caused narrows a
  path that all its pods share (RFC 5927).

A router between sites has no pods. It checks the way back of packets that claim to come from a
site, or go to one. It cannot tell apart several sites behind one link; but what comes to a spoke
from a private address that no site has (`unplanned`), it passes by no link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import HUB, Role
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Family, Prefix, merge
from netmgr.rules import model

LINK_LOCAL = tuple(map(Prefix.parse, ("::/128", "fe80::/10")))
"""Sources of neighbour discovery (RFC 4861); they are never forwarded (RFC 4291, 2.5.6)."""

_MULTICAST6 = Prefix.parse("ff00::/8")
_LOOPBACK = tuple(map(Prefix.parse, ("127.0.0.0/8", "::1")))
# To ::1 the kernel takes nothing from another link, whatever the settings (ip6_rcv_core).
_TO_LOOPBACK = model.InPrefix(model.Side.DESTINATION, _LOOPBACK[0])
_ADVERTISEMENT, _REDIRECT = 134, {Family.V4: 5, Family.V6: 137}
_DHCP_CLIENT = {Family.V4: 68, Family.V6: 546}
"""Where clients listen (RFC 2131, 4.1; RFC 8415, 7.2); a server need not send from its own port."""
_FROM_PODS = model.OnLink(model.Side.SOURCE, f"{LINK_PREFIX}*")
_FROM_ELSEWHERE = replace(_FROM_PODS, negated=True)
_FROM_OUTSIDE = model.OnLink(model.Side.SOURCE, "lo", negated=True)


@dataclass(frozen=True)
class Sources:
    """Who may send as whom here.

    `own` are the addresses that only this machine and its pods may have. `sites` are a router's
    alone: what claims to be of one, or goes to one, must come from where it would be answered. Of
    these, `spokes` get nothing from a `private` address that is of no site. A pod may send so many
    `fragments` in a second; 0: any number.
    """

    own: tuple[Prefix, ...] = ()
    sites: tuple[Prefix, ...] = ()
    spokes: tuple[Prefix, ...] = ()
    private: tuple[Prefix, ...] = ()
    fragments: int = 0
    guards_pods: bool = True

    @classmethod
    def of(cls, document: NodeDocument) -> Sources:
        addresses = [address.prefix for address in document.node.addresses]
        own = tuple(merge((*addresses, *_LOOPBACK, *document.ranges)))
        if document.role is not Role.HUB_ROUTER:
            bound = document.fragments_per_second
            return cls(own, fragments=bound, guards_pods=document.wires_pods)
        sites = {site.name: site.every_prefix for site in document.sites}
        spokes = [prefixes for name, prefixes in sites.items() if name != HUB]
        return cls(
            own,
            tuple(merge(chain.from_iterable(sites.values()))),
            tuple(merge(chain.from_iterable(spokes))),
            document.internal_prefixes,
            guards_pods=False,
        )

    def sets(self, abilities: model.Abilities) -> dict[model.SetSpec, frozenset[model.Element]]:
        sets: dict[model.SetSpec, frozenset[model.Element]] = {}
        for family in Family:
            own = _of(self.own, family)
            if len(own) > abilities.compares:
                sets[_own(family)] = frozenset(own)
            sets |= self._of_sites(family)
        if self.guards_pods:
            sets[_LINK_LOCAL] = frozenset(LINK_LOCAL)
            if abilities.senders:
                sets |= {sender_set(family): frozenset() for family in Family}
            if self._bounds_fragments(abilities):
                sets[_FRAGMENTS] = frozenset()
        return sets

    def _bounds_fragments(self, abilities: model.Abilities) -> bool:
        return self.fragments > 0 and abilities.sees_fragments

    def _of_sites(self, family: Family) -> dict[model.SetSpec, frozenset[model.Element]]:
        if not _of(self.sites, family):
            return {}
        listed = {"sites": self.sites, "spokes": self.spokes, "private": self.private}
        return {
            _routers(name, family): frozenset(_of(prefixes, family))
            for name, prefixes in listed.items()
        }

    def rules(
        self, hook: model.Hook, family: Family, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        """The rules of one hook and family; in prerouting they are the last of the family.

        In forward they are the first: what counts there may end the chain.
        """
        if hook is model.Hook.PREROUTING:
            of_machine = self._of_a_node if self.guards_pods else self._of_a_gateway
            yield from of_machine(family, abilities)
        elif hook is model.Hook.INPUT and self.guards_pods:
            yield from self._sent_to_the_node(family)
            yield from _errors(hook, family, abilities)
        elif hook is model.Hook.FORWARD and self.guards_pods:
            yield from _errors(hook, family, abilities)

    def _sent_to_the_node(self, family: Family) -> Iterator[model.Rule]:
        """Drops what a pod sends to the node itself; forwarded packets meet none of these rules."""
        if family is Family.V4:
            yield _drop("redirect", family, _FROM_PODS, model.IcmpType(_REDIRECT[family]))
        yield _drop("dhcp", family, _FROM_PODS, model.UdpTo(_DHCP_CLIENT[family]))

    def _of_a_node(self, family: Family, abilities: model.Abilities) -> Iterator[model.Rule]:
        others = model.outside(
            model.Side.SOURCE, _own(family).name, _of(self.own, family), abilities.compares
        )
        # The common kinds of packets leave the chain here.
        others += _not_to_loopback(family)
        yield model.Rule(
            f"elsewhere v{family.value}", family, (_FROM_ELSEWHERE, *others), model.Return()
        )
        if abilities.senders:
            # Whatever is missing in the set costs its packets the rule after this one, no more.
            known = model.InSet(model.Side.SOURCE, sender_set(family).name, by_link=True)
            common: list[model.Match] = [known, *_not_to_loopback(family)]
            if self._bounds_fragments(abilities):
                common.append(model.Fragment(negated=True))
            yield model.Rule(f"known pods v{family.value}", family, tuple(common), model.Return())
        yield from _loopback(family)
        if self._bounds_fragments(abilities):
            # Before their sources are checked: counted by link, nobody uses up another's bound.
            too_many = model.Fragment(beyond=self.fragments, name=_FRAGMENTS.name)
            yield _drop("fragments", family, _FROM_PODS, too_many)
        near = LINK_LOCAL if family is Family.V6 else ()
        beyond = model.outside(model.Side.SOURCE, _LINK_LOCAL.name, near, abilities.compares)
        yield model.Rule(
            f"honest pods v{family.value}",
            family,
            (_FROM_PODS, *beyond, model.ReversePath()),
            model.Return(),
        )
        if family is Family.V6:
            yield _drop("router", family, _FROM_PODS, model.IcmpType(_ADVERTISEMENT))
            yield _drop("redirect", family, _FROM_PODS, model.IcmpType(_REDIRECT[family]))
            # A pod's link needs no neighbour discovery, since both ends have permanent entries, and
            # each invented address would cost the node an entry. Kernels of pods send some of it
            # (router solicitations, listener reports), so this counter grows with every pod.
            yield _drop(
                "link_local", family, _FROM_PODS, model.InSet(model.Side.SOURCE, _LINK_LOCAL.name)
            )
        yield _drop("spoofed", family, _FROM_PODS, what="anti-spoofing")
        yield from _forged(family, own_pods=True)

    def _of_a_gateway(self, family: Family, abilities: model.Abilities) -> Iterator[model.Rule]:
        yield from _loopback(family)
        own = _of(self.own, family)
        if len(own) > abilities.compares:
            yield from _forged(family, model.InSet(model.Side.SOURCE, _own(family).name))
        else:
            for prefix in own:
                yield from _forged(
                    family, model.InPrefix(model.Side.SOURCE, prefix), what=f"forged {prefix}"
                )
        if _of(self.sites, family):
            of_a_site, to_a_site = (
                model.InSet(side, _routers("sites", family).name) for side in model.Side
            )
            # What the router itself gets may come by a way that it does not answer by: a cloud's
            # DHCP, for one.
            through = model.outside(
                model.Side.DESTINATION, _own(family).name, own, abilities.compares
            )
            yield _drop(
                "forged", family, of_a_site, model.ReversePath(negated=True), what="forged site"
            )
            yield _drop(
                "forged",
                family,
                to_a_site,
                *through,
                model.ReversePath(negated=True),
                what="forged to a site",
            )
            yield _drop(
                "unplanned",
                family,
                model.InSet(model.Side.DESTINATION, _routers("spokes", family).name),
                model.InSet(model.Side.SOURCE, _routers("private", family).name),
                replace(of_a_site, negated=True),
                *through,
            )


def _errors(hook: model.Hook, family: Family, abilities: model.Abilities) -> Iterator[model.Rule]:
    # To the node, not from pods alone: nobody's error is true of a packet that it never sent.
    whose = _FROM_OUTSIDE if hook is model.Hook.INPUT else _FROM_PODS
    of_nobody = model.IcmpOfNobody(but_replies=hook is model.Hook.INPUT)
    yield _drop("icmp", family, of_nobody, whose, what=f"{hook} icmp")
    if abilities.finds_ends:
        others = model.IcmpOfOthers(ranges_set(family).name)
        yield _drop("icmp", family, others, _FROM_PODS, what=f"{hook} icmp of no pod")


def _not_to_loopback(family: Family) -> tuple[model.Match, ...]:
    return (replace(_TO_LOOPBACK, negated=True),) if family is Family.V4 else ()


def _loopback(family: Family) -> Iterator[model.Rule]:
    """Drops what another machine or a pod sends to this machine's loopback (CVE-2020-8558)."""
    if family is Family.V4:
        yield _drop("loopback", family, _TO_LOOPBACK, _FROM_OUTSIDE)


def _forged(
    family: Family, *claims: model.Match, what: str = "forged", own_pods: bool = False
) -> Iterator[model.Rule]:
    """Drops packets from elsewhere with an address of this machine's or its pods'."""
    # What this machine sends to a multicast or broadcast address comes back to its own programs as
    # if it came in by the link it left by (dev_loopback_xmit), and must pass. It is returnable by
    # that link. So are two kinds of forged packets, which need a rule of their own: those from an
    # IPv6 address of another link of this machine, since the kernel looks for it on the incoming
    # link, and those from an address that no pod has, while its range is no blackhole
    # (`netmgr/dataplane/node_routes.py`). A claim is compared first, since few packets have it.
    if family is Family.V6:
        yield _drop(
            "forged",
            family,
            *claims,
            _FROM_OUTSIDE,
            model.InPrefix(model.Side.DESTINATION, _MULTICAST6, negated=True),
            what=what,
        )
    elif own_pods:
        yield _drop(
            "forged",
            family,
            *claims,
            _FROM_OUTSIDE,
            model.InSet(model.Side.SOURCE, ranges_set(family).name),
            what=what,
        )
    yield _drop(
        "forged",
        family,
        *claims,
        _FROM_OUTSIDE,
        model.ReversePath(negated=True),
        what=f"{what} unreturnable",
    )


def _drop(reason: str, family: Family, *matches: model.Match, what: str = "") -> model.Rule:
    name = f"{what or reason} v{family.value}"
    return model.Rule(
        name,
        family,
        matches,
        model.Drop(f"{reason}{family.value}", reason=reason.replace("_", "-")),
    )


def _of(prefixes: Iterable[Prefix], family: Family) -> list[Prefix]:
    return [prefix for prefix in prefixes if prefix.family is family]


_LINK_LOCAL = model.SetSpec("link_local6", Family.V6)
_FRAGMENTS = model.SetSpec("fragments", Family.V4, is_dynamic=True, has_links=True)
"""Of either family: both are a link's."""


def _own(family: Family) -> model.SetSpec:
    return model.SetSpec(f"own{family.value}", family)


def _routers(name: str, family: Family) -> model.SetSpec:
    return model.SetSpec(f"{name}{family.value}", family)


def ranges_set(family: Family) -> model.SetSpec:
    """The set of what reaches the internet as this machine."""
    return model.SetSpec(f"ranges{family.value}", family)


def sender_set(family: Family) -> model.SetSpec:
    """The set of pods' links and addresses."""
    return model.SetSpec(f"senders{family.value}", family, has_senders=True)
