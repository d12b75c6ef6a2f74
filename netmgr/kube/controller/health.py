"""What a controller reports over HTTP: /metrics for Prometheus, /healthz for the kubelet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, Counter, Gauge, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from exporter import controller_catalog as catalog
from exporter.catalog import Metric
from exporter.wsgi import PublicHandler, PublicServer
from netmgr.errors import SetupError
from netmgr.kube.client.api import Api

if TYPE_CHECKING:
    # Not otherwise: a controller without budgets needs no aiohttp.
    from netmgr.budgets.server import BudgetServer

PLAIN = (("Content-Type", "text/plain; charset=utf-8"),)

# A part hangs after so many seconds without a beat: a request times out after 30, and a round has
# a few in a row.
SILENCE = 300.0


class ControllerHealth:
    """Notices parts of a controller that hang, by their last beat. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}

    def beat(self, part: str) -> None:
        with self._lock:
            self._last[part] = self._clock()

    def idle(self, part: str) -> None:
        """Expect no beat of this part until its next one."""
        with self._lock:
            self._last.pop(part, None)

    def fault(self) -> str:
        """Name the parts that hang; empty when none does."""
        with self._lock:
            silent = {part: self._clock() - last for part, last in self._last.items()}
        hanging = [f"{part} for {age:.0f} s" for part, age in silent.items() if age > SILENCE]
        return f"no sign of {', '.join(hanging)}" if hanging else ""


class Telemetry:
    """The controller's figures; `exporter/controller_catalog.py` says what each means."""

    def __init__(self, api: Api, budgets: BudgetServer | None = None) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(BudgetCollector(budgets))
        # Read when they are asked for: the client counts its requests itself.
        self.registry.register(_Requests(api))
        self.leader = self._gauge(catalog.LEADER)
        self.nodes = self._gauge(catalog.NODES)
        self.allocations = self._gauge(catalog.ALLOCATIONS)
        self.assigned = self._counter(catalog.ASSIGNMENTS)
        self.conflicts = self._counter(catalog.CONFLICTS)
        # Gauges, and so without `_total`: they start again with every leadership.
        self.lists = self._gauge(catalog.LISTS)
        self.watches = self._gauge(catalog.WATCHES)
        self.plan_refused = self._gauge(catalog.PLAN_REFUSED)
        self.unhealthy = self._gauge(catalog.UNHEALTHY)
        self.preflight_failed = self._gauge(catalog.PREFLIGHT_FAILED)
        self.sharing_ranges = self._gauge(catalog.SHARING_RANGES)
        self.budgets_refused = self._gauge(catalog.BUDGETS_REFUSED)

    def _gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)


class _Requests(Collector):
    def __init__(self, api: Api) -> None:
        self._api = api

    def collect(self) -> Iterator[CounterMetricFamily]:
        metric = catalog.API_REQUESTS
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        for (verb, code), number in sorted(self._api.asked().items()):
            family.add_metric([verb, str(code)], number)
        yield family


_BUDGET_GAUGES = (
    *(catalog.BUDGET_RATE, catalog.BUDGET_LEVEL, catalog.BUDGET_WAITING, catalog.BUDGET_QUOTA),
    catalog.BUDGET_SILENT,
)


class BudgetCollector(Collector):
    """How budgets stand; nothing while another leads."""

    def __init__(self, server: BudgetServer | None) -> None:
        self._server = server

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        metric = catalog.BUDGET_REPORTS
        reports = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        gauges = {
            metric: GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for metric in _BUDGET_GAUGES
        }
        if self._server is not None:
            for outcome, number in self._server.counted.copy().items():
                reports.add_metric([outcome], number)
            for metric, labels, amount in _samples(self._server):
                gauges[metric].add_metric(labels, amount)
        yield reports
        yield from gauges.values()


def _samples(server: BudgetServer) -> Iterator[tuple[Metric, list[str], float]]:
    if server.leading is not None:
        yield catalog.BUDGET_SILENT, [], len(server.silent)
    for status in server.statuses:
        name = status["name"]
        yield catalog.BUDGET_RATE, [name, "limit"], status["rate"] / 8
        yield catalog.BUDGET_RATE, [name, "outstanding"], status["outstanding"] / 8
        yield catalog.BUDGET_WAITING, [name], status["waiting"]
        if status["level"] is not None:
            yield catalog.BUDGET_LEVEL, [name], status["level"] / 8
        if status["per_day"]:
            yield catalog.BUDGET_QUOTA, [name, "limit"], status["per_day"]
            yield catalog.BUDGET_QUOTA, [name, "used"], status["used"]


def serve(registry: CollectorRegistry, listen: str, fault: Callable[[], str]) -> int:
    """Answer HTTP at `address:port` in a thread of its own; returns the port (0: any free one).

    Without an address it is open by both families: the kubelet asks at whichever the pod has.
    `fault` describes what is wrong with the controller; empty while it is well.

    Raises:
        SetupError: the port is taken, or `listen` is malformed.
    """
    address, _, port = listen.rpartition(":")
    metrics = make_wsgi_app(registry)

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environment["PATH_INFO"] == "/metrics":
            page: Iterable[bytes] = metrics(environment, start)
            return page
        if environment["PATH_INFO"] == "/healthz":
            problem = fault()
            start("503 Service Unavailable" if problem else "200 OK", list(PLAIN))
            return [f"{problem or 'ok'}\n".encode()]
        start("404 Not Found", list(PLAIN))
        return [b"there are /metrics and /healthz\n"]

    try:
        # Brackets tell an IPv6 address's colons from the port's.
        server = PublicServer((address.strip("[]"), int(port)), PublicHandler)
    except (OSError, ValueError, OverflowError) as error:
        raise SetupError(
            f"cannot listen at {listen!r}: {error}; give --listen ADDRESS:PORT"
        ) from None
    server.set_app(answer)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return int(server.server_port)
