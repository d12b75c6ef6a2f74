"""A kernel in memory that holds the ruleset, and through which a packet can be traced.

It implements the backends' protocol on the neutral model and refuses what the kernel
refuses, so that the contract suite can hold it to what the real backends do.
"""

from __future__ import annotations

import copy
import errno
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from netmgr.errors import KernelError
from netmgr.model import Counter, Sample
from netmgr.prefixes import Address
from netmgr.rules.model import (
    Count,
    Drop,
    Element,
    Hook,
    InPrefix,
    InSet,
    Masquerade,
    Match,
    Observed,
    OnLink,
    Rule,
    Ruleset,
    Seen,
    SetSpec,
    Side,
    Unreturnable,
)
from netmgr.rules.policy import pod_sets
from netmgr.rules.transaction import (
    AddElements,
    CreateSet,
    DeclareCounter,
    DeleteSet,
    DropChain,
    FillChain,
    Operation,
    RemoveElements,
    ReplaceElements,
)

FORWARDED = (Hook.PREROUTING, Hook.FORWARD, Hook.POSTROUTING)
RECEIVED = (Hook.PREROUTING, Hook.INPUT)
SENT = (Hook.OUTPUT, Hook.POSTROUTING)
LOOPED = (*SENT, *RECEIVED)


@dataclass(frozen=True)
class Packet:
    """What the rules can see of a packet. `way_back` is the link its source would be routed out of."""

    src: Address
    dst: Address
    hooks: tuple[Hook, ...] = FORWARDED
    iif: str = ""
    oif: str = ""
    way_back: str = ""
    length: int = 100


@dataclass(frozen=True)
class Outcome:
    """What became of a packet."""

    counted: frozenset[Counter] = frozenset()
    dropped_by: str = ""
    masqueraded: bool = False


@dataclass
class Tally:
    packets: int = 0
    bytes: int = 0

    def hit(self, length: int) -> None:
        self.packets += 1
        self.bytes += length


@dataclass
class HeldSet:
    spec: SetSpec
    elements: dict[Element, Tally] = field(default_factory=dict)


@dataclass
class State:
    sets: dict[str, HeldSet] = field(default_factory=dict)
    chains: dict[Hook, list[Rule]] = field(default_factory=dict)
    counters: dict[str, Tally] = field(default_factory=dict)


class FakeBackend:
    """Implements netmgr.rules.backend.RuleBackend."""

    name = "fake"

    def __init__(self) -> None:
        self.state = State()
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
                hook: tuple(Seen(rule.id, rule in rules) for rule in chain) for hook, chain in state.chains.items()
            },
            counters=frozenset(state.counters),
            malformed=frozenset(state.sets) - frozenset(sound),
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
            pods = [(one.spec.counter(element), tally) for one in held for element, tally in one.elements.items()]
            known = desired.node_counters()
            node = [(known[name], tally) for name, tally in self.state.counters.items() if name in known]
            return [Sample(counter, tally.bytes, tally.packets) for counter, tally in (*pods, *node)]

    def read_pods(self, addresses: Iterable[Address]) -> list[Sample]:
        with self._lock:
            return [
                Sample(spec.counter(address), tally.bytes, tally.packets)
                for spec, members in pod_sets(addresses).items()
                for address in members
                if (held := self.state.sets.get(spec.name)) and (tally := held.elements.get(address))
            ]

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
                for name in {name for rule in rules for name in rule.set_names} - self.state.sets.keys():
                    raise KernelError(f"fill chain {hook}: set {name}", errno.ENOENT)
                self.state.chains[hook] = list(rules)
            case DeclareCounter(name):
                self.state.counters.setdefault(name, Tally())
            case CreateSet(spec):
                self.state.sets.setdefault(spec.name, HeldSet(spec))
            case DeleteSet(spec):
                self._delete(spec)
            case AddElements() | RemoveElements() | ReplaceElements():
                self._change(operation, self._held(operation.spec).elements)

    @staticmethod
    def _change(operation: AddElements | RemoveElements | ReplaceElements, elements: dict[Element, Tally]) -> None:
        if isinstance(operation, ReplaceElements):
            elements.clear()
        for element in operation.elements:
            if isinstance(operation, RemoveElements):
                elements.pop(element, None)
            else:
                elements.setdefault(element, Tally())

    def _delete(self, spec: SetSpec) -> None:
        if any(spec.name in rule.set_names for chain in self.state.chains.values() for rule in chain):
            raise KernelError(f"delete set {spec.name}", errno.EBUSY)
        del self.state.sets[spec.name]

    def _held(self, spec: SetSpec) -> HeldSet:
        if spec.name not in self.state.sets:
            raise KernelError(f"elements of set {spec.name}", errno.ENOENT)
        return self.state.sets[spec.name]

    def send(self, packet: Packet) -> Outcome:
        """Take a packet past every rule on its way and say what they did."""
        with self._lock:
            return self._send(packet)

    def _send(self, packet: Packet) -> Outcome:
        counted: set[Counter] = set()
        masqueraded = False
        for hook in packet.hooks:
            for rule in self.state.chains.get(hook, ()):
                if rule.family is not packet.src.family or not self._matches(rule, packet, hook, counted):
                    continue
                match rule.action:
                    case Count(counter):
                        self.state.counters[rule.action.name].hit(packet.length)
                        counted.add(counter)
                    case Drop(name):
                        self.state.counters[name].hit(packet.length)
                        return Outcome(frozenset(counted), dropped_by=name)
                    case Masquerade():
                        masqueraded = True
        return Outcome(frozenset(counted), masqueraded=masqueraded)

    def _matches(self, rule: Rule, packet: Packet, hook: Hook, counted: set[Counter]) -> bool:
        seen = replace(
            packet,
            iif=packet.iif if hook in (Hook.PREROUTING, Hook.INPUT, Hook.FORWARD) else "",
            oif=packet.oif if hook in (Hook.OUTPUT, Hook.POSTROUTING, Hook.FORWARD) else "",
        )
        return all(self._match(match, seen, counted) for match in rule.matches)

    def _match(self, match: Match, packet: Packet, counted: set[Counter]) -> bool:
        match match:
            case InSet(side, name, negated):
                return self._look_up(name, _address(packet, side), packet, counted) != negated
            case InPrefix(side, prefix, negated):
                return prefix.holds(_address(packet, side)) != negated
            case OnLink(side, name, negated, _):
                link = packet.iif if side is Side.SOURCE else packet.oif
                return (link.startswith(name[:-1]) if name.endswith("*") else link == name) != negated
            case Unreturnable():
                return packet.way_back != packet.iif

    def _look_up(self, name: str, address: Address, packet: Packet, counted: set[Counter]) -> bool:
        held = self.state.sets[name]
        if held.spec.counts is None:
            return any(prefix.holds(address) for prefix in held.elements)
        if tally := held.elements.get(address):
            tally.hit(packet.length)
            counted.add(held.spec.counter(address))
        return tally is not None


def _address(packet: Packet, side: Side) -> Address:
    return packet.src if side is Side.SOURCE else packet.dst
