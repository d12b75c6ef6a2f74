"""Our rules in one legacy table: recognise them, and bring them to what they should be.

They stand in chains of our own, NETMGR-…, with one jump from the built-in chain; only the
article's four stand in the built-in chains themselves, where its readers look for them, and
are known there by their comment: today's, or another owner's over a rule that only we can
have written. Nobody else's rule is touched or moved. An article's rule is itself a counter of
the node, so it is left alone while it is intact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from netmgr.errors import KernelError
from netmgr.model import Sample
from netmgr.prefixes import Family
from netmgr.rules import xt_entries
from netmgr.rules.legacy_tables import Entry, LegacyTable
from netmgr.rules.model import Count, Drop, Hook, Rule, Ruleset, Seen, Tally
from netmgr.rules.transaction import DropChain, FillChain

TABLES = {
    Hook.PREROUTING: "raw",
    Hook.DSTNAT: "nat",
    Hook.INPUT: "mangle",
    Hook.FORWARD: "mangle",
    Hook.OUTPUT: "mangle",
    Hook.POSTROUTING: "nat",
}
"""Which table has the hook at the priority we use there. None has one behind all translation."""

_ANY_OWNER = re.compile(r"iptables-exporter .* traffic=internet-(in|out)")


def builtin(hook: Hook) -> str:
    """The kernel's own chain at a hook."""
    return "PREROUTING" if hook is Hook.DSTNAT else hook.upper()


def chain_name(hook: Hook) -> str:
    """Our own chain at a hook."""
    return f"NETMGR-{hook.upper()}"


def stands_in_builtin(rule: Rule) -> bool:
    """Whether the rule is one of the article's, which stand in the built-in chain."""
    return bool(rule.comment)


def goes_last(hook: Hook) -> bool:
    """Whether our jump is put behind other rules.

    Counting and dropping come first, lest an earlier verdict hides a packet from them; but
    where addresses are translated the first verdict wins, and others' wishes go before ours.
    """
    return TABLES[hook] == "nat"


def seen(
    table: LegacyTable, hook: Hook, rules: Sequence[Rule], indexes: Mapping[str, int], held: Mapping[str, int]
) -> Iterator[Seen]:
    """The rules of ours that the table has at a hook, in the order of `rules` as far as they agree.

    `indexes` are the numbers of the sets that rules may look into, `held` those of all sets of ours.
    """
    ours = [rule for rule in rules if rule.family is table.family]
    there = table.entries(builtin(hook))
    for rule in filter(stands_in_builtin, ours):
        wanted = xt_entries.encode(rule, indexes)
        for entry in there:
            if xt_entries.comment_in(entry.raw, table.family) == rule.comment:
                yield Seen(rule.id, _equal(entry, wanted, rule))
    for entry in _former_owners(there, ours, held, table.family):
        yield Seen(xt_entries.comment_in(entry.raw, table.family), intact=False)
    jumps = _jumps(table, hook)
    if jumps:
        yield from _seen_in_own(table, hook, [rule for rule in ours if not stands_in_builtin(rule)], indexes)
    elif table.entries(chain_name(hook)) and not any(not stands_in_builtin(rule) for rule in ours):
        yield Seen(f"chain {chain_name(hook)}", intact=False)
    yield from (Seen(f"jump to {chain_name(hook)}", intact=False) for _ in jumps[1:])


def counters(desired: Ruleset, chains: Mapping[Hook, Sequence[Seen]]) -> frozenset[str]:
    """Names of the counters that exist, which is those of the rules that are intact."""
    intact = {rule.id for rules in chains.values() for rule in rules if rule.intact}
    return frozenset(
        rule.action.name
        for rule in desired.rules()
        if isinstance(rule.action, Count | Drop | Tally) and rule.id in intact
    )


def node_samples(table: LegacyTable, desired: Ruleset) -> Iterator[Sample]:
    """What the article's rules in this table have counted."""
    for hook, rules in desired.chains.items():
        if TABLES.get(hook) != "mangle":
            continue
        entries = table.entries(builtin(hook))
        for rule in rules:
            if rule.family is table.family and isinstance(rule.action, Count):
                found = _with_comment(entries, [rule.comment], table.family)
                for entry in found[:1]:
                    packets, octets = xt_entries.counters_in(entry.raw, table.family)
                    yield Sample(rule.action.counter, octets, packets)


def tallies(table: LegacyTable, hook: Hook, rules: Iterable[Rule]) -> Iterator[tuple[str, int, int]]:
    """Name, packets and bytes of what our rules in our own chain at a hook have counted."""
    ours = {xt_entries.comment_of(rule): rule for rule in rules if rule.family is table.family}
    for entry in table.entries(chain_name(hook)):
        rule = ours.get(xt_entries.comment_in(entry.raw, table.family))
        if rule is not None and isinstance(rule.action, Drop | Tally):
            yield rule.action.name, *xt_entries.counters_in(entry.raw, table.family)


def converge(table: LegacyTable, change: DropChain | FillChain, indexes: Mapping[str, int]) -> None:
    """Have the table hold, at the change's hook, exactly our rules that it names.

    `indexes` are the numbers of all sets of ours.
    """
    ours = [rule for rule in change.rules if rule.family is table.family]
    wanted = [] if isinstance(change, DropChain) else [(rule, _encoded(rule, indexes)) for rule in ours]
    there = table.entries(builtin(change.hook))
    found = _with_comment(there, [rule.comment for rule in ours if stands_in_builtin(rule)], table.family)
    found += _former_owners(there, ours, indexes, table.family)
    _converge_builtin(table, change.hook, [(rule, entry) for rule, entry in wanted if stands_in_builtin(rule)], found)
    _converge_own(table, change.hook, [(rule, entry) for rule, entry in wanted if not stands_in_builtin(rule)])


