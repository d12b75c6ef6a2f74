"""Recognises our rules in one table of iptables, and makes them what they should be.

They are in our own chains, NETMGR-…, with one jump from the built-in chain. Only the article's four
rules are in the built-in chains themselves, where its readers look for them. They carry a mark that
no program shows. Another program's save and restore loses the mark; then a rule that looks into our
sets as ours do still counts as ours. Other rules are never touched or moved, whatever their comment
says. One that equals an article's rule of ours serves in its place and stays its owner's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from netmgr.errors import KernelError
from netmgr.kernel.xtables.entries import Entry, jump
from netmgr.kernel.xtables.tables import Table
from netmgr.model import CHAIN_PREFIX, Sample
from netmgr.prefixes import Family
from netmgr.rules import iptables_entries
from netmgr.rules.model import Count, Drop, Hook, ObservedRule, Rule, Ruleset, Tally
from netmgr.rules.transaction import DropChain, FillChain

TABLES = {
    Hook.PREROUTING: "raw",
    Hook.DSTNAT: "nat",
    Hook.INPUT: "mangle",
    Hook.FORWARD: "mangle",
    Hook.OUTPUT: "mangle",
    Hook.BEFORE_SRCNAT: "mangle",
    Hook.POSTROUTING: "nat",
}
"""Which table has the hook at the priority we use there. None has one behind all translation."""

_ANY_OWNER = re.compile(r"iptables-exporter .* traffic=internet-(in|out)")


_BUILTIN = {Hook.DSTNAT: "PREROUTING", Hook.BEFORE_SRCNAT: "POSTROUTING"}


def builtin(hook: Hook) -> str:
    """The kernel's own chain at a hook."""
    return _BUILTIN.get(hook, hook.upper())


def chain_name(hook: Hook) -> str:
    """Our own chain at a hook."""
    return f"{CHAIN_PREFIX}{hook.upper()}"


def is_in_builtin(rule: Rule) -> bool:
    """Whether the rule is one of the article's, which are in the built-in chain."""
    return bool(rule.comment)


def goes_last(hook: Hook) -> bool:
    """Whether our jump goes behind other rules."""
    # Counting and dropping come first, or an earlier verdict would hide packets from them. Where
    # addresses are translated, the first verdict wins, and other programs' rules go first.
    return TABLES[hook] == "nat"


def seen(
    table: Table,
    hook: Hook,
    rules: Sequence[Rule],
    indexes: Mapping[str, int],
    held: Mapping[str, int],
) -> Iterator[ObservedRule]:
    """The rules of ours that the table has at a hook, in the order of `rules` as far as they agree.

    `indexes` are the numbers of the sets that rules may look into, `held` those of all sets of
    ours.
    """
    article, own = split(rules, table.family)
    yield from _seen_in_builtin(table.entries(builtin(hook)), article, indexes, held)
    chain, jumps = chain_name(hook), _jumps(table, hook)
    if jumps:
        yield from _seen_in_own(table, hook, own, indexes)
    elif table.entries(chain) and not own:
        yield ObservedRule(f"chain {chain}", intact=False)
    for _ in jumps[1:]:
        yield ObservedRule(f"jump to {chain}", intact=False)


def _seen_in_builtin(
    there: Sequence[Entry],
    article: Sequence[Rule],
    indexes: Mapping[str, int],
    held: Mapping[str, int],
) -> Iterator[ObservedRule]:
    written = _written_by_us(there, article, held)
    by_comment: dict[str, list[Entry]] = {}
    for entry in written:
        by_comment.setdefault(entry.comment, []).append(entry)
    for rule in article:
        fresh = iptables_entries.encode(rule, indexes)
        found = by_comment.pop(rule.comment, [])
        yield from (ObservedRule(rule.id, _equal(entry, fresh)) for entry in found)
        if not found and _same(there, fresh):
            yield ObservedRule(rule.id)
    for comment, surplus in by_comment.items():
        yield from (ObservedRule(comment, intact=False) for _ in surplus)


