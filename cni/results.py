"""What a plugin answers, in the shape each CNI version wants (specification 1.1.0, section 5).

The shapes differ in two places only: an entry of `ips` carries `version` before 1.0.0, and an
entry of `interfaces` may carry `mtu` from 1.1.0 on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from netmgr.errors import NetmgrError
from netmgr.prefixes import Address, Family

SUPPORTED_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""Versions this plugin speaks, oldest first. 0.1.0 and 0.2.0 cannot name more than one address a family."""

NEWEST = SUPPORTED_VERSIONS[-1]

Json = dict[str, object]

_DEFAULT_ROUTES = {Family.V4: "0.0.0.0/0", Family.V6: "::/0"}


def at_least(version: str, floor: str) -> bool:
    """Whether a supported version is `floor` or newer."""
    return SUPPORTED_VERSIONS.index(version) >= SUPPORTED_VERSIONS.index(floor)


@dataclass(frozen=True, slots=True)
class Wiring:
    """What ADD made: everything a success result tells a runtime.

    Attributes:
        mtu: bytes, of both ends of the pair.
        gateways: next hop of each family's default route in the pod.
    """

    host_link: str
    host_mac: str
    pod_link: str
    pod_mac: str
    netns: str
    addresses: tuple[Address, ...]
    gateways: Mapping[Family, Address]
    mtu: int


def add_result(
    version: str, wiring: Wiring, dns: Json | None = None, previous: Mapping[str, object] | None = None
) -> Json:
    """The answer to a successful ADD.

    `previous` is the result of the plugins earlier in the chain: theirs stays first and keeps
    its order, so that their indices into `interfaces` stay true; ours count on from there.
    """
    before = previous or {}
    interfaces = [*_items(before, "interfaces")]
    pod_index = len(interfaces) + 1
    families = sorted({address.family for address in wiring.addresses})
    return {
        "cniVersion": version,
        "interfaces": [*interfaces, *_interfaces(version, wiring)],
        "ips": [*_items(before, "ips"), *(_ip(version, wiring, address, pod_index) for address in wiring.addresses)],
        "routes": [*_items(before, "routes"), *(_default_route(wiring, family) for family in families)],
        "dns": dns or before.get("dns") or {},
    }


def _interfaces(version: str, wiring: Wiring) -> list[Json]:
    size: Json = {"mtu": wiring.mtu} if at_least(version, "1.1.0") else {}
    host: Json = {"name": wiring.host_link, "mac": wiring.host_mac}
    pod: Json = {"name": wiring.pod_link, "mac": wiring.pod_mac, "sandbox": wiring.netns}
    return [host | size, pod | size]


def _ip(version: str, wiring: Wiring, address: Address, interface: int) -> Json:
    entry: Json = {} if at_least(version, "1.0.0") else {"version": str(address.family.value)}
    return entry | {
        "interface": interface,
        "address": str(address.prefix),
        "gateway": str(wiring.gateways[address.family]),
    }


def _default_route(wiring: Wiring, family: Family) -> Json:
    return {"dst": _DEFAULT_ROUTES[family], "gw": str(wiring.gateways[family])}


def _items(result: Mapping[str, object], key: str) -> Sequence[object]:
    value = result.get(key)
    return value if isinstance(value, list) else []


def version_result(version: str = NEWEST) -> Json:
    """The answer to VERSION; `version` is the one the runtime gave (section 5, "VERSION Success")."""
    return {"cniVersion": version, "supportedVersions": list(SUPPORTED_VERSIONS)}


def error_result(version: str, error: NetmgrError) -> Json:
    """The answer to a request that failed; codes below 100 are the specification's."""
    return {"cniVersion": version, "code": error.cni_code, "msg": error.message, "details": error.details}
