"""The documents of Services as files: one file, or a directory of them, each read again only when it changed."""

from __future__ import annotations

import json
import os
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from netmgr.errors import StateError
from netmgr.services import lines, objects
from netmgr.services.objects import Place, Refused, Service, Slice
from netmgr.yaml_loader import MOST_LEVELS, BeyondBounds, Loader, is_too_deep

SUFFIXES = (".json", ".yaml", ".yml")
"""Of the files in a directory that are read; those whose name begins with a dot are not."""


MOST_BYTES = 256 << 20
"""Of one file; ten thousand Services with ten endpoints each take some 20 MB."""

_NO_VALUE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What the parsers raise where a value is not what it looks like: a 13th month, an endless number."""


class _Identity(NamedTuple):
    """What changes when a file does."""

    device: int
    inode: int
    size: int
    changed_at: int


Content = tuple[Service | Slice, ...]


class Documents:
    """A file or a directory with Services and EndpointSlices. Not thread-safe.

    `faults` are the files that cannot be used as they are now, each with the reason.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._known: dict[str, _Identity] = {}
        self.faults: dict[str, str] = {}

    @property
    def watched(self) -> Path:
        """The directory where changes show."""
        return self._source if self._source.is_dir() or self._source.suffix not in SUFFIXES else self._source.parent

    def changed(self, names: Iterable[str] | None = None) -> dict[str, Content]:
        """Content of the files that changed since the last time; of one that is gone, nothing.

        `names` are those to look at, None for all there are. A file with a fault is left out:
        what it said before is still the last thing that made sense.

        Raises:
            StateError: the directory cannot be listed, or there is none.
        """
        found: dict[str, Content] = {}
        for path in self._paths(names):
            identity = _identity(path)
            if identity is None:
                self.faults.pop(path, None)
                if self._known.pop(path, None):
                    found[path] = ()
            elif identity != self._known.get(path):
                self._known[path] = identity
                self._read(path, found)
        return found

    def describe(self, faults: Sequence[Refused]) -> list[str]:
        """The faults as sentences with file, line and key, of both places where two disagree."""
        found = _lines({place for fault in faults for place in (fault.place, fault.other) if place})
        return [_sentence(fault, found) for fault in faults]

    def _read(self, path: str, found: dict[str, Content]) -> None:
        try:
            found[path] = tuple(_parsed(path))
        except Refused as fault:
            (self.faults[path],) = self.describe([fault])
        else:
            self.faults.pop(path, None)

    def _paths(self, names: Iterable[str] | None) -> Iterable[str]:
        if not self._source.is_dir():
            if not self._known and not self._source.exists():
                raise StateError(f"{self._source}: there is no such file or directory; nothing was changed")
            return [str(self._source)]
        if names is not None:
            wanted = [name for name in names if _counts(name)]
        else:
            try:
                wanted = [name for name in os.listdir(self._source) if _counts(name)]  # noqa: PTH208 (ten thousand Paths take their time)
            except OSError as error:
                raise StateError(f"{self._source}: cannot be listed: {error.strerror}") from None
        present = {f"{self._source}/{name}" for name in wanted}
        gone = self._known.keys() - present if names is None else set()
        return sorted(present) + sorted(gone)


def _counts(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith(".")


def _identity(path: str) -> _Identity | None:
    """None: there is no such file. Links are followed, since a mounted ConfigMap consists of them."""
    try:
        status = os.stat(path)  # noqa: PTH116 (a Path for each of ten thousand files takes its time)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return _Identity(status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)


def _parsed(path: str) -> Iterator[Service | Slice]:
    """Everything in a file; JSON if it is called so, else YAML, of which JSON is a part."""
    whole = Place(path)
    try:
        content = _content(whole)
        documents = [json.loads(content)] if path.endswith(".json") else _yaml(content)
    except OSError as error:
        raise Refused(whole, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Refused(whole, f"is not UTF-8: byte {error.start} cannot be decoded") from None
    except json.JSONDecodeError as error:
        raise Refused(Place(f"{path}:{error.lineno}"), f"is not JSON: {error.msg}") from None
    except BeyondBounds as error:
        raise Refused(whole, f"{error.problem}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{path}:{mark.line + 1}" if mark else path
        raise Refused(Place(at), f"is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise Refused(whole, f"is not YAML: {error}") from None
    except _NO_VALUE as error:
        raise Refused(whole, f"has a value that cannot be one: {error}") from None
    for number, document in enumerate(documents):
        if document is not None:
            yield from objects.read(document, Place(path, number))


def _content(place: Place) -> bytes:
    """What is in a file, if it can be parsed with what memory and stack there are."""
    path = Path(place.path)
    if path.stat().st_size > MOST_BYTES:
        raise Refused(place, f"has more than {MOST_BYTES >> 20} MiB; give Services in several files")
    content = path.read_bytes()
    if place.path.endswith(".json") and is_too_deep(content):
        raise Refused(place, f"has more than {MOST_LEVELS} lists and mappings in each other")
    return content


def _yaml(content: bytes) -> list[object]:
    return list(yaml.load_all(content, Loader=Loader))


def _sentence(fault: Refused, found: Mapping[Place, int]) -> str:
    sentence = f"{_located(fault.place, found.get(fault.place))}: {fault.message}"
    return f"{sentence} (see {_located(fault.other, found.get(fault.other))})" if fault.other else sentence


def _located(place: Place, line: int | None) -> str:
    """`file:line: key`."""
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place.key).lstrip(".")
    return f"{place.path}{f':{line}' if line else ''}{f': {dotted}' if dotted else ''}"


def _lines(places: Collection[Place]) -> dict[Place, int]:
    """The lines of places, each file read once."""
    found: dict[Place, int] = {}
    by_path: defaultdict[str, list[Place]] = defaultdict(list)
    for place in places:
        by_path[place.path].append(place)
    for here in by_path.values():
        try:
            content = _content(here[0])
        except (OSError, Refused):
            continue
        known = lines.find(content, [(place.document, place.key) for place in here])
        found |= {place: known[at] for place in here if (at := (place.document, place.key)) in known}
    return found
