"""Desired against observed: yields a Transaction and never acts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from netmgr.model import Counter
from netmgr.rules import model, transaction
from netmgr.rules.observed import Observed, ObservedRule


def diff(desired: model.Ruleset, observed: Observed) -> transaction.Transaction:
    """What must be done so that the kernel holds `desired`; empty when it does."""
    dropped = _hooks_to_empty(desired, observed)
    # Hooks first: neither interface deletes a set that a rule still looks into (EBUSY).
    operations: list[transaction.Operation] = [
        transaction.DropChain(hook, desired.chains[hook]) for hook in dropped
    ]
    operations += [
        transaction.DeleteSet(spec) for spec in desired.sets if spec.name in observed.malformed
    ]
    operations += _set_operations(desired, observed)
    names = (*desired.node_counters(), *desired.tallies())
    operations += [
        transaction.DeclareCounter(name) for name in names if name not in observed.counters
    ]
    # After sets and counters, which the rules name.
    operations += _fillings(desired, observed, dropped)
    if desired.at_links and observed.link_faults:
        loses = any(fault.loses for fault in observed.link_faults)
        operations.append(transaction.CountAtLinks(desired.at_links, observed.counting, loses))
    # From the last name to the first: a chain that classifies packets goes before those that it
    # leads to.
    for name in sorted(observed.orphan_chains, reverse=True):
        operations.append(transaction.DeleteOrphan(name, "chain"))
    operations += map(transaction.DeleteOrphan, sorted(observed.orphans))
    operations += [
        transaction.DeleteOrphan(name, "flowtable") for name in sorted(observed.orphan_flowtables)
    ]
    if not operations:
        return transaction.Transaction()
    operations += _endings(desired, observed)
    created, repairs = _created(desired, observed), faults(desired, observed)
    return transaction.Transaction(tuple(operations), frozenset(created), tuple(repairs))


def _endings(desired: model.Ruleset, observed: Observed) -> Iterator[transaction.EndFlows]:
    """Have connections that skip the rules meet them again: any change applies to them, too."""
    # Pods that come and go are not planned, and so end nobody else's.
    flowtables = {spec.name: spec for spec in desired.sets if spec.has_flows}
    for name in flowtables.keys() & observed.members.keys():
        hook, rules = next(
            (hook, rules)
            for hook, rules in desired.chains.items()
            if any(name in rule.set_names for rule in rules)
        )
        yield transaction.EndFlows(flowtables[name], hook, rules)


def _fillings(
    desired: model.Ruleset, observed: Observed, dropped: Collection[model.Hook]
) -> Iterator[transaction.FillChain | transaction.DropChain]:
    for hook, rules in desired.chains.items():
        if not rules:
            # Even one without a rule costs each packet.
            if observed.chains.get(hook):
                yield transaction.DropChain(hook, ())
            continue
        # A table that was dormant is filled again whole, since nothing shows what happened to it
        # meanwhile.
        is_suspect = hook in dropped or observed.is_dormant
        intact = tuple(ObservedRule(rule.id) for rule in rules)
        if is_suspect or observed.chains.get(hook, ()) != intact:
            yield transaction.FillChain(hook, rules)


def faults(desired: model.Ruleset, observed: Observed) -> Iterator[str]:
    """A message for everything not as desired."""
    if observed.is_empty:
        yield "the whole ruleset was missing"
        return
    if observed.is_dormant:
        yield "the table was dormant, so that nothing of it was in effect"
    yield from (fault.text for fault in observed.link_faults)
    for spec in desired.sets:
        yield from _set_faults(desired, observed, spec)
    yield from (f"set {name} does not belong there" for name in sorted(observed.orphans))
    yield from (f"chain {name} does not belong there" for name in sorted(observed.orphan_chains))
    for hook, rules in desired.chains.items():
        if hook in observed.malformed:
            yield f"chain {hook} was of another type, priority or policy"
        else:
            yield from _chain_faults(hook, rules, observed.chains.get(hook))


def _hooks_to_empty(desired: model.Ruleset, observed: Observed) -> list[model.Hook]:
    """Hooks whose chain is to be remade, or uses a set that is."""
    used = {
        hook: {hook.value}.union(*(rule.set_names for rule in rules))
        for hook, rules in desired.chains.items()
    }
    return [hook for hook, names in used.items() if names & observed.malformed]


def _set_operations(desired: model.Ruleset, observed: Observed) -> Iterator[transaction.Operation]:
    for spec in desired.sets:
        wanted = desired.members[spec.name]
        present = observed.members.get(spec.name)
        if present is None:
            yield transaction.CreateSet(spec)
            present = frozenset()
        # As a whole, since a new prefix may overlap one that goes, which an interval set refuses.
        elif spec.has_prefixes and wanted != present:
            yield transaction.ReplaceElements(spec, wanted)
            continue
        # One by one, since every element of a pods' set is a counter.
        if surplus := present - wanted:
            yield transaction.RemoveElements(spec, surplus)
        if missing := wanted - present:
            yield transaction.AddElements(spec, missing)


def _created(desired: model.Ruleset, observed: Observed) -> Iterator[Counter]:
    for spec in desired.sets:
        if spec.counts is not None:
            missing = desired.members[spec.name] - observed.members.get(spec.name, frozenset())
            yield from map(spec.counter, missing)
    for name, counter in desired.node_counters().items():
        if name not in observed.counters:
            yield counter


def _set_faults(desired: model.Ruleset, observed: Observed, spec: model.SetSpec) -> Iterator[str]:
    wanted, present = desired.members[spec.name], observed.members.get(spec.name)
    if spec.name in observed.malformed:
        yield f"set {spec.name} was of another type"
    elif present is None:
        yield f"set {spec.name} was missing"
    else:
        yield from (
            f"set {spec.name}: {element} was missing" for element in sorted(wanted - present)
        )
        yield from (
            f"set {spec.name}: {element} does not belong there"
            for element in sorted(present - wanted)
        )


def _rule_faults(
    wanted: Sequence[str], present: Sequence[str], altered: Iterable[str]
) -> dict[str, list[str]]:
    return {
        "was missing": [name for name in wanted if name not in present],
        "was altered": [name for name in altered if name in wanted],
        "does not belong there": [name for name in present if name not in wanted],
        "was there more than once": [name for name in wanted if present.count(name) > 1],
    }


def _chain_faults(
    hook: model.Hook, rules: tuple[model.Rule, ...], seen: tuple[ObservedRule, ...] | None
) -> Iterator[str]:
    if seen is None:
        if rules:
            yield f"chain {hook} was missing"
        return
    wanted = [rule.id for rule in rules]
    present = [rule.id for rule in seen]
    altered = [rule.id for rule in seen if not rule.intact]
    for fault, names in _rule_faults(wanted, present, altered).items():
        yield from (f"chain {hook}: rule '{name}' {fault}" for name in names)
    if sorted(present) == sorted(wanted) and present != wanted:
        yield f"chain {hook}: the rules were in another order"
