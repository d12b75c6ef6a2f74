"""Which source address a packet may have on which link, and what pods may not send to their node.

Few rules decide a node's common packets. All others are dropped, and counted by reason:

- `loopback`: to 127.0.0.0/8, which a setting (`route_localnet`) would let in;
- `router`, `redirect`: a pod advertises itself as a router, or a better way (RFC 4861, RFC 792);
- `link_local`: a pod sends from a link-local address or none;
- `fragments`: a pod sends more of them than it may; incomplete ones fill the memory of all pods;
- `spoofed`: a pod sends from any other address that is not its own;
- `forged`: this machine's or its pods' addresses, or loopback, come from elsewhere;
- `dhcp`: a pod sends answers of a DHCP server to the node (RFC 2131, RFC 8415);
- `icmp`: a pod sends, or the node gets, an ICMP message of no connection; or a pod an error about a
  connection of no pod, whose ports it knows.

A router between sites has no pods. It checks the way back of packets that claim to come from a
site, or go to one. What comes to a spoke from a private address that no site has is `unplanned`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import HUB, Role
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Family, Prefix, merge
from netmgr.rules import model

# Sources of neighbour discovery (RFC 4861); they are never forwarded (RFC 4291, 2.5.6).
LINK_LOCAL = tuple(map(Prefix.parse, ("::/128", "fe80::/10")))

_MULTICAST6 = Prefix.parse("ff00::/8")
_LOOPBACK = tuple(map(Prefix.parse, ("127.0.0.0/8", "::1")))
# To ::1 the kernel takes nothing from another link, whatever the settings (ip6_rcv_core).
_TO_LOOPBACK = model.InPrefix(model.Side.DESTINATION, _LOOPBACK[0])
_NOT_TO_LOOPBACK = replace(_TO_LOOPBACK, negated=True)
_ADVERTISEMENT, _REDIRECT = 134, {Family.V4: 5, Family.V6: 137}
# Where clients listen (RFC 2131, 4.1; RFC 8415, 7.2); a server need not send from its own port.
_DHCP_CLIENT = {Family.V4: 68, Family.V6: 546}
_FROM_PODS = model.OnLink(model.Side.SOURCE, f"{LINK_PREFIX}*")
_FROM_ELSEWHERE = replace(_FROM_PODS, negated=True)
_FROM_OUTSIDE = model.OnLink(model.Side.SOURCE, "lo", negated=True)
_NOT_RETURNABLE = model.ReversePath(negated=True)

_LINK_LOCAL = model.SetSpec("link_local6", Family.V6)
# Of either family: both are a link's.
_FRAGMENTS = model.SetSpec("fragments", Family.V4, is_dynamic=True, has_links=True)


def ranges_set(family: Family) -> model.SetSpec:
    """The set of what reaches the internet as this machine."""
    return model.SetSpec.of_prefixes("ranges", family)


def sender_set(family: Family) -> model.SetSpec:
    """The set of pods' links and addresses."""
    return model.SetSpec(f"senders{family}", family, has_senders=True)


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

    def sets(self, abilities: model.Abilities) -> model.Sets:
        sets: model.Sets = {}
        for family in Family:
            own = model.of_family(self.own, family)
            if len(own) > abilities.compares:
                sets[model.SetSpec.of_prefixes("own", family)] = frozenset(own)
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

    def _of_sites(self, family: Family) -> model.Sets:
        if not model.of_family(self.sites, family):
            return {}
        prefixes_by_name = {"sites": self.sites, "spokes": self.spokes, "private": self.private}
        return {
            model.SetSpec.of_prefixes(name, family): frozenset(model.of_family(prefixes, family))
            for name, prefixes in prefixes_by_name.items()
        }

    def rules(
        self, hook: model.Hook, family: Family, abilities: model.Abilities
    ) -> Iterator[model.Rule]:
        """The rules of one hook and family; in prerouting they are the last of the family."""
        if hook is model.Hook.PREROUTING:
            of_machine = self._of_a_node if self.guards_pods else self._of_a_gateway
            yield from of_machine(family, abilities)
        # Of what is forwarded in the chain that counts it: each base chain costs every packet.
        if self.guards_pods and hook in (model.Hook.INPUT, model.Hook.BEFORE_SRCNAT):
            if hook is model.Hook.INPUT:
                # Sent to the node itself: forwarded packets meet none of these.
                if family is Family.V4:
                    yield _drop("redirect", family, _FROM_PODS, model.IcmpType(_REDIRECT[family]))
                yield _drop("dhcp", family, _FROM_PODS, model.UdpTo(_DHCP_CLIENT[family]))
            yield from _errors(hook, family, abilities)

    def _outside_own(
        self, side: model.Side, family: Family, abilities: model.Abilities
    ) -> tuple[model.Match, ...]:
        own = model.of_family(self.own, family)
        return model.outside(side, f"own{family}", own, abilities.compares)

    def _of_a_node(self, family: Family, abilities: model.Abilities) -> Iterator[model.Rule]:
        not_to_loopback = [_NOT_TO_LOOPBACK] if family is Family.V4 else []
        others = self._outside_own(model.Side.SOURCE, family, abilities)
        # The common kinds of packets leave the chain here.
        elsewhere: tuple[model.Match, ...] = (_FROM_ELSEWHERE, *others, *not_to_loopback)
        yield model.Rule.named("elsewhere", family, elsewhere, model.Return())
        if abilities.senders:
            # Whatever is missing in the set costs its packets the rule after this one, no more.
            known = model.InSet(model.Side.SOURCE, sender_set(family).name, by_link=True)
            common: list[model.Match] = [known, *not_to_loopback]
            if self._bounds_fragments(abilities):
                common.append(model.Fragment(negated=True))
            yield model.Rule.named("known pods", family, tuple(common), model.Return())
        yield from _loopback(family)
        if self._bounds_fragments(abilities):
            # Some 1,700 incomplete datagrams fill the memory that the kernel has for those of all
            # pods. Before their sources are checked: counted by link, nobody uses up another's
            # bound.
            too_many = model.Fragment(beyond=self.fragments, name=_FRAGMENTS.name)
            yield _drop("fragments", family, _FROM_PODS, too_many)
        near = LINK_LOCAL if family is Family.V6 else ()
        beyond = model.outside(model.Side.SOURCE, _LINK_LOCAL.name, near, abilities.compares)
        # Of pods that are not known the kernel says whether it would answer the source by the same
        # link (RFC 3704, strict), which takes several times as long.
        honest = (_FROM_PODS, *beyond, model.ReversePath())
        yield model.Rule.named("honest pods", family, honest, model.Return())
        if family is Family.V6:
            yield _drop("router", family, _FROM_PODS, model.IcmpType(_ADVERTISEMENT))
            yield _drop("redirect", family, _FROM_PODS, model.IcmpType(_REDIRECT[family]))
            # A pod's link needs no neighbour discovery, since both ends have permanent entries, and
            # each invented address would cost the node an entry. Kernels of pods send some of it
            # (router solicitations, listener reports), so this counter grows with every pod.
            link_local = model.InSet(model.Side.SOURCE, _LINK_LOCAL.name)
            yield _drop("link_local", family, _FROM_PODS, link_local)
        yield _drop("spoofed", family, _FROM_PODS, name="anti-spoofing")
        yield from _forged(family, own_pods=True)

    def _of_a_gateway(self, family: Family, abilities: model.Abilities) -> Iterator[model.Rule]:
        yield from _loopback(family)
        own = model.of_family(self.own, family)
        claims = model.inside(model.Side.SOURCE, f"own{family}", own, abilities.compares)
        for suffix, claim in claims.items():
            yield from _forged(family, claim, name=f"forged{suffix}")
        if not model.of_family(self.sites, family):
            return
        of_a_site, to_a_site = (model.InSet(side, f"sites{family}") for side in model.Side)
        # What the router itself gets may come by a way that it does not answer by: a cloud's DHCP,
        # for one.
        through = self._outside_own(model.Side.DESTINATION, family, abilities)
        yield _drop("forged", family, of_a_site, _NOT_RETURNABLE, name="forged site")
        to_others = (to_a_site, *through, _NOT_RETURNABLE)
        yield _drop("forged", family, *to_others, name="forged to a site")
        # The way back cannot tell apart several sites behind one link. But what no site has may
        # come by none.
        to_a_spoke = model.InSet(model.Side.DESTINATION, f"spokes{family}")
        of_no_site = (
            model.InSet(model.Side.SOURCE, f"private{family}"),
            replace(of_a_site, negated=True),
        )
        yield _drop("unplanned", family, to_a_spoke, *of_no_site, *through)


