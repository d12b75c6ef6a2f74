"""What pydantic finds wrong with a document or an option, in words without Python's types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from netmgr.documents import spelling
from netmgr.documents.quantity import quantity

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MESSAGES = {
    "missing": "is required and missing",
    "bool": "{given} is neither true nor false; write one of them",
    "dict": "{given} is no mapping; write keys below it",
    "enum": "{given} is not one of {expected}",
    "float": "{given} is no number; write one, for example {example}",
    "greater_than": "{given} is too little; give more than {gt}",
    "greater_than_equal": "{given} is too little; give at least {ge}",
    "int": "{given} is no whole number; write one, for example {example}",
    "less_than": "{given} is too much; give less than {lt}",
    "less_than_equal": "{given} is too much; give at most {le}",
    "literal": "{given} is not one of {expected}",
    "model": "{given} is no mapping; write keys below it",
    "path": "{given} is no path; begin it with /",
    "string": "{given} is no text; write it in quotes",
    "string_pattern_mismatch": "{given} is not of the form {pattern}",
    "string_too_long": "{given} has too many characters; give at most {max_length}",
    "string_too_short": "{given} has too few characters; give at least {min_length}",
    "too_long": "has too many members; give at most {max_length}",
    "too_short": "has too few members; give at least {min_length}",
    "tuple": "{given} is no list; write [one, another], or a line with - for each",
}
"""By pydantic's name of an error, or its first word."""
_LONGEST = 80
"""Characters of a value that are shown."""


def root_causes(faults: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """The faults, without lists that are too short only because their items are at fault."""
    for fault in faults:
        above = fault["loc"]
        if fault["type"] != "too_short" or not any(
            other is not fault and other["loc"][: len(above)] == above for other in faults
        ):
            yield fault


def message(fault: ErrorDetails) -> str:
    kind, given = fault["type"], fault["input"]
    template = _MESSAGES.get(kind) or _MESSAGES.get(kind.partition("_")[0])
    if template is None:
        # A validator's own words, which pydantic begins so.
        return fault["msg"].removeprefix("Value error, ")
    context = {name: _plain(value) for name, value in fault.get("ctx", {}).items()}
    shown = template.format(given=_shown(given), example=_example(given), **context)
    return shown + (_meant(given, context) if isinstance(given, str) else "")


def _plain(bound: object) -> object:
    if isinstance(bound, str):
        # Some of an enumeration's members, as Python writes them: <Backend.AUTO: 'auto'>.
        return re.sub(r"<\w+\.\w+: ('.+?')>", r"\1", bound)
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _example(given: object) -> int:
    try:
        return quantity(given)
    except ValueError:
        return 12


def _meant(given: str, context: Mapping[str, object]) -> str:
    """Which value was probably meant, or what of this one cannot be."""
    if known := spelling.closest(given, re.findall("'(.+?)'", str(context.get("expected")))):
        return f"; did you mean {known}?"
    form = re.compile(str(context.get("pattern", "")))
    if not form.search("aaa"):
        # It asks for more than letters, so that none can be tried by itself.
        return ""
    # Many forms refuse at an end what they allow inside, such as a hyphen, or the other way round.
    wrong = sorted(
        repr(character)
        for character in {*given}
        if not any(map(form.search, (f"a{character}a", f"a{character}")))
    )
    return f"; it cannot have {', '.join(wrong)}" if wrong else ""


def _shown(given: object) -> str:
    """A value as a document has it, if it is short."""
    if given is None:
        return "an empty value"
    if isinstance(given, dict | list):
        return "a mapping" if isinstance(given, dict) else "a list"
    shown = str(given).lower() if isinstance(given, bool) else str(given)
    return (repr(given) if isinstance(given, str) else shown)[:_LONGEST]