def _converge_builtin(table: LegacyTable, hook: Hook, wanted: Sequence[tuple[Rule, bytes]], found: list[Entry]) -> None:
    chain = builtin(hook)
    missing: list[bytes] = []
    for rule, fresh in wanted:
        same = [entry for entry in found if _equal(entry, fresh, rule)]
        if not same:
            missing.append(fresh)
        elif len(same) > 1:
            # Deleting takes the first of equals, which has the longest count: put back with that count.
            missing.append(xt_entries.with_target(same[0].raw, same[0].target, table.family))
        else:
            found.remove(same[0])
    for surplus in found:
        table.delete(chain, surplus)
    for entry in reversed(missing):
        table.insert(chain, entry)


def _converge_own(table: LegacyTable, hook: Hook, wanted: Sequence[tuple[Rule, bytes]]) -> None:
    chain, jumps = chain_name(hook), _jumps(table, hook)
    kept = jumps[:1] if wanted else []
    for jump in jumps[len(kept) :]:
        table.delete(builtin(hook), jump)
    if not wanted:
        if table.has_chain(chain):
            table.flush_chain(chain)
            table.delete_chain(chain)
        return
    if not table.has_chain(chain):
        table.create_chain(chain)
    if not _holds(table, chain, wanted):
        counted = _counts_of(table, chain, wanted)
        table.flush_chain(chain)
        for rule, entry in wanted:
            table.append(chain, xt_entries.with_counts(entry, *counted.get(rule.id, (0, 0)), table.family))
    if not kept:
        place = table.append if goes_last(hook) else table.insert
        place(builtin(hook), xt_entries.encode_jump(chain, table.family))


def _seen_in_own(table: LegacyTable, hook: Hook, rules: Sequence[Rule], indexes: Mapping[str, int]) -> Iterator[Seen]:
    # Equal rules have equal comments, so that each is compared with its like alone.
    wanted = {xt_entries.comment_of(rule): (rule, xt_entries.encode(rule, indexes)) for rule in rules}
    entries = table.entries(chain_name(hook))
    if not rules and not entries:
        yield Seen(f"jump to {chain_name(hook)}", intact=False)
    for entry in entries:
        comment = xt_entries.comment_in(entry.raw, table.family)
        rule, fresh = wanted.get(comment, (None, None))
        name = comment.removeprefix("netmgr ") or entry.target or "(without a comment)"
        yield Seen(rule.id) if rule and _equal(entry, fresh, rule) else Seen(name, intact=False)


def _holds(table: LegacyTable, chain: str, wanted: Sequence[tuple[Rule, bytes]]) -> bool:
    entries = table.entries(chain)
    return len(entries) == len(wanted) and all(
        _equal(entry, fresh, rule) for entry, (rule, fresh) in zip(entries, wanted, strict=True)
    )


def _counts_of(table: LegacyTable, chain: str, wanted: Sequence[tuple[Rule, bytes]]) -> dict[str, tuple[int, int]]:
    """What the rules that stay have counted, by their ids."""
    fresh = {xt_entries.comment_of(rule): (rule, entry) for rule, entry in wanted}
    found = {}
    for entry in table.entries(chain):
        rule, made = fresh.get(xt_entries.comment_in(entry.raw, table.family), (None, None))
        if rule and _equal(entry, made, rule):
            found[rule.id] = xt_entries.counters_in(entry.raw, table.family)
    return found


def _jumps(table: LegacyTable, hook: Hook) -> list[Entry]:
    return [entry for entry in table.entries(builtin(hook)) if entry.target == chain_name(hook)]


def _with_comment(entries: Iterable[Entry], comments: Iterable[str], family: Family) -> list[Entry]:
    known = frozenset(comments)
    return [entry for entry in entries if xt_entries.comment_in(entry.raw, family) in known]


def _former_owners(
    entries: Iterable[Entry], rules: Iterable[Rule], indexes: Mapping[str, int], family: Family
) -> list[Entry]:
    """The article's rules that we wrote while they had another owner.

    They look into sets of ours; or, having none, differ by nothing but the owner from a rule that
    we would write today. Any other rule of another owner may be somebody else's.
    """
    article = [rule for rule in rules if stands_in_builtin(rule)]
    comments, numbers = {rule.comment for rule in article}, frozenset(indexes.values())
    fresh = [made for rule in article if (made := xt_entries.encode(rule, indexes))]
    forms = {xt_entries.apart_from_comment(made, family) for made in fresh}
    found = []
    for entry in entries:
        comment = xt_entries.comment_in(entry.raw, family)
        if comment in comments or entry.target or not _ANY_OWNER.fullmatch(comment):
            continue
        is_form = xt_entries.apart_from_comment(entry.raw, family) in forms
        if is_form or xt_entries.set_indexes_in(entry.raw, family) & numbers:
            found.append(entry)
    return found


def _encoded(rule: Rule, indexes: Mapping[str, int]) -> bytes:
    entry = xt_entries.encode(rule, indexes)
    if entry is None:
        lacking = ", ".join(sorted(rule.set_names - indexes.keys()))
        raise KernelError(f"write rule '{rule.id}'", details=f"there is no set {lacking}")
    return entry


def _equal(entry: Entry, fresh: bytes | None, rule: Rule) -> bool:
    if fresh is None or entry.target != xt_entries.target_name(rule):
        return False
    family = rule.family
    if xt_entries.conditions(entry.raw, family) != xt_entries.conditions(fresh, family):
        return False
    data = xt_entries.target_data
    return entry.target in xt_entries.VERDICTS or data(entry.raw, family) == data(fresh, family)
