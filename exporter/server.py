"""The exporter's HTTP or HTTPS port: /metrics, /, /report, /usage, /healthz, /readyz, v4 and v6.

With `--throughput-test` it also has the stream of `exporter/throughput.py`.

prometheus_client negotiates formats (text, OpenMetrics) and gzip. The process has no state and no
privilege: every scrape asks the agent anew, and concurrent ones share an answer.
"""

from __future__ import annotations

import gc
import html
import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from urllib.parse import parse_qsl
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family

from exporter import access
from exporter.access import Door
from exporter.collector import Collector
from exporter.connections import TAKING_SECONDS, OpenConnections
from exporter.reporting import BudgetsClient, Reporter
from exporter.settings import Settings
from exporter.throughput import CONNECTION, Stream
from exporter.wsgi import IDLE_SECONDS, PublicHandler, PublicServer
from netmgr.api import throughput
from netmgr.api.client import (
    PATIENCE_SECONDS,
    ask,
    ask_ready,
    ask_report,
    ask_usage,
    read_snapshot,
)
from netmgr.api.gaps import described
from netmgr.api.snapshot import Snapshot
from netmgr.errors import ConfigError, NetmgrError, RequestError, SetupError, TryAgainLater

log = logging.getLogger(__name__)

HEALTH_SECONDS = 1.0
"""How long one answer serves those who ask /readyz, which anybody may as often as they like."""

TURN_SECONDS = TAKING_SECONDS - PATIENCE_SECONDS
"""How long a client of /usage waits for its turn: it is answered before its connection may have to
make room, which would leave its thread waiting, and the number of threads without a bound."""

PLAIN = ("Content-Type", "text/plain; charset=utf-8")
JSON = ("Content-Type", "application/json")
HTML = ("Content-Type", "text/html; charset=utf-8")
LINKS = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>netmgr exporter</title>
<h1>netmgr exporter</h1>
<ul>
<li><a href="/metrics">/metrics</a>: for Prometheus
<li><a href="/report">/report</a>: spent quotas and problems
<li>/usage?since=…&amp;until=…&amp;by=…: what `netmgr usage` shows
<li><a href="/healthz">/healthz</a>: the exporter runs
<li><a href="/readyz">/readyz</a>: the agent answers
</ul>
<h2>Gaps in the totals</h2>
<pre>{}</pre>
</html>"""
# /healthz and /readyz stay open: they show no traffic, and a kubelet's probes have no secret.
GUARDED = ("/", "/metrics", "/report", "/usage", throughput.PATH)

Read = Callable[[], Snapshot]
Usage = Callable[[Mapping[str, str]], object]
"""The history by the arguments of the agent's query `usage`."""
Answer = TypeVar("Answer")
Response = tuple[str, tuple[str, str], str]
"""Status, header and body."""


class Shared(Generic[Answer]):
    """One question to the agent at a time: those who ask meanwhile share the next answer.

    A flood of clients costs the agent no more than one client does. An answer is at most `lasting`
    seconds older than the question; an error is never older.

    Raises: as `ask`, for everybody who shares it.
    """

    def __init__(self, ask: Callable[[], Answer], lasting: float = 0.0) -> None:
        self._ask = ask
        self._lasting = lasting
        self._lock = threading.Lock()
        self._began = -math.inf
        self._answer: Answer | NetmgrError | None = None

    def __call__(self, arrived: float | None = None) -> Answer:
        """The agent's answer of now, or of any time since `arrived` (of the monotonic clock)."""
        arrived = time.monotonic() if arrived is None else arrived
        with self._lock:
            lasting = 0.0 if isinstance(self._answer, NetmgrError) else self._lasting
            if self._began < arrived - lasting:
                began = time.monotonic()
                # Until the next answer is there: each takes some megabytes, and a fault of ours
                # gives none to share.
                self._answer, self._began = None, -math.inf
                try:
                    self._answer = self._ask()
                except NetmgrError as error:
                    self._answer = error
                self._began = began
            answer = self._answer
        if isinstance(answer, NetmgrError):
            raise answer
        return cast(Answer, answer)