def _seen_in_own(
    table: Table, hook: Hook, rules: Sequence[Rule], indexes: Mapping[str, int]
) -> Iterator[ObservedRule]:
    # Equal rules have equal comments, so that each is compared with its like alone.
    wanted = {iptables_entries.comment_of(rule): rule for rule in rules}
    entries = table.entries(chain_name(hook))
    if not rules and not entries:
        yield ObservedRule(f"jump to {chain_name(hook)}", intact=False)
    for entry in entries:
        rule = wanted.get(entry.comment)
        if rule is not None and _equal(entry, iptables_entries.encode(rule, indexes)):
            yield ObservedRule(rule.id)
        else:
            name = entry.comment.removeprefix("netmgr ") or entry.target or "(without a comment)"
            yield ObservedRule(name, intact=False)


def counters(desired: Ruleset, chains: Mapping[Hook, Sequence[ObservedRule]]) -> frozenset[str]:
    """Names of the counters that exist, which is those of the rules that are intact."""
    intact = {rule.id for rules in chains.values() for rule in rules if rule.intact}
    return frozenset(
        rule.action.name
        for rule in desired.rules()
        if isinstance(rule.action, Count | Drop | Tally) and rule.id in intact
    )


def node_samples(
    table: Table, desired: Ruleset, indexes: Callable[[], Mapping[str, int]]
) -> Iterator[Sample]:
    """What the article's rules in this table have counted, and the node's others in our own chains.

    `indexes` is asked where one of the article's has lost its mark.
    """
    for hook, rules in desired.chains.items():
        if TABLES.get(hook) != "mangle":
            continue
        counting = [rule for rule in rules if isinstance(rule.action, Count)]
        article, others = split(counting, table.family)
        entries = table.entries(builtin(hook))
        found = [(rule, counting_entry(entries, rule, indexes)) for rule in article]
        own = {entry.comment: entry for entry in table.entries(chain_name(hook))}
        found += [(rule, own.get(iptables_entries.comment_of(rule))) for rule in others]
        yield from _samples(found)


def _samples(found: Iterable[tuple[Rule, Entry | None]]) -> Iterator[Sample]:
    for rule, entry in found:
        if entry is not None and isinstance(rule.action, Count):
            packets, octets = entry.counters
            yield Sample(rule.action.counter, octets, packets)


def counting_entry(
    entries: Iterable[Entry], rule: Rule, indexes: Callable[[], Mapping[str, int]]
) -> Entry | None:
    """The entry that counts for one of the article's rules: ours, or another that is equal."""
    same = [entry for entry in entries if entry.comment == rule.comment]
    for entry in same:
        if iptables_entries.is_marked(entry):
            return entry
    fresh = iptables_entries.encode(rule, indexes()) if same else None
    return next((entry for entry in same if _equal(entry, fresh)), None)


def tallies(table: Table, hook: Hook, rules: Iterable[Rule]) -> Iterator[tuple[str, int, int]]:
    """Name, packets and bytes of what our rules in our own chain at a hook have counted."""
    ours = {
        iptables_entries.comment_of(rule): rule for rule in rules if rule.family is table.family
    }
    for entry in table.entries(chain_name(hook)):
        rule = ours.get(entry.comment)
        if rule is not None and isinstance(rule.action, Drop | Tally):
            yield rule.action.name, *entry.counters


def converge(table: Table, change: DropChain | FillChain, indexes: Mapping[str, int]) -> None:
    """Have the table hold, at the change's hook, exactly our rules that it names.

    `indexes` are the numbers of all sets of ours.
    """
    article, own = split(change.rules, table.family)
    fills = isinstance(change, FillChain)
    wanted_article = [_encoded(rule, indexes) for rule in article] if fills else []
    wanted_own = [_encoded(rule, indexes) for rule in own] if fills else []
    _converge_builtin(table, change.hook, wanted_article, article, indexes)
    _converge_own(table, change.hook, wanted_own)


