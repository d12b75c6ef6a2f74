"""What a node's rules should be: a constant number of them, whatever the number of pods.

The forward hook counts pods: internal destinations (or sources) are sorted out first, then
one look-up in the set of pod addresses counts the packet on its element. The article's four
rules ("Scaling Kubernetes to 7,500 nodes") count the node as a whole. Masquerading touches
only what pods send to the internet. Who may send as whom is decided before all that
(`sources`). Behind the counting stand the rules that keep spokes apart (`isolation`), and on a
NAT host those that open Services (`translation`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from netmgr.config import NodeDocument, NodeRules
from netmgr.model import LINK_GROUP, LINK_PREFIX, PROTECTED, Counter, Traffic
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.rules.isolation import Isolation
from netmgr.rules.model import (
    Abilities,
    Count,
    Element,
    Hook,
    InPrefix,
    InSet,
    Masquerade,
    Match,
    OnLink,
    Pass,
    Rule,
    Ruleset,
    SetSpec,
    Side,
    outside,
)
from netmgr.rules.protection import Protection
from netmgr.rules.sorting import Classes, pod_set
from netmgr.rules.sources import Sources, ranges_set
from netmgr.rules.translation import Translation
from netmgr.sites import Role

NODE_HOOKS = (
    (Hook.INPUT, Traffic.INTERNET_IN),
    (Hook.OUTPUT, Traffic.INTERNET_OUT),
    (Hook.FORWARD, Traffic.INTERNET_IN),
    (Hook.FORWARD, Traffic.INTERNET_OUT),
)
"""Where the article's four rules stand and what each counts."""


GUARDED_PODS = Sources()


@dataclass(frozen=True)
class Policy:
    """What the node document says about rules.

    `internal` is everything that is not internet; `ranges` is what reaches it as the machine: the
    pods' own addresses, or on a router those of every site. `exact_prefix` is the one v4 prefix the
    article's published text excepts. With `counts_only` pods are counted and no more: none of
    their packets is dropped as forged, or translated. `guards_pods`: the machine has pods to guard.
    """

    internal: tuple[Prefix, ...]
    ranges: tuple[Prefix, ...]
    masquerade: bool
    node_rules: NodeRules
    rule_owner: str
    exact_prefix: Prefix
    counts_only: bool = False
    guards_pods: bool = True
    sources: Sources = GUARDED_PODS
    protection: Protection | None = None
    isolation: Isolation | None = None
    translation: Translation | None = None
    classes: Classes | None = None

    @property
    def traffics(self) -> tuple[Traffic, ...]:
        """What is counted for each pod."""
        kept_away = (PROTECTED,) if self.protection else ()
        return (*Traffic, *(self.classes.traffics if self.classes else ()), *kept_away)

    @property
    def known(self) -> tuple[Prefix, ...]:
        """Everything that is not counted as internet: what is internal, and what a class has."""
        return tuple(merge((*self.internal, *self.classes.prefixes))) if self.classes else self.internal

    @classmethod
    def of(cls, document: NodeDocument) -> Policy:
        """What a node document says."""
        is_router = document.role is Role.HUB_ROUTER
        sites = tuple(prefix for site in document.sites for prefix in site.prefixes)
        isolation = Isolation.of(document)
        return cls(
            internal=document.internal_prefixes,
            ranges=tuple(merge(sites)) if is_router else document.ranges,
            masquerade=document.masquerade and document.role is not Role.NAT_HOST,
            node_rules=document.accounting.node_rules,
            rule_owner=document.accounting.rule_owner,
            exact_prefix=document.accounting.exact_prefix,
            counts_only=document.role is Role.NODE and not document.cni,
            guards_pods=document.wires_pods,
            sources=Sources.of(document),
            protection=Protection.of(document),
            isolation=isolation,
            translation=Translation.of(document),
            classes=Classes.of(document, isolation),
        )


def pod_sets(
    addresses: Iterable[Address], traffics: Iterable[Traffic] = Traffic, excepted: Collection[Address] = ()
) -> PodSets:
    """The sets that count these pod addresses, for each kind of traffic and family.

    `excepted` may reach what is protected, and so are in no set that counts who may not.
    """
    listed = tuple(addresses)
    kinds = tuple(traffics)
    return {
        pod_set(traffic, family): members
        for family in Family
        for traffic in kinds
        if (members := frozenset(_of(family, listed, excepted if traffic is PROTECTED else ())))
    }


def _of(family: Family, addresses: Iterable[Address], without: Collection[Address]) -> Iterator[Address]:
    return (address for address in addresses if address.family is family and address not in without)


PodSets = dict[SetSpec, frozenset[Element]]

ANY_KERNEL = Abilities()


