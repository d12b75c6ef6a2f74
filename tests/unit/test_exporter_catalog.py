"""The catalogue says what the collector gives: every family, label and number of series."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from exporter import catalog
from exporter.catalog import CATALOG
from exporter.collector import Collector
from exporter.metric import Kind, Metric, metrics_of
from netmgr import programs
from netmgr.api.snapshot import Snapshot
from netmgr.errors import TryAgainLater
from tests.fakes.agent_socket import snapshot

SUFFIXES = {
    Kind.COUNTER: ("_total",),
    Kind.GAUGE: ("",),
    Kind.HISTOGRAM: ("_bucket", "_sum", "_count"),
}


def families(document: Snapshot) -> dict:
    return {family.name: family for family in Collector(lambda: document).collect()}


def exposed_name(metric: Metric) -> str:
    return metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name


def test_every_family_is_in_the_catalogue_and_the_other_way_round() -> None:
    for document in (snapshot(), snapshot(0, 0)):
        assert sorted(families(document)) == sorted(map(exposed_name, CATALOG))


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)
def test_a_family_is_as_the_catalogue_says(metric: Metric) -> None:
    family = families(snapshot())[exposed_name(metric)]
    described = (family.type, family.documentation, family.unit)
    assert described == (metric.kind.value, metric.help, metric.unit)
    for sample in family.samples:
        assert sample.name.removeprefix(family.name) in SUFFIXES[metric.kind]
        assert tuple(label for label in sample.labels if label != "le") == metric.labels


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: metric.name)
def test_250_pods_give_the_number_of_series_that_the_catalogue_states(metric: Metric) -> None:
    samples = families(snapshot(catalog.PODS, catalog.NAMESPACES))[exposed_name(metric)].samples
    assert len(samples) == metric.series
    series = Counter((sample.name, tuple(sample.labels.items())) for sample in samples)
    assert max(series.values()) == 1


def test_a_catalogue_has_every_metric_of_its_module_and_nothing_else() -> None:
    first, second = CATALOG[:2]
    assert metrics_of({"FIRST": first, "PODS": 250, "SECOND": second}) == (first, second)


def test_while_the_agent_is_away_only_what_is_known_is_shown() -> None:
    def away() -> Snapshot:
        raise TryAgainLater("no agent")

    shown = {family.name: family.samples[0].value for family in Collector(away).collect()}
    assert sorted(shown) == sorted(metric.name for metric in catalog.ALWAYS)
    assert shown["netmgr_up"] == 0


def test_values_come_through_to_the_byte() -> None:
    document = snapshot(1, 1)
    document["pods"][0]["bytes"] = 2**53 - 1
    document["rules"][0] |= {"chain": "input", "bytes": 640, "packets": 5}
    registry = CollectorRegistry()
    registry.register(Collector(lambda: document))
    text = generate_latest(registry).decode()
    pod = '{namespace="team-0",pod="training-worker-0",traffic="internet-in"}'
    (exact,) = re.findall(f"netmgr_pod_traffic_bytes_total{pod} (.*)", text)
    assert int(float(exact)) == 2**53 - 1
    rule = '{chain="input",ip_version="4",rule="openai traffic=internet-in",table="mangle"}'
    assert f"iptables_bytes_total{rule} 640.0\n" in text
    assert f"iptables_packets_total{rule} 5.0\n" in text


@pytest.mark.programs
def test_the_example_scrape_configuration_is_valid() -> None:
    promtool = programs.locate("promtool", "prometheus")
    example = Path(__file__).parent.parent.parent / "configs" / "prometheus" / "scrape.yml"
    outcome = programs.run([promtool, "check", "config", "--lint=all", "--lint-fatal", example])
    assert outcome.returncode == 0, outcome.stderr.decode()
