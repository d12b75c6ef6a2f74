"""Our rules in one table of iptables: recognise them, and bring them to what they should be.

They stand in chains of our own, NETMGR-…, with one jump from the built-in chain; only the
article's four stand in the built-in chains themselves, where its readers look for them, and
are known there by a mark that no program shows. A save and a restore by another program lose it;
then a rule that looks into our sets as ours do is still ours. Nobody else's rule is touched or
moved, whatever its comment says. One that equals an article's rule of ours serves in its place
and stays its owner's. An article's rule is itself a counter of the node, so it is left alone
while it is intact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from netmgr.errors import KernelError
from netmgr.model import Sample
from netmgr.rules import xt_entries
from netmgr.rules.model import Count, Drop, Hook, Rule, Ruleset, Seen, Tally
from netmgr.rules.transaction import DropChain, FillChain
from netmgr.rules.xt_table import Entry, Table

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
    return f"{xt_entries.OWN_CHAINS}{hook.upper()}"


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
    table: Table, hook: Hook, rules: Sequence[Rule], indexes: Mapping[str, int], held: Mapping[str, int]
) -> Iterator[Seen]:
    """The rules of ours that the table has at a hook, in the order of `rules` as far as they agree.

    `indexes` are the numbers of the sets that rules may look into, `held` those of all sets of ours.
    """
    ours = [rule for rule in rules if rule.family is table.family]
    article = [rule for rule in ours if stands_in_builtin(rule)]
    yield from _seen_in_builtin(table.entries(builtin(hook)), article, indexes, held)
    jumps = _jumps(table, hook)
    if jumps:
        yield from _seen_in_own(table, hook, [rule for rule in ours if not stands_in_builtin(rule)], indexes)
    elif table.entries(chain_name(hook)) and not any(not stands_in_builtin(rule) for rule in ours):
        yield Seen(f"chain {chain_name(hook)}", intact=False)
    yield from (Seen(f"jump to {chain_name(hook)}", intact=False) for _ in jumps[1:])


def _seen_in_builtin(
    there: Sequence[Entry], article: Sequence[Rule], indexes: Mapping[str, int], held: Mapping[str, int]
) -> Iterator[Seen]:
    written = _written_by_us(there, article, held)
    for rule in article:
        fresh = xt_entries.encode(rule, indexes)
        found = [entry for entry in written if _comment(entry) == rule.comment]
        yield from (Seen(rule.id, _equal(entry, fresh, rule)) for entry in found)
        if not found and any(_equal(entry, fresh, rule) for entry in there):
            yield Seen(rule.id)
    comments = {rule.comment for rule in article}
    yield from (Seen(_comment(entry), intact=False) for entry in written if _comment(entry) not in comments)


def counters(desired: Ruleset, chains: Mapping[Hook, Sequence[Seen]]) -> frozenset[str]:
    """Names of the counters that exist, which is those of the rules that are intact."""
    intact = {rule.id for rules in chains.values() for rule in rules if rule.intact}
    return frozenset(
        rule.action.name
        for rule in desired.rules()
        if isinstance(rule.action, Count | Drop | Tally) and rule.id in intact
    )


def node_samples(table: Table, desired: Ruleset, indexes: Callable[[], Mapping[str, int]]) -> Iterator[Sample]:
    """What the article's rules in this table have counted. `indexes` is asked where a rule has lost its mark."""
    for hook, rules in desired.chains.items():
        counting = [rule for rule in rules if rule.family is table.family and isinstance(rule.action, Count)]
        if not counting or TABLES.get(hook) != "mangle":
            continue
        entries = table.entries(builtin(hook))
        for rule in counting:
            found = counting_entry(entries, rule, indexes)
            if found is not None and isinstance(rule.action, Count):
                packets, octets = xt_entries.counters_in(found.raw, found.family)
                yield Sample(rule.action.counter, octets, packets)


def counting_entry(entries: Iterable[Entry], rule: Rule, indexes: Callable[[], Mapping[str, int]]) -> Entry | None:
    """The entry that counts for one of the article's rules: ours, or somebody's that is equal."""
    same = [entry for entry in entries if _comment(entry) == rule.comment]
    for entry in same:
        if xt_entries.is_marked(entry.raw, entry.family):
            return entry
    fresh = xt_entries.encode(rule, indexes()) if same else None
    return next((entry for entry in same if _equal(entry, fresh, rule)), None)


def tallies(table: Table, hook: Hook, rules: Iterable[Rule]) -> Iterator[tuple[str, int, int]]:
    """Name, packets and bytes of what our rules in our own chain at a hook have counted."""
    ours = {xt_entries.comment_of(rule): rule for rule in rules if rule.family is table.family}
    for entry in table.entries(chain_name(hook)):
        rule = ours.get(_comment(entry))
        if rule is not None and isinstance(rule.action, Drop | Tally):
            yield rule.action.name, *xt_entries.counters_in(entry.raw, table.family)


