"""The kinds of field that documents share, and the base every document has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from netmgr.prefixes import Address, Prefix

KeyPath = tuple[str | int, ...]
"""Where something stands in a document: keys, and numbers of list items from 0."""


class Disagreement(ValueError):
    """Two places of a document that contradict each other; raised in a validator, told with both lines.

    `at` is the place to correct and `beside` the one it contradicts, both as seen from what
    is validated.
    """

    def __init__(self, message: str, at: KeyPath = (), beside: KeyPath | None = None, remedy: str = "") -> None:
        super().__init__(message)
        self.message, self.at, self.beside, self.remedy = message, at, beside, remedy

    def told(self, line: int | None) -> str:
        """As a sentence; `line` is that of the other place, None where the document does not have it."""
        where = f" (line {line})" if line else ""
        return f"{self.message}{where}; {self.remedy}" if self.remedy else f"{self.message}{where}"

    def __str__(self) -> str:
        return self.told(None)


def _to_prefix(value: object) -> Prefix:
    return value if isinstance(value, Prefix) else Prefix.parse(str(value))


def _to_address(value: object) -> Address:
    return value if isinstance(value, Address) else Address.parse(str(value))


def _absolute(path: Path) -> Path:
    if not path.is_absolute() or "\0" in str(path):
        raise ValueError(f"{str(path)!r} is no absolute path; begin it with /")
    return path


PrefixText = Annotated[Prefix, BeforeValidator(_to_prefix), PlainSerializer(str)]
AddressText = Annotated[Address, BeforeValidator(_to_address), PlainSerializer(str)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


class Document(BaseModel):
    """Base of every document: immutable, and strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
