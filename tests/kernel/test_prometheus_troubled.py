"""The dashboards about netmgr itself, where nodes and controllers have every trouble there is.

A lab has most of it never. So the page that Prometheus scrapes is made from the catalogues: every
metric, with values that grow, or that say that something is wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path

import pytest

from exporter import catalog, controller_catalog
from exporter.catalog import CATALOG, Metric, MetricKind
from exporter.controller_catalog import CONTROLLER
from netmgr.api.snapshot import Fault
from tests.kernel.namespaces import inside
from tests.kernel.scraped import CONFIGS, Prometheus, scraping
from tests.lab import named_netns, wiring

pytestmark = [pytest.mark.root, pytest.mark.slow]

DASHBOARDS = ("netmgr-accounting", "netmgr-nodes", "netmgr-controller")
WRONG_AT_ZERO = {catalog.DURABLE, catalog.UP, catalog.READY}
ONES = {catalog.PROBLEMS, controller_catalog.LEADER}


def page(scrape: int) -> str:
    """Every metric, once for each label's two values."""
    lines = []
    for metric in (*CATALOG, *CONTROLLER):
        if metric.kind is not MetricKind.HISTOGRAM:
            lines += [f"{metric.name}{labels} {value(metric, scrape)}" for labels in series(metric)]
    return "\n".join(lines) + "\n"


def series(metric: Metric) -> Iterator[str]:
    if metric == catalog.PROBLEMS:
        yield from (f'{{reason="{fault}"}}' for fault in Fault)
        return
    if not metric.labels:
        yield ""
    for text in ("one", "free") if metric.labels else ():
        yield "{" + ",".join(f'{label}="{text}"' for label in metric.labels) + "}"


def value(metric: Metric, scrape: int) -> float:
    if metric == catalog.STARTED:
        return time.time() - 60
    if metric in WRONG_AT_ZERO:
        return 0
    return 1 if metric in ONES else 1 + scrape


@contextmanager
def serving(namespace: Path) -> Iterator[str]:
    scrapes = count()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page(next(scrapes)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing of each scrape."""

    with wiring.inside(namespace):
        server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    namespace = tmp_path_factory.mktemp("troubled") / "netns"
    named_netns.create(namespace)
    try:
        inside(namespace, "ip", "link", "set", "lo", "up")
        with (
            serving(namespace) as target,
            scraping(namespace, [target], tmp_path_factory.mktemp("prometheus")) as running,
        ):
            yield running
    finally:
        named_netns.delete(namespace)


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_every_query_shows_what_is_wrong(troubled: Prometheus, dashboard: str) -> None:
    troubled.answers(CONFIGS / f"grafana/{dashboard}.json")
