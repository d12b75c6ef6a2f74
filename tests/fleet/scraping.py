"""A real Prometheus that scrapes a part of a fleet: what it takes, and how long its queries do.

It has Debian's package, the rules of configs/prometheus and pages of the exporter's collector. It
scrapes more often than it would, so that its memory has as many samples of each series as after two
hours, which is what Prometheus keeps there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import yaml

from netmgr import programs
from tests.bench.report import Figure
from tests.fleet.effort import Effort
from tests.kernel.scraped import CONFIGS, queries
from tests.kubernetes.control_plane import free_ports

PATIENCE = 900
RANGE_POINTS = 240


def measure(effort: Effort) -> Iterator[Figure]:
    """Memory, samples a second, and times of rules and dashboards."""
    with (
        TemporaryDirectory() as folder,
        _pages(effort) as port,
        _running(Path(folder), port, effort) as prometheus,
    ):
        time.sleep(effort.scrapes * effort.scrape_seconds)
        yield from _figures(prometheus, effort)


class Prometheus:
    """A process, and its HTTP API."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self._port = port

    def get(self, path: str, **fields: str) -> Any:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=300)
        try:
            connection.request("GET", f"/api/v1/{path}?{urlencode(fields)}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert answer["status"] == "success", answer
        return answer["data"]

    def value(self, expression: str) -> float:
        (found,) = self.get("query", query=expression)["result"]
        return float(found["value"][1])

    def took(self, path: str, **fields: str) -> float:
        """Milliseconds that a query takes."""
        began = time.perf_counter()
        self.get(path, **fields)
        return 1000 * (time.perf_counter() - began)

    def most_memory(self) -> float:
        """Megabytes that the process had at most."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1000


def _figures(prometheus: Prometheus, effort: Effort) -> Iterator[Figure]:
    of = f"{effort.scraped:,} nodes"
    up = prometheus.value("sum(up{job='netmgr'})")
    assert up == effort.scraped, f"{up} of {of} are scraped"
    samples = prometheus.value("sum(scrape_samples_scraped{job='netmgr'})")
    series = prometheus.get("status/tsdb")["headStats"]["numSeries"]
    yield Figure(f"series of {of}", series, "")
    yield Figure(f"samples of one scrape of {of}", samples, "")
    yield Figure(f"samples a second, at a scrape each 30 s, of {of}", samples / 30, "")
    yield Figure(f"Prometheus' memory at most, {of}", prometheus.most_memory(), "MB")
    yield from _rules(prometheus, of)
    yield from _dashboards(prometheus, effort, of)


def _rules(prometheus: Prometheus, of: str) -> Iterator[Figure]:
    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert all(rule["health"] == "ok" for rule in rules), rules
    for kind in ("recording", "alerting"):
        took = sum(1000 * rule["evaluationTime"] for rule in rules if rule["type"] == kind)
        yield Figure(f"all {kind} rules once, {of}", took, "ms")


def _dashboards(prometheus: Prometheus, effort: Effort, of: str) -> Iterator[Figure]:
    seconds = effort.scrapes * effort.scrape_seconds
    until = time.time()
    fields = {"start": str(until - seconds), "end": str(until)}
    fields["step"] = str(max(1.0, seconds / RANGE_POINTS))
    took = [
        prometheus.took("query_range", query=query, **fields)
        for path in (CONFIGS / "grafana").glob("*.json")
        for query in queries(path)
    ]
    what = f"the slowest of {len(took)} queries of dashboards, {RANGE_POINTS} points, {of}"
    yield Figure(what, max(took), "ms")


@contextmanager
def _pages(effort: Effort) -> Iterator[int]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.fleet.pages", str(port), str(effort.scraped)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield port
    finally:
        process.kill()
        process.wait(PATIENCE)


@contextmanager
def _running(folder: Path, pages: int, effort: Effort) -> Iterator[Prometheus]:
    (port,) = free_ports(1)
    command = [
        programs.locate("prometheus", "prometheus"),
        f"--config.file={_configure(folder, pages, effort)}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    prometheus = Prometheus(process, port)
    try:
        deadline = time.monotonic() + PATIENCE
        while not _is_scraping(prometheus, effort.scraped):
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "not all nodes are scraped"
            time.sleep(1)
        yield prometheus
    finally:
        process.terminate()
        process.wait(60)


def _is_scraping(prometheus: Prometheus, nodes: int) -> bool:
    try:
        return prometheus.value("sum(up{job='netmgr'}) or vector(0)") == nodes
    except (OSError, ValueError, AssertionError):
        return False  # it does not listen yet, or says so in words


def _configure(folder: Path, pages: int, effort: Effort) -> Path:
    """The committed files with these targets and intervals."""
    interval = f"{effort.scrape_seconds}s"
    scrape = yaml.safe_load((CONFIGS / "prometheus" / "scrape.yml").read_text())
    scrape["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
    job = scrape["scrape_configs"][0]
    scrape["scrape_configs"] = [job]
    job |= {"scrape_interval": interval, "scrape_timeout": interval}
    job["static_configs"] = [
        {
            "targets": [f"127.0.0.1:{pages}"],
            "labels": {
                "__metrics_path__": f"/{number}",
                "instance": f"node-{number}:9119",
                "cluster": "training",
            },
        }
        for number in range(effort.scraped)
    ]
    (folder / "scrape.yml").write_text(yaml.safe_dump(scrape))
    for name in scrape["rule_files"]:
        rules = yaml.safe_load((CONFIGS / "prometheus" / name).read_text())
        for group in rules["groups"]:
            group["interval"] = interval
        (folder / name).write_text(yaml.safe_dump(rules))
    return folder / "scrape.yml"
