"""`prevResult`: what the plugins of this attachment answered so far (specification 1.1.0, sections 3 and 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netmgr.errors import InvalidNetworkConfig
from netmgr.prefixes import Address


@dataclass(frozen=True, slots=True)
class Interface:
    """An entry of a result's `interfaces`; `sandbox` is empty for the host's."""

    name: str
    mac: str
    sandbox: str


@dataclass(frozen=True, slots=True)
class PreviousResult:
    """`prevResult`: what this attachment's plugins answered so far. `document` is all of it."""

    interfaces: tuple[Interface, ...]
    addresses: tuple[tuple[Address, int | None], ...]
    document: Mapping[str, object]

    def addresses_of(self, ifname: str) -> tuple[Address, ...]:
        """Addresses of the sandbox's interface `ifname`."""
        wanted = {index for index, link in enumerate(self.interfaces) if link.name == ifname and link.sandbox}
        return tuple(address for address, index in self.addresses if index in wanted)


def parse_previous(document: object) -> PreviousResult:
    """Read a result of any supported version; what later versions add stays in `document`.

    Raises:
        InvalidNetworkConfig: it is malformed; the message names the key.
    """
    if not isinstance(document, dict):
        raise InvalidNetworkConfig("prevResult: must be an object")
    links = [
        Interface(str(entry.get("name", "")), str(entry.get("mac", "")), str(entry.get("sandbox", "")))
        for entry in _objects(document, "interfaces")
    ]
    addresses = [(_address(entry.get("address")), _index(entry, len(links))) for entry in _objects(document, "ips")]
    return PreviousResult(tuple(links), tuple(addresses), document)


def _objects(document: Mapping[str, object], key: str) -> list[dict[str, object]]:
    entries = document.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidNetworkConfig(f"prevResult.{key}: must be an array of objects")
    return entries


def _address(value: object) -> Address:
    try:
        return Address.parse(str(value).partition("/")[0])
    except ValueError as error:
        raise InvalidNetworkConfig(f"prevResult.ips.address: {error}") from None


def _index(entry: Mapping[str, object], count: int) -> int | None:
    index = entry.get("interface")
    if index is not None and (not isinstance(index, int) or not 0 <= index < count):
        raise InvalidNetworkConfig(f"prevResult.ips.interface: {index!r} names none of its {count} interfaces")
    return index
