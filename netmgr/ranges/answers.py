"""What a source offers for pods, and how a metadata service's answer is read (pure)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from netmgr.errors import RangesUnknown
from netmgr.prefixes import Family, Prefix


class RangeOffer(NamedTuple):
    """Which addresses pods of this node may have, blocks and single ones."""

    ranges: tuple[Prefix, ...]
    elsewhere: Mapping[str, tuple[Prefix, ...]] = MappingProxyType({})
    """Blocks of interfaces whose addresses pods cannot have, by the interface's name."""


def json_of(body: bytes) -> object:
    """The document in an answer; RangesUnknown if it is none, as from the functions below."""
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        raise RangesUnknown(
            f"the instance metadata is not JSON: it begins with {body[:60]!r}"
        ) from None
    return document


def object_of(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise RangesUnknown(f"{where}: is not an object")
    return value


def list_of(value: object, key: str, where: str) -> list[object]:
    elements = object_of(value, where).get(key)
    if not isinstance(elements, list):
        raise RangesUnknown(f"{where}: has no list {key!r}")
    return elements


def block_of(text: object, where: str, family: Family, shortest: int) -> Prefix:
    """An address or a block of an interface.

    `shortest` is the length of the largest block that an interface can have: a larger one would
    have the node take the addresses of others, or all there are.
    """
    if not isinstance(text, str):
        raise RangesUnknown(f"{where}: is not a string")
    try:
        block = Prefix.parse(text)
    except ValueError as error:
        raise RangesUnknown(f"{where}: {str(error)[:200]}") from None
    if block.family is not family or block.length < shortest:
        raise RangesUnknown(f"{where}: {block} is no IPv{family.value} address of an interface")
    return block
