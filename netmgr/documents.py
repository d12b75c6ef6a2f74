"""YAML documents into pydantic models, with errors that name file, key, line and reason.

YAML itself is read by PyYAML's safe loader, with bounds; this module adds the two things it leaves out:
where every key stands, and a refusal of duplicate keys (YAML 1.2, 3.2.1.3), of which the
loader would silently keep the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from netmgr import yaml_loader
from netmgr.errors import ConfigError
from netmgr.fields import Disagreement
from netmgr.fields import KeyPath as KeyPath  # noqa: PLC0414  who names keys looks for it here
from netmgr.yaml_loader import BeyondBounds, Loader, check_aliases

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)

_MERGE_MARK = re.compile(r"^(?:<{7} |>{7} |={7}$)", re.MULTILINE)
_NO_VALUE = (ValueError, KeyError, AttributeError, RecursionError)
"""What PyYAML raises where a value is not what it looks like: a 13th month, an endless number."""


def load(path: Path, model: type[Model]) -> Model:
    """Read the document at `path` as `model`.

    Raises:
        ConfigError: the file is missing, is not YAML, or fails validation; every fault is named.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8: byte {error.start} cannot be decoded") from None
    return parse(text, str(path), model)


def parse(text: str, source: str, model: type[Model]) -> Model:
    """Read a document from text; `source` is what errors call it.

    Raises:
        ConfigError: it is not YAML, or fails validation; every fault is named.
    """
    if unmerged := merge_mark(text):
        raise ConfigError(f"{source}:{unmerged}: has the marks of an unfinished git merge; resolve it in an editor")
    try:
        root = _composed(text)
        lines = _lines(root, source)
        data = yaml_loader.load(text)
    except BeyondBounds as error:
        at = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{source}{at}: {error.problem}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{source}:{line}: is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: is not YAML: {error}") from None
    except _NO_VALUE as error:
        raise ConfigError(f"{source}: has a value that cannot be one: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{source}:1: must be a mapping of keys, for example 'apiVersion: netmgr.io/v1alpha1'")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = [_describe(fault, source, lines) for fault in _of_their_own(error.errors())]
        raise ConfigError("\n".join(faults)) from None


def merge_mark(text: str) -> int:
    """The line (from 1) of the first conflict that git left in a file, 0 if there is none."""
    found = _MERGE_MARK.search(text)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def place(path: Path, key: KeyPath) -> str:
    """`file:line: dotted.key` of a key, or of the nearest one above it that the document has.

    For faults that are found after a document was read; the file is read once more.
    """
    return f"{path}:{line(path, key)}: {_dotted(key)}" if key else str(path)


def line(path: Path, key: KeyPath) -> int:
    """The line (from 1) of a key, or of the nearest one above it that the document has."""
    lines = _lines(_composed(path.read_text(encoding="utf-8")), str(path))
    return lines[_nearest(key, lines)]


def _composed(text: str) -> yaml.Node | None:
    root: yaml.Node | None = yaml.compose(text, Loader=Loader)
    check_aliases(root)
    return root


def _lines(root: yaml.Node | None, source: str) -> dict[KeyPath, int]:
    """Line number (from 1) of every key and item, by its path."""
    lines: dict[KeyPath, int] = {(): 1}
    pending: list[tuple[KeyPath, yaml.Node]] = [((), root)] if root else []
    while pending:
        path, node = pending.pop()
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = (*path, str(key.value))
                line = key.start_mark.line + 1
                if inner in lines:
                    raise ConfigError(
                        f"{source}:{line}: {_dotted(inner)}: given twice (first in line {lines[inner]}); keep one"
                    )
                lines[inner] = line
                pending.append((inner, value))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                lines[(*path, index)] = item.start_mark.line + 1
                pending.append(((*path, index), item))
    return lines


def _of_their_own(faults: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Without lists that are too short only because their items are at fault."""
    for fault in faults:
        above = fault["loc"]
        if fault["type"] != "too_short" or not any(
            other is not fault and other["loc"][: len(above)] == above for other in faults
        ):
            yield fault


def _describe(fault: ErrorDetails, source: str, lines: dict[KeyPath, int]) -> str:
    location: KeyPath = fault["loc"]
    message = fault["msg"].removeprefix("Value error, ")
    cause = fault.get("ctx", {}).get("error")
    if isinstance(cause, Disagreement):
        message = cause.told(lines.get((*location, *cause.beside)) if cause.beside is not None else None)
        location = (*location, *cause.at)
    elif fault["type"] == "extra_forbidden":
        message = "unknown key; remove it or correct its spelling"
    elif fault["type"] == "missing":
        message = "is required and missing"
    known = _nearest(location, lines)
    key = _dotted(location) if location else "document"
    return f"{source}:{lines[known]}: {key}: {message}"


def _nearest(key: KeyPath, lines: dict[KeyPath, int]) -> KeyPath:
    while key not in lines:
        key = key[:-1]
    return key


def _dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
