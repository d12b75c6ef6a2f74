"""Recognises our rules in one table of iptables, and makes them what they should be.

They are in our own chains, NETMGR-… (`iptables_layout`), with one jump from the built-in chain.
Only the article's four rules are in the built-in chains themselves, where its readers look for
them. They carry a mark that no program shows. Another program's save and restore loses the mark;
then a rule that looks into our sets as ours do still counts as ours. Other rules are never touched
or moved, whatever their comment says. One that equals an article's rule of ours serves in its place
and stays its owner's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, takewhile

from netmgr.errors import KernelError
from netmgr.kernel.xtables.entries import Entry, jump
from netmgr.kernel.xtables.tables import Table
from netmgr.model import Sample
from netmgr.prefixes import Family
from netmgr.rules import iptables_entries
from netmgr.rules.iptables_layout import Line, chain_name, chains, fits_one_entry
from netmgr.rules.model import (
    Count,
    Drop,
    Hook,
    InPrefix,
    InSet,
    Rule,
    Ruleset,
    Tally,
)
from netmgr.rules.observed import ObservedRule
from netmgr.rules.policy import internal_set
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


def _in_one_entry(rule: Rule) -> Rule:
    """The article's rule as the built-in chain has it, where an entry compares one prefix.

    Others look for it there by name, PyPI's iptables-exporter for one.
    """
    if fits_one_entry(rule):
        return rule
    internal = next(one for one in rule.matches if isinstance(one, InPrefix))
    links = (one for one in rule.matches if not isinstance(one, InPrefix))
    looked_up = InSet(internal.side, internal_set(rule.family).name, negated=True)
    return replace(rule, matches=(*links, looked_up))


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
    jumps = _jumps(table, hook)
    if jumps:
        yield from _seen_in_own(table, hook, own, indexes)
    elif not own:
        yield from (
            ObservedRule(f"chain {name}", intact=False) for name in _own_chains(table, hook, ())
        )
    for _ in jumps[1:]:
        yield ObservedRule(f"jump to {chain_name(hook)}", intact=False)


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
    wanted = chains(hook, rules)
    if not wanted:
        yield ObservedRule(f"jump to {chain_name(hook)}", intact=False)
    by_chain = {name: list(_lines(table, name, wanted[name], indexes)) for name in wanted}
    # Without what leads packets past them, rules count others' packets.
    leads = all(_leads(by_chain[name], wanted[name]) for name in wanted)
    for found in by_chain.values():
        yield from (ObservedRule(one, intact=False) for one in found if isinstance(one, str))
    for name in _in_order(map(_ruleset_of, by_chain.values()), rules):
        yield ObservedRule(name, intact=leads)
    for name in _own_chains(table, hook, rules):
        if name not in wanted:
            yield ObservedRule(f"chain {name}", intact=False)


def _lines(
    table: Table, chain: str, lines: Sequence[Line], indexes: Mapping[str, int]
) -> Iterator[Line | str]:
    """What of the lines a chain has, in its order, and names of other rules."""
    # Equal rules have equal comments, so that each is compared with its like alone.
    wanted = {iptables_entries.comment_of(line.rule): line for line in lines}
    for entry in table.entries(chain):
        line = wanted.get(entry.comment)
        if line is not None and _equal(entry, _fresh(line, indexes)):
            yield line
        else:
            yield entry.comment.removeprefix("netmgr ") or entry.target or "(without a comment)"


def _leads(found: Iterable[Line | str], wanted: Sequence[Line]) -> bool:
    """Whether the lines that are none of the ruleset's are all there, each in its place."""
    there = [one for one in found if isinstance(one, Line)]
    if [one for one in there if one.is_helper] != [one for one in wanted if one.is_helper]:
        return False
    # The order of the others among themselves is reported as such.
    kept = [one for one in wanted if one in there]
    return there == kept or _ruleset_of(there) != _ruleset_of(kept)


def _ruleset_of(lines: Iterable[Line | str]) -> list[str]:
    return [line.rule.id for line in lines if isinstance(line, Line) and not line.is_helper]


