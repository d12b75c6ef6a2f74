"""What is wrong with a document: at which key, beside which other key, and what to do about it.

Every check of a document yields diagnostics, whichever module makes it. They know keys, not
lines, so a check is pure; `loader.describe` finds the lines when a person is to read them:

    node.yaml:14: ranges[0]: 10.1.0.0/28 lies in no prefix of b (line 11); correct the range

A pydantic validator can only raise, so it raises `Invalid` with the diagnostic in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

KeyPath = tuple[str | int, ...]
"""A key of a document: the names above it and its own, with numbers of list items from 0."""


class Severity(StrEnum):
    """ERROR: cannot work as written. WARNING: works today. NOTE: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Location:
    """A key in a file.

    `file` is empty for the document that is being checked. `document` counts the YAML
    documents of one file from 0.
    """

    key: KeyPath = ()
    file: str = ""
    document: int = 0


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem: what is wrong `at` a key, which key `beside` it disagrees, and the remedy."""

    message: str
    at: Location = Location()
    beside: Location | None = None
    remedy: str = ""
    severity: Severity = Severity.ERROR

    def text(self, beside: str = "") -> str:
        """Message and remedy; `beside` describes where the other key is, for example `line 4`."""
        message = f"{self.message} ({beside})" if beside else self.message
        return f"{message}; {self.remedy}" if self.remedy else message

    def __str__(self) -> str:
        return self.text()


# pydantic takes a ValueError of a validator for a fault of the document, and no other exception.
class Invalid(ValueError):
    """Carries a diagnostic out of a pydantic validator; its keys begin at the validated part."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


def error(
    message: str, key: KeyPath = (), beside: KeyPath | None = None, remedy: str = ""
) -> Diagnostic:
    """A diagnostic about one or two keys of the document that is being checked."""
    other = None if beside is None else Location(beside)
    return Diagnostic(message, Location(key), other, remedy)


def invalid(
    message: str, key: KeyPath = (), beside: KeyPath | None = None, remedy: str = ""
) -> Invalid:
    """What a validator raises, as `error` with the same arguments."""
    return Invalid(error(message, key, beside, remedy))


def listed(items: Iterable[object]) -> str:
    """Items as messages write them, for example `10.0.0.0/16, fd00::/48`."""
    return ", ".join(map(str, items))


def dotted(key: KeyPath) -> str:
    """A key as messages write it, for example `sites[1].prefixes[0]`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text
