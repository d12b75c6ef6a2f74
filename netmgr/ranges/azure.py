"""Azure's instance metadata: the secondary IP configurations of a machine are its pool.

Source: learn.microsoft.com, "Azure Instance Metadata Service", endpoint category `network`
(api-version 2021-02-01). There every primitive is a string, and an interface's first address
is the machine's own. A configuration that is a block (`privateIPAddressPrefixLength` of the
network interface API, or an address with a length) is taken as one, wherever it comes.
"""

from __future__ import annotations

from collections.abc import Iterator

from netmgr.errors import RangesUnknown
from netmgr.prefixes import Family, Prefix
from netmgr.ranges.answers import RangeOffer, block_of, json_of, list_of, object_of
from netmgr.ranges.metadata import MetadataEndpoint, fetch

ENDPOINT = MetadataEndpoint(
    "169.254.169.254", 80, "/metadata/instance/network?api-version=2021-02-01", {"Metadata": "true"}
)

_FAMILIES = (("ipv4", Family.V4), ("ipv6", Family.V6))
_LENGTH_KEYS = ("privateIPAddressPrefixLength", "prefixLength")
_SHORTEST = {Family.V4: 24, Family.V6: 64}
"""Azure's blocks are /28 and /80; one that is far larger is no configuration of an interface."""


def read(endpoint: MetadataEndpoint = ENDPOINT) -> RangeOffer:
    """Ask the instance metadata service once for the machine's pool."""
    return pool(fetch(endpoint)[1])


def pool(body: bytes) -> RangeOffer:
    """The pool in an answer of the metadata service; RangesUnknown if it has another shape."""
    return RangeOffer(tuple(_blocks(json_of(body))))


def _blocks(document: object) -> Iterator[Prefix]:
    interfaces = list_of(document, "interface", "the instance metadata")
    if not interfaces:
        raise RangesUnknown("the instance metadata names no network interface")
    # Every interface's first address is the machine's own, so each list loses its first.
    for number, interface in enumerate(interfaces):
        parts = object_of(interface, f"interface[{number}]")
        for key, family in _FAMILIES:
            if parts.get(key) is not None:
                yield from _blocks_of(parts[key], f"interface[{number}].{key}", family)


def _blocks_of(part: object, where: str, family: Family) -> list[Prefix]:
    entries = enumerate(list_of(part, "ipAddress", where))
    blocks = [_block(entry, f"{where}.ipAddress[{index}]", family) for index, entry in entries]
    return blocks[1:]  # the first is the machine's own


def _block(entry: object, where: str, family: Family) -> Prefix:
    values = object_of(entry, where)
    text = values.get("privateIpAddress")
    # Every primitive is a string there, so what is not set may be an empty one.
    lengths = [values[key] for key in _LENGTH_KEYS if values.get(key) not in (None, "")]
    if lengths and isinstance(text, str) and "/" not in text:
        text = f"{text}/{lengths[0]}"
    return block_of(text, f"{where}.privateIpAddress", family, _SHORTEST[family])
