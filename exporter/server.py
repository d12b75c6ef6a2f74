"""The exporter's HTTP side: /metrics, /healthz and /readyz on one port, v4 and v6 alike.

Formats (text, OpenMetrics) and gzip are negotiated by prometheus_client. The process holds no
state and no privilege: every scrape asks the agent anew.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from exporter.collector import Collector
from netmgr.errors import ConfigError, NetmgrError, SetupError
from netmgr.readers import read_snapshot
from netmgr.snapshot import Snapshot

log = logging.getLogger(__name__)

DEFAULT_LISTEN = ":9119"
IDLE_SECONDS = 10
PLAIN = ("Content-Type", "text/plain; charset=utf-8")
ANYWHERE = ""

Read = Callable[[], Snapshot]


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of `ADDRESS:PORT`, `[V6]:PORT` or `:PORT`; an empty host means every address.

    Raises:
        ConfigError: the text has another shape.
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 1 << 16) or (bare == host and ":" in host):
        raise ConfigError(f"--listen {text}: must be ADDRESS:PORT, [IPV6-ADDRESS]:PORT or :PORT, for example :9119")
    return bare, int(port)


class Handler(WSGIRequestHandler):
    """One request; a client that sends nothing is hung up on."""

    timeout = IDLE_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it so
        """Requests are debugging matter."""
        log.debug("event=request client=%s request=%r", self.client_address[0], format % args)

    def address_string(self) -> str:
        """The client's address, never looked up in the DNS."""
        return str(self.client_address[0])


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, bound when made.

    Raises:
        SetupError: the address cannot be bound.
    """

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, host: str, port: int, read: Read) -> None:
        try:
            self.address_family, address = _resolved(host, port)
            super().__init__(address, Handler)
        except OSError as error:
            raise SetupError(
                f"cannot listen on {host or '*'}:{port}: {error.strerror}; choose another address with --listen"
            ) from None
        self.set_app(application(read))

    def server_bind(self) -> None:
        """Bind v4 and v6 at once where no address was given, and skip the base class's DNS look-up."""
        if self.address_family == socket.AF_INET6:
            everywhere = self.server_address[0] == "::"
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if everywhere else 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Family and socket address to bind; without a host the v6 wildcard, or v4's where the kernel has no v6."""
    if host == ANYWHERE:
        host = "::" if _has_ipv6() else "0.0.0.0"  # noqa: S104  # a metrics endpoint is for the whole cluster
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, address


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


def application(read: Read) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """The three paths as one WSGI application."""
    registry = CollectorRegistry()
    registry.register(Collector(read))
    metrics = make_wsgi_app(registry)

    def respond(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, start_response)  # type: ignore[no-any-return]  # prometheus_client leaves it untyped
        status, body = _answer(path, read)
        start_response(status, [PLAIN])
        return [body.encode() + b"\n"]

    return respond


def _answer(path: str, read: Read) -> tuple[str, str]:
    if path == "/healthz":
        return "200 OK", "ok"
    if path == "/readyz":
        try:
            read()
        except NetmgrError as error:
            return "503 Service Unavailable", error.message
        return "200 OK", "ok"
    return "404 Not Found", "here are /metrics, /healthz and /readyz"


def serve(agent: Path, listen: str, wait: Callable[[], object]) -> None:
    """Serve what the agent behind the socket at `agent` tells, until `wait` returns.

    Raises:
        ConfigError: `listen` is malformed.
        SetupError: `listen` cannot be bound.
    """
    host, port = parse_listen(listen)
    if os.geteuid() == 0:
        log.warning("event=needless-privilege user=root hint=%r", "any user in the socket's group is enough")
    with Server(host, port, lambda: read_snapshot(agent)) as server:
        worker = threading.Thread(target=server.serve_forever, name="http")
        worker.start()
        log.info("event=listening address=%s port=%d agent=%s", *server.socket.getsockname()[:2], agent)
        wait()
        server.shutdown()
        worker.join()
    log.info("event=stopped")
