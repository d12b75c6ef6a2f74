"""Rules in the words in which iptables-save prints them, which is how they are compared.

Both variants print what an entry itself compares first (addresses, links, the protocol) and then
the matches in their order, the comment last. So they are also evaluated in this order.
"""

from __future__ import annotations

import re
from typing import assert_never

from netmgr.prefixes import Address, Family
from netmgr.rules.ipset import kernel_name
from netmgr.rules.iptables_layout import Line
from netmgr.rules.model import (
    ECHO_REPLY,
    FORWARDED,
    IPSET_CAPACITY,
    Asking,
    Classify,
    Count,
    Drop,
    Element,
    Fragment,
    GoOn,
    IcmpOfNobody,
    IcmpOfOthers,
    IcmpType,
    InPrefix,
    InSet,
    Masquerade,
    Match,
    Netmap,
    Offload,
    OneIn,
    OnLink,
    OriginallyTo,
    Pass,
    Returnable,
    Rewrite,
    Rule,
    SetSpec,
    Side,
    SourceNat,
    Tally,
    UdpTo,
)
from netmgr.rules.spokes import DropBetween
from netmgr.rules.transaction import (
    AddElements,
    CreateSet,
    DeclareCounter,
    DeleteOrphan,
    DeleteSet,
    DropChain,
    EndFlows,
    FillChain,
    Operation,
    RemoveElements,
    ReplaceElements,
)

_HEAD = ("-s", "-d", "-i", "-o", "-p")
"""What an entry compares before its matches, in the order of iptables-save."""
# Without /etc/protocols, as in a small image, iptables knows this protocol by its second name.
_ICMPV6 = re.compile(r"(?<=-p )icmpv6(?= |$)")


def same_words(text: str) -> str:
    """A printed rule in the words that `line_text` uses."""
    return _ICMPV6.sub("ipv6-icmp", text)


def line_text(line: Line) -> str:
    """The line as iptables-save prints it, without the chain that it is in."""
    if not line.to:
        return text(line.rule)
    return f"{text(line.rule)} {'-g' if line.is_goto else '-j'} {line.to}"


def text(rule: Rule) -> str:
    """The rule as iptables-save prints it, without the chain.

    Raises:
        ValueError: iptables cannot do that.
    """
    head: dict[str, str] = {}
    matches: list[str] = []
    for match in rule.matches:
        if option := _option(match, rule.family):
            head[option.removeprefix("! ").split(" ")[0]] = option
        if extension := _extension(match, rule.family):
            matches.append(extension)
    ordered = [head[option] for option in _HEAD if option in head]
    comment = f'-m comment --comment "{comment_of(rule)}"'
    return " ".join([*ordered, *matches, comment, *_target(rule)])


def comment_of(rule: Rule) -> str:
    """The comment the rule carries in the kernel."""
    return rule.comment or f"netmgr {rule.id}"


def set_commands(operation: Operation) -> list[str]:  # noqa: PLR0911 - one return per kind of operation reads best
    """An operation on sets as commands of ipset, in order; the backend itself starts none."""
    match operation:
        case CreateSet(spec):
            return [_create(spec)]
        case DeleteSet(spec):
            return [f"ipset destroy {kernel_name(spec.name)}"]
        case DeleteOrphan(name):
            return [f"ipset destroy {name}"]
        case AddElements(spec, elements, packets=0):
            return _each("add", spec, elements)
        case AddElements(spec, elements, packets=packets):
            return [f"{one} packets {packets} bytes 0" for one in _each("add", spec, elements)]
        case RemoveElements(spec, elements):
            return _each("del", spec, elements)
        case ReplaceElements(spec, elements):
            return [f"ipset flush {kernel_name(spec.name)}", *_each("add", spec, elements)]
        # Counters are the rules' own, and there are no flowtables.
        case DropChain() | FillChain() | DeclareCounter() | EndFlows():
            return []
    assert_never(operation)


