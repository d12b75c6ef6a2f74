"""Services held in memory: the backend contract by value, and which endpoint a client would get."""

from __future__ import annotations

from collections.abc import Mapping

from netmgr.prefixes import Address
from netmgr.services.model import Endpoint, Frontend, ServicePort
from netmgr.services.slots import rearranged, rendezvous, slot_count


class FakeServices:
    """A backend without a kernel. `programmed` may be harmed by tests as other programs harm a
    kernel.
    """

    def __init__(self) -> None:
        self.programmed: dict[ServicePort, Frontend] = {}
        self._slots: dict[ServicePort, tuple[Endpoint, ...]] = {}
        self._hits: dict[ServicePort, int] = {}
        self._known: dict[ServicePort, Frontend] | None = None

    def held(self) -> dict[ServicePort, Frontend]:
        return dict(self.programmed)

    def reconcile(self, wanted: Mapping[ServicePort, Frontend]) -> list[str]:
        known = _told(wanted) if self._known is None else self._known
        wrong = [
            vip
            for vip in known.keys() | self.programmed.keys()
            if self.programmed.get(vip) != known.get(vip)
        ]
        self.change({vip: known.get(vip) for vip in wrong})
        self.change({vip: wanted.get(vip) for vip in known.keys() | wanted.keys()})
        return [f"{vip} was not as it should be" for vip in sorted(wrong)]

    def change(self, changes: Mapping[ServicePort, Frontend | None]) -> None:
        for vip, frontend in changes.items():
            if frontend is None:
                for table in (self.programmed, self._slots, self._hits):
                    table.pop(vip, None)
                continue
            self.programmed |= _told({vip: frontend})
            self._slots[vip] = rearranged(self._slots.get(vip, ()), frontend.endpoints)
            self._hits.setdefault(vip, 0)
        after = {**(self._known or {}), **changes}
        self._known = _told(
            {vip: frontend for vip, frontend in after.items() if frontend is not None}
        )

    def hits(self) -> dict[ServicePort, int]:
        return dict(self._hits)

    def remove(self) -> None:
        self.programmed, self._slots, self._hits, self._known = {}, {}, {}, None

    def close(self) -> None:
        pass

    def connect(self, vip: ServicePort, client: Address, drawn: int = 0) -> Endpoint | None:
        """The endpoint of a new connection, `drawn` being the random number; None: refused."""
        frontend = self.programmed.get(vip)
        if frontend is None or not frontend.endpoints:
            return None
        self._hits[vip] += 1
        if frontend.sticky:
            slots = rendezvous(frontend.endpoints, slot_count(len(frontend.endpoints)))
            return slots[hash(client) % len(slots)]
        slots = self._slots[vip]
        return slots[drawn % len(slots)]


def _told(services: Mapping[ServicePort, Frontend]) -> dict[ServicePort, Frontend]:
    """As a kernel tells it: without endpoints there is nothing to be sticky about."""
    return {vip: one if one.endpoints else Frontend(frozenset()) for vip, one in services.items()}
