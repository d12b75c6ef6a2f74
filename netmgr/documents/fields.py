"""The kinds of field that documents share, and the base every document has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from netmgr.documents.schema import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    WithJsonSchema,
)
from netmgr.prefixes import Address, Prefix

_LARGEST_GROUP = (1 << 32) - 2
"""Largest group number; the one above means "leave it" to chown(2)."""


def _to_prefix(value: object) -> Prefix:
    return value if isinstance(value, Prefix) else Prefix.parse(str(value))


def _to_address(value: object) -> Address:
    return value if isinstance(value, Address) else Address.parse(str(value))


def _absolute(path: Path) -> Path:
    # The C library would end the path at a NUL; Python raises ValueError for one, where no caller
    # expects it.
    if not path.is_absolute() or "\0" in str(path):
        raise ValueError(f"{str(path)!r} is no absolute path; begin it with /")
    return path


PrefixText = Annotated[
    Prefix,
    BeforeValidator(_to_prefix),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["10.0.0.0/16"]}),
]
AddressText = Annotated[
    Address,
    BeforeValidator(_to_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["10.0.0.1"]}),
]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


def _group(value: object) -> object:
    is_name = isinstance(value, str) and re.fullmatch(r"[^\x00:\n]+", value)
    # Not isinstance: YAML's `true` is an int of Python's.
    if is_name or (type(value) is int and 0 <= value <= _LARGEST_GROUP):
        return value
    raise ValueError(f"{value!r} is neither the name of a group nor its number")


_NAME = {"type": "string", "pattern": "^[^:]+$"}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": _LARGEST_GROUP}
Group = Annotated[str | int, BeforeValidator(_group), WithJsonSchema({"anyOf": [_NAME, _NUMBER]})]


class Document(BaseModel):
    """Base of every document: immutable, and strict about keys."""

    # By name as well as by alias: the allocator makes the lock's parts from Python.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
