"""CNI results: what this plugin answers, and what earlier ones did (specification 1.1.0, 3 and 5).

The shapes of an answer differ in two places only: an entry of `ips` has `version` before 1.0.0,
and an entry of `interfaces` may have `mtu` from 1.1.0 on.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from netmgr.errors import InvalidNetworkConfig, NetmgrError
from netmgr.prefixes import Address, Family, Prefix

# Versions this plugin speaks, oldest first. 0.1.0 and 0.2.0 have one address a family.
SUPPORTED_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")

NEWEST = SUPPORTED_VERSIONS[-1]

Json = dict[str, object]

_DEFAULT_ROUTES = {Family.V4: "0.0.0.0/0", Family.V6: "::/0"}


def at_least(version: str, floor: str) -> bool:
    """Whether a supported version is `floor` or newer."""
    return SUPPORTED_VERSIONS.index(version) >= SUPPORTED_VERSIONS.index(floor)


@dataclass(frozen=True, slots=True)
class Wiring:
    """What ADD made; `gateways` are the next hops of the default routes in the pod."""

    host_link: str
    host_mac: str
    host_mtu: int
    pod_link: str
    pod_mac: str
    pod_mtu: int
    netns: str
    addresses: tuple[Address, ...]
    gateways: Mapping[Family, Address]


def add_result(
    version: str,
    wiring: Wiring,
    dns: Json | None = None,
    previous: Mapping[str, object] | None = None,
) -> Json:
    """The answer to a successful ADD.

    `previous` is the result of the plugins earlier in the chain.
    """
    before = previous or {}
    host: Json = {"name": wiring.host_link, "mac": wiring.host_mac}
    pod: Json = {"name": wiring.pod_link, "mac": wiring.pod_mac, "sandbox": wiring.netns}
    if at_least(version, "1.1.0"):
        host["mtu"], pod["mtu"] = wiring.host_mtu, wiring.pod_mtu
    # Ours go behind, and theirs keep their order: `interface` of an earlier plugin's address is an
    # index into this list.
    interfaces = [*_items(before, "interfaces"), host, pod]
    ips = [*_items(before, "ips")]
    for address in wiring.addresses:
        # 1.0.0 dropped `version`: an address shows its family.
        entry: Json = {} if at_least(version, "1.0.0") else {"version": str(address.family.value)}
        entry["interface"] = len(interfaces) - 1
        entry["address"] = str(address.prefix)
        entry["gateway"] = str(wiring.gateways[address.family])
        ips.append(entry)
    own_routes = (
        {"dst": _DEFAULT_ROUTES[family], "gw": str(wiring.gateways[family])}
        for family in sorted({address.family for address in wiring.addresses})
    )
    return {
        "cniVersion": version,
        "interfaces": interfaces,
        "ips": ips,
        "routes": [*_items(before, "routes"), *own_routes],
        "dns": dns or before.get("dns") or {},
    }


def _items(result: Mapping[str, object], key: str) -> Sequence[object]:
    value = result.get(key)
    return value if isinstance(value, list) else []


def version_result(version: str = NEWEST) -> Json:
    """The answer to VERSION, of the runtime's own version (section 5, "VERSION Success")."""
    return {"cniVersion": version, "supportedVersions": list(SUPPORTED_VERSIONS)}


def error_result(version: str, error: NetmgrError) -> Json:
    """The answer to a request that failed; codes below 100 are the specification's."""
    return {
        "cniVersion": version,
        "code": error.cni_code,
        "msg": error.message,
        "details": error.details,
    }


@dataclass(frozen=True, slots=True)
class Interface:
    """An entry of `interfaces`; `sandbox` is empty on the host. 0 is no MTU, as in libcni.

    A device (with a PCI id or a socket's path) need not be a link of the kernel.
    """

    name: str
    mac: str
    sandbox: str
    mtu: int = 0
    is_device: bool = False


