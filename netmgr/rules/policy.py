"""What a node's rules should be: a constant number of them, whatever the number of pods.

Pods are counted in one chain, behind all filters and before source translation: internal peers are
sorted out first, then one look-up in the set of pod addresses counts the packet on its element. The
article's four rules ("Scaling Kubernetes to 7,500 nodes") count the node as a whole. Who may send
as whom is decided before all that (`sources`). Before the counting come the rules that keep spokes
apart (`isolation`), and on a NAT host those that open Services (`translation`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product

from netmgr.documents.accounting import NodeRules
from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import Role
from netmgr.model import (
    LINK_PREFIX,
    PODS,
    PROTECTED,
    REMOTE_PODS,
    UNATTRIBUTED,
    Counter,
    Sender,
    Traffic,
)
from netmgr.prefixes import Address, Family, Prefix, PrefixTable, merge
from netmgr.rules import model
from netmgr.rules.at_links import AtLinks
from netmgr.rules.classifier import Classifier, pod_set
from netmgr.rules.isolation import Isolation
from netmgr.rules.model import Abilities, Hook, InPrefix, InSet, OnLink, Rule, SetSpec, Side
from netmgr.rules.protection import Protection
from netmgr.rules.sources import Sources, ranges_set, sender_set
from netmgr.rules.translation import Translation

# The hooks of the article's four rules, and what these count there.
_NODE_TRAFFICS = {
    Hook.INPUT: (Traffic.INTERNET_IN,),
    Hook.OUTPUT: (Traffic.INTERNET_OUT,),
    Hook.FORWARD: (Traffic.INTERNET_OUT, Traffic.INTERNET_IN),
}

# Has the established connections between internal addresses, of both families.
FLOWTABLE = SetSpec("established", Family.V4, has_flows=True)

GUARDED_PODS = Sources()


@dataclass(frozen=True)
class Policy:
    """What the node document says about rules.

    `internal` is everything that is not internet; `ranges` is what reaches it as the machine: the
    pods' own addresses, or on a router those of every site. `exact_prefix` is the one v4 prefix the
    article's published text excepts. `cluster_cidrs` have the pods of all nodes: what enters here
    for other nodes' pods is counted. With `counts_only` pods are counted and no more: none of their
    packets is dropped as forged, or translated. A machine between sites `runs_pods` none. One that
    `offloads` hands established connections that no rule counts to a flowtable, where the backend
    can. With `native`, what is internal and lies outside it is reached as the machine, too. Packets
    of pods that are `limited` may wait on their way. Wire bytes have `link_layer` more for each.
    """

    internal: tuple[Prefix, ...]
    ranges: tuple[Prefix, ...]
    masquerade: bool
    node_rules: NodeRules
    rule_owner: str
    exact_prefix: Prefix
    counts_only: bool = False
    sources: Sources = GUARDED_PODS
    protection: Protection | None = None
    isolation: Isolation | None = None
    translation: Translation | None = None
    classifier: Classifier | None = None
    cluster_cidrs: tuple[Prefix, ...] = ()
    runs_pods: bool = True
    offloads: bool = False
    native: tuple[Prefix, ...] | None = None
    limited: bool = False
    link_layer: int = 0

    @property
    def traffics(self) -> tuple[Traffic, ...]:
        """What is counted for each pod."""
        kept_away = (PROTECTED,) if self.protection else ()
        return (*Traffic, *(self.classifier.traffics if self.classifier else ()), *kept_away)

    @property
    def unmasqueraded(self) -> tuple[Prefix, ...]:
        """Where packets keep their source."""
        return self.internal if self.native is None else self.native

    @property
    def known(self) -> tuple[Prefix, ...]:
        """Everything that is not counted as internet: what is internal, and what a class has."""
        if self.classifier is None:
            return self.internal
        return tuple(merge((*self.internal, *self.classifier.prefixes)))

    @classmethod
    def of(cls, document: NodeDocument) -> Policy:
        is_router = document.role is Role.HUB_ROUTER
        sites = tuple(prefix for site in document.sites for prefix in site.prefixes)
        return cls(
            internal=document.internal_prefixes,
            ranges=tuple(merge(sites)) if is_router else document.ranges,
            masquerade=document.masquerade and document.role is not Role.NAT_HOST,
            node_rules=document.accounting.node_rules,
            rule_owner=document.accounting.rule_owner,
            exact_prefix=document.accounting.exact_prefix,
            counts_only=document.role is Role.NODE and not document.cni,
            sources=Sources.of(document),
            protection=Protection.of(document),
            isolation=Isolation.of(document),
            translation=Translation.of(document),
            classifier=Classifier.of(document),
            cluster_cidrs=document.accounting.cluster_cidrs,
            runs_pods=document.role is Role.NODE,
            offloads=document.flowtable and document.wires_pods,
            native=document.native_prefixes,
            limited=document.limits_pods,
            link_layer=document.accounting.link_layer_bytes,
        )


NO_LINKS: Mapping[Address, str] = {}

ANY_KERNEL = Abilities()


def pod_sets(
    addresses: Collection[Address],
    traffics: Iterable[Traffic] = Traffic,
    abilities: Abilities = ANY_KERNEL,
    excepted: Collection[Address] = (),
) -> model.Sets:
    """The sets that count these pod addresses, for each kind of traffic and family."""
    sets: model.Sets = {}
    for spec in _counting_sets(traffics, abilities):
        # Being in this set is being kept away: one rule drops and counts whoever is in it.
        without = excepted if spec.counts is PROTECTED else ()
        if members := frozenset(
            address
            for address in addresses
            if address.family is spec.family and address not in without
        ):
            sets[spec] = members
    return sets


def _counting_sets(traffics: Iterable[Traffic], abilities: Abilities) -> Iterator[SetSpec]:
    for family, traffic in product(Family, traffics):
        if abilities.counts_by_rules or traffic is PROTECTED:
            yield pod_set(traffic, family)
        if abilities.counts_at_links and traffic is not PROTECTED:
            yield pod_set(traffic, family, at_links=True)


def senders(addresses: Iterable[Address], links: Mapping[Address, str]) -> model.Sets:
    """The sets that know by which links these pods' packets come in."""
    listed = [Sender(links[address], address) for address in addresses if address in links]
    sets: model.Sets = {}
    for family in Family:
        if members := frozenset(sender for sender in listed if sender.address.family is family):
            sets[sender_set(family)] = members
    return sets


