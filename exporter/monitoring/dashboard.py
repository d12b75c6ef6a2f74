"""What a Grafana dashboard is, and the JSON that Grafana imports for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.monitoring.promql import read
from exporter.monitoring.recording import CLUSTER_BYTES

CLUSTER = "=~$cluster"
"""Matcher of the dashboard's variable; "All" is `.*`, which a missing label matches too."""

SCHEMA = 39
"""Of Grafana 10.4; newer ones read it and convert."""

COLUMNS, HEIGHT = 24, 9

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One line or more of a panel; `legend` names each by its labels."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A diagram over time, half the page wide; with `kind` "bargauge" or "stat" current values."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    stacked: bool = False
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One file; `uid` is what links to it are made of."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def render(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["netmgr"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource_variable(), _cluster_variable()]},
        "panels": list(_panels(dashboard.panels)),
    }


def _datasource_variable() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _cluster_variable() -> dict[str, Any]:
    query = f"label_values({read(CLUSTER_BYTES)}, cluster)"
    return {
        "name": "cluster",
        "label": "Cluster",
        "type": "query",
        "datasource": DATASOURCE,
        "query": query,
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    width = COLUMNS // 2
    for index, panel in enumerate(panels):
        row, column = divmod(index, 2)
        yield {
            "id": index + 1,
            "type": panel.kind,
            "title": panel.title,
            "description": panel.meaning,
            "datasource": DATASOURCE,
            "gridPos": {"x": column * width, "y": row * HEIGHT, "w": width, "h": HEIGHT},
            "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
            "options": _options(panel),
            "targets": [
                _target(query, panel, letter)
                for letter, query in zip("ABCDEF", panel.queries, strict=False)
            ],
        }


def _defaults(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {"unit": panel.unit, "min": 0}
    stacking = {"mode": "normal" if panel.stacked else "none"}
    return {
        "unit": panel.unit,
        "min": 0,
        "custom": {"fillOpacity": 30 if panel.stacked else 0, "stacking": stacking},
    }


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        legend = {
            "displayMode": "table",
            "placement": "right",
            "calcs": ["lastNotNull"],
            "showLegend": True,
        }
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
    }


def _target(query: Query, panel: Panel, letter: str) -> dict[str, Any]:
    is_now = panel.kind != "timeseries"
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "expr": query.expression,
        "legendFormat": query.legend,
        "instant": is_now,
        "range": not is_now,
    }
