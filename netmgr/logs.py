"""One grammar for every log: `event-name key=value …`, one line an event.

What is logged names the event first, in words joined by hyphens, then what it is about. A value
that holds a space, a quote or an equals sign is quoted as JSON does, so that a line can be taken
apart by a program. A guard in tests/guards holds every call to it.
"""

from __future__ import annotations

import copy
import json
import logging
import re

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_OURS = ("netmgr", "exporter", "cni")
_PLAIN = re.compile(r"[^\s\"'=\\]+")


class Formatter(logging.Formatter):
    """Quotes the values of our own events; other packages' lines stay as they are."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback behind it where a fault of our own is logged."""
        args = record.args
        if record.name.partition(".")[0] in _OURS and isinstance(args, tuple):
            record = copy.copy(record)
            record.args = tuple(map(_value, args))
        return super().format(record)


def _value(value: object) -> object:
    if isinstance(value, int | float):
        return value
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def begin(level: str) -> None:
    """Log to standard error from `level` on, as the rest of this process does."""
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
