"""Puts a dashboard's queries to a Prometheus (its HTTP API, prometheus.io/docs/prometheus/latest/querying/api)."""

from __future__ import annotations

import http.client
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from exporter.monitoring.dashboards import Dashboard, Query
from exporter.monitoring.picture import Answers, Line
from netmgr.errors import SetupError

STEPS = 120
TIMEOUT_SECONDS = 30


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
        return {
            query.expression: _lines(query, _query(connection, query.expression.replace("$cluster", cluster), span))
            for panel in dashboard.panels
            for query in panel.queries
        }
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise SetupError(f"no Prometheus answers at {server}: {error}; name another with --prometheus") from error
    finally:
        connection.close()


def _query(connection: http.client.HTTPConnection, expression: str, span: Span) -> list[dict[str, Any]]:
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
