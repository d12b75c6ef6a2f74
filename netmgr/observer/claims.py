"""What one file of libcni's result cache claims: a pod, its addresses, and the host's ends of its links.

libcni (containernetworking/cni, libcni/api.go) writes one file per container and interface
after ADD has succeeded and before the runtime hears of it, and removes it after DEL:

    {"kind": "cniCacheV1", "containerId": …, "ifName": …, "networkName": …, "netns": …,
     "cniArgs": [["K8S_POD_NAMESPACE", "research"], …], "config": …, "result": {…}}

A file is data from elsewhere: whatever is wrong with it ends in a `Reason`, never in an error
that would keep other pods from being counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from netmgr.model import AttachmentKey, PodRef
from netmgr.prefixes import Address

KIND = "cniCacheV1"
MOST_BYTES = 1 << 20
"""A file beyond this is not read. Real ones have a few kilobytes."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_MOST_CHARACTERS = 253
_MOST_ADDRESSES = 64
_PAIR = 2


class Reason(StrEnum):
    """Why a file of the cache counts for nothing. Values are label values."""

    UNREADABLE = "unreadable"
    """It is no regular file, or cannot be opened."""
    TOO_LARGE = "too-large"
    """It has more than `MOST_BYTES`."""
    MALFORMED = "malformed"
    """It is no cniCacheV1 document with a result; perhaps it is being written."""
    UNFIT_NAME = "unfit-name"
    """Its container id, interface, namespace, pod or UID is no name of CNI or Kubernetes."""
    WITHOUT_ADDRESS = "without-address"
    """Its result gives the pod no address."""


class Unusable(ValueError):
    """A file counts for nothing."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Claim:
    """One interface of one pod as the cache has it.

    Attributes:
        host_links: interfaces that the result places on the host: a veth's end, perhaps a bridge.
        written_at: when the file was written, in seconds since the epoch.
    """

    key: AttachmentKey
    pod: PodRef
    addresses: tuple[Address, ...]
    host_links: tuple[str, ...]
    written_at: float


def parse(content: bytes, written_at: float) -> Claim:
    """Read one file.

    Raises:
        Unusable: says why it counts for nothing.
    """
    entry = _document(content)
    result = entry.get("result")
    if entry.get("kind") != KIND or not isinstance(result, dict):
        raise Unusable(Reason.MALFORMED)
    key = AttachmentKey(_name(entry.get("containerId")), _name(entry.get("ifName")))
    addresses = tuple(dict.fromkeys(_addresses(result)))
    if not addresses:
        raise Unusable(Reason.WITHOUT_ADDRESS)
    return Claim(key, _pod(entry.get("cniArgs"), key), addresses, tuple(_host_links(result)), written_at)


def _document(content: bytes) -> dict[str, object]:
    try:
        entry = json.loads(content)
    except (ValueError, RecursionError):
        raise Unusable(Reason.MALFORMED) from None
    if not isinstance(entry, dict):
        raise Unusable(Reason.MALFORMED)
    return entry


def _pod(pairs: object, key: AttachmentKey) -> PodRef:
    """As netmgr's own ADD names it: outside Kubernetes the namespace is "-" and the name the container's."""
    given: dict[str, object] = {}
    for pair in pairs if isinstance(pairs, list) else ():
        if isinstance(pair, list) and len(pair) == _PAIR and isinstance(pair[0], str):
            given[pair[0]] = pair[1]
    return PodRef(
        namespace=_name(given.get("K8S_POD_NAMESPACE") or "-", also="-"),
        name=_name(given.get("K8S_POD_NAME") or key.container_id),
        uid=_name(given.get("K8S_POD_UID") or "", also=""),
    )


def _name(value: object, also: str | None = None) -> str:
    if not isinstance(value, str):
        raise Unusable(Reason.MALFORMED)
    if value != also and (len(value) > _MOST_CHARACTERS or not _NAME.fullmatch(value)):
        raise Unusable(Reason.UNFIT_NAME)
    return value


def _addresses(result: Mapping[str, object]) -> Iterator[Address]:
    """Of `ips` (since 0.3.0), or of `ip4` and `ip6` (before)."""
    listed = result.get("ips")
    texts = [_field(item, "address") for item in listed] if isinstance(listed, list) else []
    texts += [_field(result.get(old), "ip") for old in ("ip4", "ip6")]
    for text in texts[:_MOST_ADDRESSES]:
        if text:
            try:
                yield Address.parse(text.partition("/")[0])
            except ValueError:
                raise Unusable(Reason.MALFORMED) from None


def _host_links(result: Mapping[str, object]) -> Iterator[str]:
    listed = result.get("interfaces")
    for item in listed if isinstance(listed, list) else ():
        name = _field(item, "name")
        if name and not _field(item, "sandbox"):
            yield name


def _field(item: object, name: str) -> str:
    value = item.get(name) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""
