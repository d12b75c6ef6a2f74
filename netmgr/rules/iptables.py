"""The iptables backend: rules in the tables of either variant, addresses and counters in ipsets.

A change of the tables starts from a fresh reading; sets are changed one by one. No program is
started, and nothing is ever saved and restored.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import chain, groupby

from netmgr.errors import KernelError
from netmgr.kernel.xtables.entries import Entry
from netmgr.kernel.xtables.tables import Opener, Table, Tables
from netmgr.model import Sample
from netmgr.prefixes import Family
from netmgr.rules import iptables_chains, iptables_text
from netmgr.rules.ipset import Batch, IpSets, Member
from netmgr.rules.iptables_chains import TABLES, builtin
from netmgr.rules.model import (
    Abilities,
    Drop,
    Element,
    Hook,
    Rule,
    Ruleset,
    SetSpec,
    Tally,
)
from netmgr.rules.observed import Observed, ObservedRule, Samples, in_order
from netmgr.rules.policy import INTERNAL_SETS, PodSets
from netmgr.rules.tagged import Place, Serving
from netmgr.rules.transaction import (
    AddElements,
    CreateSet,
    DeleteOrphan,
    DeleteSet,
    DropChain,
    FillChain,
    Operation,
    RemoveElements,
    ReplaceElements,
)


class IptablesBackend:
    """Holds the ruleset in the tables of one variant of iptables, and in ipsets."""

    abilities = Abilities(
        rewrites=False, verdict_maps=False, dynamic_sets=False, senders=False, fuses=False
    )

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._sets = IpSets()
        self._samples = Samples()

    @property
    def name(self) -> str:
        """The variant's."""
        return self._tables.name

    def observe(self, desired: Ruleset) -> Observed:
        """Read the sets, and our chains and rules of all tables."""
        held, orphans = self._sets.look(desired.sets), self._sets.orphans(desired.sets)
        malformed = {name for name, one in held.items() if not one.is_sound}
        # A rule that looks into a set which must be remade cannot stay, so it counts as altered.
        sound = {name: one.index for name, one in held.items() if one.is_sound}
        indexes = {name: one.index for name, one in held.items()}
        members = {
            name: frozenset(member.element for member in held[name].members) for name in sound
        }
        found: dict[Hook, list[ObservedRule]] = {hook: [] for hook in TABLES}
        kept: set[str] = set()

        def look(table: Table, hook: Hook) -> None:
            rules = desired.chains.get(hook, ())
            found[hook] += iptables_chains.seen(table, hook, rules, sound, indexes)
            kept.update(iptables_chains.kept(table, hook, rules, sound, indexes))

        _visit(self._tables.opened, TABLES, look)
        chains = {
            hook: _in_order(seen, desired.chains.get(hook, ())) for hook, seen in found.items()
        }
        counters = iptables_chains.counters(desired, chains, kept)
        return Observed(members, chains, counters, frozenset(malformed), orphans)

    def apply(self, operations: Sequence[Operation]) -> None:
        """Carry the operations out; what changes tables is written back once for each table.

        Raises:
            TryAgainLater: another program held the lock, or changed a table without holding it.
        """
        # Only neighbours are taken together: the order of a transaction matters (sets before the
        # rules that look into them, orphans last).
        for kind, group in groupby(operations, type):
            if kind in (DropChain, FillChain):
                self._change_chains(
                    [one for one in group if isinstance(one, DropChain | FillChain)]
                )
            else:
                self._change_sets(list(group))

    def render(self, operations: Sequence[Operation]) -> str:
        """The operations as commands of iptables and ip6tables of the variant, and of ipset."""
        lines = (
            line
            for operation in operations
            for line in iptables_text.commands(operation, self.name)
        )
        return "".join(f"{line}\n" for line in lines)

    def read(self, desired: Ruleset) -> list[Sample]:
        """The pods' counters from the sets, the node's from the article's rules."""
        samples: list[Sample] = []
        for spec in desired.sets:
            if spec.counts is not None:
                samples += self._samples.of(spec, self._sets.counts(spec))
        indexes = cache(partial(self._sets.indexes, INTERNAL_SETS))
        for family in Family:
            with self._tables.opened("mangle", family) as table:
                samples += iptables_chains.node_samples(table, desired, indexes)
        return samples

    def read_pods(self, pods: PodSets) -> list[Sample]:
        """The counters of these pods."""
        wanted = [(spec, address) for spec, members in pods.items() for address in members]
        return [_sample(spec, member) for spec, member in self._sets.find(wanted)]

    def tallies(self, desired: Ruleset) -> dict[str, tuple[int, int]]:
        """What rules in our own chains have counted, summed by name."""
        found: dict[str, tuple[int, int]] = {}
        counting = [
            hook for hook, rules in desired.chains.items() if any(_tallies(rule) for rule in rules)
        ]

        def add_up(table: Table, hook: Hook) -> None:
            for name, packets, octets in iptables_chains.tallies(table, hook, desired.chains[hook]):
                before = found.get(name, (0, 0))
                found[name] = before[0] + packets, before[1] + octets

        _visit(self._tables.opened, counting, add_up)
        return found

    def dynamic(self, desired: Ruleset) -> list[Sample]:  # noqa: ARG002 - no such set is wanted here
        """None."""
        return []

    def serving(self, desired: Ruleset) -> Serving:
        """The article's rules that are another owner's and equal ours, or lost the mark."""
        return partial(self._serve, desired)

    def _serve(self, desired: Ruleset, place: Place, entries: Sequence[Entry]) -> list[Entry]:
        if (place.variant, place.table) != (self.name, "mangle") or not entries:
            return []
        indexes = cache(partial(self._sets.indexes, INTERNAL_SETS))
        found: list[Entry | None] = []
        for hook in TABLES.keys() & desired.chains:
            if builtin(hook) == place.chain:
                article, _ = iptables_chains.split(desired.chains[hook], place.family)
                found += [
                    iptables_chains.counting_entry(entries, rule, indexes) for rule in article
                ]
        return [entry for entry in found if entry is not None]

    def remove(self, desired: Ruleset) -> None:
        """Take our rules, chains and sets away."""
        self._change_chains(
            [DropChain(hook, rules) for hook, rules in desired.chains.items() if hook in TABLES]
        )
        self._tables.leave()
        self._sets.destroy(spec.name for spec in desired.sets)
        self._sets.destroy_orphans(self._sets.orphans(()))

    def close(self) -> None:
        """Close the sockets and end the ipset thread."""
        self._tables.close()
        self._sets.close()

    def _change_chains(self, changes: Sequence[DropChain | FillChain]) -> None:
        rules = chain.from_iterable(change.rules for change in changes)
        names = INTERNAL_SETS.union(*(rule.set_names for rule in rules))
        indexes = self._sets.indexes(names)
        by_hook = {change.hook: change for change in changes}

        def converge(table: Table, hook: Hook) -> None:
            iptables_chains.converge(table, by_hook[hook], indexes)

        self._tables.change(lambda open_table: _visit(open_table, by_hook, converge))

    def _change_sets(self, operations: Sequence[Operation]) -> None:
        """Change sets by operations that are all of one kind."""
        added: list[Batch] = []
        removed: list[Batch] = []
        for operation in operations:
            match operation:
                case AddElements(spec, elements):
                    added.append((spec, elements))
                case RemoveElements(spec, elements):
                    removed.append((spec, elements))
                case ReplaceElements(spec, elements):
                    self._replace(spec, elements)
                case CreateSet(spec):
                    self._sets.create(spec)
                case DeleteSet(spec):
                    self._sets.destroy([spec.name])
                case DeleteOrphan(name):
                    self._sets.destroy_orphans([name])
                case _:
                    pass
        # All elements of a pod are changed with one request to the thread that speaks to ipset.
        if added:
            self._sets.add(added)
        if removed:
            self._sets.delete(removed)

    def _replace(self, spec: SetSpec, elements: frozenset[Element]) -> None:
        held = self._sets.look([spec]).get(spec.name)
        if held is None:
            raise KernelError(f"ipset replace elements of {spec.name}", errno.ENOENT)
        present = {member.element for member in held.members}
        # Added before others go, so that nothing is in neither the old nor the new set meanwhile.
        self._sets.add([(spec, elements - present)])
        self._sets.delete([(spec, present - elements)])


def _sample(spec: SetSpec, member: Member) -> Sample:
    return Sample(spec.counter(member.element), member.bytes, member.packets)


def _in_order(seen: list[ObservedRule], rules: Sequence[Rule]) -> tuple[ObservedRule, ...]:
    """The rules found, in the ruleset's order if each family's are in theirs."""
    return in_order(
        seen, [rule.id for family in Family for rule in rules if rule.family is family], rules
    )


def _tallies(rule: Rule) -> bool:
    return isinstance(rule.action, Drop | Tally)


def _visit(open_table: Opener, hooks: Iterable[Hook], visit: Callable[[Table, Hook], None]) -> None:
    """Open each table of either family once, and visit each of its hooks."""
    for family in Family:
        for of_table in _by_table(hooks):
            with open_table(TABLES[of_table[0]], family) as table:
                for hook in of_table:
                    visit(table, hook)


def _by_table(hooks: Iterable[Hook]) -> Iterator[list[Hook]]:
    for _, group in groupby(sorted(hooks, key=TABLES.__getitem__), TABLES.__getitem__):
        yield list(group)