def desired(
    policy: Policy,
    pods: Collection[Address],
    abilities: Abilities = ANY_KERNEL,
    excepted: Collection[Address] = (),
    links: Mapping[Address, str] = NO_LINKS,
) -> model.Ruleset:
    """The whole ruleset for a policy and the pods' addresses, given a backend's abilities.

    `excepted` are the addresses of pods that may reach what is protected, `links` those that pods'
    packets come in by, as far as they are known.
    """
    of_rules = policy if abilities.counts_by_rules else _uncounting(policy)
    sets = _sets(of_rules, policy.traffics, abilities)
    for spec, members in pod_sets(pods, policy.traffics, abilities, excepted).items():
        # A link counts for the pods that it is known to belong to.
        sets[spec] = members & links.keys() if spec.at_links else members
    sets |= {spec: members for spec, members in senders(pods, links).items() if spec in sets}
    return model.Ruleset(
        sets=tuple(sets),
        members={spec.name: members for spec, members in sets.items()},
        chains=_chains(of_rules, abilities),
        at_links=_at_links(policy) if abilities.counts_at_links else None,
    )


@lru_cache(maxsize=2)
def _uncounting(policy: Policy) -> Policy:
    """The same for all but what is counted of pods: classes, and other nodes' pods."""
    internal, native = policy.known, policy.unmasqueraded
    return replace(policy, internal=internal, native=native, classifier=None, cluster_cidrs=())


@lru_cache(maxsize=2)
def _at_links(policy: Policy) -> AtLinks:
    classes = policy.classifier.pieces if policy.classifier else ()
    cluster = tuple(merge(policy.cluster_cidrs))
    return AtLinks(policy.known, classes, cluster, policy.limited, policy.link_layer)


