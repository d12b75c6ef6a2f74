"""Operations as the commands of iptables, ip6tables and ipset that a person would type.

They are printed in dry runs, and a test runs them and compares the outcome with ours. The backend
itself starts no program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

from netmgr.prefixes import Family
from netmgr.rules import iptables_entries
from netmgr.rules.ipset import kernel_name
from netmgr.rules.iptables_chains import TABLES, builtin, goes_last, split
from netmgr.rules.iptables_layout import Line, chain_name, chains
from netmgr.rules.model import (
    FORWARDED,
    IPSET_CAPACITY,
    Asking,
    Element,
    Hook,
    IcmpType,
    InPrefix,
    InSet,
    Match,
    Netmap,
    OneIn,
    OnLink,
    OriginallyTo,
    Returnable,
    Rule,
    SetSpec,
    Side,
    SourceNat,
    UdpTo,
)
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


def commands(  # noqa: PLR0911 - one return per kind of operation reads best
    operation: Operation, variant: str = "iptables-legacy"
) -> list[str]:
    """The operation as commands, in order; `variant` is `iptables-legacy` or `iptables-nft`."""
    # Full names, since plain `iptables` is either variant, depending on the distribution.
    programs = {Family.V4: variant, Family.V6: variant.replace("iptables", "ip6tables")}
    match operation:
        case DropChain(hook, rules):
            return [
                line
                for family in Family
                for line in _drop(hook, *split(rules, family), programs[family])
            ]
        case FillChain(hook, rules):
            return [
                line
                for family in Family
                for line in _fill(hook, *split(rules, family), programs[family])
            ]
        case CreateSet(spec):
            return [_create(spec)]
        case DeleteSet(spec):
            return [f"ipset destroy {kernel_name(spec.name)}"]
        case DeleteOrphan(name):
            return [f"ipset destroy {name}"]
        case AddElements(spec, elements):
            return _each("add", spec, elements)
        case RemoveElements(spec, elements):
            return _each("del", spec, elements)
        case ReplaceElements(spec, elements):
            return [f"ipset flush {kernel_name(spec.name)}", *_each("add", spec, elements)]
        # Counters are the rules' own, and there are no flowtables.
        case DeclareCounter() | EndFlows():
            return []
    assert_never(operation)


def _create(spec: SetSpec) -> str:
    kind = "hash:net" if spec.counts is None else "hash:ip"
    family = "inet" if spec.family is Family.V4 else "inet6"
    counters = "" if spec.counts is None else " counters"
    options = f"family {family} maxelem {IPSET_CAPACITY}{counters}"
    return f"ipset create {kernel_name(spec.name)} {kind} {options}"


def _each(verb: str, spec: SetSpec, elements: Iterable[Element]) -> list[str]:
    return [
        f"ipset -exist {verb} {kernel_name(spec.name)} {element}" for element in sorted(elements)
    ]


def _of_table(hook: Hook, program: str) -> str:
    """How a command about this hook's table begins."""
    # -w: kube-proxy or a firewall may hold the lock of the legacy tables, for which iptables does
    # not wait unasked.
    return f"{program} -w -t {TABLES[hook]}"


def _drop(hook: Hook, article: list[Rule], own: list[Rule], program: str) -> Iterator[str]:
    program = _of_table(hook, program)
    for rule in article:
        yield f"{program} -D {builtin(hook)} {text(rule)}"
    # The jump goes first: a chain that something jumps to cannot be deleted.
    if own:
        names = list(chains(hook, own))
        yield f"{program} -D {builtin(hook)} -j {chain_name(hook)}"
        yield from (f"{program} -F {name}" for name in names)
        yield from (f"{program} -X {name}" for name in names)


def _fill(hook: Hook, article: list[Rule], own: list[Rule], program: str) -> Iterator[str]:
    program = _of_table(hook, program)
    # Before everything else in the chain, where no earlier verdict hides packets from them.
    for position, rule in enumerate(article, start=1):
        yield f"{program} -I {builtin(hook)} {position} {text(rule)}"
    made = chains(hook, own)
    yield from (f"{program} -N {name}" for name in made)
    for name, lines in made.items():
        yield from (f"{program} -A {name} {line_text(line)}" for line in lines)
    if made:
        yield f"{program} {'-A' if goes_last(hook) else '-I'} {builtin(hook)} -j {chain_name(hook)}"


def line_text(line: Line) -> str:
    """The line as iptables-save prints it, without the chain that it is in."""
    if not line.to:
        return text(line.rule)
    return f"{text(line.rule)} {'-g' if line.is_goto else '-j'} {line.to}"


def text(rule: Rule) -> str:
    """The rule as iptables-save prints it, without the chain."""
    parts = [_match(match, rule.family) for match in rule.matches]
    comment = iptables_entries.comment_of(rule)
    return " ".join([*parts, f'-m comment --comment "{comment}"', *_target(rule)])


def _target(rule: Rule) -> list[str]:
    name = iptables_entries.target_name(rule)
    match rule.action:
        case SourceNat(address):
            return [f"-j {name} --to-source {address}"]
        case Netmap(service_cidr):
            return [f"-j {name} --to {service_cidr}"]
        case _:
            return [f"-j {name}"] if name else []


def _icmp(number: int, family: Family) -> str:
    if family is Family.V4:
        return f"-p icmp -m icmp --icmp-type {number}"
    return f"-p ipv6-icmp -m icmp6 --icmpv6-type {number}"


def _not(*, negated: bool) -> str:
    return "! " if negated else ""


def _link(match: OnLink) -> str:
    if match == FORWARDED:
        return "-m addrtype ! --src-type LOCAL"
    option = "-i" if match.side is Side.SOURCE else "-o"
    return f"{_not(negated=match.negated)}{option} {match.name.replace('*', '+')}"


def _match(match: Match, family: Family) -> str:  # noqa: PLR0911 - one return per kind of match reads best
    match match:
        case InSet(side, name, negated):
            return f"-m set {_not(negated=negated)}--match-set {kernel_name(name)} {side}"
        case InPrefix(side, prefix, negated):
            option = "-s" if side is Side.SOURCE else "-d"
            return f"{_not(negated=negated)}{option} {prefix}"
        case OnLink():
            return _link(match)
        case Returnable(negated):
            return f"-m rpfilter{' --invert' if negated else ''}"
        case IcmpType(number):
            return _icmp(number, family)
        case UdpTo(port):
            return f"-p udp -m udp --dport {port}"
        case Asking(besides):
            answering = f"! --ctreplsrcport {besides} " if besides else ""
            return f"-m conntrack {answering}--ctdir ORIGINAL"
        case OriginallyTo(prefix):
            return f"-m conntrack --ctorigdst {prefix}"
        case OneIn(number):
            return f"-m statistic --mode nth --every {number} --packet 0"
    assert_never(match)
