"""A kernel in memory that holds the ruleset, and through which a packet can be traced.

It implements the backends' protocol on the neutral model and refuses what the kernel
refuses, so that the contract suite can hold it to what the real backends do.
"""

from __future__ import annotations

import copy
import errno
import threading
from collections.abc import Sequence

from netmgr.errors import KernelError
from netmgr.model import Sample
from netmgr.rules.model import (
    Abilities,
    Element,
    Ruleset,
    SetSpec,
)
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
from tests.fakes.held import HeldSet, Hits, State
from tests.fakes.passage import Connection, Outcome, Packet, Passage


class FakeBackend:
    """Implements netmgr.rules.engine.RuleBackend."""

    name = "fake"

    def __init__(self, *, rewrites: bool = True) -> None:
        self.abilities = (
            Abilities()
            if rewrites
            else Abilities(rewrites=False, verdict_maps=False, senders=False, fuses=False)
        )
        self.state = State()
        self.connections: list[Connection] = []
        self._lock = threading.RLock()

    def observe(self, desired: Ruleset) -> Observed:
        with self._lock:
            return self._observed(copy.deepcopy(self.state), desired)

    @staticmethod
    def _observed(state: State, desired: Ruleset) -> Observed:
        specs = {spec.name: spec for spec in desired.sets}
        rules = set(desired.rules())
        sound = {name: held for name, held in state.sets.items() if specs.get(name) == held.spec}
        return Observed(
            members={name: frozenset(held.elements) for name, held in sound.items()},
            chains={
                hook: tuple(ObservedRule(rule.id, rule in rules) for rule in chain)
                for hook, chain in state.chains.items()
            },
            counters=frozenset(state.counters),
            malformed=frozenset(state.sets).intersection(specs) - frozenset(sound),
            orphans=frozenset(state.sets).difference(specs),
        )

    def apply(self, operations: Sequence[Operation]) -> None:
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
        with self._lock:
            held = [one for one in self.state.sets.values() if one.spec.counts is not None]
            pods = [
                (one.spec.counter(element), tally)
                for one in held
                for element, tally in one.elements.items()
            ]
            known = desired.node_counters()
            node = [
                (known[name], tally) for name, tally in self.state.counters.items() if name in known
            ]
            return [
                Sample(counter, tally.bytes, tally.packets) for counter, tally in (*pods, *node)
            ]

    def read_pods(self, pods: PodSets) -> list[Sample]:
        with self._lock:
            return [
                Sample(spec.counter(address), tally.bytes, tally.packets)
                for spec, members in pods.items()
                for address in members
                if (held := self.state.sets.get(spec.name))
                and (tally := held.elements.get(address))
            ]

    def tallies(self, desired: Ruleset) -> dict[str, tuple[int, int]]:
        with self._lock:
            node = desired.node_counters()
            return {
                name: (hits.packets, hits.bytes)
                for name, hits in self.state.counters.items()
                if name not in node
            }

    def dynamic(self, _desired: Ruleset) -> list[Sample]:
        return []

    def serving(self, _desired: Ruleset) -> Serving:
        return lambda _place, _entries: ()

    def remove(self, desired: Ruleset) -> None:
        del desired
        with self._lock:
            self.state = State()

    def close(self) -> None:
        pass

    def _apply(self, operation: Operation) -> None:
        match operation:
            case DropChain(hook):
                self.state.chains.pop(hook, None)
            case FillChain(hook, rules):
                for name in {
                    name for rule in rules for name in rule.set_names
                } - self.state.sets.keys():
                    raise KernelError(f"fill chain {hook}: set {name}", errno.ENOENT)
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
                self._change(operation, self._held(operation.spec).elements)

    @staticmethod
    def _change(
        operation: AddElements | RemoveElements | ReplaceElements, elements: dict[Element, Hits]
    ) -> None:
        if isinstance(operation, ReplaceElements):
            elements.clear()
        for element in operation.elements:
            if isinstance(operation, RemoveElements):
                elements.pop(element, None)
            else:
                elements.setdefault(element, Hits())

    def _delete(self, name: str) -> None:
        if any(name in rule.set_names for chain in self.state.chains.values() for rule in chain):
            raise KernelError(f"delete set {name}", errno.EBUSY)
        del self.state.sets[name]

    def _held(self, spec: SetSpec) -> HeldSet:
        if spec.name not in self.state.sets:
            raise KernelError(f"elements of set {spec.name}", errno.ENOENT)
        return self.state.sets[spec.name]

    def send(self, packet: Packet) -> Outcome:
        """Take a packet past every rule on its way and say what they did."""
        with self._lock:
            return Passage(self.state, self.connections, packet).outcome()