# An agent asks for the ruleset of one policy every few seconds, and chains are most of the work.
@lru_cache(maxsize=2)
def _chains(policy: Policy, abilities: Abilities) -> Mapping[Hook, tuple[Rule, ...]]:
    return {hook: tuple(_chain(policy, hook, abilities)) for hook in Hook}


def _sets(policy: Policy, traffics: Iterable[Traffic], abilities: Abilities) -> model.Sets:
    """Every set, with its prefixes; those of pods are empty."""
    sets: model.Sets = {}
    for family in Family:
        sets[internal_set(family)] = frozenset(model.of_family(policy.known, family))
        sets[ranges_set(family)] = frozenset(model.of_family(policy.ranges, family))
    sources = None if policy.counts_only else policy.sources
    parts = (sources, policy.protection, policy.isolation, policy.translation, policy.classifier)
    for part in parts:
        sets |= part.sets(abilities) if part else {}
    sets |= _cluster_sets(policy, abilities)
    if policy.unmasqueraded != policy.known:
        for family in Family:
            sets[_native(family)] = frozenset(model.of_family(policy.unmasqueraded, family))
    sets |= {spec: frozenset() for spec in _counting_sets(traffics, abilities)}
    if _offloads(policy, abilities):
        sets[FLOWTABLE] = frozenset()
    return sets


_POD_LINKS = f"{LINK_PREFIX}*"
# Not by the link's group, though it is compared sooner: whoever gives it to the uplink would have
# nothing counted.
_NO_POD = partial(OnLink, name=_POD_LINKS, negated=True)
_NO_LOOPBACK = partial(OnLink, name="lo", negated=True)


def internal_set(family: Family) -> SetSpec:
    """The set of everything that is not counted as internet."""
    return SetSpec.of_prefixes("internal", family)


INTERNAL_SETS = frozenset(internal_set(family).name for family in Family)
"""The sets that the corrected form of the article's rules looks into."""


def _native(family: Family) -> SetSpec:
    """Where pods are seen by their own addresses, if that is not all that is not internet."""
    return SetSpec.of_prefixes("native", family)


def _cluster(family: Family) -> SetSpec:
    """Where the pods of all nodes have their addresses."""
    return SetSpec.of_prefixes("cluster", family)


def _cluster_sets(policy: Policy, abilities: Abilities) -> model.Sets:
    """Where other nodes' pods are, and what counts each, for the families that there are."""
    sets: model.Sets = {}
    for family in Family:
        if members := model.of_family(merge(policy.cluster_cidrs), family):
            sets[_cluster(family)] = frozenset(members)
            if abilities.dynamic_sets:
                sets |= {_remote(traffic, family): frozenset() for traffic in Traffic}
    return sets


def _remote(traffic: Traffic, family: Family) -> SetSpec:
    way = "in" if traffic.is_inward else "out"
    return SetSpec(f"remote_{way}{family}", family, is_dynamic=True)


def _chain(policy: Policy, hook: Hook, abilities: Abilities) -> Iterator[Rule]:
    # What many packets meet comes before what is long, in either family.
    sources = None if policy.counts_only else policy.sources
    for family in Family:
        # Behind filters they are the first, since what counts there may end the chain.
        first, last = (sources, None) if hook is Hook.BEFORE_SRCNAT else (None, sources)
        if first:
            yield from first.rules(hook, family, abilities)
        yield from _rules(policy, hook, family, abilities)
        for part in (policy.translation, policy.protection, policy.classifier, last):
            if part:
                yield from part.rules(hook, family, abilities)
    # Behind all that either family has there: what passes here leaves the chain.
    if policy.isolation:
        yield from _isolating(policy, policy.isolation, hook, abilities)