def _in_order(by_chain: Iterable[list[str]], rules: Iterable[Rule]) -> list[str]:
    """Ids of rules as the chains have them, in the ruleset's order if each chain has its own so."""
    places = {rule.id: place for place, rule in enumerate(rules)}
    found = list(by_chain)
    ids = list(chain.from_iterable(found))
    if all(one == sorted(one, key=places.__getitem__) for one in found):
        ids.sort(key=places.__getitem__)
    return ids


def kept(
    table: Table,
    hook: Hook,
    rules: Sequence[Rule],
    indexes: Mapping[str, int],
    held: Mapping[str, int],
) -> Collection[str]:
    """Ids of the rules that have a count at a hook, which they keep when they are written again.

    `indexes` and `held` are those of `seen`.
    """
    used = frozenset(chain.from_iterable(rule.set_names for rule in rules))
    if used & held.keys() - indexes.keys():
        # All rules are removed before the set is remade.
        return ()
    article, own = split(rules, table.family)
    there = _written_by_us(table.entries(builtin(hook)), article, held)
    counts = _counts([*there, *_own_entries(table, hook, own)])
    return [rule.id for rule in (*article, *own) if iptables_entries.comment_of(rule) in counts]


def counters(
    desired: Ruleset, chains: Mapping[Hook, Sequence[ObservedRule]], kept: Collection[str]
) -> frozenset[str]:
    """Names of the counters that exist, which is those of rules that are intact or kept."""
    there = {rule.id for rules in chains.values() for rule in rules if rule.intact}.union(kept)
    return frozenset(
        rule.action.name
        for rule in desired.rules()
        if isinstance(rule.action, Count | Drop | Tally) and rule.id in there
    )


def node_samples(
    table: Table, desired: Ruleset, indexes: Callable[[], Mapping[str, int]]
) -> Iterator[Sample]:
    """What the article's rules in this table have counted, and the node's others in our own chains.

    `indexes` is asked where one of the article's has lost its mark.
    """
    for hook, rules in desired.chains.items():
        if TABLES.get(hook) == "mangle":
            yield from _samples(_counting(table, hook, rules, indexes))


def _counting(
    table: Table, hook: Hook, rules: Sequence[Rule], indexes: Callable[[], Mapping[str, int]]
) -> Iterator[tuple[Rule, Entry | None]]:
    article, others = split((one for one in rules if isinstance(one.action, Count)), table.family)
    # At most hooks neither is there, and a reading is taken every few seconds.
    if article:
        entries = table.entries(builtin(hook))
        yield from ((rule, counting_entry(entries, rule, indexes)) for rule in article)
    if others:
        own = {entry.comment: entry for entry in _own_entries(table, hook, rules)}
        yield from ((rule, own.get(iptables_entries.comment_of(rule))) for rule in others)


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
    for entry in _own_entries(table, hook, ours.values()):
        rule = ours.get(entry.comment)
        if rule is not None and isinstance(rule.action, Drop | Tally):
            yield rule.action.name, *entry.counters


def converge(table: Table, change: DropChain | FillChain, indexes: Mapping[str, int]) -> None:
    """Have the table hold, at the change's hook, exactly our rules that it names.

    `indexes` are the numbers of all sets of ours.
    """
    article, own = split(change.rules, table.family)
    fills = isinstance(change, FillChain)
    wanted_article = [_encoded(Line(rule), indexes) for rule in article] if fills else []
    wanted_own = {
        name: [_encoded(line, indexes) for line in lines]
        for name, lines in chains(change.hook, own if fills else ()).items()
    }
    there = _written_by_us(table.entries(builtin(change.hook)), article, indexes)
    present = _own_chains(table, change.hook, own)
    counts = _counts([*there, *chain.from_iterable(map(table.entries, present))])
    _converge_builtin(table, change.hook, wanted_article, there, counts)
    _converge_own(table, change.hook, wanted_own, present, counts)


def _counts(entries: Iterable[Entry]) -> dict[str, tuple[int, int]]:
    """What our rules at a hook have counted, by comment.

    The same for a rule that has another form or place now: what it counts is named by its comment.
    """
    counts: dict[str, tuple[int, int]] = {}
    for entry in entries:
        # Of equals the first has the longest count.
        counts.setdefault(entry.comment, entry.counters)
    return counts


