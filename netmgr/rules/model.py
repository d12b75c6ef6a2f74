"""The ruleset as both backends, and the fake, understand it: sets, rules at hooks, nothing else.

The model says what a packet meets and what is counted; it knows neither nftables nor iptables. A
match on a set that counts is itself the counting: a packet that reaches the match and is a member
raises the element's counter. So the order of a rule's matches is part of its meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from netmgr.model import Counter, Sender, Traffic
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.at_links import AtLinks

Element = Address | Prefix | Sender
Kind = TypeVar("Kind")

# Addresses a pod set can hold. Given a size, the kernel picks its fixed, faster hash, whose table
# it makes for as many at once and goes through at each reading; without one, its resizable hash
# (nft_set_hash.c). An ipset grows.
SET_CAPACITY, IPSET_CAPACITY = 8192, 65_536

# Of sets whose elements come with packets: most elements, and how long one stays without any.
DYNAMIC_CAPACITY, DYNAMIC_SECONDS = 1024, 3600

# Seconds' worth of fragments that a link may send at once, and how long it is remembered without
# any: a time in which all of that comes back.
FRAGMENT_BURST, FRAGMENT_SECONDS = 20, 60


class Hook(StrEnum):
    """The places a packet passes, in its order, each at the one priority netmgr uses there.

    The first is before connection tracking and, where the backend can, before the kernel puts
    fragments together; the last is behind all translation of addresses.
    """

    PREROUTING = "prerouting"
    DSTNAT = "dstnat"
    INPUT = "input"
    FORWARD = "forward"
    OUTPUT = "output"
    BEFORE_SRCNAT = "before_srcnat"
    """Behind filters, and before the packet loses its pod's address."""
    POSTROUTING = "postrouting"
    DEPARTURE = "departure"


class Side(StrEnum):
    """Which of a packet's addresses is looked at; spelt as xt_set spells it."""

    SOURCE = "src"
    DESTINATION = "dst"


@dataclass(frozen=True, slots=True)
class InSet:
    """The address on `side` is (or, negated, is not) a member of the set.

    With `by_link`, the link that the packet came in by and the address are, as a Sender.
    """

    side: Side
    name: str
    negated: bool = False
    by_link: bool = False


@dataclass(frozen=True, slots=True)
class InPrefix:
    """The address on `side` lies (or, negated, does not lie) in the prefix."""

    side: Side
    prefix: Prefix
    negated: bool = False


@dataclass(frozen=True, slots=True)
class OnLink:
    """The packet came in (`src`) or goes out (`dst`) by a link of this name; `*` ends a prefix."""

    side: Side
    name: str
    negated: bool = False


# The packet came in by a link, for hooks that this machine's own packets pass as well.
FORWARDED = OnLink(Side.SOURCE, "", negated=True)


@dataclass(frozen=True, slots=True)
class OriginallyTo:
    """The packet's connection was opened toward this prefix, as connection tracking saw it.

    With `redirected`, which nftables alone can tell, its destination has been translated since.
    """

    prefix: Prefix
    redirected: bool = False


@dataclass(frozen=True, slots=True)
class OneIn:
    """Every `number`-th packet that reaches this match, beginning with the first."""

    number: int


@dataclass(frozen=True, slots=True)
class ReversePath:
    """The route to the packet's source leads (or not) out of the link that it came in by.

    RFC 3704, strict. A source that the kernel cannot check passes, such as 0.0.0.0 of a DHCP
    client.
    """

    negated: bool = False


ECHO_REPLY = {Family.V4: 0, Family.V6: 129}


@dataclass(frozen=True, slots=True)
class IcmpType:
    """An ICMP or, in a rule of IPv6, ICMPv6 message of this type."""

    number: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """The packet is (or, negated, is not) a part of a datagram that is not put together yet.

    With `beyond`, one more than its link may send: so many in a second, FRAGMENT_BURST times as
    many at once. The set `name` remembers what each link has sent.
    """

    negated: bool = False
    beyond: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class IcmpOfNobody:
    """An ICMP or, in a rule of IPv6, ICMPv6 message that belongs to no connection.

    Such as an error that quotes a packet which nobody sent. With `but_replies` no echo reply is
    meant: none that a broadcast or multicast address was asked for comes from that address.
    """

    but_replies: bool = False


@dataclass(frozen=True, slots=True)
class IcmpOfOthers:
    """An ICMP error about a connection that nobody in the set of this name began or answers."""

    name: str


@dataclass(frozen=True, slots=True)
class OriginalDirection:
    """The packet has its connection's original direction; replies come from another port than this.

    The port is the one after all translation. 0: they come from any.
    """

    reply_port_not: int = 0


