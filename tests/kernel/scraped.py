"""A real Prometheus in a namespace of a lab, by the files in configs/, and its HTTP API.

Of the committed files only what a lab must have otherwise is changed: the targets, and intervals of
a second.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode

import yaml

from netmgr import programs
from tests.lab import wiring
from tests.waiting import PATIENCE

CONFIGS = Path(__file__).parent.parent.parent / "configs"
WEB_PORT = 9090
PORT = 9119
"""Of exporters."""

Result = list[dict]


@dataclass(frozen=True)
class Prometheus:
    """The process beside the nodes, and its HTTP API, which nobody outside the lab can reach."""

    namespace: Path
    log: Path

    def get(self, path: str, **fields: str) -> object:
        with wiring.inside(self.namespace):
            connection = http.client.HTTPConnection("127.0.0.1", WEB_PORT, timeout=PATIENCE)
            connection.connect()
        try:
            connection.request("GET", f"/api/v1/{path}?{urlencode(fields)}")
            response = connection.getresponse()
            if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
                # It listens before it has read what it stored.
                raise ConnectionRefusedError("Prometheus is starting")
            answer = json.loads(response.read())
        finally:
            connection.close()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> Result:
        return self.get("query", query=expression)["result"]

    def wait_for(self, expression: str, is_enough: Callable[[Result], bool]) -> Result:
        deadline = time.monotonic() + PATIENCE
        while not is_enough(result := self._tried(expression)):
            assert time.monotonic() < deadline, (
                f"{expression}: {result}\n{self.log.read_text()[-2000:]}"
            )
            time.sleep(0.2)
        return result

    def _tried(self, expression: str) -> Result:
        try:
            return self.query(expression)
        except ConnectionRefusedError:
            return []

    def answers(self, dashboard: Path) -> None:
        """Wait until every query of a dashboard has a result above zero."""
        for expression in queries(dashboard):
            self.wait_for(expression, lambda result: any(value(series) > 0 for series in result))

    def wait_for_scrapes(self) -> None:
        """Until every target was scraped after now: what happened before is recorded then."""
        now = time.time()
        self.wait_for(f"min(timestamp(netmgr_up)) > {now}", bool)


def value(series: dict) -> float:
    return float(series["value"][1])


def by(result: Result, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(series["metric"][label] for label in labels): value(series) for series in result}


def queries(dashboard: Path) -> Iterator[str]:
    """Every query of a dashboard, for all clusters."""
    for panel in json.loads(dashboard.read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$cluster", ".*")


@contextmanager
def scraping(
    namespace: Path, targets: Sequence[str], directory: Path, controllers: Sequence[str] = ()
) -> Iterator[Prometheus]:
    """A Prometheus in this namespace that scrapes these targets; its files are in `directory`."""
    command = [
        *(programs.locate("nsenter", "util-linux"), f"--net={namespace}"),
        programs.locate("prometheus", "prometheus"),
        f"--config.file={_configure((targets, controllers), directory)}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{WEB_PORT}",
    ]
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield Prometheus(namespace, log)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def _configure(of_jobs: Sequence[Sequence[str]], directory: Path) -> Path:
    scrape = yaml.safe_load((CONFIGS / "prometheus" / "scrape.yml").read_text())
    scrape["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job, targets in zip(scrape["scrape_configs"], of_jobs, strict=True):
        job |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
        job["static_configs"][0]["targets"] = list(targets)
    (directory / "scrape.yml").write_text(yaml.safe_dump(scrape))
    for name in scrape["rule_files"]:
        rules = yaml.safe_load((CONFIGS / "prometheus" / name).read_text())
        for group in rules["groups"]:
            group["interval"] = "1s"
        (directory / name).write_text(yaml.safe_dump(rules))
    return directory / "scrape.yml"
