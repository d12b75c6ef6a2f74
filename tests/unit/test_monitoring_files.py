"""Rules and dashboards read series that the catalogue has, and promtool accepts them; in its
simulation of Prometheus, volumes are bytes that were sent, and the documented rule names what came
by other nodes' ports.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import _jsonnet
import pytest
import yaml

from exporter import catalog
from exporter.catalog import CATALOG, Metric, MetricKind
from exporter.controller_catalog import CONTROLLER
from exporter.settings import DEFAULT_LISTEN
from netmgr.documents import loader
from netmgr.documents.prices import Prices
from netmgr.plan.render import kubernetes
from tests.fakes import kustomize
from tests.unit.monitoring import (
    ALERTS,
    CONFIGS,
    CONTROLLER_JOB,
    DASHBOARDS,
    JOB,
    PROMETHEUS,
    RECORDED,
    RULE_FILES,
    Rule,
    groups,
    promtool,
)

SCRAPE = (PROMETHEUS / "scrape.yml").read_text("utf-8")
TARGET_LABELS = {"cluster", "instance", "job"}
"""Labels that every scraped series gets from its target."""

DASHBOARD_QUERIES = [
    target["expr"]
    for dashboard in DASHBOARDS.values()
    for panel in dashboard["panels"]
    for target in panel["targets"]
]
EXPRESSIONS = [*(rule["expr"] for rule in (*RECORDED, *ALERTS)), *DASHBOARD_QUERIES]

SERIES = re.compile(r"\b(?:netmgr|iptables|kube)_\w+|\b[a-z_]+:[a-z0-9_:]+|\bup\b")
MATCHED = re.compile(rf"({SERIES.pattern}){{([^}}]*)}}")
MATCHER = re.compile(r'(\w+)(?:=~|!=|!~|=)"[^"]*"')
GROUPED = re.compile(r"\b(?:by|without|on|ignoring) \(([^)]*)\)")


def exposed(metric: Metric) -> tuple[str, set[str]]:
    """The series of a metric that can be read, and its labels."""
    labels = {*metric.labels, *TARGET_LABELS}
    if metric.kind is MetricKind.HISTOGRAM:
        return f"{metric.name}_bucket", labels | {"le"}
    return metric.name, labels


def recorded(rule: Rule) -> str:
    """The labels of what a rule records, which are those it sums by."""
    (labels,) = set(re.findall(r"sum by \(([^)]*)\)", rule["expr"]))
    return str(labels)


PRICE = "traffic:netmgr_price_per_gigabyte:max"
KNOWN = {
    **dict(map(exposed, (*CATALOG, *CONTROLLER))),
    **{rule["record"]: set(recorded(rule).split(", ")) for rule in RECORDED},
    "up": TARGET_LABELS,
    # Of configs/billing/price-rules.yml, and of kube-state-metrics.
    PRICE: {"traffic"},
    "kube_namespace_labels": {"cluster", "namespace", "label_team"},
}
"""The labels of every series."""


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_only_series_and_labels_that_exist(expression: str) -> None:
    """Prometheus reports neither: such a matcher selects nothing, or everything."""
    named = set(SERIES.findall(re.sub(r'"[^"]*"', "", expression)))
    assert named
    assert named <= KNOWN.keys()
    for name, matchers in MATCHED.findall(expression):
        assert re.sub(MATCHER, "", matchers).strip(",") == ""
        assert set(MATCHER.findall(matchers)) <= KNOWN[name]
    labels = {label for name in named for label in KNOWN[name]}
    assert {label for group in GROUPED.findall(expression) for label in group.split(", ")} <= labels


def test_a_recorded_series_says_in_its_name_which_labels_it_has() -> None:
    for rule in RECORDED:
        assert rule["record"].partition(":")[0] == recorded(rule).replace(", ", "_")


def test_nothing_that_is_evaluated_often_reads_every_pod() -> None:
    for expression in [*(rule["expr"] for rule in ALERTS), *DASHBOARD_QUERIES]:
        assert catalog.POD_BYTES.name not in expression
        assert catalog.POD_PACKETS.name not in expression


def test_targets_are_asked_where_exporters_listen() -> None:
    ports = {
        job["job_name"]: {
            target.partition(":")[2]
            for targets in job["static_configs"]
            for target in targets["targets"]
        }
        for job in yaml.safe_load(SCRAPE)["scrape_configs"]
    }
    assert ports == {JOB: {DEFAULT_LISTEN.partition(":")[2]}, CONTROLLER_JOB: {"9121"}}
    assert f":{kubernetes.EXPORTER_PORT}" == DEFAULT_LISTEN


def test_the_pod_monitor_gives_controllers_a_job_of_their_own() -> None:
    components = CONFIGS / "kubernetes" / "components"
    monitor = yaml.safe_load((components / "pod-monitor" / "pod-monitor.yaml").read_text("utf-8"))
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    deployment = yaml.safe_load((components / "controller" / "deployment.yaml").read_text("utf-8"))
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert deployment["metadata"]["namespace"] == monitor["metadata"]["namespace"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert [(port["name"], port["containerPort"]) for port in container["ports"]] == [
        (endpoint["port"], 9121)
    ]
    (relabeling,) = [each for each in endpoint["relabelings"] if each["targetLabel"] == "job"]
    (source,) = relabeling["sourceLabels"]
    assert source == "__meta_kubernetes_pod_label_app_kubernetes_io_component"
    assert relabeling["regex"] == pod["metadata"]["labels"]["app.kubernetes.io/component"]
    assert relabeling["replacement"] == CONTROLLER_JOB


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_a_dashboard_has_one_place_for_every_panel(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)


def test_all_dashboards_ask_the_chosen_prometheus_and_look_alike() -> None:
    (variables,) = {json.dumps(dashboard["templating"]) for dashboard in DASHBOARDS.values()}
    names = [variable["name"] for variable in json.loads(variables)["list"]]
    assert names == ["datasource", "cluster"]
    panels = [panel for dashboard in DASHBOARDS.values() for panel in dashboard["panels"]]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert all('cluster=~"$cluster"' in query for query in DASHBOARD_QUERIES)
    assert {panel["type"] for panel in panels} == {"timeseries", "bargauge", "stat"}
    assert len({(panel["type"], json.dumps(panel["options"])) for panel in panels}) == 3
    for panel in panels:
        is_now = panel["type"] != "timeseries"
        asked = {(target["instant"], target["range"]) for target in panel["targets"]}
        assert asked == {(is_now, not is_now)}
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == list("ABCDEF"[: len(letters)])


@pytest.mark.programs
@pytest.mark.parametrize(
    "arguments",
    [
        ("config", "--lint=all", "--lint-fatal", "scrape.yml"),
        ("rules", "--lint=all", "--lint-fatal", *RULE_FILES),
    ],
    ids=" ".join,
)
def test_promtool_finds_nothing_to_complain_about(arguments: tuple[str, ...]) -> None:
    promtool(PROMETHEUS, "check", *arguments)


@pytest.mark.programs
def test_what_the_scrape_configuration_offers_in_comments_is_valid_too(tmp_path: Path) -> None:
    offered = re.sub(r"(?m)^( *)# ( *(?:- )?[a-z_]+: ?.*)$", r"\1\2", SCRAPE)
    document = yaml.safe_load(offered)
    job, _ = document["scrape_configs"]
    assert {"scheme", "tls_config", "authorization", "relabel_configs"} <= job.keys()
    assert "write_relabel_configs" in document["remote_write"][0]
    assert job.pop("kubernetes_sd_configs") == [{"role": "node"}], (
        "Debian's Prometheus is built without Kubernetes"
    )
    (tmp_path / "scrape.yml").write_text(yaml.safe_dump(document))
    promtool(tmp_path, "check", "config", "--syntax-only", "scrape.yml")


def test_the_scrape_configuration_loads_the_rules_beside_it() -> None:
    # What is for Prometheus' operator has rules as well, but in an object of Kubernetes.
    beside = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in PROMETHEUS.iterdir()}
    with_rules = {name for name, document in beside.items() if "groups" in document}
    assert set(beside["scrape.yml"]["rule_files"]) == with_rules == set(RULE_FILES)


def test_the_mixin_has_every_dashboard_and_rule() -> None:
    # Its fields are hidden, as those of every mixin, until somebody asks for them.
    shown = (
        f"local mixin = import '{CONFIGS / 'mixin.libsonnet'}'; {{ [key]: mixin[key] "
        "for key in ['grafanaDashboards', 'prometheusAlerts', 'prometheusRules'] }"
    )
    mixin = json.loads(_jsonnet.evaluate_snippet("all", shown))
    assert mixin["grafanaDashboards"] == DASHBOARDS
    assert mixin["prometheusAlerts"]["groups"] == groups("alerts.yml")
    assert mixin["prometheusRules"]["groups"] == groups("recording.yml")


def test_the_operators_object_has_the_same_rules() -> None:
    (rule,) = kustomize.build(PROMETHEUS)
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"]["groups"] == [group for name in RULE_FILES for group in groups(name)]


def test_config_maps_have_the_dashboards_where_grafanas_sidecar_looks() -> None:
    made = kustomize.build(CONFIGS / "grafana")
    assert {item["metadata"]["labels"]["grafana_dashboard"] for item in made} == {"1"}
    shown = {name: json.loads(text) for item in made for name, text in item["data"].items()}
    assert shown == DASHBOARDS
    # A ConfigMap and the annotation that `kubectl apply` makes of it hold 1 MiB and 256 KiB.
    assert all(len(json.dumps(item)) < 200_000 for item in made)


def test_an_alert_says_how_urgent_it_is_what_it_means_and_what_to_do() -> None:
    for alert in ALERTS:
        assert alert["labels"].keys() == {"severity"}
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert alert["annotations"].keys() == {"summary", "description"}
        for page in re.findall(r"\bdocs/[\w/-]+\.md", alert["annotations"]["description"]):
            assert (CONFIGS.parent / page).exists()


ACCOUNTING = Path(__file__).parents[2] / "docs" / "accounting.md"
PORT_RULE = "cluster_namespace_pod_traffic:netmgr_remote_pod_traffic_bytes:rate5m"


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    selected = ",".join(f"{key}={json.dumps(value)}" for key, value in labels.items())
    return {"series": f"{name}{{{selected}}}", "values": values}


def simulate(folder: Path, rules: Path, interval: str = "1m", **test: Any) -> None:
    """Fail with what promtool has against the test."""
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": interval,
        "tests": [{"interval": "1m"} | test],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(document))
    promtool(folder, "test", "rules", "test.yml")


@pytest.mark.programs
@pytest.mark.parametrize("interval", ["15s", "60s", "180s"])
def test_a_volume_is_the_bytes_sent_at_any_interval(interval: str, tmp_path: Path) -> None:
    """promtool evaluates every group at the interval of the test."""
    panels = DASHBOARDS["netmgr-egress.json"]["panels"]
    (panel,) = [panel for panel in panels if "24 hours" in panel["title"]]
    (target,) = panel["targets"]
    query = target["expr"].replace("$cluster", ".*")
    minutes, gigabyte = 24 * 60, 1_000_000_000
    sent, values = minutes * gigabyte, f"0+{gigabyte}x{minutes + 60}"
    labels = {"namespace": "data", "traffic": "internet-out"}
    volume = {
        "expr": f"abs({query} - {sent}) > bool {sent // 200}",
        "eval_time": f"{minutes + 60}m",
        "exp_samples": [{"labels": '{namespace="data"}', "value": 0}],
    }
    given = series(catalog.NAMESPACE_BYTES.name, values, **labels)
    rules = PROMETHEUS / "recording.yml"
    simulate(tmp_path, rules, interval, input_series=[given], promql_expr_test=[volume])


@pytest.mark.programs
def test_a_legend_names_a_pod_or_a_namespace(tmp_path: Path) -> None:
    panels = DASHBOARDS["netmgr-talkers.json"]["panels"]
    targets = [target for panel in panels for target in panel["targets"]]
    (query, *_) = [one["expr"] for one in targets if "netmgr_quota_used" in one["expr"]]
    assert {one["legendFormat"][:6] for one in targets if "_limit_" in one["expr"]} == {"{{of}}"}
    given = [
        series(name, f"{value}x5", namespace="a", **of)
        for name, value in (("netmgr_quota_used_bytes", 1), ("netmgr_quota_bytes", 1))
        for of in ({"pod": "web"}, {})
    ]
    labels = ('{namespace="a",of="a"}', '{namespace="a",of="a/web",pod="web"}')
    shown = {
        "expr": query.replace("$cluster", ".*"),
        "eval_time": "2m",
        "exp_samples": [{"labels": each, "value": 1} for each in labels],
    }
    rules = PROMETHEUS / "recording.yml"
    simulate(tmp_path, rules, input_series=given, promql_expr_test=[shown])


def priced(panel: str) -> str:
    (query,) = (
        target["expr"]
        for one in DASHBOARDS["netmgr-costs.json"]["panels"]
        for target in one["targets"]
        if one["title"] == panel
    )
    return str(query).replace("$cluster", ".*")


@pytest.mark.programs
def test_a_cost_is_the_bytes_sent_at_the_price_of_their_class(tmp_path: Path) -> None:
    """A gigabyte a minute of each class, by two namespaces of a team and one of another's."""
    minutes = 60 * 25
    prices = yaml.safe_load((CONFIGS / "billing" / "price-rules.yml").read_text("utf-8"))
    (tmp_path / "rules.yml").write_text(
        yaml.safe_dump({"groups": [*groups("recording.yml"), *prices["groups"]]})
    )
    teams = {"web": "shop", "db": "shop", "train": "research"}
    given = [
        series(
            "kube_namespace_labels", f"1x{minutes}", cluster="a", namespace=name, label_team=team
        )
        for name, team in teams.items()
    ]
    for name in teams:
        for traffic in ("internet-out", "same-region-out")[: 1 if name == "db" else 2]:
            labels = {"cluster": "a", "instance": "n", "namespace": name, "traffic": traffic}
            values = f"0+{10**9}x{minutes}"
            given.append(series(catalog.NAMESPACE_BYTES.name, values, **labels))
    # Of the gigabytes of an hour, what two and one of them cost.
    shop, research = 60 * (0.09 + 0.01 + 0.09), 60 * (0.09 + 0.01)
    asked = {
        "Cost an hour, by team": {'label_team="shop"': shop, 'label_team="research"': research},
        "Cost an hour, by class": {
            'traffic="internet-out"': 3 * 60 * 0.09,
            'traffic="same-region-out"': 2 * 60 * 0.01,
        },
        "Cost of the last 24 hours, by team": {
            'label_team="shop"': 24 * shop,
            'label_team="research"': 24 * research,
        },
    }
    tests = [
        {
            "expr": f"round(40 * ({priced(panel)}) / {sum(costs.values())})",
            "eval_time": f"{minutes}m",
            "exp_samples": [
                {"labels": f"{{{labels}}}", "value": round(40 * cost / sum(costs.values()))}
                for labels, cost in costs.items()
            ],
        }
        for panel, costs in asked.items()
    ]
    simulate(tmp_path, tmp_path / "rules.yml", input_series=given, promql_expr_test=tests)