@dataclass(frozen=True, slots=True)
class UdpTo:
    """A datagram to this port."""

    port: int


Match = (
    InSet
    | InPrefix
    | OnLink
    | ReversePath
    | Fragment
    | IcmpType
    | IcmpOfNobody
    | IcmpOfOthers
    | UdpTo
    | OriginalDirection
    | OriginallyTo
    | OneIn
)


@dataclass(frozen=True, slots=True)
class Return:
    """Nothing more, and no further rule of the chain: the rule's matches have done the counting."""


@dataclass(frozen=True, slots=True)
class Continue:
    """As `Return`, but the next rule is evaluated."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Prefixes of peers, and the set that counts the pods they exchange packets with."""

    counts: str
    prefixes: tuple[Prefix, ...]


@dataclass(frozen=True, slots=True)
class Classify:
    """Count the address on side `pod` in the set that the address on the side `peer` selects.

    Then the next rule is evaluated. Prefixes of branches are disjoint; `rest` counts all others.
    """

    name: str
    peer: Side
    pod: Side
    branches: tuple[Branch, ...]
    rest: str


@dataclass(frozen=True, slots=True)
class Count:
    """Raise one of the node's counters, which survives new rules where the kernel allows it.

    With `also_by`, the address on that side is also counted by itself, in a dynamic set of that
    name. One that `ends` is the packet's last rule of the chain.
    """

    counter: Counter
    also_by: tuple[Side, str] | None = None
    ends: bool = False

    @property
    def name(self) -> str:
        """The counter's name in the kernel, for example `input_in4`."""
        way = "in" if self.counter.traffic.is_inward else "out"
        return f"{str(self.counter.subject).lower()}_{way}{self.counter.family}"


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop the packet and count it; `reason`, for readers, is empty if it is between two spokes."""

    name: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Spoke:
    """One spoke, and every address that its packets can carry here."""

    name: str
    prefixes: tuple[Prefix, ...]


@dataclass(frozen=True, slots=True)
class DropBetween:
    """Drop a packet from one spoke to another, and count it for the ordered pair.

    The next rule is evaluated for a packet within a spoke. Each packet here is of one or the other.
    The counters are elements of the dynamic set `counts`: a pair has one from its first packet on.
    """

    counts: str
    family: Family
    spokes: tuple[Spoke, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """Count the packet under this name, and go on."""

    name: str


@dataclass(frozen=True, slots=True)
class Offload:
    """Hand the packet's connection, if answers were seen, to a flowtable, and go on.

    Later packets of it that come in by the flowtable's devices meet no rule.
    """

    flowtable: str


@dataclass(frozen=True, slots=True)
class Masquerade:
    """Give the packet's connection the address of the link it leaves by."""


@dataclass(frozen=True, slots=True)
class SourceNat:
    """Give the packet's connection this source address; None: let nobody change what it has."""

    address: Address | None


@dataclass(frozen=True, slots=True)
class Netmap:
    """Send the packet's connection to the address of the same place in another prefix."""

    service_cidr: Prefix


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Put the address of the same place in another prefix into this packet, and count it.

    Connection tracking has no part in it: one that comes later sees the new address.
    """

    side: Side
    prefix: Prefix
    name: str


def outside(side: Side, name: str, prefixes: Collection[Prefix], most: int) -> tuple[Match, ...]:
    """Matches an address in none of the prefixes: compares at most `most`, or looks up."""
    if len(prefixes) > most:
        return (InSet(side, name, negated=True),)
    return tuple(InPrefix(side, prefix, negated=True) for prefix in prefixes)


def inside(side: Side, name: str, prefixes: Collection[Prefix], most: int) -> dict[str, Match]:
    """Matches an address in any of the prefixes: a rule for each match, whose name the key ends."""
    if len(prefixes) > most:
        return {"": InSet(side, name)}
    return {f" {prefix}": InPrefix(side, prefix) for prefix in prefixes}


def of_family(prefixes: Iterable[Prefix], family: Family) -> list[Prefix]:
    return [prefix for prefix in prefixes if prefix.family is family]


Action = (
    Return
    | Continue
    | Classify
    | Count
    | Drop
    | DropBetween
    | Tally
    | Offload
    | Masquerade
    | SourceNat
    | Netmap
    | Rewrite
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule for one family. `id` is unique in the ruleset and outlives changes of the text.

    `comment` is the text that the kernel keeps with the rule where others look for it (the
    article's four rules); empty for rules that only we look for.
    """

    id: str
    family: Family
    matches: tuple[Match, ...]
    action: Action
    comment: str = ""

    @classmethod
    def named(
        cls,
        name: str,
        family: Family,
        matches: tuple[Match, ...],
        action: Action,
        comment: str = "",
    ) -> Rule:
        """The rule of a name that both families may have."""
        return cls(f"{name} v{family}", family, matches, action, comment)

    @property
    def set_names(self) -> frozenset[str]:
        """The sets and flowtables without which the kernel refuses the rule."""
        names = {
            match.name
            for match in self.matches
            if isinstance(match, InSet | Fragment | IcmpOfOthers)
        }
        match self.action:
            case Classify(branches=branches, rest=rest):
                names |= {rest, *(branch.counts for branch in branches)}
            case Count(also_by=(_, name)) | DropBetween(counts=name) | Offload(flowtable=name):
                names.add(name)
            case _:
                pass
        # A fragment without a bound looks into none.
        return frozenset(names - {""})