def converge(table: Table, change: DropChain | FillChain, indexes: Mapping[str, int]) -> None:
    """Have the table hold, at the change's hook, exactly our rules that it names.

    `indexes` are the numbers of all sets of ours.
    """
    ours = [rule for rule in change.rules if rule.family is table.family]
    wanted = [] if isinstance(change, DropChain) else [(rule, _encoded(rule, indexes)) for rule in ours]
    article = [(rule, entry) for rule, entry in wanted if stands_in_builtin(rule)]
    _converge_builtin(table, change.hook, article, [rule for rule in ours if stands_in_builtin(rule)], indexes)
    _converge_own(table, change.hook, [(rule, entry) for rule, entry in wanted if not stands_in_builtin(rule)])


def _converge_builtin(
    table: Table,
    hook: Hook,
    wanted: Sequence[tuple[Rule, bytes]],
    known: Sequence[Rule],
    indexes: Mapping[str, int],
) -> None:
    chain = builtin(hook)
    there = table.entries(chain)
    found = _written_by_us(there, known, indexes)
    theirs = [entry for entry in there if entry not in found]
    missing: list[bytes] = []
    for rule, fresh in wanted:
        same = [entry for entry in found if _equal(entry, fresh, rule)]
        if not same:
            missing += [] if any(_equal(entry, fresh, rule) for entry in theirs) else [fresh]
        elif len(same) > 1:
            # Deleting takes the first of equals, which has the longest count: put back with that count.
            missing.append(
                xt_entries.with_counts(fresh, *xt_entries.counters_in(same[0].raw, table.family), table.family)
            )
        else:
            found.remove(same[0])
    for surplus in found:
        table.delete(chain, surplus)
    for entry in reversed(missing):
        table.insert(chain, entry)


def _converge_own(table: Table, hook: Hook, wanted: Sequence[tuple[Rule, bytes]]) -> None:
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


def _seen_in_own(table: Table, hook: Hook, rules: Sequence[Rule], indexes: Mapping[str, int]) -> Iterator[Seen]:
    # Equal rules have equal comments, so that each is compared with its like alone.
    wanted = {xt_entries.comment_of(rule): (rule, xt_entries.encode(rule, indexes)) for rule in rules}
    entries = table.entries(chain_name(hook))
    if not rules and not entries:
        yield Seen(f"jump to {chain_name(hook)}", intact=False)
    for entry in entries:
        comment = _comment(entry)
        rule, fresh = wanted.get(comment, (None, None))
        name = comment.removeprefix("netmgr ") or entry.target or "(without a comment)"
        yield Seen(rule.id) if rule and _equal(entry, fresh, rule) else Seen(name, intact=False)


def _holds(table: Table, chain: str, wanted: Sequence[tuple[Rule, bytes]]) -> bool:
    entries = table.entries(chain)
    return len(entries) == len(wanted) and all(
        _equal(entry, fresh, rule) for entry, (rule, fresh) in zip(entries, wanted, strict=True)
    )


def _counts_of(table: Table, chain: str, wanted: Sequence[tuple[Rule, bytes]]) -> dict[str, tuple[int, int]]:
    """What the rules that stay have counted, by their ids."""
    fresh = {xt_entries.comment_of(rule): (rule, entry) for rule, entry in wanted}
    found = {}
    for entry in table.entries(chain):
        rule, made = fresh.get(_comment(entry), (None, None))
        if rule and _equal(entry, made, rule):
            found[rule.id] = xt_entries.counters_in(entry.raw, table.family)
    return found


def _jumps(table: Table, hook: Hook) -> list[Entry]:
    return [entry for entry in table.entries(builtin(hook)) if entry.target == chain_name(hook)]


def _written_by_us(entries: Iterable[Entry], article: Iterable[Rule], indexes: Mapping[str, int]) -> list[Entry]:
    """The article's rules of ours: with our mark, or without it looking into sets of ours as ours do."""
    looking = [made for rule in article if rule.set_names and (made := xt_entries.encode(rule, indexes))]
    found = []
    for entry in entries:
        forms = {xt_entries.apart_from_comment(made, entry.family) for made in looking}
        restored = not entry.target and _ANY_OWNER.fullmatch(_comment(entry))
        if xt_entries.is_marked(entry.raw, entry.family) or (
            restored and xt_entries.apart_from_comment(entry.raw, entry.family) in forms
        ):
            found.append(entry)
    return found


def _comment(entry: Entry) -> str:
    return xt_entries.comment_in(entry.raw, entry.family)


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
