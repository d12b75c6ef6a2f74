"""`prevResult`: what the plugins of this attachment answered so far (specification 1.1.0, sections 3 and 5)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from netmgr.errors import InvalidNetworkConfig
from netmgr.prefixes import Address, Prefix


@dataclass(frozen=True, slots=True)
class Interface:
    """An entry of a result's `interfaces`; `sandbox` is empty for the host's. 0 is no MTU, as in libcni.

    A device (with a PCI id or a socket's path) need not be a link of the kernel's.
    """

    name: str
    mac: str
    sandbox: str
    mtu: int = 0
    is_device: bool = False


@dataclass(frozen=True, slots=True)
class PreviousRoute:
    """An entry of a result's `routes`; what it leaves out is None."""

    destination: Prefix
    gateway: Address | None = None
    table: int | None = None
    priority: int | None = None
    scope: int | None = None

    def __str__(self) -> str:
        named = (("via", self.gateway), ("table", self.table), ("metric", self.priority), ("scope", self.scope))
        return " ".join([str(self.destination), *(f"{name} {value}" for name, value in named if value is not None)])


@dataclass(frozen=True, slots=True)
class PreviousResult:
    """`prevResult`: what this attachment's plugins answered so far. `document` is all of it.

    Each address comes with its prefix length and the place of its interface among `interfaces`.
    """

    interfaces: tuple[Interface, ...]
    addresses: tuple[tuple[Address, int, int | None], ...]
    routes: tuple[PreviousRoute, ...]
    document: Mapping[str, object]

    def addresses_of(self, ifname: str) -> tuple[Address, ...]:
        """Addresses of the sandbox's interface `ifname`."""
        wanted = {index for index, link in enumerate(self.interfaces) if link.name == ifname and link.sandbox}
        return tuple(address for address, _, index in self.addresses if index in wanted)


def parse_previous(document: object) -> PreviousResult:
    """Read a result of any supported version; what later versions add stays in `document`.

    Raises:
        InvalidNetworkConfig: it is malformed; the message names the key.
    """
    if not isinstance(document, dict):
        raise InvalidNetworkConfig("prevResult: must be an object")
    links = [_interface(entry) for entry in _objects(document, "interfaces")]
    addresses = [(*_address(entry.get("address")), _index(entry, len(links))) for entry in _objects(document, "ips")]
    routes = tuple(_route(entry) for entry in _objects(document, "routes"))
    return PreviousResult(tuple(links), tuple(addresses), routes, document)


def _interface(entry: Mapping[str, object]) -> Interface:
    name, mac, sandbox = (str(entry.get(key, "")) for key in ("name", "mac", "sandbox"))
    mtu = _number(entry, "interfaces", "mtu") or 0
    return Interface(name, mac, sandbox, mtu, is_device=bool(entry.get("socketPath") or entry.get("pciID")))


def _route(entry: Mapping[str, object]) -> PreviousRoute:
    try:
        network = ipaddress.ip_network(str(entry.get("dst")), strict=False)
        gateway = Address.parse(str(entry["gw"])) if entry.get("gw") else None
    except ValueError as error:
        raise InvalidNetworkConfig(f"prevResult.routes: {error}") from None
    table, priority, scope = (_number(entry, "routes", key) for key in ("table", "priority", "scope"))
    # libcni leaves out a priority of 0; the kernel has 1024 for it in IPv6, and no scopes there at all.
    is_scoped = isinstance(network, ipaddress.IPv4Network)
    return PreviousRoute(Prefix.parse(str(network)), gateway, table, priority or None, scope if is_scoped else None)


def _number(entry: Mapping[str, object], key: str, name: str) -> int | None:
    value = entry.get(name)
    if value is not None and not isinstance(value, int):
        raise InvalidNetworkConfig(f"prevResult.{key}.{name}: {value!r} is not a number")
    return value


def _objects(document: Mapping[str, object], key: str) -> list[dict[str, object]]:
    entries = document.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidNetworkConfig(f"prevResult.{key}: must be an array of objects")
    return entries


def _address(value: object) -> tuple[Address, int]:
    """The address, and its prefix length: the whole of it where none is given."""
    text, _, length = str(value).partition("/")
    try:
        address = Address.parse(text)
        return address, int(length) if length else address.family.width
    except ValueError as error:
        raise InvalidNetworkConfig(f"prevResult.ips.address: {error}") from None


def _index(entry: Mapping[str, object], count: int) -> int | None:
    index = entry.get("interface")
    if index is not None and (not isinstance(index, int) or not 0 <= index < count):
        raise InvalidNetworkConfig(f"prevResult.ips.interface: {index!r} names none of its {count} interfaces")
    return index
