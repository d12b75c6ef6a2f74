"""Reads manifests of Services from a file or a directory, each file only when it changed."""

from __future__ import annotations

import json
import os
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from netmgr.documents.diagnostics import Diagnostic, KeyPath, Location, dotted
from netmgr.documents.loader import in_one_line
from netmgr.documents.yaml_loader import MOST_LEVELS, Loader, Unusable
from netmgr.drawing import plain
from netmgr.errors import StateError
from netmgr.file_version import FileVersion
from netmgr.services import objects
from netmgr.services.objects import Refused, Service, Slice

SUFFIXES = (".json", ".yaml", ".yml")
"""Of the files in a directory that are read; those whose name begins with a dot are not."""


MOST_BYTES = 256 << 20
"""Of one file; ten thousand Services with ten endpoints each take some 20 MB."""

Content = tuple[Service | Slice, ...]


class Documents:
    """A file or a directory with Services and EndpointSlices. Not thread-safe.

    `faults` are the files that cannot be used as they are now, each with the reason.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._known: dict[str, FileVersion] = {}
        self.faults: dict[str, str] = {}

    @property
    def watched(self) -> Path:
        """The directory where changes show."""
        return (
            self._source
            if self._source.is_dir() or self._source.suffix not in SUFFIXES
            else self._source.parent
        )

    def changed(self, names: Iterable[str] | None = None) -> dict[str, Content]:
        """Content of the files that changed since the last time; of one that is gone, nothing.

        `names` are those to look at, None for all there are. A file with a fault is left out:
        what it said before is still the last thing that made sense.

        Raises:
            StateError: the directory cannot be listed, or is missing.
        """
        found: dict[str, Content] = {}
        for path in self._paths(names):
            version = _version(path)
            if version is None:
                self.faults.pop(path, None)
                if self._known.pop(path, None):
                    found[path] = ()
            elif version != self._known.get(path):
                # Before the parsing, so that a file with a fault is read again only when it
                # changes.
                self._known[path] = version
                self._read(path, found)
        return found

    def describe(self, faults: Sequence[Diagnostic]) -> list[str]:
        """The faults as messages with file, line and key, both where two objects disagree."""
        found = _lines({at for fault in faults for at in (fault.at, fault.beside) if at})
        return [_message(fault, found) for fault in faults]

    def _read(self, path: str, found: dict[str, Content]) -> None:
        try:
            found[path] = tuple(_parsed(path))
        except Refused as fault:
            (self.faults[path],) = self.describe([fault.diagnostic])
        else:
            self.faults.pop(path, None)

    def _paths(self, names: Iterable[str] | None) -> Iterable[str]:
        if not self._source.is_dir():
            if not self._known and not self._source.exists():
                raise StateError(
                    f"{self._source}: there is no such file or directory; nothing was changed"
                )
            return [str(self._source)]
        present = {
            f"{self._source}/{name}"
            for name in (self._listed() if names is None else names)
            if name.endswith(SUFFIXES) and not name.startswith(".")
        }
        gone = self._known.keys() - present if names is None else set()
        return sorted(present) + sorted(gone)

    def _listed(self) -> list[str]:
        try:
            return os.listdir(self._source)  # noqa: PTH208 (ten thousand Paths take their time)
        except OSError as error:
            raise StateError(f"{self._source}: cannot be listed: {error.strerror}") from None


def _version(path: str) -> FileVersion | None:
    """The version of a regular file; None if there is none."""
    # Links are followed, since a mounted ConfigMap consists of them.
    try:
        status = os.stat(path)  # noqa: PTH116 (a Path for each of ten thousand files takes its time)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileVersion.of(status)


def _parsed(path: str) -> Iterator[Service | Slice]:
    """Everything in a file; JSON if it is called so, else YAML, of which JSON is a part."""
    for number, document in enumerate(_loaded(path)):
        if document is not None:
            yield from objects.read(document, Location(file=path, document=number))


def _loaded(path: str) -> list[object]:
    whole = Location(file=path)
    try:
        content = _content(whole)
        return [json.loads(content)] if path.endswith(".json") else _yaml(content)
    except OSError as error:
        raise Refused(whole, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Refused(whole, f"is not UTF-8: byte {error.start} cannot be decoded") from None
    except json.JSONDecodeError as error:
        raise Refused(
            Location(file=f"{path}:{error.lineno}"), f"is not JSON: {error.msg}"
        ) from None
    except RecursionError:  # of the JSON decoder, which counts its levels
        message = f"has more than {MOST_LEVELS} lists and mappings in each other"
        raise Refused(whole, message) from None
    except Unusable as error:
        raise Refused(whole, f"{error.problem}") from None
    except yaml.YAMLError as error:
        raise _yaml_fault(path, error) from None
    except ValueError as error:  # a number with more digits than Python converts
        raise Refused(whole, f"has a value that cannot be one: {error}") from None


def _yaml_fault(path: str, error: yaml.YAMLError) -> Refused:
    if not isinstance(error, yaml.MarkedYAMLError):
        return Refused(Location(file=path), f"is not YAML: {in_one_line(error)}")
    mark = error.problem_mark or error.context_mark
    at = f"{path}:{mark.line + 1}" if mark else path
    return Refused(Location(file=at), f"is not YAML: {error.problem or error.context}")


def _content(at: Location) -> bytes:
    """What is in a file, if it can be parsed with what memory and stack there are."""
    path = Path(at.file)
    # Checked before reading: such a file could fill the memory.
    if path.stat().st_size > MOST_BYTES:
        raise Refused(at, f"has more than {MOST_BYTES >> 20} MiB; give Services in several files")
    return path.read_bytes()


def _yaml(content: bytes) -> list[object]:
    return list(yaml.load_all(content, Loader=Loader))


def _message(fault: Diagnostic, found: Mapping[Location, int]) -> str:
    beside = f"see {_located(fault.beside, found)}" if fault.beside else ""
    # Keys and kinds are whatever is written there, and the message goes to a terminal.
    return plain(f"{_located(fault.at, found)}: {fault.text(beside)}")


def _located(at: Location, found: Mapping[Location, int]) -> str:
    """`file:line: key`, as far as these are known."""
    line, key = found.get(at), dotted(at.key)
    return f"{at.file}{f':{line}' if line else ''}{f': {key}' if key else ''}"


def _lines(wanted: Collection[Location]) -> dict[Location, int]:
    """The line of each location, each file read once."""
    found: dict[Location, int] = {}
    by_file: defaultdict[str, list[Location]] = defaultdict(list)
    for at in wanted:
        by_file[at.file].append(at)
    for here in by_file.values():
        try:
            content = _content(here[0])
        except (OSError, Refused):
            continue
        known = find_lines(content, [(at.document, at.key) for at in here])
        for at in here:
            line = known.get((at.document, at.key))
            if line is not None:
                found[at] = line
    return found


Where = tuple[int, KeyPath]
"""The document's number in its file, and a key in it."""