def _isolating(
    policy: Policy, isolation: Isolation, hook: Hook, abilities: Abilities
) -> Iterator[Rule]:
    if hook is Hook.FORWARD:
        # These reach no spoke. They are found by comparisons, not by look-ups as below.
        for family in Family:
            internet = _internet(policy, Side.DESTINATION, family, hook, abilities)
            yield Rule.named("to the internet", family, internet, model.Return())
    for family in Family:
        yield from isolation.passing(hook, family, abilities)
    for family in Family:
        yield from isolation.dropping(hook, family, abilities)


def _rules(policy: Policy, hook: Hook, family: Family, abilities: Abilities) -> Iterator[Rule]:
    if hook is Hook.BEFORE_SRCNAT:
        # What compares destinations alike is side by side, as is what compares sources.
        for traffic in (Traffic.INTERNET_OUT, Traffic.INTERNET_IN):
            yield from _counting(policy, traffic, family, abilities)
        return
    if hook is not Hook.FORWARD or not _counts_node_beside_pods(policy, family, abilities):
        for traffic in _NODE_TRAFFICS.get(hook, ()):
            internet = _internet(policy, _peer(traffic), family, hook, abilities)
            yield _node_rule(policy, hook, traffic, family, internet)
    if hook is Hook.FORWARD and _offloads(policy, abilities):
        yield _offload(policy, family, abilities)
    # Where another plugin wires the pods, their masquerading is its own business.
    elif hook is Hook.POSTROUTING and policy.masquerade and not policy.counts_only:
        yield _masquerade(policy, family)


def _counts_node_beside_pods(policy: Policy, family: Family, abilities: Abilities) -> bool:
    """Whether what the node forwards is counted by rules that find its pods' traffic anyway."""
    # Elsewhere people look at the article's rules where the article has them.
    return abilities.fuses and not _is_exact(policy, family)


def _is_exact(policy: Policy, family: Family) -> bool:
    """Whether the article's rules of this family are its text, word for word."""
    return policy.node_rules is NodeRules.EXACT and family is policy.exact_prefix.family


def _counting(
    policy: Policy, traffic: Traffic, family: Family, abilities: Abilities
) -> Iterator[Rule]:
    """Count what was forwarded to the internet, or from there: the node's, pods', and the rest."""
    if not abilities.counts_by_rules:
        return
    internet = _internet(policy, _peer(traffic), family, Hook.BEFORE_SRCNAT, abilities)
    forwarded = (*internet, model.FORWARDED)
    of_node = _counts_node_beside_pods(policy, family, abilities)
    if of_node:
        yield _node_rule(policy, Hook.FORWARD, traffic, family, forwarded)
    if policy.runs_pods:
        # This machine's own packets come from no pod; but those to one come from the internet if
        # the machine has an address of it. The counting look-up is the last match: it counts
        # whatever reaches it.
        asks = of_node or traffic.is_inward
        yield _pod_rule(traffic, family, forwarded if asks else internet)
    # Behind the pods' rule: what reaches these is of no pod of this node.
    yield from _of_others(policy, traffic, family, forwarded, abilities)


def _offloads(policy: Policy, abilities: Abilities) -> bool:
    # Classes count internal packets, too: every one has to meet the rules that count.
    is_counted = policy.classifier is not None and abilities.counts_by_rules
    return policy.offloads and abilities.flowtables and not is_counted


def _offload(policy: Policy, family: Family, abilities: Abilities) -> Rule:
    """Hand over a connection none of whose packets are counted by rules."""
    # One packet, of either direction, hands over both; so it is enough to look at those to pods,
    # and what leaves for the internet pays for one comparison.
    to_pods = OnLink(Side.DESTINATION, _POD_LINKS)
    if not abilities.counts_by_rules:
        return Rule.named("offload", family, (to_pods,), model.Offload(FLOWTABLE.name))
    both: list[model.Match] = [InSet(side, internal_set(family).name) for side in Side]
    # The article's own text takes more for internet than we do, and its rules count that.
    if _is_exact(policy, family):
        both = [*(InPrefix(side, policy.exact_prefix) for side in Side), *both]
    return Rule.named("offload", family, (to_pods, *both), model.Offload(FLOWTABLE.name))


