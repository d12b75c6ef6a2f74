"""Azure's instance metadata: the secondary IP configurations of a machine are its pool.

Source: learn.microsoft.com, "Azure Instance Metadata Service", endpoint category `network`
(api-version 2021-02-01). There every primitive is a string, and an interface's first address
is the machine's own. A configuration that is a block (`privateIPAddressPrefixLength` of the
network interface API, or an address with a length) is taken as one, wherever it comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from netmgr.errors import RangesUnknown
from netmgr.prefixes import Family, Prefix
from netmgr.ranges.metadata import MetadataEndpoint, fetch

ENDPOINT = MetadataEndpoint(
    "169.254.169.254", 80, "/metadata/instance/network?api-version=2021-02-01", {"Metadata": "true"}
)

_FAMILIES = (("ipv4", Family.V4), ("ipv6", Family.V6))
_LENGTH_KEYS = ("privateIPAddressPrefixLength", "prefixLength")
_SHORTEST = {Family.V4: 24, Family.V6: 64}
"""Azure's blocks are /28 and /80; one that is far larger is no configuration of an interface."""


def read(endpoint: MetadataEndpoint = ENDPOINT) -> tuple[Prefix, ...]:
    """Ask the instance metadata service once for the machine's pool."""
    return pool(fetch(endpoint))


def pool(body: bytes) -> tuple[Prefix, ...]:
    """The pool in an answer of the metadata service, v4 first, each block in the order given.

    Raises:
        RangesUnknown: it has another shape; the message says where.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise RangesUnknown(
            f"the instance metadata is not JSON: it begins with {body[:60]!r}"
        ) from None
    blocks = list(_blocks(document))
    return tuple(sorted(dict.fromkeys(blocks), key=lambda block: block.family))


def _blocks(document: object) -> Iterator[Prefix]:
    interfaces = _list(document, "interface", "the instance metadata")
    if not interfaces:
        raise RangesUnknown("the instance metadata names no network interface")
    # Every interface's first address is the machine's own, so each list loses its first.
    for number, interface in enumerate(interfaces):
        parts = _object(interface, f"interface[{number}]")
        for key, family in _FAMILIES:
            if parts.get(key) is not None:
                yield from _blocks_of(parts[key], f"interface[{number}].{key}", family)


def _blocks_of(part: object, where: str, family: Family) -> list[Prefix]:
    blocks = []
    for index, entry in enumerate(_list(part, "ipAddress", where)):
        blocks.append(_block(entry, f"{where}.ipAddress[{index}]", family))
    return blocks[1:]  # the first is the machine's own


def _block(entry: object, where: str, family: Family) -> Prefix:
    values = _object(entry, where)
    text = values.get("privateIpAddress")
    if not isinstance(text, str):
        raise RangesUnknown(f"{where}.privateIpAddress: is not a string")
    # Every primitive is a string there, so what is not set may be an empty one.
    lengths = [values[key] for key in _LENGTH_KEYS if values.get(key) not in (None, "")]
    try:
        block = Prefix.parse(f"{text}/{lengths[0]}" if lengths and "/" not in text else text)
    except ValueError as error:
        raise RangesUnknown(f"{where}.privateIpAddress: {error}") from None
    if block.family is not family or block.length < _SHORTEST[family]:
        raise RangesUnknown(
            f"{where}.privateIpAddress: {block} is not an address of an IPv{family.value} "
            "configuration"
        )
    return block


def _object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise RangesUnknown(f"{where}: is not an object")
    return value


def _list(value: object, key: str, where: str) -> list[object]:
    elements = _object(value, where).get(key)
    if not isinstance(elements, list):
        raise RangesUnknown(f"{where}: has no list {key!r}")
    return elements
