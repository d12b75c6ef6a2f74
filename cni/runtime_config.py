"""What a runtime asks of one ADD, wherever the conventions allow it (CONVENTIONS.md of CNI).

| what | `runtimeConfig`, as the conflist's `capabilities` allow | `args.cni` | CNI_ARGS |
|---|---|---|---|
| addresses | `ips`: list | `ips`: list | `IP`, several with commas |
| hardware address | `mac` | `mac` | `MAC` |
| resolver | `dns`: `servers`, `searches`, `options` | | |
| limits of all traffic | `bandwidth`: `ingressRate`, `egressRate`, bits a second | | |
| limits of internet traffic | `io.kubernetes.cri.pod-annotations`: `ANNOTATIONS` | | |

The first place with a value decides, as in the reference plugins `static` and `tuning`. A prefix
length behind an address is ignored: a pod holds its addresses at full length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cni.results import Json
from netmgr.documents.quantity import bit_rate
from netmgr.errors import InvalidEnvironment, InvalidNetworkConfig
from netmgr.model import ALL_IN, ALL_OUT, PodRate, Requested, Traffic
from netmgr.prefixes import Address

_BANDWIDTH, _ANNOTATIONS = "bandwidth", "io.kubernetes.cri.pod-annotations"

CAPABILITIES = ("ips", "mac", "dns", _BANDWIDTH, _ANNOTATIONS)
"""Keys of `runtimeConfig` that are honoured; the conflist declares them to the runtime."""

# Keys of the capability, and of a result.
_DNS_KEYS = {"servers": "nameservers", "searches": "search", "options": "options"}

RATES = {"ingressRate": ALL_IN, "egressRate": ALL_OUT}
"""Of `bandwidth`: as containerd and CRI-O fill it in, from the annotations
kubernetes.io/ingress-bandwidth and kubernetes.io/egress-bandwidth."""

ANNOTATIONS = {
    "netmgr.io/internet-ingress-bandwidth": Traffic.INTERNET_IN,
    "netmgr.io/internet-egress-bandwidth": Traffic.INTERNET_OUT,
}
"""Values are quantities, as `10M`, of bits a second."""

_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
# In the first byte (IEEE 802.3).
_MULTICAST = 0x01

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """What is to be honoured, and the keys of `runtimeConfig` that are not.

    Keys that limit the pod are among these: whether they are honoured, the node decides. If it
    does, `rates_fault` says what is wrong with them.
    """

    requested: Requested = field(default_factory=Requested)
    dns: Json = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    rates_fault: str = ""

    def ignored_by(self, *, honours_limits: bool) -> tuple[str, ...]:
        limiting = (_BANDWIDTH, _ANNOTATIONS) if honours_limits else ()
        return tuple(key for key in self.ignored if key not in limiting)


def parse_runtime_config(config: Mapping[str, object], args: Mapping[str, str]) -> RuntimeConfig:
    """Read what the runtime asks for.

    Raises:
        InvalidNetworkConfig: a value of the configuration is malformed; the message names its key.
        InvalidEnvironment: one of CNI_ARGS is.
    """
    runtime = _object(config, "runtimeConfig", "runtimeConfig")
    conventional = _object(_object(config, "args", "args"), "cni", "args.cni")
    listed = [("runtimeConfig", runtime), ("args.cni", conventional)]
    addresses = next(
        (_addresses(section["ips"], f"{at}.ips") for at, section in listed if section.get("ips")),
        (),
    )
    mac = next(
        (_mac(section["mac"], f"{at}.mac") for at, section in listed if section.get("mac")), b""
    )
    # CNI_ARGS come last: CONVENTIONS.md calls them deprecated.
    if not addresses and args.get("IP"):
        addresses = _from_args(args["IP"].split(","), _addresses, "IP")
    if not mac and args.get("MAC"):
        mac = _from_args(args["MAC"], _mac, "MAC")
    ignored = tuple(key for key, value in runtime.items() if value and not _is_of_ours(key, value))
    rates, fault = tuple[PodRate, ...](), ""
    try:
        rates = pod_rates(runtime)
    except InvalidNetworkConfig as error:
        fault = error.message
    return RuntimeConfig(Requested(addresses, mac, rates), _dns(runtime), ignored, fault)


def _is_of_ours(key: str, value: object) -> bool:
    """Whether a key is honoured everywhere, or says nothing that is for us."""
    if key == _ANNOTATIONS:
        # containerd passes all annotations of every pod.
        return isinstance(value, dict) and not value.keys() & ANNOTATIONS.keys()
    return key in CAPABILITIES and key != _BANDWIDTH


def pod_rates(runtime: Mapping[str, object]) -> tuple[PodRate, ...]:
    """What a pod's annotations limit it to; InvalidNetworkConfig for a rate that cannot be kept."""
    listed = _object(runtime, _BANDWIDTH, f"runtimeConfig.{_BANDWIDTH}")
    # containerd writes `IngressRate`, CRI-O `ingressRate`; Go's decoder takes either.
    bandwidth = {key.lower(): value for key, value in listed.items()}
    annotations = _object(runtime, _ANNOTATIONS, f"runtimeConfig.{_ANNOTATIONS}")
    # The runtime gives 0 for a direction without the annotation.
    given = [
        (traffic, f"{_BANDWIDTH}.{key}", bandwidth[key.lower()])
        for key, traffic in RATES.items()
        if bandwidth.get(key.lower())
    ]
    given += [
        (traffic, f"{_ANNOTATIONS}: {key}", annotations[key])
        for key, traffic in ANNOTATIONS.items()
        if key in annotations
    ]
    return tuple((str(traffic), _rate(value, shown)) for traffic, shown, value in given)


