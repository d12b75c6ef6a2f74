"""The service map: which VIPs and ports a NAT host opens, and the endpoints behind each.

Services are joined with their EndpointSlices. A Service is mapped as a whole or not at all: one
address outside its range, or one endpoint outside the spoke, and all of it is refused. A refused
Service keeps what it had before, since a NAT host that acted on half a manifest could send clients
anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from netmgr.documents.diagnostics import Diagnostic, Location
from netmgr.documents.sites import ServiceRange
from netmgr.errors import StateError
from netmgr.prefixes import Address, Prefix, PrefixTable
from netmgr.services.directory import Documents
from netmgr.services.model import Endpoint, Frontend, ServiceName, ServicePort
from netmgr.services.objects import PortOfService, Refused, Service, Slice, State

API_SERVER = ServiceName("default", "kubernetes")
"""Every cluster has it, and its endpoints are machines: so it is no fault, and is closed unless
those may be exposed."""

_NO_ENDPOINTS: frozenset[Endpoint] = frozenset()
"""One for all, since almost everywhere nothing is draining."""


@dataclass(frozen=True, slots=True)
class MappedPort:
    """One ServicePort of a Service.

    `draining` are endpoints that keep the connections they have.
    """

    frontend: Frontend
    draining: frozenset[Endpoint]
    service: ServiceName = field(compare=False)

    @property
    def endpoints(self) -> frozenset[Endpoint]:
        """Those that may have connections."""
        return self.frontend.endpoints | self.draining


MappedPorts = Mapping[ServicePort, MappedPort]
Change = tuple[MappedPort | None, MappedPort | None]
"""What a ServicePort was mapped to, and what it is mapped to now."""


class ServiceObjects:
    """All objects of the documents, by Service.

    Args:
        ranges: the VIP ranges with their Service CIDRs.
        spoke: prefixes that endpoints must be in; none: any.
        machines: prefixes that endpoints must not be in.
    """

    def __init__(
        self,
        ranges: Sequence[ServiceRange],
        spoke: Iterable[Prefix] = (),
        machines: Iterable[Prefix] = (),
    ) -> None:
        self._ranges = tuple(ranges)
        self._machines = PrefixTable((prefix, prefix) for prefix in machines)
        self._spoke = PrefixTable((prefix, None) for prefix in spoke)
        self._spoke_text = ", ".join(map(str, spoke))
        self._files: dict[str, tuple[Service | Slice, ...]] = {}
        self._services: defaultdict[ServiceName, list[Service]] = defaultdict(list)
        self._slices: defaultdict[ServiceName, list[Slice]] = defaultdict(list)

    def replace(self, path: str, objects: Iterable[Service | Slice]) -> set[ServiceName]:
        """Replace the objects of a file; returns the Services that this concerns."""
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
        return {
            item.name if isinstance(item, Service) else item.service for item in (*before, *after)
        }

    def mapped(self, name: ServiceName) -> MappedPorts:
        """The ports of a Service; empty for one that is missing or has no address.

        Raises:
            Refused: the documents of this Service contradict the plan or each other.
        """
        if not (services := self._services.get(name)):
            return {}
        first, *others = sorted(services, key=lambda one: one.at.file)
        if others:
            raise Refused(others[0].at, f"service {name} is given twice; keep one", first.at)
        if name == API_SERVER and self._is_of_machines(name):
            return {}
        found: dict[ServicePort, MappedPort] = {}
        for key, address in first.addresses.items():
            if not any(one.service_cidr.family is address.family for one in self._ranges):
                continue
            vip = self._vip(first.name, address, first.at.under(*key))
            for port in first.ports:
                mapped = self._mapped_port(first, port, address)
                found[ServicePort(vip, port.protocol, port.port)] = mapped
        return found

    def addresses(self, name: ServiceName) -> set[Address]:
        """The VIPs of a Service, refused or not; an address outside the ranges has none."""
        found: set[Address] = set()
        for service in self._services.get(name) or ():
            for address in service.addresses.values():
                found.update(self._vips(address))
        return found

    def location_of(self, name: ServiceName) -> Location:
        """Where a Service's document is."""
        return self._services[name][0].at

    def _slices_of(self, name: ServiceName) -> Iterable[Slice]:
        # Looked up, since a defaultdict would keep what is asked for.
        return self._slices.get(name) or ()

    def _is_of_machines(self, name: ServiceName) -> bool:
        targets = (target for part in self._slices_of(name) for target, _ in part.endpoints)
        return any(self._machines.match(target) for target in targets)

    def _drop(self, item: Service | Slice) -> None:
        if isinstance(item, Service):
            self._services[item.name].remove(item)
            if not self._services[item.name]:
                del self._services[item.name]
        else:
            self._slices[item.service].remove(item)
            if not self._slices[item.service]:
                del self._slices[item.service]

    def _vips(self, address: Address) -> Iterator[Address]:
        for one in self._ranges:
            if one.service_cidr.holds(address):
                yield one.service_cidr.counterpart(address, one.vip_range)

    def _vip(self, name: ServiceName, address: Address, at: Location) -> Address:
        for vip in self._vips(address):
            return vip
        ranges = ", ".join(str(one.service_cidr) for one in self._ranges)
        raise Refused(
            at, f"{address} of service {name} is in no Service range of this host ({ranges})"
        )

    def _mapped_port(self, service: Service, port: PortOfService, address: Address) -> MappedPort:
        by_state: dict[State, set[Endpoint]] = {state: set() for state in State}
        for part in self._slices_of(service.name):
            number = part.ports.get((port.name, port.protocol))
            if part.family is not address.family or number is None:
                continue
            for index, (target, state) in enumerate(part.endpoints):
                if state is not State.OUT:
                    self._check(service, part, index, target)
                    by_state[state].add(Endpoint(target, number))
        ready, draining = by_state[State.READY], by_state[State.DRAINING]
        # As in kube-proxy: a terminating endpoint is better than none.
        usable = ready or draining
        frontend = Frontend(frozenset(usable), service.sticky)
        return MappedPort(frontend, frozenset(draining - usable) or _NO_ENDPOINTS, service.name)

    def _check(self, service: Service, part: Slice, index: int, target: Address) -> None:
        if self._spoke_text and self._spoke.match(target) is None:
            raise Refused(
                part.at.under("endpoints", index, "addresses", 0),
                f"endpoint {target} of service {service.name} is outside the spoke "
                f"({self._spoke_text})",
                service.at,
            )
        # Whoever may write an EndpointSlice could open a kubelet, a metadata proxy or this host
        # itself to the hub (as with CVE-2021-25740).
        if found := self._machines.match(target):
            raise Refused(
                part.at.under("endpoints", index, "addresses", 0),
                f"endpoint {target} of service {service.name} is a machine's own address "
                f"(of {found[1]}), not a pod's;"
                " set nat.host_endpoints: true to open such Services to the hub",
                service.at,
            )