@dataclass(frozen=True, slots=True)
class SetSpec:
    """A set of one family: of prefixes unless one of the fields says otherwise.

    - `counts`: of pods' addresses, each with a counter of that traffic, `at_links` by no rule;
    - `has_senders`: of links and addresses, without counters;
    - `is_dynamic`: the kernel itself adds the addresses that packets have, with a counter, at most
      DYNAMIC_CAPACITY, and forgets those without a packet for DYNAMIC_SECONDS. With room for
      `pairs` it has pairs of spokes, which it never forgets; if it `has_links`, how much came in by
      each of the pods' links;
    - `has_flows`: a flowtable, of both families; its devices are not the ruleset's business.
    """

    name: str
    family: Family
    counts: Traffic | None = None
    is_dynamic: bool = False
    pairs: int = 0
    has_senders: bool = False
    has_links: bool = False
    has_flows: bool = False
    at_links: bool = False

    @classmethod
    def of_prefixes(cls, name: str, family: Family) -> SetSpec:
        """The set of one family's prefixes, for a name that both families have."""
        return cls(f"{name}{family}", family)

    @property
    def has_prefixes(self) -> bool:
        return not (self.counts or self.is_dynamic or self.has_senders or self.has_flows)

    def counter(self, element: Element) -> Counter:
        """The counter that this set keeps for an element."""
        if self.counts is None or not isinstance(element, Address):
            raise ValueError(f"set {self.name} keeps no counter for {element}")
        return Counter.of_pod(element, self.counts)


Sets = dict[SetSpec, frozenset[Element]]
"""Sets, and the elements of each."""


@dataclass(frozen=True, slots=True)
class Ruleset:
    """Everything that should be in the kernel."""

    sets: tuple[SetSpec, ...]
    members: Mapping[str, frozenset[Element]]
    chains: Mapping[Hook, tuple[Rule, ...]]
    at_links: AtLinks | None = None

    def rules(self) -> Iterator[Rule]:
        for rules in self.chains.values():
            yield from rules

    def actions(self, kind: type[Kind]) -> Iterator[Kind]:
        """The actions of this kind, in the rules' order."""
        return (rule.action for rule in self.rules() if isinstance(rule.action, kind))

    def node_counters(self) -> dict[str, Counter]:
        """The node's counters by their name in the kernel."""
        return {count.name: count.counter for count in self.actions(Count)}

    def tallies(self) -> tuple[str, ...]:
        """Names of the counters that are neither a pod's nor the node's, each once, in order."""
        actions = (rule.action for rule in self.rules())
        counting = (action for action in actions if isinstance(action, Drop | Tally | Rewrite))
        return tuple(dict.fromkeys(action.name for action in counting))


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a kernel interface can do, which the same policy makes the best of.

    `rewrites`: packets can be rewritten outside of connection tracking. `compares`: so many
    prefixes are compared one after the other sooner than they are looked up in a set.
    `verdict_maps`: one look-up decides between many branches. `dynamic_sets`: a rule can add the
    packet's address to a set. `senders`: sets can have links and addresses together. `flowtables`:
    a rule can hand connections to a flowtable. `fuses`: neighbours that begin with the same matches
    are one rule, which compares once. `sees_fragments`: in prerouting, datagrams are not put
    together yet. `finds_ends`: a connection's addresses can be looked up in a set.
    `counts_at_links`: programs count at links; with `counts_by_rules` rules do, too, for a while.
    """

    rewrites: bool = True
    compares: int = 16
    verdict_maps: bool = True
    dynamic_sets: bool = True
    senders: bool = True
    flowtables: bool = False
    fuses: bool = True
    sees_fragments: bool = True
    finds_ends: bool = True
    counts_at_links: bool = False
    counts_by_rules: bool = True
