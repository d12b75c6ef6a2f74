"""Azure's instance metadata: the secondary IP configurations of a machine's network interfaces are the pool.

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
from netmgr.ranges.metadata import Endpoint, fetch

ENDPOINT = Endpoint("169.254.169.254", 80, "/metadata/instance/network?api-version=2021-02-01", {"Metadata": "true"})

_FAMILIES = (("ipv4", Family.V4), ("ipv6", Family.V6))
_LENGTH_KEYS = ("privateIPAddressPrefixLength", "prefixLength")
_SHORTEST = {Family.V4: 24, Family.V6: 64}
"""Azure's blocks are /28 and /80; one that is far larger is no configuration of an interface."""


class AzureRanges:
    """Asks the instance metadata service, once for each `read`."""

    def __init__(self, endpoint: Endpoint = ENDPOINT) -> None:
        self._endpoint = endpoint

    def read(self) -> tuple[Prefix, ...]:
        """What the network interfaces have beside the machine's own addresses."""
        return pool(fetch(self._endpoint))


def pool(body: bytes) -> tuple[Prefix, ...]:
    """The pool that a document of instance metadata describes, v4 first, each block in the order given.

    Raises:
        RangesUnknown: it is not such a document; says where it departs from one.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise RangesUnknown(f"the instance metadata is not JSON: it begins with {body[:60]!r}") from None
    found = list(_blocks(document))
    return tuple(sorted(dict.fromkeys(found), key=lambda block: block.family))


def _blocks(document: object) -> Iterator[Prefix]:
    interfaces = _list(document, "interface", "the instance metadata")
    if not interfaces:
        raise RangesUnknown("the instance metadata names no network interface")
    for number, interface in enumerate(interfaces):
        for key, family in _FAMILIES:
            place = f"interface[{number}].{key}"
            part = _object(interface, f"interface[{number}]").get(key)
            if part is None:
                continue
            for index, entry in enumerate(_list(part, "ipAddress", place)):
                block = _block(entry, f"{place}.ipAddress[{index}]", family)
                if index:  # the first is the machine's own
                    yield block


def _block(entry: object, place: str, family: Family) -> Prefix:
    values = _object(entry, place)
    text = values.get("privateIpAddress")
    if not isinstance(text, str):
        raise RangesUnknown(f"{place}.privateIpAddress: is no string")
    length = next((str(values[key]) for key in _LENGTH_KEYS if values.get(key) not in (None, "")), "")
    try:
        block = Prefix.parse(f"{text}/{length}" if length and "/" not in text else text)
    except ValueError as error:
        raise RangesUnknown(f"{place}.privateIpAddress: {error}") from None
    if block.family is not family or block.length < _SHORTEST[family]:
        raise RangesUnknown(f"{place}.privateIpAddress: {block} is no address of an IPv{family.value} configuration")
    return block


def _object(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise RangesUnknown(f"{place}: is no object")
    return value


def _list(value: object, key: str, place: str) -> list[object]:
    found = _object(value, place).get(key)
    if not isinstance(found, list):
        raise RangesUnknown(f"{place}: has no list {key!r}")
    return found
