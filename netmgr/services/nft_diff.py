"""Computes what to add to and delete from the sets of `netmgr-services`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from netmgr.kernel import nf_tables
from netmgr.kernel.netlink import Operation
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
    service_map,
    service_port_of,
    slot_key,
    slots,
    vip_set,
)

Elements = dict[bytes, bytes]
"""Key and data of a set's elements."""

# A repair after a lost table would name ten thousand Services.
_MOST_REPAIRS = 20


class Placed(NamedTuple):
    """One ServicePort as it is in the kernel: how a slot is chosen, and the slots."""

    choice: int
    slots: Slots

    @property
    def frontend(self) -> Frontend:
        """What the ServicePort translates to."""
        return Frontend(frozenset(self.slots), sticky=is_sticky(self.choice))


State = dict[ServicePort, Placed]


def placed(frontend: Frontend, before: Placed | None) -> Placed:
    """Where a ServicePort's endpoints go, given where they are."""
    # Slots of a sticky ServicePort follow from its endpoints alone; those of another one stay as
    # they are where possible.
    held = before.slots if before and not is_sticky(before.choice) else ()
    found = slots(frontend, held)
    return Placed(choice(len(found), sticky=frontend.sticky), found)


def changes(
    state: State, wanted: Mapping[ServicePort, Frontend]
) -> dict[ServicePort, Frontend | None]:
    """What of `wanted` is not so in `state`."""
    found: dict[ServicePort, Frontend | None] = {
        vip: frontend
        for vip, frontend in wanted.items()
        if (entry := state.get(vip)) is None or entry.frontend != settled(frontend)
    }
    return found | dict.fromkeys(state.keys() - wanted.keys())


def settled(frontend: Frontend) -> Frontend:
    """The frontend as the kernel shows it."""
    # Without endpoints the kernel has no chain that would show stickiness.
    return frontend if frontend.endpoints else Frontend(frozenset())


def update(state: State, after: Mapping[ServicePort, Placed | None]) -> State:
    """Change some ServicePorts of the state, in place: it may be of ten thousands of them."""
    for vip, entry in after.items():
        if entry is None:
            state.pop(vip, None)
        else:
            state[vip] = entry
    return state


@dataclass(slots=True)
class Delta:
    """Elements to delete, then elements to add, by set."""

    deleted: dict[str, list[bytes]] = field(default_factory=dict)
    added: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)

    def replace(self, name: str, element: bytes, before: bytes | None, after: bytes | None) -> None:
        """Have an element's data (None: no element) be another."""
        # An element that stays as it is keeps its counter.
        if before == after:
            return
        if before is not None:
            self.deleted.setdefault(name, []).append(element)
        if after is not None:
            self.added.setdefault(name, []).append((element, after))

    def operations(self) -> Iterator[Operation]:
        """The messages that do it."""
        # Deletions first: an element that is there with other data is refused (EEXIST).
        for name, keys in self.deleted.items():
            yield from nf_tables.delete_elements(TABLE, name, keys)
        for name, pairs in self.added.items():
            yield from nf_tables.add_elements(TABLE, name, pairs)

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not self.deleted and not self.added

    def repairs(self) -> list[str]:
        """What the delta repairs, by ServicePort, for people."""
        missing, altered, others = list[bytes](), list[bytes](), list[bytes]()
        for name in dict.fromkeys((*self.added, *self.deleted)):
            added = dict(self.added.get(name, ()))
            deleted = dict.fromkeys(self.deleted.get(name, ()))
            for element in added:
                (altered if element in deleted else missing).append(element)
            others += [element for element in deleted if element not in added]
        found = [
            *_counted(missing, "missing"),
            *_counted(altered, "altered"),
            *_counted(others, "not ours"),
        ]
        rest = len(found) - _MOST_REPAIRS
        return found[:_MOST_REPAIRS] + ([f"and {rest} more"] if rest > 0 else [])


def _counted(elements: Iterable[bytes], what: str) -> Iterator[str]:
    counts = Counter(str(service_port_of(element) or "an unknown protocol") for element in elements)
    return (f"{vip}: elements {what}: {count}" for vip, count in counts.items())


def between(vip: ServicePort, before: Placed | None, after: Placed | None, delta: Delta) -> None:
    """Put what differs of one ServicePort into `delta`."""
    family, service_key = vip.family, key(vip)
    delta.replace(
        vip_set(family),
        service_key,
        None if before is None else b"",
        None if after is None else b"",
    )
    choices = [
        None if entry is None else choice_data(family, entry.choice) for entry in (before, after)
    ]
    delta.replace(service_map(family), service_key, *choices)
    if before and after and before.choice == after.choice:
        _compare_slots(endpoint_map(family), service_key, before.slots, after.slots, delta)
        return
    old = dict(elements(vip, before.slots)) if before else {}
    new = dict(elements(vip, after.slots)) if after else {}
    _compare(endpoint_map(family), old, new, delta)


def choices_of(state: State) -> set[tuple[Family, int]]:
    """All ways of choosing a slot that are in use."""
    return {(vip.family, entry.choice) for vip, entry in state.items()}


def against(listing: Mapping[str, Elements], wanted: State) -> Delta:
    """What must be done so that the kernel, which holds `listing`, holds `wanted`."""
    delta = Delta()
    for family in Family:
        vips, services, endpoints = Elements(), Elements(), Elements()
        for vip, entry in wanted.items():
            if vip.family is family:
                service_key = key(vip)
                vips[service_key] = b""
                services[service_key] = choice_data(family, entry.choice)
                endpoints.update(elements(vip, entry.slots))
        for name, members in (
            (vip_set(family), vips),
            (service_map(family), services),
            (endpoint_map(family), endpoints),
        ):
            _compare(name, listing[name], members, delta)
    return delta


def _compare_slots(
    name: str, service_key: bytes, before: Slots, after: Slots, delta: Delta
) -> None:
    # Of one chain, so equally many; only those that differ are turned into bytes.
    for slot, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            delta.replace(name, slot_key(service_key, slot), endpoint_data(old), endpoint_data(new))


def _compare(name: str, before: Elements, after: Elements, delta: Delta) -> None:
    for element, data in before.items():
        delta.replace(name, element, data, after.get(element))
    for element, data in after.items():
        if element not in before:
            delta.replace(name, element, None, data)
