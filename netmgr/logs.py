"""One grammar for every log: `event-name key=value …`, one line an event, as text or as JSON.

An event's name comes first, in words joined by hyphens, then what the event is about. Text quotes
a value that holds a space, a quote or an equals sign as JSON does, so that a program can parse the
line. JSON has the same keys beside `time` (UTC), `level`, `logger` and `event`; lines of other
packages have a `message` instead of an event. A guard in tests/guards checks every call against
the grammar.

A line that an outsider can cause as often as it likes (a pod, a client, another machine) says who
or what does: `extra=caused_by(pod)`. Each cause then has one such line a minute, and another line
counts what was left out.
"""

from __future__ import annotations

import atexit
import copy
import json
import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum

RESERVED = frozenset({"time", "level", "logger", "event", "traceback"})
"""Keys of a JSON line that no event may use for a value of its own."""

LIMIT_SECONDS = 60.0
"""In which a cause has one line of each event."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_OURS = ("netmgr", "exporter", "cni")
_PLAIN = re.compile(r"[^\s\"'=\\]+")
_CAUSE = "caused_by"

log = logging.getLogger(__name__)


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class TextFormatter(logging.Formatter):
    """Quotes the values of our own events; other packages' lines stay as they are."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        args = record.args
        if _is_ours(record) and isinstance(args, tuple):
            # A copy, since other handlers get the same record.
            record = copy.copy(record)
            record.args = tuple(map(_quoted, args))
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line; numbers stay numbers."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": when,
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        line |= _event(record) if _is_ours(record) else {"message": record.getMessage()}
        if record.exc_info:
            # A value like any other, so that an event never takes two lines.
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class MessageLimit(logging.Filter):
    """Passes the first line of each event and cause in a period, and counts the others.

    The first line of any kind after the period has what was left out in front of it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: Counter[tuple[str, str, int]] = Counter()
        self._until = -math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        if self._clock() >= self._until:
            self.end_period()
        cause = getattr(record, _CAUSE, None)
        if cause is None:
            return True
        with self._lock:
            line = str(record.msg).partition(" ")[0], cause, record.levelno
            self._seen[line] += 1
            return self._seen[line] == 1

    def end_period(self) -> None:
        """Log what was left out, and begin the next period."""
        with self._lock:
            seen, self._seen = self._seen, Counter()
            self._until = self._clock() + LIMIT_SECONDS
        # Without the lock: these lines come by this filter, too.
        for (event, cause, level), count in seen.items():
            if count > 1:
                log.log(level, "lines-left-out of=%s cause=%s count=%d", event, cause, count - 1)


def caused_by(cause: object) -> Mapping[str, str]:
    """The `extra` of a line that this outsider, or this kind of fault, may cause again and again.

    Where an outsider chooses among many names (a client among its addresses), the cause is what
    happened: its lines must be few, whatever it does.
    """
    return {_CAUSE: str(cause)}


def begin(level: LogLevel, form: LogFormat = LogFormat.TEXT) -> None:
    """Log to standard error from `level` on, in the format `form`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    limit = MessageLimit()
    # At the handler: a filter of the root logger does not see what other loggers pass up to it.
    handler.addFilter(limit)
    # What was left out of the last period has no line behind it that would tell.
    atexit.register(limit.end_period)
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] in _OURS


def _quoted(value: object) -> object:
    if isinstance(value, int | float):
        return value
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _event(record: logging.LogRecord) -> dict[str, object]:
    """The event and its values, by the grammar: each pair is a constant or takes one argument."""
    name, *pairs = str(record.msg).split(" ")
    event: dict[str, object] = {"event": name}
    arguments = iter(record.args if isinstance(record.args, tuple) else ())
    for pair in pairs:
        key, _, value = pair.partition("=")
        event[key] = _value(value, next(arguments)) if "%" in value else value
    return event


def _value(spec: str, argument: object) -> object:
    """The argument as JSON has it: a number as the line would round it, anything else as text."""
    if isinstance(argument, float) and spec != "%s":
        return float(spec % argument)
    return argument if isinstance(argument, int | float) else str(argument)
