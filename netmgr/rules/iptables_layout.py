"""Which chains of iptables a hook's rules of one family become, and what each holds.

An entry compares one prefix with each address, and a look-up in a set of prefixes costs as much as
many comparisons. So rules that leave out several prefixes are in a chain of their own, which
compares one after the other before it comes to the rules; neighbours that leave out the same ones
share it, and a packet pays for the decision once:

    NETMGR-FORWARD      ! -o nm+ -g NETMGR-FORWARD-2        what may be to the internet
                        -g NETMGR-FORWARD-3
    NETMGR-FORWARD-2    -d 10.0.0.0/8 -g NETMGR-FORWARD-3   for each prefix
                        …                                   the rules
                        -g NETMGR-FORWARD-3
    NETMGR-FORWARD-3    …                                   the rules after these

Rules that begin with the same link share a chain likewise, if there are enough of them: packets of
other links pay for one comparison.

RETURN in any of these chains leaves the hook's rules, as `Return` does: they are entered by goto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby

from netmgr.model import CHAIN_PREFIX
from netmgr.rules.model import Action, Continue, Count, Hook, InPrefix, Match, OnLink, Return, Rule

# So many rules with the same link are worth a chain.
_ENOUGH = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One rule of a chain. With `to`, it leads a matching packet to that chain."""

    rule: Rule
    to: str = ""
    is_goto: bool = True
    """Whether the packet does not come back here."""
    is_helper: bool = False
    """Whether it is here to lead packets past others, and no rule of the ruleset."""


def chain_name(hook: Hook, number: int = 1) -> str:
    """Our own chain at a hook: the first is the one that the built-in chain jumps to."""
    return f"{CHAIN_PREFIX}{hook.upper()}" + (f"-{number}" if number > 1 else "")


def fits_one_entry(rule: Rule) -> bool:
    """Whether the rule compares at most one prefix with each address."""
    sides = [match.side for match in rule.matches if isinstance(match, InPrefix)]
    return len(sides) == len(set(sides))


def chains(hook: Hook, rules: Sequence[Rule]) -> dict[str, list[Line]]:
    """The chains by name, the first one first; none without rules.

    `rules` are of one family.
    """
    groups: list[tuple[tuple[Match, ...], list[Rule]]] = []
    for head, neighbours in groupby(rules, _shared):
        group = list(neighbours)
        # A link that few rules share is compared by each of them.
        is_few = len(group) < _ENOUGH and not any(_left_out(head))
        groups.append(((), group) if is_few else (head, group))
    made: dict[str, list[Line]] = {}
    if groups:
        names = (chain_name(hook, number) for number in count(1))
        _place(groups, next(names), names, made)
    return made


def _ends(action: Action) -> bool:
    return isinstance(action, Return) or (isinstance(action, Count) and action.ends)


def _place(
    groups: Sequence[tuple[tuple[Match, ...], list[Rule]]],
    chain: str,
    names: Iterator[str],
    made: dict[str, list[Line]],
) -> None:
    """Put groups of rules into the chain, and into those of the next names."""
    lines = made[chain] = []
    for place, (head, group) in enumerate(groups, start=1):
        if not head:
            lines += map(Line, group)
            continue
        # Rules none of which passes a packet need no chain for those after them: theirs is entered
        # by a jump, and RETURN goes back behind it. That also keeps the way through all chains
        # short: nf_tables refuses more than 16 that lead to each other (NFT_JUMP_STACK_SIZE).
        passes = any(_ends(rule.action) for rule in group)
        after = groups[place:] if passes else ()
        guarded, rest = next(names), next(names) if after else ""
        made[guarded] = list(_guarded(guarded, head, group, rest))
        lines += _leading(group[0], _entry(head), guarded, rest, passes=passes)
        if after:
            return _place(after, rest, names, made)
    return None


def _leading(
    beside: Rule, matches: tuple[Match, ...], guarded: str, rest: str, *, passes: bool
) -> Iterator[Line]:
    yield replace(_helper(beside, guarded, matches, guarded), is_goto=passes)
    if rest and matches:
        yield _helper(beside, f"rest of {guarded}", (), rest)


def _shared(rule: Rule) -> tuple[Match, ...]:
    """The matches up to the last prefix that is left out, if one entry cannot have them all.

    Else the link that the rule begins with.
    """
    left_out = list(_left_out(rule.matches))
    if fits_one_entry(rule) or not left_out:
        return tuple(match for match in rule.matches[:1] if isinstance(match, OnLink))
    return rule.matches[: rule.matches.index(left_out[-1]) + 1]


def _left_out(matches: Iterable[Match]) -> Iterator[InPrefix]:
    return (match for match in matches if isinstance(match, InPrefix) and match.negated)


def _entry(head: Iterable[Match]) -> tuple[Match, ...]:
    left_out = set(_left_out(head))
    return tuple(match for match in head if match not in left_out)


def _guarded(chain: str, head: Sequence[Match], group: Sequence[Rule], rest: str) -> Iterator[Line]:
    for match in _left_out(head):
        name = f"{chain} {match.side} in {match.prefix}"
        yield _helper(group[0], name, (replace(match, negated=False),), rest)
    for rule in group:
        yield Line(replace(rule, matches=rule.matches[len(head) :]))
    if rest:
        yield _helper(group[0], f"rest in {chain}", (), rest)


def _helper(beside: Rule, name: str, matches: tuple[Match, ...], to: str) -> Line:
    action = Continue() if to else Return()
    return Line(Rule(name, beside.family, matches, action), to, is_helper=True)