def _rate(value: object, shown: str) -> int:
    try:
        return bit_rate(value)
    except ValueError as error:
        raise InvalidNetworkConfig(f"runtimeConfig.{shown}: {error}") from None


def _object(holder: Mapping[str, object], key: str, shown: str) -> Mapping[str, object]:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidNetworkConfig(f"{shown}: must be an object")
    return value


def _addresses(value: object, shown: str) -> tuple[Address, ...]:
    if not isinstance(value, list):
        raise InvalidNetworkConfig(f"{shown}: must be an array of addresses")
    try:
        addresses = tuple(
            sorted({Address.parse(str(address).partition("/")[0]) for address in value})
        )
    except ValueError as error:
        raise InvalidNetworkConfig(f"{shown}: {error}") from None
    if len({address.family for address in addresses}) < len(addresses):
        raise InvalidNetworkConfig(
            f"{shown}: {', '.join(map(str, addresses))}: an interface has one address of each "
            "family"
        )
    return addresses


def _mac(value: object, shown: str) -> bytes:
    if not isinstance(value, str) or not _MAC.fullmatch(value):
        raise InvalidNetworkConfig(
            f"{shown}: {str(value)[:40]!r} is not six hexadecimal pairs with colons"
        )
    mac = bytes.fromhex(value.replace(":", ""))
    # The kernel refuses both for a link, but only when half of the pod is wired.
    if mac[0] & _MULTICAST or not any(mac):
        raise InvalidNetworkConfig(f"{shown}: {value} is not a unicast address")
    return mac


def _from_args(value: object, parse: Callable[[object, str], Value], key: str) -> Value:
    try:
        return parse(value, f"CNI_ARGS: {key}")
    except InvalidNetworkConfig as error:
        raise InvalidEnvironment(error.message) from None


def _dns(runtime: Mapping[str, object]) -> Json:
    given = _object(runtime, "dns", "runtimeConfig.dns")
    dns: Json = {}
    for key, name in _DNS_KEYS.items():
        values = given.get(key) or []
        if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
            raise InvalidNetworkConfig(f"runtimeConfig.dns.{key}: must be an array of strings")
        if values:
            dns[name] = values
    return dns
