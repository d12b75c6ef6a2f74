"""The exporter's HTTP or HTTPS port: /metrics, /, /healthz and /readyz, v4 and v6 alike.

Formats (text, OpenMetrics) and gzip are negotiated by prometheus_client. The process holds no
state and no privilege: every scrape asks the agent anew. Where clients must show a secret,
/healthz and /readyz stay open: they tell no traffic, and a kubelet's probes have none to show.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from exporter import access, page
from exporter.access import Door
from exporter.collector import NONSENSE, Collector
from exporter.settings import Settings
from netmgr.errors import ConfigError, NetmgrError, SetupError
from netmgr.readers import read_snapshot
from netmgr.snapshot import Snapshot

log = logging.getLogger(__name__)

IDLE_SECONDS = 10
PLAIN = ("Content-Type", "text/plain; charset=utf-8")
GUARDED = ("/", "/metrics")
ANYWHERE = ""

Read = Callable[[], Snapshot]


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
        ConfigError: the settings contradict each other, or a file they name is wrong. No port is open then.
        SetupError: the address cannot be bound.
    """

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, settings: Settings, read: Read) -> None:
        host, port = settings.check()
        door = access.door(settings)
        self._tls = access.tls(settings)
        try:
            self.address_family, address = _resolved(host, port)
            if door and not self._tls:
                _must_be_local(settings, address[0])
            super().__init__(address, Handler)
        except OSError as error:
            raise SetupError(
                f"cannot listen on {host or '*'}:{port}: {error.strerror}; choose another address with --listen"
            ) from None
        self.set_app(application(read, settings.max_series, door))

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  as typeshed has it
        """Answer one client, in its own thread; hands are shaken here, where a silent client keeps nobody waiting."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(IDLE_SECONDS)
        with self._tls.value().wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002  as typeshed has it
        """A client that went away, or cannot speak TLS, is no news; anything else is a mistake of ours."""
        fault = sys.exception()
        if isinstance(fault, OSError):
            log.debug("event=client-lost client=%s error=%r", client_address[0], str(fault))
        else:
            log.error("event=request-failed client=%s", client_address[0], exc_info=fault)

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


def _must_be_local(settings: Settings, address: str) -> None:
    if not ip_address(address.partition("%")[0]).is_loopback:
        raise ConfigError(
            f"{settings.credentials} without TLS, on {settings.listen}: every client would send its secret readable"
            " across the network; add --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy that has them"
        )


def application(
    read: Read, max_series: int = 0, door: Door | None = None
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """The four paths as one WSGI application."""
    registry = CollectorRegistry()
    registry.register(Collector(read, max_series))
    metrics = make_wsgi_app(registry)

    def respond(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if door and path in GUARDED and not door.admits(environ.get("HTTP_AUTHORIZATION", "")):
            start_response("401 Unauthorized", [PLAIN, ("WWW-Authenticate", door.challenge)])
            return [b"show the secret that this exporter was told to ask for\n"]
        if path == "/metrics":
            return metrics(environ, start_response)  # type: ignore[no-any-return]  # prometheus_client leaves it untyped
        if path == "/":
            start_response("200 OK", page.headers())
            return [_landing(read).encode()]
        status, body = _answer(path, read)
        start_response(status, [PLAIN])
        return [body.encode() + b"\n"]

    return respond


def _landing(read: Read) -> str:
    try:
        return page.of_node(read())
    except NetmgrError as error:
        return page.without_agent(error.message)
    except NONSENSE as error:
        return page.without_agent(f"its answer makes no sense: {error!r}")


def _answer(path: str, read: Read) -> tuple[str, str]:
    if path == "/healthz":
        return "200 OK", "ok"
    if path == "/readyz":
        try:
            read()
        except NetmgrError as error:
            return "503 Service Unavailable", error.message
        return "200 OK", "ok"
    return "404 Not Found", "here are /, /metrics, /healthz and /readyz"


def serve(agent: Path, settings: Settings, wait: Callable[[], object]) -> None:
    """Serve what the agent behind the socket at `agent` tells, until `wait` returns.

    Raises: as `Server`.
    """
    with Server(settings, lambda: read_snapshot(agent)) as server:
        worker = threading.Thread(target=server.serve_forever, name="http")
        worker.start()
        log.info(
            "event=listening address=%s port=%d tls=%s credentials=%s agent=%s",
            *server.socket.getsockname()[:2],
            settings.tls_cert is not None,
            settings.credentials or "none",
            agent,
        )
        if os.geteuid() == 0:
            log.warning("event=needless-privilege user=root hint=%r", "any user in the socket's group is enough")
        wait()
        server.shutdown()
        worker.join()
    log.info("event=stopped")
