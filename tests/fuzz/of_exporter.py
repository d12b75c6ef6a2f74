"""What the exporter's clients send, and what names make of its pages."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from exporter import access
from exporter.bounds import LONGEST_LABEL, bounded
from exporter.collector import Collector
from exporter.server import Handler, application
from exporter.settings import Settings
from netmgr.errors import ConfigError
from tests.fakes.agent_socket import snapshot
from tests.fuzz.mutation import Shape
from tests.fuzz.target import file_of, target

HTTP = """
GET POST OPTIONS HEAD /metrics / /report /healthz /readyz HTTP/1.0 HTTP/1.1 HTTP/2.0 HTTP/0.9
Host: Accept: application/openmetrics-text;version=1.0.0
text/plain;version=1.0.0;escaping=allow-utf-8 escaping=values q=0.5 Accept-Encoding: gzip
Content-Length: Authorization: Basic Bearer Expect: 100-continue Connection: keep-alive
Transfer-Encoding: chunked ?name[]=netmgr_up %00 %ff
"""
ANSWERS = {200, 204, 400, 401, 404, 405, 414, 431, 501, 503, 505}
"""A request can be wrong in many ways; none is a fault of the server's."""


class _Server:
    """What a handler needs of its server."""

    base_environ: dict[str, str]
    multithread = False

    def __init__(self) -> None:
        self.base_environ = {
            "SERVER_NAME": "x",
            "SERVER_PORT": "1",
            "REMOTE_HOST": "",
            "CONTENT_LENGTH": "",
            "SCRIPT_NAME": "",
        }
        self.connections = SimpleNamespace(complete=lambda _: None)
        read = lambda: snapshot(2, 1)  # noqa: E731  it stands for an agent
        self._app = application(read, lambda: None, dict, 500, None)

    def get_app(self) -> Any:
        return self._app


class _Connection:
    """A client's socket that has sent all it sends."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.sent = b""

    def makefile(self, *_: object) -> io.BufferedIOBase:
        return io.BytesIO(self._data)

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def settimeout(self, _seconds: float) -> None:
        """There is nothing to wait for."""


_server: list[_Server] = []


@target(Shape.HTTP, rounds=500, longest=20_000, tokens=HTTP)
def http_request(data: bytes) -> None:
    """Whatever a client sends, it gets one well-formed answer that blames the client, or none."""
    if not _server:
        _server.append(_Server())
    connection = _Connection(data)
    errors = io.StringIO()
    Handler.get_stderr = lambda _self: errors
    # The server takes it for what it is: the client went away.
    with suppress(ConnectionResetError):
        Handler(connection, ("127.0.0.1", 1), _server[0])
    assert not errors.getvalue(), errors.getvalue()
    sent = connection.sent
    if not sent:
        return
    if sent.startswith(b"HTTP/"):
        head, end, _ = sent.partition(b"\r\n\r\n")
        assert end
        first, *fields = head.split(b"\r\n")
        assert int(first.split(b" ")[1]) in ANSWERS, first
        assert all(b":" in field and b"\n" not in field for field in fields)


@target(
    Shape.JSON,
    rounds=25,
    longest=16384,
    tokens='pod namespace rules chain \\n \\" \\\\ # HELP le +Inf',
)
def exposition(data: bytes) -> None:
    """A page made of any snapshot is read back by both parsers, with every label as it was."""
    document = _snapshot_of(data)
    if document is None:
        return
    text = page_of(document)
    wanted = _labels(document)
    for families in (read_text(text), read_openmetrics(page_of(document, is_openmetrics=True))):
        read = {
            (sample.labels["namespace"], sample.labels["pod"], sample.labels["traffic"])
            for family in families
            for sample in family.samples
            if sample.name == "netmgr_pod_traffic_bytes_total"
        }
        assert read in (wanted, set())
        assert read == wanted or "netmgr_up 0" in text


def _snapshot_of(data: bytes) -> Any:
    """A snapshot whose names are the strings of a JSON list; None without any."""
    try:
        names = names_in(data)
    except (ValueError, RecursionError):
        return None
    return snapshot_with(names) if names else None


def names_in(data: bytes) -> list[str]:
    """The strings of a JSON list.

    Raises:
        ValueError, RecursionError: it is no JSON.
    """
    given = json.loads(data)
    return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def snapshot_with(names: Sequence[str]) -> Any:
    """A snapshot of pods, namespaces and rules with these names."""
    document: Any = snapshot(len(names), 1)
    for number, total in enumerate(document["pods"]):
        total["pod"] = names[number % len(names)]
        total["namespace"] = names[number // len(names) % len(names)]
    for number, rule in enumerate(document["rules"]):
        rule["rule"] = f"{number} {names[number % len(names)]}"
    # Of equal names a page has one series.
    seen = {(one["namespace"], one["pod"], one["traffic"]): one for one in document["pods"]}
    document["pods"] = [*seen.values()]
    return document


def page_of(document: Any, *, is_openmetrics: bool = False) -> str:
    """What the exporter makes of a snapshot."""
    registry = CollectorRegistry()
    registry.register(Collector(lambda: document))
    write = openmetrics.generate_latest if is_openmetrics else generate_latest
    return bytes(write(registry)).decode()


def _labels(document: Any) -> set[tuple[str, str, str]]:
    try:
        return {
            (bounded(one["namespace"]), bounded(one["pod"]), str(one["traffic"]))
            for one in document["pods"]
        }
    except UnicodeEncodeError:
        return set()


@target(Shape.JSON, rounds=300, longest=8192, tokens="pods version nat ranges limits quotas")
def odd_snapshot(data: bytes) -> None:
    """An answer that is no snapshot makes a page without figures, and is reported once."""
    try:
        changes = json.loads(data)
    except (ValueError, RecursionError):
        return
    base: Any = snapshot(2, 1)
    document = base | changes if isinstance(changes, dict) else changes
    registry = CollectorRegistry()
    registry.register(Collector(lambda: document, 200))
    families = {family.name for family in read_text(generate_latest(registry).decode())}
    assert "netmgr_up" in families


@target(Shape.TEXT, rounds=4000, longest=2000, tokens="~ é")
def label_bound(data: bytes) -> None:
    """A label's value is as it was, or shortened in a way that no other value is."""
    text = data.decode(errors="replace")
    shown = bounded(text)
    assert len(shown.encode()) <= LONGEST_LABEL
    assert shown == text or bounded(shown) != shown


@target(Shape.TEXT, rounds=1000, longest=1000, tokens="someone:correct-horse Bearer Basic a:b: \\t")
def secrets(data: bytes) -> None:
    """A file of secrets is a `ConfigError` that repeats none, or each line of it opens the door."""
    with file_of(data, "secret") as path:
        for option, header in (("bearer_token_file", _bearer), ("basic_auth_file", _basic)):
            try:
                door = access.door(Settings(**{option: path}))
                assert door
                lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
                assert all(door.admits(header(line)) for line in lines)
                # A header is any bytes, which the server reads as Latin-1.
                shown = data.decode("latin-1")
                assert not door.admits(shown) or shown.partition(" ")[2].strip()
                assert not door.admits(header(lines[0] + "x") if len(lines) == 1 else "")
            except ConfigError as error:
                lines = data.decode(errors="replace").splitlines()
                assert not any(len(line) > 13 and line in error.message for line in lines)


def _bearer(token: str) -> str:
    return f"Bearer {token}"


def _basic(pair: str) -> str:
    return f"Basic {base64.b64encode(pair.encode()).decode()}"