def _converge_builtin(
    table: Table,
    hook: Hook,
    wanted: Sequence[Entry],
    known: Sequence[Rule],
    indexes: Mapping[str, int],
) -> None:
    chain = builtin(hook)
    there = table.entries(chain)
    found = _written_by_us(there, known, indexes)
    theirs = _without(there, found)
    missing: list[Entry] = []
    for fresh in wanted:
        # An article's rule is itself a counter of the node, so it is left alone while it is intact.
        same = _same(found, fresh)
        if len(same) == 1:
            found.remove(same[0])
        elif same:
            # Deleting takes the first of equals, which has the longest count: put back with that
            # count.
            missing.append(fresh.with_counts(*same[0].counters))
        elif not _same(theirs, fresh):
            missing.append(fresh)
    for surplus in found:
        table.delete(chain, surplus)
    # Each goes to the head of the chain, so the last one goes in first.
    for entry in reversed(missing):
        table.insert(chain, entry)


def _converge_own(table: Table, hook: Hook, wanted: Sequence[Entry]) -> None:
    chain, jumps = chain_name(hook), _jumps(table, hook)
    kept = jumps[:1] if wanted else []
    for surplus in jumps[len(kept) :]:
        table.delete(builtin(hook), surplus)
    if not wanted:
        if table.has_chain(chain):
            table.flush_chain(chain)
            table.delete_chain(chain)
        return
    if not table.has_chain(chain):
        table.create_chain(chain)
    _fill(table, chain, wanted)
    if not kept:
        # The chain is filled before anything leads to it.
        place = table.append if goes_last(hook) else table.insert
        place(builtin(hook), jump(chain, table.family))


def _fill(table: Table, chain: str, wanted: Sequence[Entry]) -> None:
    """Make the chain hold these rules in this order; those that stay keep their counts."""
    entries = table.entries(chain)
    if len(entries) == len(wanted) and all(
        entry.does_the_same_as(fresh) for entry, fresh in zip(entries, wanted, strict=True)
    ):
        return
    by_comment = {fresh.comment: fresh for fresh in wanted}
    counted = {
        entry.comment: entry.counters
        for entry in entries
        if _equal(entry, by_comment.get(entry.comment))
    }
    # No packet meets the empty chain: the table is written back as a whole.
    table.flush_chain(chain)
    for fresh in wanted:
        table.append(chain, fresh.with_counts(*counted.get(fresh.comment, (0, 0))))


def split(rules: Iterable[Rule], family: Family) -> tuple[list[Rule], list[Rule]]:
    """The family's rules for the built-in chain, and those for our own."""
    parts: tuple[list[Rule], list[Rule]] = ([], [])
    for rule in rules:
        if rule.family is family:
            parts[not is_in_builtin(rule)].append(rule)
    return parts


def _jumps(table: Table, hook: Hook) -> list[Entry]:
    return [entry for entry in table.entries(builtin(hook)) if entry.target == chain_name(hook)]


def _written_by_us(
    entries: Iterable[Entry], article: Iterable[Rule], indexes: Mapping[str, int]
) -> list[Entry]:
    """The article's rules that we wrote: with our mark, or looking into our sets as ours do."""
    looking = [iptables_entries.encode(rule, indexes) for rule in article if rule.set_names]
    forms = {made.apart_from_comment() for made in looking if made is not None}
    found = []
    for entry in entries:
        # Another program's restore writes the comment anew, without what was behind the end of its
        # text.
        restored = not entry.target and _ANY_OWNER.fullmatch(entry.comment)
        if iptables_entries.is_marked(entry) or (restored and entry.apart_from_comment() in forms):
            found.append(entry)
    return found


def _encoded(rule: Rule, indexes: Mapping[str, int]) -> Entry:
    entry = iptables_entries.encode(rule, indexes)
    if entry is None:
        lacking = ", ".join(sorted(rule.set_names - indexes.keys()))
        raise KernelError(f"write rule '{rule.id}'", details=f"there is no set {lacking}")
    return entry


def _without(entries: Iterable[Entry], others: Collection[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry not in others]


def _same(entries: Iterable[Entry], fresh: Entry | None) -> list[Entry]:
    return [entry for entry in entries if _equal(entry, fresh)]


def _equal(entry: Entry, fresh: Entry | None) -> bool:
    return fresh is not None and entry.does_the_same_as(fresh)