class Scraped:
    """The collector with its families shared."""

    def __init__(self, collector: Collector, collect: Callable[[], Iterable[Family]]) -> None:
        self.describe = collector.describe
        self.collect = collect


class Handler(PublicHandler):
    server: Server

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        if parsed:
            self.server.connections.complete(self.client_address)
        return parsed

    def get_environ(self) -> WSGIEnvironment:
        return {**super().get_environ(), CONNECTION: self.connection}


class Server(PublicServer):
    """A thread for each request, bound when made.

    `read` asks the agent for a snapshot, `health` whether it answers (default: `read`), `report`
    for spent quotas and problems, and `usage` for history (default: there are none).

    Raises:
        ConfigError: the settings contradict each other, or a file is wrong. No port is open then.
        SetupError: the address cannot be bound.
    """

    # With socketserver's 5, the kernel would drop the SYNs of clients that come at once.
    request_queue_size = 128

    def __init__(
        self,
        settings: Settings,
        read: Read,
        health: Callable[[], object] | None = None,
        report: Callable[[], object] | None = None,
        usage: Usage | None = None,
    ) -> None:
        host, port = settings.check()
        # Files first: no port is open while a secret or certificate cannot be read.
        door = access.door(settings)
        self._tls = access.tls(settings)
        try:
            address = _resolved(host, port)
            is_local = bool(address[0]) and ip_address(address[0].partition("%")[0]).is_loopback
            if door and not self._tls and not is_local:
                raise ConfigError(
                    f"{settings.credentials} without TLS, on {settings.listen}: every client would "
                    "send its secret readable across the network; add --tls-cert and --tls-key, "
                    "or listen on 127.0.0.1 behind a proxy that has them"
                )
            super().__init__(address, Handler)
        except OSError as error:
            raise SetupError(
                f"cannot listen on {host or '*'}:{port}: {error.strerror}; choose another address "
                "with --listen"
            ) from None
        self.connections = OpenConnections()
        self.set_app(
            application(
                read,
                Shared(health or read, HEALTH_SECONDS),
                Shared(report or dict, HEALTH_SECONDS),
                settings.max_series,
                door,
                Stream() if settings.throughput_test else None,
                usage or (lambda _: {}),
            )
        )

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  as in typeshed
        if not self.connections.admit(client_address, request):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        # The base class calls this at least twice a second.
        self.connections.expire()

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  as in typeshed
        # In the client's own thread, TLS handshake included: it may be silent.
        try:
            if self._tls is None:
                super().finish_request(request, client_address)
                return
            # The handshake comes before the handler sets its own time limit.
            request.settimeout(IDLE_SECONDS)
            secured = self._tls.value().wrap_socket(
                request, server_side=True, do_handshake_on_connect=False
            )
            # Before the handshake, in which a silent client may have to make room.
            self.connections.secured(client_address, secured)
            try:
                secured.do_handshake()
                super().finish_request(secured, client_address)
            finally:
                # Twice on purpose: the entry must be gone before the descriptor is closed, which
                # another connection gets at once, and the outer one covers a failed wrap.
                self.connections.leave(client_address)
                secured.close()
        finally:
            self.connections.leave(client_address)


def _resolved(host: str, port: int) -> tuple[Any, ...]:
    """The address to bind; without a host, and for `::`, every address of both families."""
    if host in ("", "::"):
        return "", port
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4]


