"""YAML documents into pydantic models, with errors that name file, line, key and reason.

`yaml_loader` reads the text; this module adds what it leaves out: the line of every key, and a
refusal of duplicate keys (YAML 1.2, 3.2.1.3), of which PyYAML would silently keep the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

import yaml

from netmgr.documents import spelling, validation, yaml_loader
from netmgr.documents.diagnostics import Diagnostic, Invalid, KeyPath, dotted
from netmgr.documents.schema import BaseModel, ValidationError
from netmgr.documents.yaml_loader import Unusable
from netmgr.errors import ConfigError, of_system

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)

_ADVICE = {
    "alphabetic or numeric": "; write a value that begins with * or & in quotes",
    "any token": "; write a value that begins with this character in quotes",
    "could not find expected ':'": "; write `key: value`, with a space, in this line or before it",
    "end of stream": "; close the quote or bracket that is open",
    "expected ',' or": "; close the bracket that is open",
    "expected key": "; indent the keys of one mapping alike",
    "mapping values": "; indent it as its neighbours, or write a value with a colon in quotes",
}
"""What to do about what libyaml says."""

_MERGE_MARK = re.compile(r"^(?:<{7} |>{7} |={7}$)", re.MULTILINE)


def load(path: Path, model: type[Model]) -> Model:
    """Read the document at `path`; ConfigError if it cannot be read, or with each of its faults."""
    return parse(read(path), str(path), model)


def read(path: Path) -> str:
    """A document's text; ConfigError if it cannot be read, or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(of_system(error))) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: is not UTF-8: byte {error.start} cannot be decoded; save it as UTF-8"
        ) from None


def parse(text: str, source: str, model: type[Model]) -> Model:
    """Read a document from text; ConfigError with each of its faults, which calls it `source`."""
    if unmerged := merge_mark(text):
        raise ConfigError(
            f"{source}:{unmerged}: has the marks of an unfinished git merge; "
            "resolve it in an editor"
        )
    data, lines = _read(text, source)
    if not isinstance(data, dict):
        raise ConfigError(
            f"{source}:1: must be a mapping of keys, for example 'apiVersion: netmgr.io/v1alpha1'"
        )
    # First: every key of another kind of document would be unknown.
    given, field = data.get("kind"), model.model_fields.get("kind")
    wanted = get_args(field.annotation)[0] if field else given
    if isinstance(given, str) and given != wanted:
        raise ConfigError(
            f"{source}:{lines['kind',]}: kind: is {given}, and this has to be a {wanted}; "
            "name another file, or correct it"
        )
    try:
        return model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        faults = validation.root_causes(error.errors())
        described = [_describe(fault, source, lines, model) for fault in faults]
        raise ConfigError("\n".join(described)) from None


def _read(text: str, source: str) -> tuple[object, dict[KeyPath, int]]:
    try:
        # Nodes first: they show a key that is given twice; the objects have only the last.
        lines = _lines(yaml_loader.compose(text), source)
        return yaml_loader.load(text), lines
    except Unusable as error:
        at = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{source}{at}: {error.problem}") from None
    except yaml.MarkedYAMLError as error:
        line, problem = _not_yaml(error, text)
        raise ConfigError(f"{source}:{line}: is not YAML: {problem}") from None
    except yaml.YAMLError as error:
        # What PyYAML says of text that it cannot even read takes two lines.
        raise ConfigError(f"{source}: is not YAML: {' '.join(str(error).split())}") from None


def _not_yaml(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    """The line, what is wrong there, and what to do."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    # As a slice: the end of the stream is marked behind the last line.
    if mark and "\t" in "".join(text.splitlines()[mark.line : line])[: mark.column + 1]:
        return line, "a tab does not indent; write spaces"
    problem = str(error.problem or error.context)
    return line, problem + next(
        (advice for symptom, advice in _ADVICE.items() if symptom in problem), ""
    )


def merge_mark(text: str) -> int:
    """The line (from 1) of the first conflict that git left in a file, else 0."""
    match = _MERGE_MARK.search(text)
    return text.count("\n", 0, match.start()) + 1 if match else 0


def describe(diagnostic: Diagnostic, path: Path) -> str:
    """`file:line: dotted.key: message (where the other key is); remedy`.

    Files are read once more; `path` is the document that locations without a file are in.
    """
    file, other = Path(diagnostic.at.file or path), ""
    if (beside := diagnostic.beside) is not None:
        other_file = Path(beside.file or path)
        is_near = other_file == file
        other = f"line {_line(file, beside.key)}" if is_near else place(other_file, beside.key)
    return f"{place(file, diagnostic.at.key)}: {diagnostic.text(other)}"


def place(path: Path, key: KeyPath) -> str:
    """`file:line: dotted.key` of a key, or of the nearest one above it that the document has."""
    return f"{path}:{_line(path, key)}: {dotted(key)}" if key else str(path)


def _line(path: Path, key: KeyPath) -> int:
    # Read again: a diagnostic knows keys alone, and lines are rarely asked for.
    return line_in(path.read_text(encoding="utf-8"), str(path), key)


def line_in(text: str, source: str, key: KeyPath) -> int:
    """The line of a key, or of the nearest one above it, in a document's text."""
    lines = _lines(yaml_loader.compose(text), source)
    return lines[_nearest(key, lines)]


def _lines(root: yaml.Node | None, source: str) -> dict[KeyPath, int]:
    """Line number (from 1) of every key and item, by its path."""
    lines: dict[KeyPath, int] = {(): 1}
    pending: list[tuple[KeyPath, yaml.Node]] = [((), root)] if root else []
    while pending:
        path, node = pending.pop()
        for key, line, value in _entries(node):
            inner = (*path, key)
            if inner in lines:
                raise ConfigError(
                    f"{source}:{line}: {dotted(inner)}: given twice "
                    f"(first in line {lines[inner]}); keep one"
                )
            lines[inner] = line
            pending.append((inner, value))
    return lines


def _entries(node: yaml.Node) -> Iterator[tuple[str | int, int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            # The text of the key: a number as a key must not be taken for an index of a list.
            yield str(key.value), key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield index, item.start_mark.line + 1, item


def _describe(
    fault: ErrorDetails, source: str, lines: dict[KeyPath, int], model: type[BaseModel]
) -> str:
    # pydantic has this behind a key that is itself wrong.
    location: KeyPath = tuple(part for part in fault["loc"] if part != "[key]")
    message = validation.message(fault)
    cause = fault.get("ctx", {}).get("error")
    if isinstance(cause, Invalid):
        diagnostic = cause.diagnostic
        beside = lines.get((*location, *diagnostic.beside.key)) if diagnostic.beside else None
        message = diagnostic.text(f"line {beside}" if beside else "")
        location = (*location, *diagnostic.at.key)
    elif fault["type"] == "extra_forbidden":
        message = f"unknown key; {spelling.advice(model, location)}"
    key = dotted(location) if location else "document"
    return f"{source}:{lines[_nearest(location, lines)]}: {key}: {message}"


def _nearest(key: KeyPath, lines: dict[KeyPath, int]) -> KeyPath:
    # Ends at (), which is always there: a missing key is reported where it should have been.
    while key not in lines:
        key = key[:-1]
    return key