def _converge_builtin(
    table: Table,
    hook: Hook,
    wanted: Sequence[Entry],
    found: list[Entry],
    counts: Mapping[str, tuple[int, int]],
) -> None:
    name = builtin(hook)
    theirs = _without(table.entries(name), found)
    missing: list[Entry] = []
    for fresh in wanted:
        # An article's rule is itself a counter of the node, so it is left alone while it is intact.
        same = _same(found, fresh)
        if len(same) == 1:
            found.remove(same[0])
        elif same or not _same(theirs, fresh):
            missing.append(fresh.with_counts(*counts.get(fresh.comment, (0, 0))))
    for surplus in found:
        table.delete(name, surplus)
    # Each goes to the head of the chain, so the last one goes in first.
    for entry in reversed(missing):
        table.insert(name, entry)


def _converge_own(
    table: Table,
    hook: Hook,
    wanted: Mapping[str, Sequence[Entry]],
    present: Sequence[str],
    counts: Mapping[str, tuple[int, int]],
) -> None:
    jumps = _jumps(table, hook)
    kept = jumps[:1] if wanted else []
    for surplus in jumps[len(kept) :]:
        table.delete(builtin(hook), surplus)
    for name in wanted:
        if name not in present:
            table.create_chain(name)
    _fill(table, wanted, present, counts)
    for name in present:
        if name not in wanted:
            table.delete_chain(name)
    if wanted and not kept:
        # The chains are filled before anything leads to them.
        place = table.append if goes_last(hook) else table.insert
        place(builtin(hook), jump(chain_name(hook), table.family))


def _fill(
    table: Table,
    wanted: Mapping[str, Sequence[Entry]],
    present: Sequence[str],
    counts: Mapping[str, tuple[int, int]],
) -> None:
    """Make the chains hold these rules in this order, with these counts."""
    if list(wanted) == present and all(
        _same_in_order(table.entries(name), entries) for name, entries in wanted.items()
    ):
        return
    # No packet meets an empty chain: the table is written back as a whole. All are emptied first,
    # since they lead to each other.
    for name in present:
        table.flush_chain(name)
    for name, entries in wanted.items():
        for fresh in entries:
            table.append(name, fresh.with_counts(*counts.get(fresh.comment, (0, 0))))


def _same_in_order(entries: Sequence[Entry], wanted: Sequence[Entry]) -> bool:
    return len(entries) == len(wanted) and all(map(_equal, entries, wanted))


def split(rules: Iterable[Rule], family: Family) -> tuple[list[Rule], list[Rule]]:
    """The family's rules for the built-in chain, which are the article's, and those for our own."""
    mine = [rule for rule in rules if rule.family is family]
    article = [_in_one_entry(rule) for rule in mine if rule.comment]
    return article, [rule for rule in mine if not rule.comment]


def _own_chains(table: Table, hook: Hook, rules: Sequence[Rule]) -> list[str]:
    """Our own chains that the table has at a hook: those of the rules, and more of an older layout.

    Others may have removed any of them, so the chains of the rules are looked for by name.
    """
    wanted = {chain_name(hook), *chains(hook, rules)}
    names = (chain_name(hook, number) for number in count(1))
    sought = takewhile(lambda name: name in wanted or table.has_chain(name), names)
    return list(filter(table.has_chain, sought))


def _own_entries(table: Table, hook: Hook, rules: Iterable[Rule]) -> Iterator[Entry]:
    _, own = split(rules, table.family)
    return chain.from_iterable(map(table.entries, _own_chains(table, hook, own)))


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


def _fresh(line: Line, indexes: Mapping[str, int]) -> Entry | None:
    return iptables_entries.encode(line.rule, indexes, line.to, is_goto=line.is_goto)


def _encoded(line: Line, indexes: Mapping[str, int]) -> Entry:
    entry = _fresh(line, indexes)
    if entry is None:
        lacking = ", ".join(sorted(line.rule.set_names - indexes.keys()))
        raise KernelError(f"write rule '{line.rule.id}'", details=f"there is no set {lacking}")
    return entry


def _without(entries: Iterable[Entry], others: Collection[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry not in others]


def _same(entries: Iterable[Entry], fresh: Entry | None) -> list[Entry]:
    return [entry for entry in entries if _equal(entry, fresh)]


def _equal(entry: Entry, fresh: Entry | None) -> bool:
    return fresh is not None and entry.does_the_same_as(fresh)