def application(
    read: Read,
    health: Callable[[], object],
    report: Callable[[], object],
    max_series: int = 0,
    door: Door | None = None,
    stream: Stream | None = None,
    usage: Usage = lambda _: {},
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    registry = CollectorRegistry()
    # prometheus_client calls `collect` without arguments: by this it learns when a request came.
    request = threading.local()
    collector = Collector(read, max_series)
    # The families are shared, not the snapshot: it takes 2 MB, and is gone before a page is
    # written.
    families = Shared(lambda: list(collector.collect()))
    registry.register(Scraped(collector, lambda: families(request.arrived)))
    metrics = make_wsgi_app(registry)
    links = Shared(lambda: LINKS.format(html.escape(_gaps(read))), HEALTH_SECONDS)
    # A page of 5,000 series takes 4 MB while it is made: one at a time, however many clients ask.
    making = threading.Lock()
    # The agent sums up a week in memory: once at a time. No page waits for that.
    summing = threading.Lock()

    def usage_alone(query: str) -> object:
        if not summing.acquire(timeout=TURN_SECONDS):
            raise TryAgainLater("history is summed up for other clients; ask again later")
        try:
            return usage(dict(parse_qsl(query)))
        finally:
            summing.release()

    def respond(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        request.arrived = time.monotonic()
        if door and path in GUARDED and not door.admits(environ.get("HTTP_AUTHORIZATION", "")):
            start_response("401 Unauthorized", [PLAIN, ("WWW-Authenticate", door.challenge)])
            return [b"show the secret that this exporter asks for\n"]
        if path == "/metrics":
            _drop_odd_accept(environ)
            with making:
                return metrics(environ, start_response)  # type: ignore[no-any-return]  # untyped
        if stream and path == throughput.PATH:
            return stream(environ, start_response)
        if path == "/":
            response = "200 OK", HTML, links()
        else:
            history = partial(usage_alone, environ.get("QUERY_STRING", ""))
            response = _answer(path, health, {"/report": report, "/usage": history})
        status, kind, body = response
        start_response(status, [kind])
        return [body.encode() + b"\n"]

    return respond


def _drop_odd_accept(environ: WSGIEnvironment) -> None:
    # prometheus_client raises what it cannot read, and the scrape would fail.
    try:
        choose_encoder(environ.get("HTTP_ACCEPT", ""))
    except (ValueError, TypeError):
        environ["HTTP_ACCEPT"] = ""


def _answer(
    path: str, health: Callable[[], object], documents: Mapping[str, Callable[[], object]]
) -> Response:
    try:
        if path in documents:
            return "200 OK", JSON, json.dumps(documents[path]())
        if path == "/readyz":
            health()
    except RequestError as error:
        return "400 Bad Request", PLAIN, error.message
    except NetmgrError as error:
        return "503 Service Unavailable", PLAIN, error.message
    if path in ("/healthz", "/readyz"):
        return "200 OK", PLAIN, "ok"
    return "404 Not Found", PLAIN, "here are /, /metrics, /report, /usage, /healthz and /readyz"


def _gaps(read: Read) -> str:
    try:
        return "\n".join(described(read()["gaps"])) or "none"
    except NetmgrError as error:
        return error.message


def serve(agent: Path, settings: Settings, wait: Callable[[], object]) -> None:
    """Serve the metrics of the agent behind the socket `agent`, until `wait` returns.

    With a server of budgets, report to it meanwhile.
    """
    settings.check()
    reporter, ended = None, threading.Event()
    if settings.budgets_credentials and settings.budgets_file:
        client = BudgetsClient(settings.budgets_server, settings.budgets_credentials)
        reporter = Reporter(client, settings.budgets_file, lambda: ask(agent, "budgets"))
    with Server(
        settings,
        lambda: read_snapshot(agent),
        lambda: ask_ready(agent),
        lambda: ask_report(agent),
        lambda arguments: ask_usage(agent, arguments),
    ) as server:
        gc.freeze()  # what is loaded by now stays, and need not be looked through for every page
        worker = threading.Thread(target=server.serve_forever, name="http")
        worker.start()
        if reporter:
            threading.Thread(target=reporter.run, args=[ended], name="budgets", daemon=True).start()
        log.info(
            "listening address=%s port=%d tls=%s credentials=%s agent=%s",
            *server.socket.getsockname()[:2],
            settings.tls_cert is not None,
            settings.credentials or "none",
            agent,
        )
        if os.geteuid() == 0:
            log.warning(
                "needless-privilege user=root hint=%s", "any user in the socket's group is enough"
            )
        wait()
        ended.set()
        server.shutdown()
        worker.join()
    log.info("stopped")