def _create(spec: SetSpec) -> str:
    kind = "hash:net" if spec.counts is None else "hash:ip"
    family = "inet" if spec.family is Family.V4 else "inet6"
    counters = "" if spec.counts is None else " counters"
    options = f"family {family} maxelem {IPSET_CAPACITY}{counters}"
    return f"ipset create {kernel_name(spec.name)} {kind} {options}"


def _each(verb: str, spec: SetSpec, elements: frozenset[Element]) -> list[str]:
    return [
        f"ipset -exist {verb} {kernel_name(spec.name)} {element}" for element in sorted(elements)
    ]


def _target(rule: Rule) -> list[str]:
    match rule.action:
        case Pass() | Count(ends=True):
            return ["-j RETURN"]
        case Count() | Tally() | GoOn():
            return []
        case Drop():
            return ["-j DROP"]
        case Masquerade():
            return ["-j MASQUERADE"]
        case SourceNat(Address() as address):
            return [f"-j SNAT --to-source {address}"]
        case Netmap(service_cidr):
            return [f"-j NETMAP --to {service_cidr}"]
        case SourceNat() | Rewrite() | Classify() | DropBetween() | Offload():
            raise ValueError(f"rule '{rule.id}': iptables cannot do that: {rule.action}")
    assert_never(rule.action)


def _option(match: Match, family: Family) -> str:
    """What the entry itself compares."""
    match match:
        case InPrefix(side, prefix, negated) if prefix.length or negated:
            return f"{_not(negated=negated)}{'-s' if side is Side.SOURCE else '-d'} {prefix}"
        case OnLink(side, name, negated) if match != FORWARDED:
            option = "-i" if side is Side.SOURCE else "-o"
            return f"{_not(negated=negated)}{option} {name.replace('*', '+')}"
        case IcmpType() | IcmpOfNobody():
            return "-p icmp" if family is Family.V4 else "-p ipv6-icmp"
        case UdpTo():
            return "-p udp"
        case _:
            return ""


def _extension(match: Match, family: Family) -> str:  # noqa: PLR0911 - one return per kind of match reads best
    match match:
        case InSet(side, name, negated):
            return f"-m set {_not(negated=negated)}--match-set {kernel_name(name)} {side}"
        case InPrefix():
            return ""
        case OnLink():
            # iptables has no name for no link. What is forwarded has no address of this machine as
            # its source.
            return "-m addrtype ! --src-type LOCAL" if match == FORWARDED else ""
        # xt_rpfilter works in PREROUTING of raw and mangle alone.
        case Returnable(negated):
            return f"-m rpfilter{' --invert' if negated else ''}"
        case IcmpType() | IcmpOfNobody() | UdpTo():
            return _transport(match, family)
        case Asking(besides):
            answering = f"! --ctreplsrcport {besides} " if besides else ""
            return f"-m conntrack {answering}--ctdir ORIGINAL"
        case Fragment() | IcmpOfOthers():
            raise ValueError(f"iptables cannot do that: {match}")
        case OriginallyTo():
            return _originally(match)
        case OneIn(number):
            return f"-m statistic --mode nth --every {number} --packet 0"
    assert_never(match)


def _transport(match: IcmpType | IcmpOfNobody | UdpTo, family: Family) -> str:
    match match:
        case IcmpType(number):
            return _icmp_type(number, family)
        case IcmpOfNobody(but_replies):
            besides = f" {_icmp_type(ECHO_REPLY[family], family, '! ')}" if but_replies else ""
            return f"-m conntrack --ctstate INVALID{besides}"
        case UdpTo(port):
            return f"-m udp --dport {port}"


def _icmp_type(number: int, family: Family, negation: str = "") -> str:
    kind = "icmp" if family is Family.V4 else "icmpv6"
    return f"-m {kind.replace('v', '')} {negation}--{kind}-type {number}"


def _originally(match: OriginallyTo) -> str:
    if match.redirected:
        raise ValueError(f"iptables cannot do that: {match}")
    prefix = match.prefix
    return f"-m conntrack --ctorigdst {prefix.network if prefix.is_address else prefix}"


def _not(*, negated: bool) -> str:
    return "! " if negated else ""
