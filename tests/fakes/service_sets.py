"""The sets of Services' table, without a kernel."""

from __future__ import annotations

from netmgr.prefixes import Family
from netmgr.services.model import Endpoint
from netmgr.services.nft_diff import Delta, Elements
from netmgr.services.nft_layout import endpoint_map, endpoint_of, key_length, sets, slot_of


class Table:
    """The sets, with the kernel's rules about what may be added and deleted."""

    def __init__(self) -> None:
        self.elements: dict[str, Elements] = {spec.name: {} for spec in sets()}

    def carry_out(self, delta: Delta) -> int:
        touched = 0
        for name, keys in delta.deleted.items():
            for key in keys:
                del self.elements[name][key]
                touched += 1
        for name, pairs in delta.added.items():
            for key, data in pairs:
                assert key not in self.elements[name]
                self.elements[name][key] = data
                touched += 1
        return touched

    def chosen(self) -> dict[bytes, frozenset[Endpoint]]:
        """Endpoints by ServicePort, whatever their slots; the slots must be numbered from 0 without
        a gap.
        """
        found: dict[bytes, dict[int, Endpoint]] = {}
        for family in Family:
            for key, data in self.elements[endpoint_map(family)].items():
                found.setdefault(key[: key_length(family)], {})[slot_of(key)] = endpoint_of(data)
        assert all(sorted(slots) == list(range(len(slots))) for slots in found.values())
        return {key: frozenset(slots.values()) for key, slots in found.items()}
