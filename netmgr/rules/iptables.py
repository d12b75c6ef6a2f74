"""The iptables backend: rules in the tables of either variant, addresses and counters in ipsets.

Rules are read by iptables-save and changed by iptables-restore, with as few edits as can be. What
ADD and DEL change, and what pods are counted by, is in ipsets, for which no program is started.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, groupby, product
from types import UnionType

from netmgr.errors import KernelError
from netmgr.kernel.xtables import libiptc
from netmgr.kernel.xtables.saved import SavedRule, SavedTable
from netmgr.kernel.xtables.variant import Changed, Variant
from netmgr.model import Sample
from netmgr.prefixes import Address, Family
from netmgr.rules import iptables_chains, model, transaction
from netmgr.rules.ipset import IpSets, kernel_name
from netmgr.rules.iptables_chains import TABLES, HookRules, builtin
from netmgr.rules.observed import Observed, ObservedRule, Samples, in_order
from netmgr.rules.tagged import Place, Serving

# How often a change is tried while another program keeps changing the table.
_ATTEMPTS = 10

ChainChange = transaction.DropChain | transaction.FillChain


class IptablesBackend:
    """Holds the ruleset in the tables of one variant of iptables, and in ipsets."""

    abilities = model.Abilities(
        rewrites=False,
        verdict_maps=False,
        dynamic_sets=False,
        senders=False,
        fuses=False,
        sees_fragments=False,
        finds_ends=False,
    )

    def __init__(self, tables: Variant) -> None:
        self._tables = tables
        self._sets = IpSets()
        self._samples = Samples()

    @property
    def name(self) -> str:
        return self._tables.name

    def observe(self, desired: model.Ruleset) -> Observed:
        """Read the sets, and our chains and rules of all tables."""
        held, orphans = self._sets.look(desired.sets), self._sets.orphans(desired.sets)
        members = {name: elements for name, elements in held.items() if elements is not None}
        malformed = frozenset(held.keys() - members.keys())
        tables = {
            (name, family): self._tables.table(name, family)
            for family in Family
            for name in sorted(set(TABLES.values()))
        }
        chains, kept = _observed_chains(desired, tables, malformed)
        counters = iptables_chains.counters(desired, chains, kept)
        return Observed(members, chains, counters, malformed, orphans)

    def apply(self, operations: Sequence[transaction.Operation]) -> None:
        """Carry the operations out; each table of each family is changed at once.

        Raises:
            TryAgainLater: another program held the lock, or keeps changing the table.
        """
        # Only neighbours are taken together: the order of a transaction matters (sets before the
        # rules that look into them, orphans last).
        for _, group in groupby(operations, _kind):
            neighbours = list(group)
            changes = [change for change in neighbours if isinstance(change, ChainChange)]
            if not changes:
                self._change_sets(neighbours)
                continue
            for family in Family:
                make = partial(iptables_chains.script, changes, family, self._tables.table)
                self._change(family, make)

    def read(self, desired: model.Ruleset) -> list[Sample]:
        """The node's counters from the article's rules and ours, then the pods' from the sets."""
        samples = [
            Sample(rule.action.counter, counted.bytes, counted.packets)
            for rule, counted in self._counting(desired, model.Count)
            if isinstance(rule.action, model.Count)
        ]
        for spec in desired.sets:
            if spec.counts is not None:
                samples += self._samples.of(spec, self._sets.counts(spec))
        return samples

    def read_pods(self, pods: model.Sets) -> list[Sample]:
        samples: list[Sample] = []
        for spec, members in pods.items():
            for address in members:
                if isinstance(address, Address):
                    samples += self._sets.find(spec, address)
        return samples

    def tallies(self, desired: model.Ruleset) -> dict[str, tuple[int, int]]:
        """What rules in our own chains have counted, summed by name."""
        sums: dict[str, tuple[int, int]] = {}
        for rule, counted in self._counting(desired, model.Drop | model.Tally):
            if isinstance(rule.action, model.Drop | model.Tally):
                packets, octets = sums.get(rule.action.name, (0, 0))
                sums[rule.action.name] = packets + counted.packets, octets + counted.bytes
        return sums

    def _counting(
        self, desired: model.Ruleset, kind: UnionType | type
    ) -> Iterator[tuple[model.Rule, SavedRule]]:
        """The rules of a kind, and what counts for each. Each table of a family is read once."""
        hooks = [
            hook
            for hook, rules in desired.chains.items()
            if hook in TABLES and any(isinstance(rule.action, kind) for rule in rules)
        ]
        read = cache(self._tables.counts)
        for family, hook in product(Family, hooks):
            table = read(TABLES[hook], family)
            yield from HookRules(table, hook, desired.chains[hook], family).counting()

    def dynamic(self, desired: model.Ruleset) -> list[Sample]:  # noqa: ARG002 - no such set is wanted here
        return []

    def serving(self, desired: model.Ruleset) -> Serving:
        """The article's rules that are ours, or another owner's and equal ours."""
        return partial(self._serve, desired)

    def _serve(
        self, desired: model.Ruleset, place: Place, table: SavedTable
    ) -> Collection[SavedRule]:
        # The article's rules are in this table alone.
        if (place.variant, place.table) != (self.name, "mangle"):
            return ()
        return [
            counted
            for hook, rules in desired.chains.items()
            if hook in TABLES and builtin(hook) == place.chain
            for rule, counted in HookRules(table, hook, rules, place.family).counting()
            if rule.comment
        ]

    def share_table(self, *, shared: bool) -> None:
        """Never: its rules are in no table of nftables."""

    def remove(self) -> None:
        """Remove our rules, chains and sets, whatever ruleset they are of."""
        for family in Family:
            self._change(family, partial(self._removal, family))
        self._sets.destroy(sorted(self._sets.orphans(())))

    def close(self) -> None:
        self._sets.close()

    def _removal(self, family: Family) -> str:
        return iptables_chains.removal(self._tables.tables(family, needed=TABLES.values()))

    def _change(self, family: Family, make: Callable[[], str]) -> None:
        """Carry out a script, which is made again if the tables were changed meanwhile."""
        for attempt in range(1, _ATTEMPTS + 1):
            script = make()
            try:
                if script:
                    self._tables.run_script(script, family)
            except Changed:
                if attempt == _ATTEMPTS:
                    raise
            else:
                return

    def _change_sets(self, operations: Sequence[transaction.Operation]) -> None:
        """Change sets by operations that are all of one kind."""
        added: list[transaction.AddElements] = []
        removed: list[transaction.RemoveElements] = []
        for operation in operations:
            match operation:
                case transaction.AddElements():
                    added.append(operation)
                case transaction.RemoveElements():
                    removed.append(operation)
                case transaction.ReplaceElements(spec, elements):
                    self._replace(spec, elements)
                case transaction.CreateSet(spec):
                    self._sets.create(spec)
                    # A new set may have the number of one that went, by which rules name it.
                    libiptc.forget()
                case transaction.DeleteSet(spec):
                    self._sets.destroy([kernel_name(spec.name)])
                case transaction.DeleteOrphan(name):
                    self._sets.destroy([name])
                case _:
                    pass
        # All elements of a pod are changed with one request to the thread that speaks to ipset.
        if added:
            self._sets.add(added)
        if removed:
            self._sets.delete(removed)

    def _replace(self, spec: model.SetSpec, elements: frozenset[model.Element]) -> None:
        held = self._sets.look([spec])
        if spec.name not in held:
            raise KernelError(f"ipset replace elements of {spec.name}", errno.ENOENT)
        present = held[spec.name] or frozenset()
        # Added before others go, so that nothing is in neither the old nor the new set meanwhile.
        self._sets.add([transaction.AddElements(spec, elements - present)])
        self._sets.delete([transaction.RemoveElements(spec, present - elements)])