class ServiceMap:
    """Reads documents and keeps the map they ask for. A refused Service stays as it was.

    Not thread-safe.
    """

    def __init__(self, documents: Documents, objects: ServiceObjects) -> None:
        self._documents = documents
        self._objects = objects
        self._refused: dict[ServiceName, Diagnostic] = {}
        self._messages: dict[ServiceName, str] = {}
        self._ports_of: dict[ServiceName, frozenset[ServicePort]] = {}
        self._unread: list[str] = []
        self.ports: dict[ServicePort, MappedPort] = {}

    def read(self, names: Iterable[str] | None) -> dict[ServicePort, Change]:
        """Read what changed in the files of these names (None: in all); the ports that changed."""
        try:
            changed = self._documents.changed(names)
            self._unread = []
        except StateError as error:
            self._unread = [str(error)]
            return {}
        touched: set[ServiceName] = set()
        for path, content in changed.items():
            touched |= self._objects.replace(path, content)
        before = dict(self._refused)
        # Refused ones are tried again: what another Service held may be free now.
        changes = self._remap(touched | before.keys())
        self._describe(touched, before)
        return changes

    def faults(self) -> list[str]:
        """What is refused now: file, line, key, and what to do about it."""
        found = sorted([*self._documents.faults.values(), *self._messages.values()])
        return [*self._unread, *found]

    def in_doubt(self) -> frozenset[Address] | None:
        """VIPs that refused manifests may have exposed; None (any) while a file is unread."""
        if self._unread or self._documents.faults:
            return None
        return frozenset(
            address for name in self._refused for address in self._objects.addresses(name)
        )

    def _describe(
        self, touched: set[ServiceName], before: Mapping[ServiceName, Diagnostic]
    ) -> None:
        """Describe what is refused now."""
        # Finding a line takes another reading of the file, so old messages are kept.
        new = [
            name
            for name, fault in self._refused.items()
            if name in touched or fault != before.get(name)
        ]
        described = self._documents.describe([self._refused[name] for name in new])
        messages = self._messages | dict(zip(new, described, strict=True))
        self._messages = {name: messages[name] for name in self._refused}

    def _remap(self, names: set[ServiceName]) -> dict[ServicePort, Change]:
        """Map these Services anew."""
        now: dict[ServiceName, MappedPorts] = {}
        for name in sorted(names):
            try:
                now[name] = self._objects.mapped(name)
                self._refused.pop(name, None)
            except Refused as fault:
                self._refused[name] = fault.diagnostic
        # All ports of these Services are closed before any is exposed, so that a port may pass from
        # one Service to another.
        held: dict[ServiceName, MappedPorts] = {}
        before: dict[ServicePort, MappedPort] = {}
        for name in now:
            held[name] = {vip: self.ports.pop(vip) for vip in self._ports_of.pop(name, ())}
            before |= held[name]
        # An existing owner wins.
        for name in sorted(now, key=lambda name: not held[name]):
            self._map(name, now[name], held[name])
        after: dict[ServicePort, MappedPort] = {}
        for name in now:
            after |= {vip: self.ports[vip] for vip in self._ports_of.get(name, ())}
        return _changes(before, after)

    def _map(self, name: ServiceName, wanted: MappedPorts, held: MappedPorts) -> None:
        taken = next((vip for vip in wanted if vip in self.ports), None)
        if taken is not None:
            other = self.ports[taken].service
            self._refused[name] = Diagnostic(
                f"service {name}: {taken} is open already for service {other}; "
                "a ServicePort is of one Service",
                self._objects.location_of(name),
                self._objects.location_of(other),
            )
            # It keeps what it had, as any refused Service does.
            wanted = {vip: mapped for vip, mapped in held.items() if vip not in self.ports}
        if wanted:
            self._ports_of[name] = frozenset(wanted)
            self.ports.update(wanted)


def _changes(before: MappedPorts, after: MappedPorts) -> dict[ServicePort, Change]:
    changes = {vip: (before.get(vip), after.get(vip)) for vip in before.keys() | after.keys()}
    return {vip: change for vip, change in changes.items() if change[0] != change[1]}
