"""Desired against observed: yields a Transaction and never acts.

Sets that are of the wrong make are remade, which means that the hooks using them are
emptied first. Pod sets change element by element, since every element is a counter; prefix
sets are replaced as a whole; a chain is filled again only when a rule of it differs.
"""

from __future__ import annotations

from collections.abc import Iterator

from netmgr.model import Counter
from netmgr.rules.model import Hook, Observed, Rule, Ruleset, Seen, SetSpec
from netmgr.rules.transaction import (
    AddElements,
    CreateSet,
    DeclareCounter,
    DeleteSet,
    DeleteStray,
    DropChain,
    FillChain,
    Operation,
    RemoveElements,
    ReplaceElements,
    Transaction,
)


def diff(desired: Ruleset, observed: Observed) -> Transaction:
    """What must be done so that the kernel holds `desired`; empty when it does."""
    dropped = _hooks_to_empty(desired, observed)
    operations: list[Operation] = [DropChain(hook, rules) for hook, rules in desired.chains.items() if hook in dropped]
    operations += [DeleteSet(spec) for spec in desired.sets if spec.name in observed.malformed]
    operations += _set_operations(desired, observed)
    names = (*desired.node_counters(), *desired.tallies())
    operations += [DeclareCounter(name) for name in names if name not in observed.counters]
    operations += [
        FillChain(hook, rules)
        for hook, rules in desired.chains.items()
        if hook in dropped or (observed.asleep and rules) or not _holds(observed.chains.get(hook), rules)
    ]
    # From the last name to the first: what sorts packets goes before the chains that it leads to.
    operations += [DeleteStray(name, is_chain=True) for name in sorted(observed.stray_chains, reverse=True)]
    operations += [DeleteStray(name) for name in sorted(observed.strays)]
    if not operations:
        return Transaction()
    return Transaction(tuple(operations), frozenset(_created(desired, observed)), tuple(faults(desired, observed)))


def faults(desired: Ruleset, observed: Observed) -> Iterator[str]:
    """One sentence for each thing that is not as desired."""
    if observed.nothing:
        yield "the whole ruleset was missing"
        return
    if observed.asleep:
        yield "the table was dormant, so that nothing of it was in effect"
    for spec in desired.sets:
        yield from _set_faults(desired, observed, spec)
    yield from (f"set {name} does not belong there" for name in sorted(observed.strays))
    yield from (f"chain {name} does not belong there" for name in sorted(observed.stray_chains))
    for hook, rules in desired.chains.items():
        if hook in observed.malformed:
            yield f"chain {hook} was of another type, priority or policy"
        else:
            yield from _chain_faults(hook, rules, observed.chains.get(hook))


def _hooks_to_empty(desired: Ruleset, observed: Observed) -> set[Hook]:
    return {
        hook
        for hook, rules in desired.chains.items()
        if hook in observed.malformed or any(rule.set_names & observed.malformed for rule in rules)
    }


def _set_operations(desired: Ruleset, observed: Observed) -> Iterator[Operation]:
    for spec in desired.sets:
        wanted = desired.members[spec.name]
        present = observed.members.get(spec.name)
        if present is None:
            yield CreateSet(spec)
            if wanted:
                yield AddElements(spec, wanted)
        elif spec.counts is None:
            if wanted != present:
                yield ReplaceElements(spec, wanted)
        else:
            if surplus := present - wanted:
                yield RemoveElements(spec, surplus)
            if missing := wanted - present:
                yield AddElements(spec, missing)


def _created(desired: Ruleset, observed: Observed) -> Iterator[Counter]:
    for spec in desired.sets:
        if spec.counts is not None:
            missing = desired.members[spec.name] - observed.members.get(spec.name, frozenset())
            yield from map(spec.counter, missing)
    for name, counter in desired.node_counters().items():
        if name not in observed.counters:
            yield counter


def _holds(seen: tuple[Seen, ...] | None, rules: tuple[Rule, ...]) -> bool:
    return (seen or ()) == tuple(Seen(rule.id) for rule in rules)


def _set_faults(desired: Ruleset, observed: Observed, spec: SetSpec) -> Iterator[str]:
    wanted, present = desired.members[spec.name], observed.members.get(spec.name)
    if spec.name in observed.malformed:
        yield f"set {spec.name} was of another type"
    elif present is None:
        yield f"set {spec.name} was missing"
    else:
        yield from (f"set {spec.name}: {element} was missing" for element in sorted(wanted - present))
        yield from (f"set {spec.name}: {element} does not belong there" for element in sorted(present - wanted))


def _chain_faults(hook: Hook, rules: tuple[Rule, ...], seen: tuple[Seen, ...] | None) -> Iterator[str]:
    if seen is None:
        if rules:
            yield f"chain {hook} was missing"
        return
    wanted = [rule.id for rule in rules]
    found = [rule.id for rule in seen]
    yield from (f"chain {hook}: rule '{name}' was missing" for name in wanted if name not in found)
    yield from (f"chain {hook}: rule '{rule.id}' was altered" for rule in seen if rule.id in wanted and not rule.intact)
    yield from (f"chain {hook}: rule '{name}' does not belong there" for name in found if name not in wanted)
    yield from (f"chain {hook}: rule '{name}' stood there more than once" for name in wanted if found.count(name) > 1)
    if sorted(found) == sorted(wanted) and found != wanted:
        yield f"chain {hook}: the rules stood in another order"