def _as_written(rules: Sequence[model.Rule]) -> list[str]:
    """Ids of a hook's rules in the order in which the tables have them."""
    # The article's are in the built-in chain, and so seen first, wherever the ruleset has them.
    listed = sorted(rules, key=lambda rule: not rule.comment)
    return [rule.id for family in Family for rule in listed if rule.family is family]


def _observed_chains(
    desired: model.Ruleset,
    tables: Mapping[tuple[str, Family], SavedTable],
    malformed: frozenset[str],
) -> tuple[dict[model.Hook, tuple[ObservedRule, ...]], set[str]]:
    """Our rules at each hook, and the ids of those that keep what they have counted."""
    chains: dict[model.Hook, tuple[ObservedRule, ...]] = {}
    kept: set[str] = set()
    for hook, name in TABLES.items():
        rules = desired.chains.get(hook, ())
        present = [HookRules(tables[name, family], hook, rules, family) for family in Family]
        observed = chain.from_iterable(hook_rules.observed(malformed) for hook_rules in present)
        chains[hook] = in_order(list(observed), _as_written(rules), rules)
        # All rules are removed before a set that they look into is remade.
        if malformed.isdisjoint(chain.from_iterable(rule.set_names for rule in rules)):
            kept.update(*map(HookRules.kept, present))
    return chains, kept


def _kind(operation: transaction.Operation) -> object:
    """Equal for operations that one change carries out together."""
    return ChainChange if isinstance(operation, ChainChange) else type(operation)