def test_the_price_rules_are_the_price_table() -> None:
    billing = CONFIGS / "billing"
    table = loader.load(billing / "prices.yaml", Prices)
    rules = yaml.safe_load((billing / "price-rules.yml").read_text("utf-8"))["groups"][0]["rules"]
    assert {rule["record"] for rule in rules} == {PRICE}
    prices = {rule["labels"]["traffic"]: rule["expr"] for rule in rules}
    assert prices == {traffic: f"vector({price})" for traffic, price in table.traffic.items()}


def remote(instance: str, address: str, rate: int) -> dict[str, str]:
    labels = {"cluster": "a", "instance": instance, "address": address, "traffic": "internet-in"}
    return series(catalog.REMOTE_POD_BYTES.name, f"0+{60 * rate}x20", **labels)


def pod(cluster: str, name: str, *, is_running: bool) -> list[dict[str, str]]:
    labels = {"cluster": cluster, "namespace": "data", "pod": name, "uid": name}
    return [
        series("kube_pod_info", "1x20", **labels, host_network="false", pod_ip="10.9.0.1"),
        series("kube_pod_status_phase", f"{int(is_running)}x20", **labels, phase="Running"),
    ]


@pytest.mark.programs
def test_bytes_of_all_entry_nodes_are_those_of_the_pod_that_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(groups:.*?)```", ACCOUNTING.read_text(), re.DOTALL)
    (tmp_path / "rules.yml").write_text(block)
    labels = '{cluster="a",namespace="data",pod="server",traffic="internet-in"}'
    named = {
        "expr": PORT_RULE,
        "eval_time": "15m",
        "exp_samples": [{"labels": PORT_RULE + labels, "value": 12}],
    }
    given = [
        remote("node-1", "10.9.0.1", 5),
        remote("node-2", "10.9.0.1", 7),
        remote("node-2", "10.9.0.2", 100),
        *pod("a", "server", is_running=True),
        *pod("a", "former", is_running=False),
        *pod("b", "other", is_running=True),
    ]
    simulate(tmp_path, tmp_path / "rules.yml", input_series=given, promql_expr_test=[named])