def _errors(hook: model.Hook, family: Family, abilities: model.Abilities) -> Iterator[model.Rule]:
    # Whoever believes an error that nobody caused narrows a path that all its pods share, for ten
    # minutes (RFC 5927). The kernel believes it though connection tracking does not.
    # To the node, not from pods alone: no error is true of a packet that it never sent.
    is_input = hook is model.Hook.INPUT
    name, whose = ("input", _FROM_OUTSIDE) if is_input else ("forwarded", _FROM_PODS)
    of_nobody = model.IcmpOfNobody(but_replies=is_input)
    yield _drop("icmp", family, of_nobody, whose, name=f"{name} icmp")
    if abilities.finds_ends:
        # Whoever knows the ports of a node's UDP connection, such as a tunnel's, can forge an error
        # that connection tracking takes for related.
        others = model.IcmpOfOthers(ranges_set(family).name)
        yield _drop("icmp", family, others, _FROM_PODS, name=f"{name} icmp of no pod")


def _loopback(family: Family) -> Iterator[model.Rule]:
    """Drops what another machine or a pod sends to this machine's loopback (CVE-2020-8558)."""
    # The plugin `portmap` switches route_localnet on, by which the kernel would take it.
    if family is Family.V4:
        yield _drop("loopback", family, _TO_LOOPBACK, _FROM_OUTSIDE)


def _forged(
    family: Family, *claims: model.Match, name: str = "forged", own_pods: bool = False
) -> Iterator[model.Rule]:
    """Drops packets from elsewhere with an address of this machine's or its pods'."""
    # What this machine sends to a multicast or broadcast address comes back to its own programs as
    # if it came in by the link it left by (dev_loopback_xmit), and must pass. It is returnable by
    # that link. So are two kinds of forged packets, which need a rule of their own: those from an
    # IPv6 address of another link of this machine, since the kernel looks for it on the incoming
    # link, and those from an address that no pod has, while its range is no blackhole
    # (`netmgr/dataplane/node_routes.py`). A claim is compared first, since few packets have it.
    drop = partial(_drop, "forged", family, *claims, _FROM_OUTSIDE)
    if family is Family.V6:
        yield drop(model.InPrefix(model.Side.DESTINATION, _MULTICAST6, negated=True), name=name)
    elif own_pods:
        yield drop(model.InSet(model.Side.SOURCE, ranges_set(family).name), name=name)
    yield drop(_NOT_RETURNABLE, name=f"{name} unreturnable")


def _drop(reason: str, family: Family, *matches: model.Match, name: str = "") -> model.Rule:
    action = model.Drop(f"{reason}{family}", reason=reason.replace("_", "-"))
    return model.Rule.named(name or reason, family, matches, action)