def _of_others(
    policy: Policy,
    traffic: Traffic,
    family: Family,
    internet: tuple[model.Match, ...],
    abilities: Abilities,
) -> Iterator[Rule]:
    """Count what is for no pod of this node: what remote pods get by a Service, and the rest."""
    # Of remote pods both addresses are seen here alone: the pod's node gets the packet with this
    # node's address as source.
    sets = _cluster_sets(policy, abilities)
    rest = internet
    if _cluster(family) in sets:
        is_remote = InSet(_pod(traffic), _cluster(family).name)
        remote = _remote(traffic, family)
        per_address = (_pod(traffic), remote.name) if remote in sets else None
        count = model.Count(Counter(REMOTE_PODS, family, traffic), per_address)
        yield Rule.named(f"remote pods {traffic}", family, (*internet, is_remote), count)
        rest = (*internet, replace(is_remote, negated=True))
    if policy.runs_pods:
        count = model.Count(Counter(UNATTRIBUTED, family, traffic))
        yield Rule.named(f"unattributed {traffic}", family, rest, count)


def _pod_rule(traffic: Traffic, family: Family, internet: tuple[model.Match, ...]) -> Rule:
    # The look-up counts the packet on its element, and only then is it counted in the sum.
    matches = (*internet, InSet(_pod(traffic), pod_set(traffic, family).name))
    count = model.Count(Counter(PODS, family, traffic), ends=True)
    return Rule.named(f"pod {traffic}", family, matches, count)


def _pod(traffic: Traffic) -> Side:
    """The side that is the pod's, of what it exchanges with the internet."""
    return Side.DESTINATION if traffic.is_inward else Side.SOURCE


def _peer(traffic: Traffic) -> Side:
    """The internet's side."""
    return Side.SOURCE if traffic.is_inward else Side.DESTINATION


def _internet(
    policy: Policy, peer: Side, family: Family, hook: Hook, abilities: Abilities
) -> tuple[model.Match, ...]:
    """Matches what comes from the internet, or goes there: `peer` is the internet's address."""
    # A packet toward a pod of this node, or to the node itself, costs no comparison of addresses.
    is_forwarded = hook in (Hook.FORWARD, Hook.BEFORE_SRCNAT)
    elsewhere = (_NO_POD if is_forwarded else _NO_LOOPBACK)(peer)
    known = PrefixTable((prefix, prefix) for prefix in model.of_family(policy.known, family))
    classes = policy.classifier.prefixes if policy.classifier else ()
    with_classes = dict(filter(None, (known.match(prefix.network) for prefix in classes)))
    # What classes lie in comes first, so that their packets are done with soonest.
    prefixes = sorted(
        model.of_family(policy.known, family),
        key=lambda prefix: (prefix not in with_classes, prefix.length, prefix),
    )
    return elsewhere, *model.outside(peer, internal_set(family).name, prefixes, abilities.compares)


def _node_rule(
    policy: Policy,
    hook: Hook,
    traffic: Traffic,
    family: Family,
    internet: tuple[model.Match, ...],
) -> Rule:
    # The article's text, word for word, excepts one IPv4 prefix and nothing else, not even
    # loopback.
    if _is_exact(policy, family):
        internet = (InPrefix(_peer(traffic), policy.exact_prefix, negated=True),)
    count = model.Count(Counter(hook.upper(), family, traffic))
    comment = f"iptables-exporter {policy.rule_owner} traffic={traffic}"
    return Rule.named(f"node {hook} {traffic}", family, internet, count, comment)


def _masquerade(policy: Policy, family: Family) -> Rule:
    # Only toward where no way leads back to pods. A class may have prefixes of the internet: it
    # changes what their packets are counted as, but pods still need the node's address there.
    known = internal_set if policy.unmasqueraded == policy.known else _native
    from_pods = InSet(Side.SOURCE, ranges_set(family).name)
    elsewhere = InSet(Side.DESTINATION, known(family).name, negated=True)
    return Rule.named("masquerade", family, (from_pods, elsewhere), model.Masquerade())
