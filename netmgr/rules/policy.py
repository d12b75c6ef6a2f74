"""What a node's rules should be: a constant number of them, whatever the number of pods.

The forward hook counts pods: internal destinations (or sources) are sorted out first, then
one look-up in the set of pod addresses counts the packet on its element. The article's four
rules ("Scaling Kubernetes to 7,500 nodes") count the node as a whole. Masquerading touches
only what pods send to the internet, and a packet that a pod could not get an answer to by
its own link is a forgery and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

from netmgr.config import NodeDocument, NodeRules
from netmgr.model import LINK_GROUP, LINK_PREFIX, Counter, Traffic
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.model import (
    Count,
    Drop,
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
    Unreturnable,
)

LINK_LOCAL_SOURCES = (Prefix.parse("::/128"), Prefix.parse("fe80::/10"))
"""Neighbour discovery comes from these (RFC 4861); they are never forwarded (RFC 4291, 2.5.6)."""

NODE_HOOKS = (
    (Hook.INPUT, Traffic.INTERNET_IN),
    (Hook.OUTPUT, Traffic.INTERNET_OUT),
    (Hook.FORWARD, Traffic.INTERNET_IN),
    (Hook.FORWARD, Traffic.INTERNET_OUT),
)
"""Where the article's four rules stand and what each counts."""


@dataclass(frozen=True)
class Policy:
    """What the node document says about rules.

    `internal` is everything that is not internet; `ranges` are the pods' own addresses.
    `exact_prefix` is the one v4 prefix the article's published text excepts. With `counts_only`
    nothing but counting is done: no packet is dropped or translated.
    """

    internal: tuple[Prefix, ...]
    ranges: tuple[Prefix, ...]
    masquerade: bool
    node_rules: NodeRules
    rule_owner: str
    exact_prefix: Prefix
    counts_only: bool = False

    @classmethod
    def of(cls, document: NodeDocument) -> Policy:
        """What a node document says."""
        return cls(
            internal=document.internal_prefixes,
            ranges=document.ranges,
            masquerade=document.masquerade,
            node_rules=document.accounting.node_rules,
            rule_owner=document.accounting.rule_owner,
            exact_prefix=document.accounting.exact_prefix,
            counts_only=not document.cni,
        )


def pod_set(traffic: Traffic, family: Family) -> SetSpec:
    """The set that counts pods of one family in one direction."""
    way = "in" if traffic is Traffic.INTERNET_IN else "out"
    return SetSpec(f"pod_{way}{family.value}", family, traffic)


def pod_sets(addresses: Iterable[Address]) -> dict[SetSpec, frozenset[Element]]:
    """The counting sets these pod addresses belong into."""
    listed = tuple(addresses)
    return {
        pod_set(traffic, family): members
        for family in Family
        for traffic in Traffic
        if (members := frozenset(address for address in listed if address.family is family))
    }


def desired(policy: Policy, pods: Collection[Address]) -> Ruleset:
    """The whole ruleset for a policy and the pods' addresses."""
    sets: dict[SetSpec, frozenset[Element]] = {}
    for family in Family:
        sets[_internal(family)] = _of_family(policy.internal, family)
        sets[_ranges(family)] = _of_family(policy.ranges, family)
    sets[_LINK_LOCAL] = frozenset(LINK_LOCAL_SOURCES)
    sets |= {pod_set(traffic, family): frozenset() for family in Family for traffic in Traffic}
    sets |= pod_sets(pods)
    return Ruleset(
        sets=tuple(sets),
        members={spec.name: members for spec, members in sets.items()},
        chains={hook: tuple(rule for family in Family for rule in _rules(policy, hook, family)) for hook in Hook},
    )


_POD_LINKS = f"{LINK_PREFIX}*"
_NO_POD = partial(OnLink, name=_POD_LINKS, negated=True, group=LINK_GROUP)
_NO_LOOPBACK = partial(OnLink, name="lo", negated=True)
_LINK_LOCAL = SetSpec("link_local6", Family.V6)


def _internal(family: Family) -> SetSpec:
    return SetSpec(f"internal{family.value}", family)


INTERNAL_SETS = frozenset(_internal(family).name for family in Family)
"""The sets that the corrected form of the article's rules looks into."""


def _ranges(family: Family) -> SetSpec:
    return SetSpec(f"ranges{family.value}", family)


def _of_family(prefixes: Iterable[Prefix], family: Family) -> frozenset[Element]:
    return frozenset(prefix for prefix in prefixes if prefix.family is family)


def _rules(policy: Policy, hook: Hook, family: Family) -> list[Rule]:
    rules = [_node_rule(policy, hook, traffic, family) for at, traffic in NODE_HOOKS if at is hook]
    if hook is Hook.FORWARD:
        rules += [_pod_rule(traffic, family) for traffic in (Traffic.INTERNET_OUT, Traffic.INTERNET_IN)]
    elif policy.counts_only:
        return rules
    elif hook is Hook.PREROUTING:
        rules.append(_anti_spoofing(family))
    elif hook is Hook.POSTROUTING and policy.masquerade:
        rules.append(_masquerade(family))
    return rules


def _pod_rule(traffic: Traffic, family: Family) -> Rule:
    pod, peer = (Side.SOURCE, Side.DESTINATION) if traffic is Traffic.INTERNET_OUT else (Side.DESTINATION, Side.SOURCE)
    # The counting look-up stands last: it counts whatever reaches it.
    matches = (*_internet(peer, family, _NO_POD), InSet(pod, pod_set(traffic, family).name))
    return Rule(f"pod {traffic} v{family.value}", family, matches, Pass())


def _internet(peer: Side, family: Family, elsewhere: Callable[[Side], OnLink]) -> tuple[Match, ...]:
    """The peer is of the internet. What does not lie `elsewhere` never is, and costs no look-up."""
    return elsewhere(peer), InSet(peer, _internal(family).name, negated=True)


def _node_rule(policy: Policy, hook: Hook, traffic: Traffic, family: Family) -> Rule:
    peer = Side.SOURCE if traffic is Traffic.INTERNET_IN else Side.DESTINATION
    matches: tuple[Match, ...]
    if policy.node_rules is NodeRules.EXACT and family is policy.exact_prefix.family:
        matches = (InPrefix(peer, policy.exact_prefix, negated=True),)
    else:
        matches = _internet(peer, family, _NO_POD if hook is Hook.FORWARD else _NO_LOOPBACK)
    return Rule(
        id=f"node {hook} {traffic} v{family.value}",
        family=family,
        matches=matches,
        action=Count(Counter(hook.upper(), family, traffic)),
        comment=f"iptables-exporter {policy.rule_owner} traffic={traffic}",
    )


def _anti_spoofing(family: Family) -> Rule:
    """Instead of the rp_filter sysctl, of which v6 has none and v4 uses the laxer of "all" and the link's."""
    matches: tuple[Match, ...] = (OnLink(Side.SOURCE, _POD_LINKS),)
    if family is Family.V6:
        matches += (InSet(Side.SOURCE, _LINK_LOCAL.name, negated=True),)
    return Rule(f"anti-spoofing v{family.value}", family, (*matches, Unreturnable()), Drop(f"spoofed{family.value}"))


def _masquerade(family: Family) -> Rule:
    from_pods = InSet(Side.SOURCE, _ranges(family).name)
    to_internet = InSet(Side.DESTINATION, _internal(family).name, negated=True)
    return Rule(f"masquerade v{family.value}", family, (from_pods, to_internet), Masquerade())