def desired(
    policy: Policy,
    pods: Collection[Address],
    abilities: Abilities = ANY_KERNEL,
    excepted: Collection[Address] = (),
) -> Ruleset:
    """The whole ruleset for a policy and the pods' addresses, on a kernel interface that can do so much.

    `excepted` are the addresses of pods that may reach what is protected.
    """
    sets: dict[SetSpec, frozenset[Element]] = {}
    for family in Family:
        sets[_internal(family)] = _of_family(policy.known, family)
        sets[ranges_set(family)] = _of_family(policy.ranges, family)
    sets |= policy.sources.sets(abilities) if not policy.counts_only else {}
    sets |= policy.protection.sets(abilities) if policy.protection else {}
    sets |= policy.isolation.sets(abilities) if policy.isolation else {}
    sets |= policy.translation.sets() if policy.translation else {}
    sets |= policy.classes.sets(abilities) if policy.classes else {}
    if policy.known != policy.internal:
        sets |= {_unhidden(family): _of_family(policy.internal, family) for family in Family}
    sets |= {pod_set(traffic, family): frozenset() for family in Family for traffic in policy.traffics}
    sets |= pod_sets(pods, policy.traffics, excepted)
    return Ruleset(
        sets=tuple(sets),
        members={spec.name: members for spec, members in sets.items()},
        chains={hook: tuple(_chain(policy, hook, abilities)) for hook in Hook},
    )


_POD_LINKS = f"{LINK_PREFIX}*"
_NO_POD = partial(OnLink, name=_POD_LINKS, negated=True, group=LINK_GROUP)
_NO_LOOPBACK = partial(OnLink, name="lo", negated=True)


def _internal(family: Family) -> SetSpec:
    return SetSpec(f"internal{family.value}", family)


INTERNAL_SETS = frozenset(_internal(family).name for family in Family)
"""The sets that the corrected form of the article's rules looks into."""


def _unhidden(family: Family) -> SetSpec:
    """Whom pods reach by their own addresses, where a class has prefixes that are not internal."""
    return SetSpec(f"unhidden{family.value}", family)


def _of_family(prefixes: Iterable[Prefix], family: Family) -> frozenset[Element]:
    return frozenset(prefix for prefix in prefixes if prefix.family is family)


def _chain(policy: Policy, hook: Hook, abilities: Abilities) -> Iterator[Rule]:
    """The rules of a hook. What many packets meet comes before what is long, in either family."""
    for family in Family:
        yield from _rules(policy, hook, family, abilities)
        if policy.translation:
            yield from policy.translation.rules(hook, family, rewrites=abilities.rewrites)
        if policy.protection:
            yield from policy.protection.rules(hook, family, abilities)
        if policy.classes and hook is Hook.FORWARD:
            yield from policy.classes.rules(family, abilities, own_links=policy.guards_pods)
        if not policy.counts_only:
            yield from policy.sources.rules(hook, family, abilities)
    if policy.isolation:
        for family in Family:
            yield from policy.isolation.passing(hook, family, abilities)
        for family in Family:
            yield from policy.isolation.dropping(hook, family)


def _rules(policy: Policy, hook: Hook, family: Family, abilities: Abilities) -> list[Rule]:
    outward, inward = (_internet(policy, peer, family, hook, abilities) for peer in (Side.DESTINATION, Side.SOURCE))
    rules = [
        _node_rule(policy, hook, traffic, family, inward if traffic is Traffic.INTERNET_IN else outward)
        for at, traffic in NODE_HOOKS
        if at is hook
    ]
    if hook is Hook.FORWARD:
        # The counting look-up stands last: it counts whatever reaches it.
        rules.append(_pod_rule(Traffic.INTERNET_OUT, family, outward, Side.SOURCE))
        rules.append(_pod_rule(Traffic.INTERNET_IN, family, inward, Side.DESTINATION))
    elif policy.counts_only:
        return rules
    elif hook is Hook.POSTROUTING and policy.masquerade:
        rules.append(_masquerade(policy, family))
    return rules


def _pod_rule(traffic: Traffic, family: Family, internet: tuple[Match, ...], pod: Side) -> Rule:
    matches = (*internet, InSet(pod, pod_set(traffic, family).name))
    return Rule(f"pod {traffic} v{family.value}", family, matches, Pass())


def _internet(policy: Policy, peer: Side, family: Family, hook: Hook, abilities: Abilities) -> tuple[Match, ...]:
    """The peer is of the internet. What lies on the own side of a link never is, and costs no comparison."""
    elsewhere = (_NO_POD if hook is Hook.FORWARD else _NO_LOOPBACK)(peer)
    classes = policy.classes.prefixes if policy.classes else ()
    # What classes lie in comes first, so that their packets are done with soonest.
    prefixes = sorted(
        (prefix for prefix in policy.known if prefix.family is family),
        key=lambda prefix: (not any(prefix.covers(one) for one in classes), prefix.length, prefix),
    )
    return elsewhere, *outside(peer, _internal(family).name, prefixes, abilities.compares)


def _node_rule(policy: Policy, hook: Hook, traffic: Traffic, family: Family, internet: tuple[Match, ...]) -> Rule:
    peer = Side.SOURCE if traffic is Traffic.INTERNET_IN else Side.DESTINATION
    if policy.node_rules is NodeRules.EXACT and family is policy.exact_prefix.family:
        internet = (InPrefix(peer, policy.exact_prefix, negated=True),)
    return Rule(
        id=f"node {hook} {traffic} v{family.value}",
        family=family,
        matches=internet,
        action=Count(Counter(hook.upper(), family, traffic)),
        comment=f"iptables-exporter {policy.rule_owner} traffic={traffic}",
    )


def _masquerade(policy: Policy, family: Family) -> Rule:
    known = _internal if policy.known == policy.internal else _unhidden
    from_pods = InSet(Side.SOURCE, ranges_set(family).name)
    to_internet = InSet(Side.DESTINATION, known(family).name, negated=True)
    return Rule(f"masquerade v{family.value}", family, (from_pods, to_internet), Masquerade())