@dataclass(slots=True)
class _Frame:
    """A mapping or a sequence that is being read; `path` is None where no wanted key is in it."""

    path: KeyPath | None
    is_mapping: bool
    index: int = 0
    key: str | None = None
    line: int = 0


def find_lines(content: bytes, wanted: Iterable[Where]) -> dict[Where, int]:
    """The line (from 1) of each key, or of the nearest existing key above it.

    JSON is parsed as YAML, of which it is a part.
    """
    asked = set(wanted)
    known = _Lines(
        {(number, key[:length]) for number, key in asked for length in range(len(key) + 1)}
    )
    try:
        for event in yaml.parse(content, Loader=Loader):
            known.take(event)
    except yaml.YAMLError:
        pass
    found = {}
    for number, key in asked:
        for length in range(len(key), -1, -1):
            line = known.lines.get((number, key[:length]))
            if line is not None:
                found[number, key] = line
                break
    return found


class _Lines:
    """Follows the parser's events, and notes where wanted keys begin."""

    def __init__(self, wanted: set[Where]) -> None:
        self._wanted = wanted
        self._document = -1
        self._frames: list[_Frame] = []
        self.lines: dict[Where, int] = {}

    def take(self, event: yaml.Event) -> None:
        """Take the next event."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._document += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            self._frames.pop()
        elif isinstance(event, yaml.NodeEvent):
            path = self._begin(event)
            if isinstance(event, yaml.CollectionStartEvent):
                self._frames.append(_Frame(path, isinstance(event, yaml.MappingStartEvent)))

    def _begin(self, event: yaml.NodeEvent) -> KeyPath | None:
        """The path of a node that begins, if it is wanted."""
        line = event.start_mark.line + 1 if event.start_mark else 0
        if not self._frames:
            return self._note((), line)
        frame = self._frames[-1]
        if not frame.is_mapping:
            frame.index += 1
            return None if frame.path is None else self._note((*frame.path, frame.index - 1), line)
        if frame.key is None:
            # In a mapping every other node is a key, whose line is reported rather than its
            # value's.
            frame.key, frame.line = getattr(event, "value", ""), line
            return None
        key, frame.key = frame.key, None
        return None if frame.path is None else self._note((*frame.path, key), frame.line)

    def _note(self, path: KeyPath, line: int) -> KeyPath | None:
        if (self._document, path) not in self._wanted:
            return None
        self.lines.setdefault((self._document, path), line)
        return path
