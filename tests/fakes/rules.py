"""A kernel in memory that holds the ruleset, and through which a packet can be traced.

It implements the backends' protocol on the neutral model and refuses what the kernel
refuses, so that the contract suite can hold it to what the real backends do.
"""

from __future__ import annotations

import copy
import errno
import threading
from collections.abc import Iterable, Sequence

from netmgr.errors import KernelError
from netmgr.model import Sample
from netmgr.rules.model import Abilities, Element, Rule, Ruleset, Sets
from netmgr.rules.observed import Observed, ObservedRule, sample
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
from tests.fakes.passage import Connection, Outcome, Packet, Passage
from tests.fakes.ruleset import HeldSet, Hits, State


class FakeBackend:
    """Implements netmgr.rules.engine.RuleBackend."""

    name = "fake"

    def __init__(self, *, rewrites: bool = True) -> None:
        self.abilities = (
            Abilities()
            if rewrites
            else Abilities(
                rewrites=False,
                verdict_maps=False,
                senders=False,
                fuses=False,
                sees_fragments=False,
                finds_ends=False,
            )
        )
        self.state = State()
        self.connections: list[Connection] = []
        self._lock = threading.RLock()

    def send(self, packet: Packet) -> Outcome:
        """Take a packet past every rule on its way and say what they did."""
        with self._lock:
            return Passage(self.state, self.connections, packet).outcome()

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
            before = copy.deepcopy(self.state)
            try:
                for operation in operations:
                    self._apply(operation)
            except KernelError:
                self.state = before
                raise

    def render(self, operations: Sequence[Operation]) -> str:
        return "".join(f"{operation}\n" for operation in operations)

    def read(self, desired: Ruleset) -> list[Sample]:
        """Every counter: the pods' and the node's."""
        with self._lock:
            found = [
                sample(one.spec.counter(element), hits.bytes, hits.packets)
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

    def read_pods(self, pods: Sets) -> list[Sample]:
        """The counters of these elements, as far as they exist."""
        with self._lock:
            return [
                sample(spec.counter(element), hits.bytes, hits.packets)
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

    def share_table(self, *, shared):
        pass

    def remove(self) -> None:
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


def _change(
    operation: AddElements | RemoveElements | ReplaceElements, elements: dict[Element, Hits]
) -> None:
    if isinstance(operation, ReplaceElements):
        elements.clear()
    for element in operation.elements:
        if isinstance(operation, RemoveElements):
            elements.pop(element, None)
        else:
            packets = operation.packets if isinstance(operation, AddElements) else 0
            elements.setdefault(element, Hits(packets))
