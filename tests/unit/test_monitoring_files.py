"""What stands in configs/ is what the catalogue gives, and Prometheus' own tool has nothing against
it.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import _jsonnet
import pytest
import yaml

from exporter import catalog
from exporter.catalog import CATALOG
from exporter.controller_catalog import CONTROLLER
from exporter.metric import Kind, Metric
from exporter.monitoring.__main__ import main
from exporter.monitoring.alerts import ALERTS
from exporter.monitoring.dashboard import render
from exporter.monitoring.dashboards import DASHBOARDS
from exporter.monitoring.files import PORT, RUNBOOKS_FILE, files
from exporter.monitoring.promql import TARGET_LABELS, buckets, read
from exporter.monitoring.recording import GROUPS, Recorded
from netmgr import programs
from netmgr.plan.render import kubernetes
from tests.fakes import kustomize

CONFIGS = Path(__file__).parent.parent.parent / "configs"
RECORDED = [rule for group in GROUPS for rule in group.rules]
DASHBOARD_QUERIES = [
    query.expression
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for query in panel.queries
]
EXPRESSIONS = [
    *(rule.expression for rule in RECORDED),
    *(alert.expression for alert in ALERTS),
    *DASHBOARD_QUERIES,
]

SERIES = re.compile(r"\b(?:netmgr|iptables)_\w+|\b[a-z_]+:[a-z0-9_:]+|\bup\b")
GROUPED = re.compile(r"\b(?:by|without|on|ignoring) \(([^)]*)\)")


def exposed(metric: Metric) -> str:
    return buckets(metric).name if metric.kind is Kind.HISTOGRAM else metric.name


@pytest.mark.parametrize("name", files())
def test_the_file_is_what_the_catalogue_gives(name: str) -> None:
    assert (CONFIGS / name).read_text("utf-8") == files()[name], (
        "run: python -m exporter.monitoring"
    )


def test_no_file_stands_beside_them_that_nothing_renders() -> None:
    standing = {
        path.relative_to(CONFIGS)
        for folder in ("prometheus", "grafana")
        for path in (CONFIGS / folder).iterdir()
    }
    assert standing == set(map(Path, files())) - {Path("mixin.libsonnet")}


def test_the_command_writes_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--directory", str(tmp_path)]) == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} == set(files())
    assert len(capsys.readouterr().out.splitlines()) == len(files())


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_only_series_and_labels_that_exist(expression: str) -> None:
    known = {exposed(metric): metric.labels for metric in (*CATALOG, *CONTROLLER)} | {
        rule.name: rule.labels for rule in RECORDED
    }
    named = set(SERIES.findall(re.sub(r'"[^"]*"', "", expression)))
    assert named
    assert named <= known.keys() | {"up"}
    labels = {label for name in named - {"up"} for label in known[name]} | {*TARGET_LABELS, "le"}
    assert {label for group in GROUPED.findall(expression) for label in group.split(", ")} <= labels


@pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: rule.name)
def test_a_recorded_series_has_the_labels_it_states(rule: Recorded) -> None:
    inner = re.findall(r"sum by \(([^)]*)\)", rule.expression)
    assert {tuple(labels.split(", ")) for labels in inner} == {rule.labels}


@pytest.mark.parametrize("expression", [alert.expression for alert in ALERTS] + DASHBOARD_QUERIES)
def test_nothing_that_is_evaluated_often_reads_every_pod(expression: str) -> None:
    assert catalog.POD_BYTES.name not in expression
    assert catalog.POD_PACKETS.name not in expression


def test_a_label_that_a_series_has_not_is_refused() -> None:
    assert read(catalog.POD_BYTES, "5m", pod="=~a.*", instance="n") == (
        'netmgr_pod_traffic_bytes_total{pod=~"a.*",instance="n"}[5m]'
    )
    with pytest.raises(ValueError, match="no label code"):
        read(catalog.POD_BYTES, code="0")
    with pytest.raises(ValueError, match="buckets"):
        read(catalog.DURATIONS)


def test_targets_are_asked_where_exporters_listen() -> None:
    assert kubernetes.EXPORTER_PORT == PORT


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_a_dashboard_has_one_place_for_every_panel(dashboard) -> None:
    panels = render(dashboard)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        for at in (panel["gridPos"] for panel in panels)
    ]
    assert not any(one & other for one, other in combinations(cells, 2))
    assert [len(panel["targets"]) for panel in panels] == [
        len(panel.queries) for panel in dashboard.panels
    ]


def test_every_dashboard_has_a_name_of_its_own() -> None:
    loaded = [json.loads(path.read_text("utf-8")) for path in (CONFIGS / "grafana").glob("*.json")]
    assert (
        len({dashboard["uid"] for dashboard in loaded})
        == len({dashboard["title"] for dashboard in loaded})
        == 8
    )


@pytest.mark.programs
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "--lint=all", "--lint-fatal", "scrape.yml"),
        ("check", "rules", "--lint=all", "--lint-fatal", "recording.yml", "alerts.yml"),
    ],
    ids=" ".join,
)
def test_promtool_finds_nothing_to_complain_about(arguments: tuple[str, ...]) -> None:
    outcome = programs.run(
        [programs.locate("promtool", "prometheus"), *arguments], cwd=CONFIGS / "prometheus"
    )
    assert outcome.returncode == 0, outcome.stderr.decode()


@pytest.mark.programs
def test_what_the_scrape_configuration_offers_in_comments_is_valid_too(tmp_path: Path) -> None:
    offered = re.sub(
        r"^( *)# ( *(?:- )?[a-z_]+: ?.*)$",
        r"\1\2",
        files()["prometheus/scrape.yml"],
        flags=re.MULTILINE,
    )
    document = yaml.safe_load(offered)
    (job,) = document["scrape_configs"]
    assert {"scheme", "tls_config", "authorization", "relabel_configs"} <= job.keys()
    assert "write_relabel_configs" in document["remote_write"][0]
    assert job.pop("kubernetes_sd_configs") == [{"role": "node"}], (
        "Debian's Prometheus is built without Kubernetes"
    )
    (tmp_path / "scrape.yml").write_text(yaml.safe_dump(document))
    promtool = programs.locate("promtool", "prometheus")
    outcome = programs.run(
        [promtool, "check", "config", "--syntax-only", "scrape.yml"], cwd=tmp_path
    )
    assert outcome.returncode == 0, outcome.stderr.decode()


def test_the_scrape_configuration_loads_the_rules_beside_it() -> None:
    beside = {
        name.removeprefix("prometheus/"): yaml.safe_load(text)
        for name, text in files().items()
        if name.startswith("prometheus/")
    }
    # What is for Prometheus' operator has rules as well, but in an object of Kubernetes.
    with_rules = {name for name, document in beside.items() if "groups" in document}
    assert set(beside["scrape.yml"]["rule_files"]) == with_rules


def test_the_mixin_has_every_dashboard_and_rule() -> None:
    # Its fields are hidden, as those of every mixin, until somebody asks for them.
    shown = (
        f"local mixin = import '{CONFIGS / 'mixin.libsonnet'}'; {{ [key]: mixin[key] "
        "for key in ['grafanaDashboards', 'prometheusAlerts', 'prometheusRules'] }"
    )
    mixin = json.loads(_jsonnet.evaluate_snippet("all", shown))
    assert mixin["grafanaDashboards"] == {
        f"{dashboard.uid}.json": render(dashboard) for dashboard in DASHBOARDS
    }
    for key, name in (("prometheusAlerts", "alerts.yml"), ("prometheusRules", "recording.yml")):
        assert mixin[key] == yaml.safe_load((CONFIGS / "prometheus" / name).read_text())


def test_the_operators_object_has_the_same_rules() -> None:
    (rule,) = kustomize.build(CONFIGS / "prometheus")
    of_files = [
        group
        for name in ("recording.yml", "alerts.yml")
        for group in yaml.safe_load((CONFIGS / "prometheus" / name).read_text())["groups"]
    ]
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"]["groups"] == of_files


def test_config_maps_have_the_dashboards_where_grafanas_sidecar_looks() -> None:
    made = kustomize.build(CONFIGS / "grafana")
    assert {found["metadata"]["labels"]["grafana_dashboard"] for found in made} == {"1"}
    shown = [json.loads(text) for found in made for text in found["data"].values()]
    assert shown == [render(dashboard) for dashboard in DASHBOARDS]
    # A ConfigMap and the annotation that `kubectl apply` makes of it hold 1 MiB and 256 KiB.
    assert all(len(json.dumps(found)) < 200_000 for found in made)


def test_every_alert_leads_to_its_runbook() -> None:
    page = (CONFIGS.parent / RUNBOOKS_FILE).read_text()
    assert re.findall(r"(?m)^### (\w+)$", page) == [alert.name for alert in ALERTS]
    at_a_site = files("https://docs.example.com/")["prometheus/alerts.yml"]
    for text, base in (
        (files()["prometheus/alerts.yml"], RUNBOOKS_FILE),
        (at_a_site, "https://docs.example.com/reference/alerts/"),
    ):
        rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
        assert [rule["annotations"]["runbook_url"] for rule in rules] == [
            f"{base}#{alert.name.lower()}" for alert in ALERTS
        ]
