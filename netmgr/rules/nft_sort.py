"""A rule that sorts packets by their peer, as chains of nftables.

The rule jumps to a chain of its own. There a few prefixes are compared one after the other; many are
looked up in one verdict map, which leads to a chain for each counting set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from netmgr.prefixes import Family
from netmgr.rules.model import Rule, Side, Sort

CHAIN_PREFIXES = ("sort_", "count_")
"""What the names of such chains begin with, and of no other."""

FEW = 4
"""So many prefixes are compared sooner than looked up: a rule costs 20 to 30 ns, the look-up 170."""


def jump(action: Sort) -> str:
    """What a sorting rule does, in nft's language."""
    return f"jump {_entry(action)}"


def chains(rules: Iterable[Rule]) -> dict[str, tuple[str, ...]]:
    """The chains that sorting rules lead to: the texts of their rules, by the chain's name. Callees come first."""
    return {
        name: texts
        for rule in rules
        if isinstance(rule.action, Sort)
        for name, texts in _chains(rule.family, rule.action)
    }


def _chains(family: Family, sort: Sort) -> Iterator[tuple[str, tuple[str, ...]]]:
    protocol = "ip" if family is Family.V4 else "ip6"
    peer, pod = (f"{protocol} {'saddr' if side is Side.SOURCE else 'daddr'}" for side in (sort.peer, sort.pod))
    pieces = [(prefix, branch.counts) for branch in sort.branches for prefix in branch.prefixes]
    rest = f"{pod} @{sort.rest}"
    if len(pieces) <= FEW:
        # A packet of a pod that is counted nowhere is in no set of the rest either, or else stops here.
        counted = [f"{peer} {prefix} {f'{pod} @{counts} ' if counts else ''}return" for prefix, counts in pieces]
        yield _entry(sort), (*counted, rest)
        return
    for branch in sort.branches:
        if branch.counts:
            yield _counting(branch.counts), (f"{pod} @{branch.counts}",)
    verdicts = ", ".join(
        f"{prefix} : {f'goto {_counting(counts)}' if counts else 'return'}" for prefix, counts in sorted(pieces)
    )
    yield _entry(sort), (f"{peer} vmap {{ {verdicts} }}", rest)


def _entry(sort: Sort) -> str:
    return f"sort_{sort.name}"


def _counting(counts: str) -> str:
    return f"count_{counts}"
