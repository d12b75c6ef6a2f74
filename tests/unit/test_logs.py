"""What a log line looks like, as text and as JSON."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from netmgr.logs import LIMIT_SECONDS, JsonFormatter, MessageLimit, TextFormatter, caused_by


def line(
    formatter: logging.Formatter,
    message: str,
    *values: object,
    name: str = "netmgr.test",
    fault: BaseException | None = None,
) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    trace = (type(fault), fault, fault.__traceback__) if fault else None
    record = logging.LogRecord(name, logging.INFO, "", 0, message, values, trace)
    handler.emit(record)
    assert record.args == values
    return stream.getvalue()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *(("plain/path:1", "plain/path:1"), ("two words", '"two words"'), ("", '""'), (7, "7")),
        *(("a=b", '"a=b"'), ('say "no"', '"say \\"no\\""'), ("line\nbreak", '"line\\nbreak"')),
        (OSError("no room"), '"no room"'),
    ],
)
def test_text_quotes_a_value_that_is_not_one_word(value: object, shown: str) -> None:
    text = line(TextFormatter(), "event-name key=%s", value)
    assert text.endswith(f" INFO netmgr.test event-name key={shown}\n")


def test_json_has_the_keys_of_the_text_line() -> None:
    message = "cni-request verb=%s action=retry ms=%.1f code=%d error=%s"
    shown = json.loads(line(JsonFormatter(), message, "ADD", 3.14159, 7, OSError("no room")))
    assert datetime.fromisoformat(shown.pop("time")).tzinfo is not None
    assert shown == {
        "level": "info",
        "logger": "netmgr.test",
        "event": "cni-request",
        "verb": "ADD",
        "action": "retry",
        "ms": 3.1,
        "code": 7,
        "error": "no room",
    }


def test_json_keeps_other_packages_messages_whole() -> None:
    shown = json.loads(line(JsonFormatter(), "Retry %d of a=b", 3, name="urllib3.pool"))
    assert shown["message"] == "Retry 3 of a=b"
    assert "event" not in shown


def test_a_traceback_stays_in_its_json_line() -> None:
    text = line(JsonFormatter(), "request-fault", fault=ValueError("first\nsecond"))
    assert text.count("\n") == 1
    assert json.loads(text)["event"] == "request-fault"
    assert "ValueError: first\nsecond" in json.loads(text)["traceback"]


def test_each_cause_has_one_line_a_period_and_is_told_what_was_left_out() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    now = 0.0
    handler.addFilter(MessageLimit(lambda: now))
    log = logging.getLogger("netmgr")
    log.addHandler(handler)
    try:
        for number in range(50):
            log.warning("first number=%d", number, extra=caused_by("pod"))
            log.warning("second number=%d", number, extra=caused_by("pod"))
            log.warning("first number=%d", number, extra=caused_by(f"pod-{number % 2}"))
        log.warning("second", extra=caused_by("once"))
        log.warning("not-limited")
        log.warning("not-limited")
        now = LIMIT_SECONDS
        log.warning("first number=%d", 50, extra=caused_by("pod"))
        assert stream.getvalue().splitlines() == [
            *("first number=0", "second number=0", "first number=0", "first number=1"),
            *("second", "not-limited", "not-limited"),
            "lines-left-out of=first cause=pod count=49",
            "lines-left-out of=second cause=pod count=49",
            "lines-left-out of=first cause=pod-0 count=24",
            "lines-left-out of=first cause=pod-1 count=24",
            "first number=50",
        ]
    finally:
        log.removeHandler(handler)


@pytest.mark.programs
def test_the_exporter_logs_json_when_asked(tmp_path: Path) -> None:
    options = ["--socket", str(tmp_path / "none"), "--listen", "127.0.0.1:0", "--log-format=json"]
    command = [sys.executable, "-m", "netmgr", "exporter", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as exporter:
        assert exporter.stderr is not None
        first = json.loads(exporter.stderr.readline())
        exporter.terminate()
    assert first["event"] == "listening"
