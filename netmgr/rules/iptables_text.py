"""Rules in the words that iptables-save prints, which is how they are compared."""

from __future__ import annotations

import re
from typing import assert_never

from netmgr.prefixes import Address, Family
from netmgr.rules import model
from netmgr.rules.ipset import kernel_name
from netmgr.rules.iptables_layout import Line

# What an entry itself compares. Both variants print it first, in this order, and then the matches
# in theirs, the comment last. So they are also evaluated in this order.
_HEAD = ("-s", "-d", "-i", "-o", "-p")
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


def text(rule: model.Rule) -> str:
    """The rule as iptables-save prints it, without the chain; ValueError if it cannot have it."""
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


def comment_of(rule: model.Rule) -> str:
    """The comment the rule carries in the kernel."""
    return rule.comment or f"netmgr {rule.id}"


def _target(rule: model.Rule) -> list[str]:
    match rule.action:
        case model.Return() | model.Count(ends=True):
            return ["-j RETURN"]
        case model.Count() | model.Tally() | model.Continue():
            return []
        case model.Drop():
            return ["-j DROP"]
        case model.Masquerade():
            return ["-j MASQUERADE"]
        case model.SourceNat(Address() as address):
            return [f"-j SNAT --to-source {address}"]
        case model.Netmap(service_cidr):
            return [f"-j NETMAP --to {service_cidr}"]
        case (
            model.SourceNat()
            | model.Rewrite()
            | model.Classify()
            | model.DropBetween()
            | model.Offload()
        ):
            raise ValueError(f"rule '{rule.id}': iptables cannot do that: {rule.action}")
    assert_never(rule.action)


def _option(match: model.Match, family: Family) -> str:
    match match:
        case model.InPrefix(side, prefix, negated) if prefix.length or negated:
            return f"{'! ' * negated}{'-s' if side is model.Side.SOURCE else '-d'} {prefix}"
        case model.OnLink(side, name, negated) if match != model.FORWARDED:
            option = "-i" if side is model.Side.SOURCE else "-o"
            return f"{'! ' * negated}{option} {name.replace('*', '+')}"
        case model.IcmpType() | model.IcmpOfNobody():
            return "-p icmp" if family is Family.V4 else "-p ipv6-icmp"
        case model.UdpTo():
            return "-p udp"
        case _:
            return ""


def _extension(match: model.Match, family: Family) -> str:  # noqa: PLR0911 - one return per kind of match reads best
    match match:
        case model.InSet(side, name, negated):
            return f"-m set {'! ' * negated}--match-set {kernel_name(name)} {side}"
        case model.OnLink() if match == model.FORWARDED:
            # iptables has no name for no link. What is forwarded has no address of this machine as
            # its source.
            return "-m addrtype ! --src-type LOCAL"
        case model.InPrefix() | model.OnLink():
            return ""
        # xt_rpfilter works in PREROUTING of raw and mangle alone.
        case model.ReversePath(negated):
            return f"-m rpfilter{' --invert' * negated}"
        case model.IcmpType() | model.IcmpOfNobody() | model.UdpTo():
            return _transport(match, family)
        case model.OriginalDirection(reply_port_not):
            answering = f"! --ctreplsrcport {reply_port_not} " if reply_port_not else ""
            return f"-m conntrack {answering}--ctdir ORIGINAL"
        case model.OriginallyTo(prefix, redirected=False):
            return f"-m conntrack --ctorigdst {prefix.network if prefix.is_address else prefix}"
        case model.OneIn(number):
            return f"-m statistic --mode nth --every {number} --packet 0"
        case model.Fragment() | model.IcmpOfOthers() | model.OriginallyTo():
            raise ValueError(f"iptables cannot do that: {match}")
    assert_never(match)


def _transport(match: model.IcmpType | model.IcmpOfNobody | model.UdpTo, family: Family) -> str:
    match match:
        case model.IcmpType(number):
            return _icmp_type(number, family)
        case model.IcmpOfNobody(but_replies):
            besides = f" {_icmp_type(model.ECHO_REPLY[family], family, '! ')}" * but_replies
            return f"-m conntrack --ctstate INVALID{besides}"
        case model.UdpTo(port):
            return f"-m udp --dport {port}"


def _icmp_type(number: int, family: Family, negation: str = "") -> str:
    kind = "icmp" if family is Family.V4 else "icmpv6"
    return f"-m {kind.replace('v', '')} {negation}--{kind}-type {number}"
