"""Writes the files of configs/prometheus and configs/grafana and the mixin, or draws a dashboard.

python -m exporter.monitoring
python -m exporter.monitoring --draw netmgr-egress --prometheus localhost:9090 --hours 6 >egress.svg
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from exporter.monitoring.dashboard import Dashboard, Query
from exporter.monitoring.dashboards import DASHBOARDS
from exporter.monitoring.files import files
from exporter.monitoring.picture import Answers, Line, draw
from netmgr.errors import NetmgrError, SetupError

SECONDS_PER_HOUR = 3600
STEPS = 120
TIMEOUT_SECONDS = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files below a directory, or the picture to standard output."""
    options = _parser().parse_args(arguments)
    if options.draw is None:
        _write(options.directory, options.documentation)
        return 0
    dashboard = next(dashboard for dashboard in DASHBOARDS if dashboard.uid == options.draw)
    now = time.time()
    try:
        answers = ask(
            dashboard, options.prometheus, Span(now - options.hours * SECONDS_PER_HOUR, now)
        )
    except NetmgrError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(draw(dashboard, answers))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m exporter.monitoring",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--directory", metavar="PATH", type=Path, default=Path("configs"), help="default: configs"
    )
    parser.add_argument(
        "--documentation",
        metavar="URL",
        default="",
        help="the documentation's site, for the alerts' runbooks; default: paths in the repository",
    )
    parser.add_argument(
        "--draw", choices=[dashboard.uid for dashboard in DASHBOARDS], help="a dashboard, as SVG"
    )
    parser.add_argument(
        "--prometheus",
        metavar="HOST:PORT",
        default="localhost:9090",
        help="default: localhost:9090",
    )
    parser.add_argument("--hours", type=float, default=6, help="how far back to draw; default: 6")
    return parser


def _write(directory: Path, documentation: str) -> None:
    for name, text in files(documentation).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when, in seconds since 1970."""

    start: float
    end: float


def ask(dashboard: Dashboard, server: str, span: Span, cluster: str = ".*") -> Answers:
    """What the Prometheus at `server` (host:port) has for every query of `dashboard`.

    Raises:
        SetupError: it does not answer, or refuses a query.
    """
    connection = http.client.HTTPConnection(server, timeout=TIMEOUT_SECONDS)
    try:
        answers: dict[str, list[Line]] = {}
        for panel in dashboard.panels:
            for query in panel.queries:
                expression = query.expression.replace("$cluster", cluster)
                answers[query.expression] = _lines(query, _query(connection, expression, span))
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise SetupError(
            f"no Prometheus answers at {server}: {error}; name another with --prometheus"
        ) from error
    finally:
        connection.close()
    return answers


def _query(
    connection: http.client.HTTPConnection, expression: str, span: Span
) -> list[dict[str, Any]]:
    step = max((span.end - span.start) / STEPS, 1)
    fields = {"query": expression, "start": span.start, "end": span.end, "step": step}
    connection.request("GET", f"/api/v1/query_range?{urlencode(fields)}")
    answer = json.loads(connection.getresponse().read())
    if answer["status"] != "success":
        raise SetupError(f"Prometheus refuses {expression}: {answer.get('error')}")
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def _lines(query: Query, result: list[dict[str, Any]]) -> list[Line]:
    found = []
    for series in result:
        points = tuple((moment, float(value)) for moment, value in series["values"])
        finite = tuple(point for point in points if math.isfinite(point[1]))
        if finite:
            found.append(Line(_named(query.legend, series["metric"]), finite))
    return found


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend)


if __name__ == "__main__":
    sys.exit(main())
