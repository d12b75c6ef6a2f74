"""A ruleset in memory: rules, sets and counters as a kernel holds them, but for packets.

It refuses what kernels refuse, and changes nothing then. The contract suite of rule backends
(`tests/contracts/test_rules.py`) runs on it.
"""

from __future__ import annotations

import copy
import errno
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from netmgr.errors import KernelError
from netmgr.model import Sample
from netmgr.rules.model import Abilities, Element, Hook, Rule, Ruleset, SetSpec
from netmgr.rules.observed import Observed, ObservedRule
from netmgr.rules.policy import PodSets
from netmgr.rules.tagged import Serving
from netmgr.rules.transaction import (
    AddElements,
    CreateSet,
    DeclareCounter,
    DeleteOrphan,
    DeleteSet,
    DropChain,
    FillChain,
    Operation,
    RemoveElements,
    ReplaceElements,
)

_Elements = AddElements | RemoveElements | ReplaceElements


@dataclass(slots=True)
class Hits:
    """What a counter shows."""

    packets: int = 0
    bytes: int = 0

    def hit(self, size: int, packets: int = 1) -> None:
        """Count packets of so many bytes together."""
        self.packets += packets
        self.bytes += size


@dataclass
class HeldSet:
    """A set, and what each element has counted; those of sets that count nothing stay at zero."""

    spec: SetSpec
    elements: dict[Element, Hits] = field(default_factory=dict)


@dataclass
class State:
    """All that is held."""

    sets: dict[str, HeldSet] = field(default_factory=dict)
    chains: dict[Hook, list[Rule]] = field(default_factory=dict)
    counters: dict[str, Hits] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)


class HeldRules:
    """Implements netmgr.rules.engine.RuleBackend."""

    def __init__(self, name: str, abilities: Abilities) -> None:
        self.name = name
        self.abilities = abilities
        self.state = State()
        self._lock = threading.RLock()

    def observe(self, desired: Ruleset) -> Observed:
        """What is held, as far as it is of this ruleset, and sets that are not."""
        with self._lock:
            specs = {spec.name: spec for spec in desired.sets}
            held = self.state.sets
            sound = {name: one for name, one in held.items() if specs.get(name) == one.spec}
            return Observed(
                members={name: frozenset(one.elements) for name, one in sound.items()},
                chains={
                    hook: _observed(rules, desired.chains.get(hook, ()))
                    for hook, rules in self.state.chains.items()
                },
                counters=frozenset(self.state.counters),
                malformed=frozenset(held).intersection(specs) - frozenset(sound),
                orphans=frozenset(held).difference(specs),
            )

    def apply(self, operations: Sequence[Operation]) -> None:
        """Carry the operations out, all or none."""
        with self._lock:
            # Elements of sets that are there are refused by nobody; a copy of all takes long.
            before = None if self._are_elements(operations) else copy.deepcopy(self.state)
            try:
                for operation in operations:
                    self._apply(operation)
            except KernelError:
                self.state = before or self.state
                raise

    def _are_elements(self, operations: Iterable[Operation]) -> bool:
        return all(
            isinstance(one, _Elements) and one.spec.name in self.state.sets for one in operations
        )

    def render(self, operations: Sequence[Operation]) -> str:
        """The operations, one a line."""
        return "".join(f"{operation}\n" for operation in operations)

    def read(self, desired: Ruleset) -> list[Sample]:
        """Every counter: the pods' and the node's."""
        with self._lock:
            found = [
                Sample(one.spec.counter(element), hits.bytes, hits.packets)
                for one in self.state.sets.values()
                if one.spec.counts is not None
                for element, hits in one.elements.items()
            ]
            known = desired.node_counters()
            return found + [
                Sample(known[name], hits.bytes, hits.packets)
                for name, hits in self.state.counters.items()
                if name in known
            ]

    def read_pods(self, pods: PodSets) -> list[Sample]:
        """The counters of these elements, as far as they exist."""
        with self._lock:
            return [
                Sample(spec.counter(element), hits.bytes, hits.packets)
                for spec, members in pods.items()
                for element in members
                if (hits := self._hits(spec.name, element))
            ]

    def tallies(self, desired: Ruleset) -> dict[str, tuple[int, int]]:
        """Packets and bytes of the counters that are neither pods' nor the node's."""
        with self._lock:
            known = desired.node_counters()
            others = {name: one for name, one in self.state.counters.items() if name not in known}
            return {name: (hits.packets, hits.bytes) for name, hits in others.items()}

    def dynamic(self, desired: Ruleset) -> list[Sample]:
        """No packet has put an address into a set."""
        del desired
        return []

    def serving(self, desired: Ruleset) -> Serving:
        """There are no other programs."""
        del desired
        return lambda _place, _entries: ()

    def remove(self, desired: Ruleset) -> None:
        """Take everything away."""
        del desired
        with self._lock:
            self.state = State()

    def close(self) -> None:
        """Nothing is open."""

    def _hits(self, name: str, element: Element) -> Hits | None:
        held = self.state.sets.get(name)
        return held.elements.get(element) if held else None

    def _apply(self, operation: Operation) -> None:
        match operation:
            case DropChain(hook):
                self.state.chains.pop(hook, None)
            case FillChain(hook, rules):
                self._require({name for rule in rules for name in rule.set_names})
                self.state.chains[hook] = list(rules)
            case DeclareCounter(name):
                self.state.counters.setdefault(name, Hits())
            case CreateSet(spec):
                self.state.sets.setdefault(spec.name, HeldSet(spec))
            case DeleteSet(spec):
                self._delete(spec.name)
            case DeleteOrphan(name):
                self._delete(name)
            case AddElements() | RemoveElements() | ReplaceElements():
                self._require({operation.spec.name})
                _change(operation, self.state.sets[operation.spec.name].elements)
            case _:
                raise KernelError(f"{operation}", errno.EOPNOTSUPP)

    def _require(self, names: set[str]) -> None:
        for name in names - self.state.sets.keys():
            raise KernelError(f"set {name}", errno.ENOENT)

    def _delete(self, name: str) -> None:
        chains = self.state.chains.values()
        if any(name in rule.set_names for chain in chains for rule in chain):
            raise KernelError(f"delete set {name}", errno.EBUSY)
        del self.state.sets[name]


def _observed(rules: Iterable[Rule], wanted: Iterable[Rule]) -> tuple[ObservedRule, ...]:
    by_id = {rule.id: rule for rule in wanted}
    return tuple(ObservedRule(rule.id, by_id.get(rule.id) == rule) for rule in rules)


def _change(operation: _Elements, elements: dict[Element, Hits]) -> None:
    if isinstance(operation, ReplaceElements):
        elements.clear()
    for element in operation.elements:
        if isinstance(operation, RemoveElements):
            elements.pop(element, None)
        else:
            elements.setdefault(element, Hits())