@dataclass(frozen=True, slots=True)
class PreviousRoute:
    """An entry of a result's `routes`; a missing key is None."""

    destination: Prefix
    gateway: Address | None = None
    table: int | None = None
    priority: int | None = None
    scope: int | None = None

    def __str__(self) -> str:
        named = {
            "via": self.gateway,
            "table": self.table,
            "metric": self.priority,
            "scope": self.scope,
        }
        given = (f" {name} {value}" for name, value in named.items() if value is not None)
        return f"{self.destination}{''.join(given)}"


@dataclass(frozen=True, slots=True)
class PreviousResult:
    """`prevResult`: what this attachment's plugins answered so far. `document` is all of it.

    Each address comes with its prefix length and the index of its interface in `interfaces`.
    """

    interfaces: tuple[Interface, ...]
    addresses: tuple[tuple[Address, int, int | None], ...]
    routes: tuple[PreviousRoute, ...]
    document: Mapping[str, object]

    def addresses_of(self, ifname: str) -> tuple[Address, ...]:
        """Addresses of the sandbox's interface `ifname`."""
        # An interface of the host may have the same name; only those of pods have a sandbox.
        wanted = {
            index
            for index, link in enumerate(self.interfaces)
            if link.name == ifname and link.sandbox
        }
        return tuple(address for address, _, index in self.addresses if index in wanted)


def parse_previous(document: object) -> PreviousResult:
    """Read a result of any supported version; what later versions add stays in `document`.

    Raises InvalidNetworkConfig with the name of a malformed key.
    """
    if not isinstance(document, dict):
        raise InvalidNetworkConfig("prevResult: must be an object")
    links = [_interface(entry) for entry in _objects(document, "interfaces")]
    addresses = [
        (*_address(entry.get("address")), _index(entry, len(links)))
        for entry in _objects(document, "ips")
    ]
    routes = tuple(_route(entry) for entry in _objects(document, "routes"))
    return PreviousResult(tuple(links), tuple(addresses), routes, document)


def _interface(entry: Mapping[str, object]) -> Interface:
    name, mac, sandbox = (str(entry.get(key, "")) for key in ("name", "mac", "sandbox"))
    # libcni leaves out an MTU of 0, so that a missing one means the same.
    mtu = _number(entry, "interfaces", "mtu") or 0
    return Interface(
        name, mac, sandbox, mtu, is_device=bool(entry.get("socketPath") or entry.get("pciID"))
    )


def _route(entry: Mapping[str, object]) -> PreviousRoute:
    try:
        network = ipaddress.ip_network(str(entry.get("dst")), strict=False)
        # Refuses a zone (`fe80::%1/64`), which the line above does not.
        destination = Prefix.parse(str(network))
        gateway = Address.parse(str(entry["gw"])) if entry.get("gw") else None
    except ValueError as error:
        raise InvalidNetworkConfig(f"prevResult.routes: {error}") from None
    table, priority, scope = (
        _number(entry, "routes", key) for key in ("table", "priority", "scope")
    )
    # libcni leaves out a priority of 0; the kernel has 1024 for it in IPv6, and no scopes there at
    # all.
    is_scoped = isinstance(network, ipaddress.IPv4Network)
    return PreviousRoute(
        destination, gateway, table, priority or None, scope if is_scoped else None
    )


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
    except ValueError as error:
        raise InvalidNetworkConfig(f"prevResult.ips.address: {error}") from None
    width = address.family.width
    if length and not (length.isascii() and length.isdigit() and int(length) <= width):
        raise InvalidNetworkConfig(
            f"prevResult.ips.address: {length[:20]!r} is no prefix length from 0 to {width}"
        )
    return address, int(length) if length else width


def _index(entry: Mapping[str, object], count: int) -> int | None:
    index = entry.get("interface")
    if index is not None and (not isinstance(index, int) or not 0 <= index < count):
        raise InvalidNetworkConfig(
            f"prevResult.ips.interface: {index!r} is not an index of its {count} interfaces"
        )
    return index
