"""What a controller says of itself over HTTP: /metrics for Prometheus, /healthz for the kubelet."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, Counter, Gauge, make_wsgi_app
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from netmgr.errors import SetupError
from netmgr.kube.api import Api

log = logging.getLogger(__name__)

PLAIN = (("Content-Type", "text/plain; charset=utf-8"),)


class Telemetry:
    """The controller's figures."""

    def __init__(self, api: Api) -> None:
        """Requests are counted by `api` itself."""
        self.registry = registry = CollectorRegistry()
        registry.register(_Requests(api))
        self.leader = Gauge("netmgr_controller_leader", "Whether this controller leads.", registry=registry)
        self.nodes = Gauge(
            "netmgr_controller_nodes",
            "Nodes that run pods: served, waiting until their ranges are written, or refused.",
            ["state"],
            registry=registry,
        )
        self.places = Gauge(
            "netmgr_controller_places", "Places of the plan, by node pool.", ["pool", "state"], registry=registry
        )
        self.assigned = Counter("netmgr_controller_assignments", "Nodes told their ranges.", registry=registry)
        self.conflicts = Counter(
            "netmgr_controller_conflicts", "Writes refused because somebody wrote first.", ["of"], registry=registry
        )
        self.lists = Gauge("netmgr_controller_lists", "Full lists of the Nodes since leading.", registry=registry)
        self.watches = Gauge("netmgr_controller_watches", "Watches of the Nodes since leading.", registry=registry)
        self.plan_refused = Gauge(
            "netmgr_controller_plan_refused",
            "Whether the plan on disk is not in force because it would move Nodes.",
            registry=registry,
        )


class _Requests(Collector):
    """Requests to the API server."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "netmgr_controller_api_requests", "Requests to the API server; code 0: no answer.", labels=["verb", "code"]
        )
        for (verb, code), number in sorted(self._api.asked().items()):
            family.add_metric([verb, str(code)], number)
        yield family


class _Handler(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
        log.debug("request line=%s", format % args)


class _Server(ThreadingMixIn, WSGIServer):
    """Without an address it is reached over IPv4 and IPv6: the kubelet asks at whichever the pod has."""

    daemon_threads = True

    def __init__(self, address: str, port: int) -> None:
        everywhere = not address and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if everywhere or ":" in address else socket.AF_INET
        super().__init__((address.strip("[]"), port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, bool(self.server_address[0]))
        super().server_bind()


def serve(registry: CollectorRegistry, listen: str, ailment: Callable[[], str]) -> int:
    """Answer HTTP at `address:port` in a thread of its own; returns the port, which 0 leaves to the system.

    `ailment` says what is wrong with the controller, and nothing when it is well.

    Raises:
        SetupError: the port is taken, or `listen` is no such thing.
    """
    address, _, port = listen.rpartition(":")
    metrics = make_wsgi_app(registry)

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environment["PATH_INFO"] == "/metrics":
            page: Iterable[bytes] = metrics(environment, start)
            return page
        if environment["PATH_INFO"] == "/healthz":
            said = ailment()
            start("503 Service Unavailable" if said else "200 OK", list(PLAIN))
            return [f"{said or 'ok'}\n".encode()]
        start("404 Not Found", list(PLAIN))
        return [b"there are /metrics and /healthz\n"]

    try:
        server = _Server(address, int(port))
    except (OSError, ValueError, OverflowError) as error:
        raise SetupError(f"cannot listen at {listen!r}: {error}; give --listen ADDRESS:PORT") from None
    server.set_app(answer)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return int(server.server_port)
