"""In which line of a file a key stands, for many keys in one pass: a file may hold ten thousand objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import yaml

from netmgr.services.objects import KeyPath
from netmgr.yaml_loader import Loader

Where = tuple[int, KeyPath]
"""The document's number in its file, and a key in it."""


@dataclass(slots=True)
class _Frame:
    """A mapping or a sequence that is being read; `path` is None where nobody wants to know what is in it."""

    path: KeyPath | None
    is_mapping: bool
    index: int = 0
    key: str | None = None
    line: int = 0


def find(content: bytes, wanted: Iterable[Where]) -> dict[Where, int]:
    """The line (from 1) of each, or of the nearest key above it that there is; nothing of what cannot be parsed.

    JSON is read as the part of YAML that it is.
    """
    asked = set(wanted)
    known = _Lines({(number, key[:length]) for number, key in asked for length in range(len(key) + 1)})
    try:
        for event in yaml.parse(content, Loader=Loader):
            known.take(event)
    except yaml.YAMLError:
        pass
    found = {}
    for number, key in asked:
        above = [key[:length] for length in range(len(key), -1, -1) if (number, key[:length]) in known.lines]
        if above:
            found[number, key] = known.lines[number, above[0]]
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
        """The key of a node that begins, if anybody wants to know."""
        line = event.start_mark.line + 1 if event.start_mark else 0
        if not self._frames:
            return self._note((), line)
        frame = self._frames[-1]
        if not frame.is_mapping:
            frame.index += 1
            return None if frame.path is None else self._note((*frame.path, frame.index - 1), line)
        if frame.key is None:
            frame.key, frame.line = getattr(event, "value", ""), line
            return None
        key, frame.key = frame.key, None
        return None if frame.path is None else self._note((*frame.path, key), frame.line)

    def _note(self, path: KeyPath, line: int) -> KeyPath | None:
        if (self._document, path) not in self._wanted:
            return None
        self.lines.setdefault((self._document, path), line)
        return path
