"""What must be added to and deleted from the sets of `netmgr-services`, against a state or a listing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from netmgr.dataplane import nft_messages
from netmgr.dataplane.rtnetlink import Operation
from netmgr.prefixes import Family
from netmgr.services.model import Frontend, ServicePort
from netmgr.services.nft_layout import (
    TABLE,
    Slots,
    choice,
    choice_data,
    elements,
    endpoint_data,
    endpoint_map,
    is_sticky,
    key,
    seen_of,
    seen_set,
    service_map,
    slot_key,
    slots,
)

Elements = dict[bytes, bytes]
"""Key and data of a set's elements."""

_MOST_SENTENCES = 20


class Placed(NamedTuple):
    """One ServicePort as it stands in the kernel: how a slot is chosen, and the slots."""

    choice: int
    slots: Slots

    @property
    def frontend(self) -> Frontend:
        """What the ServicePort translates to."""
        return Frontend(frozenset(self.slots), sticky=is_sticky(self.choice))


State = dict[ServicePort, Placed]


def placed(frontend: Frontend, before: Placed | None) -> Placed:
    """Where a ServicePort's endpoints go, given where they are."""
    held = before.slots if before and not is_sticky(before.choice) else ()
    found = slots(frontend, held)
    return Placed(choice(len(found), sticky=frontend.sticky), found)


def changes(state: State, wanted: Mapping[ServicePort, Frontend]) -> dict[ServicePort, Frontend | None]:
    """What of `wanted` is not so in `state`."""
    found: dict[ServicePort, Frontend | None] = {
        seen: frontend
        for seen, frontend in wanted.items()
        if (place := state.get(seen)) is None or place.frontend != settled(frontend)
    }
    return found | dict.fromkeys(state.keys() - wanted.keys())


def settled(frontend: Frontend) -> Frontend:
    """The frontend as the kernel tells it: without endpoints there is nothing to be sticky about."""
    return frontend if frontend.endpoints else Frontend(frozenset())


def merged(state: State, after: Mapping[ServicePort, Placed | None]) -> State:
    """The state with some ServicePorts changed."""
    kept = {seen: place for seen, place in state.items() if seen not in after}
    return kept | {seen: place for seen, place in after.items() if place is not None}


@dataclass(slots=True)
class Delta:
    """Elements to delete, then elements to add, by set."""

    deleted: dict[str, list[bytes]] = field(default_factory=dict)
    added: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)

    def replace(self, name: str, element: bytes, before: bytes | None, after: bytes | None) -> None:
        """Have an element's data (None: no element) be another."""
        if before == after:
            return
        if before is not None:
            self.deleted.setdefault(name, []).append(element)
        if after is not None:
            self.added.setdefault(name, []).append((element, after))

    def operations(self) -> Iterator[Operation]:
        """The messages that do it."""
        for name, keys in self.deleted.items():
            yield from nft_messages.delete_elements(TABLE, name, keys)
        for name, pairs in self.added.items():
            yield from nft_messages.add_elements(TABLE, name, pairs)

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not self.deleted and not self.added

    def sentences(self) -> list[str]:
        """What a person is told of the repair, by ServicePort."""
        missing, wrong, others = Counter[str](), Counter[str](), Counter[str]()
        for name, pairs in self.added.items():
            altered = set(self.deleted.get(name, ()))
            for element, _ in pairs:
                (wrong if element in altered else missing)[str(seen_of(element))] += 1
        for name, keys in self.deleted.items():
            added = {element for element, _ in self.added.get(name, ())}
            others.update(str(seen_of(element)) for element in keys if element not in added)
        kinds = (missing, "missing"), (wrong, "altered"), (others, "not ours")
        found = [f"{whose}: elements {what}: {count}" for of, what in kinds for whose, count in of.items()]
        rest = len(found) - _MOST_SENTENCES
        return found[:_MOST_SENTENCES] + ([f"and {rest} more"] if rest > 0 else [])


def between(seen: ServicePort, before: Placed | None, after: Placed | None, delta: Delta) -> None:
    """Put what differs of one ServicePort into `delta`."""
    family, service_key = seen.family, key(seen)
    delta.replace(seen_set(family), service_key, None if before is None else b"", None if after is None else b"")
    choices = [None if place is None else choice_data(family, place.choice) for place in (before, after)]
    delta.replace(service_map(family), service_key, *choices)
    if before and after and before.choice == after.choice:
        _compare_slots(endpoint_map(family), service_key, before.slots, after.slots, delta)
        return
    old = dict(elements(seen, before.slots)) if before else {}
    new = dict(elements(seen, after.slots)) if after else {}
    _compare(endpoint_map(family), old, new, delta)


def choices_of(state: State) -> set[tuple[Family, int]]:
    """All ways of choosing a slot that are in use."""
    return {(seen.family, place.choice) for seen, place in state.items()}


def against(listing: Mapping[str, Elements], wanted: State) -> Delta:
    """What must be done so that the kernel, which holds `listing`, holds `wanted`."""
    delta = Delta()
    for family in Family:
        members = [(seen, place) for seen, place in wanted.items() if seen.family is family]
        keys = {seen: key(seen) for seen, _ in members}
        _compare(seen_set(family), listing[seen_set(family)], dict.fromkeys(keys.values(), b""), delta)
        services = {keys[seen]: choice_data(family, place.choice) for seen, place in members}
        _compare(service_map(family), listing[service_map(family)], services, delta)
        slots = {name: data for seen, place in members for name, data in elements(seen, place.slots)}
        _compare(endpoint_map(family), listing[endpoint_map(family)], slots, delta)
    return delta


def _compare_slots(name: str, service_key: bytes, before: Slots, after: Slots, delta: Delta) -> None:
    # Of one chain, so equally many; only those that differ are turned into bytes.
    for place, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            delta.replace(name, slot_key(service_key, place), endpoint_data(old), endpoint_data(new))


def _compare(name: str, before: Elements, after: Elements, delta: Delta) -> None:
    for element, data in before.items():
        if after.get(element) != data:
            delta.replace(name, element, data, after.get(element))
    for element, data in after.items():
        if element not in before:
            delta.replace(name, element, None, data)
