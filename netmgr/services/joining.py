"""Joins Services with their EndpointSlices into what is to be opened, and refuses what does not fit the plan.

A Service is opened as a whole or not at all: one address outside its range, or one endpoint
outside the spoke, and all of it is refused. What a refused Service had before stays as it was,
since a NAT host that acted on half a document could send clients anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from netmgr.prefixes import Address, Prefix, PrefixTable
from netmgr.services.model import Endpoint, Frontend, ServiceName, ServicePort
from netmgr.services.objects import Place, PortOfService, Refused, Service, Slice, State
from netmgr.sites import ServiceRange

_NOBODY: frozenset[Endpoint] = frozenset()
"""One for all, since almost everywhere nothing is draining."""


@dataclass(frozen=True, slots=True)
class Opening:
    """One ServicePort that is to be opened; `draining` are endpoints that keep what they have."""

    frontend: Frontend
    draining: frozenset[Endpoint]


Openings = Mapping[ServicePort, Opening]

API_SERVER = ServiceName("default", "kubernetes")
"""Every cluster has it, and its endpoints are machines: so it is no fault, and is closed unless those may be opened."""


class Catalogue:
    """All objects of the documents, by Service.

    Args:
        ranges: what the hub sees of the Service ranges.
        spoke: prefixes that endpoints must be in; none: any.
        machines: prefixes that they must not be in: whoever may write an EndpointSlice could open a kubelet, a
            metadata proxy or this host itself to the hub (as with CVE-2021-25740).
    """

    def __init__(
        self, ranges: Sequence[ServiceRange], spoke: Iterable[Prefix] = (), machines: Iterable[Prefix] = ()
    ) -> None:
        self._ranges = tuple(ranges)
        self._machines = PrefixTable((prefix, prefix) for prefix in machines)
        self._spoke = PrefixTable((prefix, None) for prefix in spoke)
        self._spoke_text = ", ".join(map(str, spoke))
        self._files: dict[str, tuple[Service | Slice, ...]] = {}
        self._services: defaultdict[ServiceName, list[Service]] = defaultdict(list)
        self._slices: defaultdict[ServiceName, list[Slice]] = defaultdict(list)

    def replace(self, path: str, objects: Iterable[Service | Slice]) -> set[ServiceName]:
        """Have a file hold these objects, and none of those before; says which Services that concerns."""
        before, after = self._files.pop(path, ()), tuple(objects)
        for item in before:
            self._drop(item)
        for item in after:
            if isinstance(item, Service):
                self._services[item.name].append(item)
            else:
                self._slices[item.service].append(item)
        if after:
            self._files[path] = after
        return {item.name if isinstance(item, Service) else item.service for item in (*before, *after)}

    def openings(self, name: ServiceName) -> Openings:
        """What a Service opens; nothing if there is none of that name, or if it has no address.

        Raises:
            Refused: the documents of this Service contradict the plan or each other.
        """
        services = self._services.get(name, [])
        if not services:
            return {}
        first, *others = sorted(services, key=lambda one: one.place.path)
        if others:
            raise Refused(others[0].place, f"service {name} is given twice; keep one", first.place)
        if name == API_SERVER and self._is_of_machines(name):
            return {}
        found: dict[ServicePort, Opening] = {}
        for key, address in zip(first.address_keys, first.addresses, strict=True):
            if not any(one.real.family is address.family for one in self._ranges):
                continue
            seen = self._seen(first.name, address, first.place.under(*key))
            for port in first.ports:
                found[ServicePort(seen, port.protocol, port.port)] = self._opening(first, port, address)
        return found

    def addresses(self, name: ServiceName) -> set[Address]:
        """What the hub sees of a Service's addresses, refused or not; one outside the ranges it cannot have seen."""
        return {
            one.real.counterpart(address, one.seen)
            for service in self._services.get(name, ())
            for address in service.addresses
            for one in self._ranges
            if one.real.holds(address)
        }

    def _is_of_machines(self, name: ServiceName) -> bool:
        targets = (target for part in self._slices.get(name, ()) for target, _ in part.endpoints)
        return any(self._machines.match(target) for target in targets)

    def place_of(self, name: ServiceName) -> Place:
        """Where a Service stands."""
        return self._services[name][0].place

    def _drop(self, item: Service | Slice) -> None:
        if isinstance(item, Service):
            self._services[item.name].remove(item)
            if not self._services[item.name]:
                del self._services[item.name]
        else:
            self._slices[item.service].remove(item)
            if not self._slices[item.service]:
                del self._slices[item.service]

    def _seen(self, name: ServiceName, address: Address, place: Place) -> Address:
        for one in self._ranges:
            if one.real.holds(address):
                return one.real.counterpart(address, one.seen)
        ranges = ", ".join(str(one.real) for one in self._ranges)
        raise Refused(place, f"{address} of service {name} is in no Service range of this host ({ranges})")

    def _opening(self, service: Service, port: PortOfService, address: Address) -> Opening:
        ready: set[Endpoint] = set()
        draining: set[Endpoint] = set()
        for part in self._slices.get(service.name, ()):
            number = part.ports.get((port.name, port.protocol))
            if part.family is not address.family or number is None:
                continue
            for place, (target, state) in enumerate(part.endpoints):
                if state is State.OUT:
                    continue
                self._check(service, part, place, target)
                (ready if state is State.READY else draining).add(Endpoint(target, number))
        # As in kube-proxy: an endpoint that goes is better than none.
        usable = ready or draining
        return Opening(Frontend(frozenset(usable), service.sticky), frozenset(draining - usable) or _NOBODY)

    def _check(self, service: Service, part: Slice, place: int, target: Address) -> None:
        if self._spoke_text and self._spoke.match(target) is None:
            raise Refused(
                part.place.under("endpoints", place, "addresses", 0),
                f"endpoint {target} of service {service.name} is outside the spoke ({self._spoke_text})",
                service.place,
            )
        if found := self._machines.match(target):
            raise Refused(
                part.place.under("endpoints", place, "addresses", 0),
                f"endpoint {target} of service {service.name} is a machine's own address (of {found[1]}), not a pod's;"
                " set nat.host_endpoints: true to open such Services to the hub",
                service.place,
            )
