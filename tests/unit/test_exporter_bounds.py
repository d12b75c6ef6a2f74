"""A page has what the catalogue says, and stays small: pods leave in a stated order, totals never,
and label values have an end.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from exporter import catalog
from exporter.bounds import (
    LONGEST_LABEL,
    SERIES_PER_LIMIT,
    SERIES_PER_QUOTA,
    bounded,
    by_size,
    by_use,
    select,
)
from exporter.catalog import CATALOG, Metric, MetricKind
from exporter.collector import Collector
from netmgr.api.snapshot import LimitState, PodTotals, QuotaState, Snapshot
from netmgr.errors import TryAgainLater
from netmgr.model import Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address
from tests.fakes.agent_socket import snapshot
from tests.fakes.ledger_tools import LINGER, Clock, opened

HOSTILE = (
    *('"', "\\", "\n", "\r", "\0", "\x1b[2J", "\u2028", "\x85", "} 1\nnetmgr_up 7\n", "# EOF"),
    *("é" * 300, "x" * 10_000),
)


def registry(document: Snapshot, max_series: int = 0) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(Collector(lambda: document, max_series))
    return made


def series(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def names(text: str, family: str, label: str) -> set[str]:
    return {
        found[1]
        for line in series(text)
        if line.startswith(family) and (found := re.search(rf'{label}="(.*?)"', line))
    }


def dropped(text: str) -> dict[str, float]:
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {
        sample.labels["pods"]: sample.value
        for sample in families["netmgr_exporter_dropped_series"].samples
    }


def page(document: Snapshot, max_series: int = 0) -> str:
    return generate_latest(registry(document, max_series)).decode()


def crowded_by(*kinds: str, pods: int = 100, namespaces: int = 4) -> Snapshot:
    """A busy node's snapshot: of what has to share the room that is left, it has these alone."""
    document = snapshot(pods, namespaces)
    for other in {"remote_pods", "connection_limits", "limits", "quotas"} - {*kinds}:
        document[other] = []
    if "throttled" not in kinds:
        document["budgets"]["throttled"] = []
    return document


def on_wires(totals: list[PodTotals]) -> list[PodTotals]:
    """The totals as a node has them where links count."""
    return [{**total, "wire": total["bytes"] + 9, "wire_unknown": 1} for total in totals]


def crowd(*pods: tuple[str, int, bool]) -> list[PodTotals]:
    """Totals of pods by name, bytes in each direction, and whether they are live."""
    return [
        {
            "namespace": "team",
            "pod": name,
            "traffic": way,
            "bytes": size,
            "packets": 1,
            "live": live,
        }
        for name, size, live in pods
        for way in Traffic
    ]


def test_lingering_pods_leave_first_then_the_live_ones_with_the_least_traffic() -> None:
    live = ("quiet", 1, True), ("busy", 900, True)
    pods = crowd(*live, ("gone-busy", 9000, False), ("gone-quiet", 5, False))
    for room, names_shown in (
        (16, ["quiet", "busy", "gone-busy", "gone-quiet"]),
        (12, ["quiet", "busy", "gone-busy"]),
        (8, ["quiet", "busy"]),
        (4, ["busy"]),
        (0, []),
    ):
        selection = select(pods, room)
        assert [*dict.fromkeys(total["pod"] for total in selection.shown)] == names_shown
        assert len(selection.shown) * 2 + selection.dropped_lingering + selection.dropped_live == 16
        # There are twice as many series of each where links count.
        at_links = select(on_wires(pods), 2 * room)
        assert at_links.shown == on_wires(list(selection.shown))
        assert at_links.dropped_live == 2 * selection.dropped_live


@given(
    st.lists(
        st.tuples(st.text("ab", min_size=1), st.integers(0, 3), st.booleans()),
        unique_by=lambda pod: pod[0],
    ),
    st.integers(-4, 60),
)
def test_whatever_the_pods_the_page_is_full_but_not_fuller_and_no_pod_is_halved(
    pods, room: int
) -> None:
    totals = crowd(*pods)
    selection = select(totals, room)
    shown = {total["pod"] for total in selection.shown}
    assert len(selection.shown) == 2 * len(shown) == 2 * min(len(pods), max(room, 0) // 4)
    assert select(totals[::-1], room).shown[::-1] == selection.shown
    rank = {name: (live, size) for name, size, live in pods}
    left = rank.keys() - shown
    assert all(rank[stays] >= rank[goes] for stays in shown for goes in left)


@pytest.mark.parametrize("bound", [1, 390, 500, 1388, 1389, 5000])
def test_a_page_holds_no_more_series_than_allowed_and_every_total_of_namespaces_and_node(
    bound: int,
) -> None:
    everything, text = page(snapshot()), page(snapshot(), bound)
    pods = len(names(text, "netmgr_pod_traffic_bytes", "pod"))
    without_pods = [line for line in series(text) if not line.startswith("netmgr_pod_traffic_")]
    assert len(series(text)) == len(without_pods) + 4 * pods <= max(bound, len(without_pods))
    kept = ("netmgr_namespace_traffic", "netmgr_node_traffic", "iptables_")
    kept += ("netmgr_accounting", "netmgr_ipam")
    shown, known = (
        [line for line in series(whole) if line.startswith(kept)] for whole in (text, everything)
    )
    assert shown == known
    # A scraper that asks for OpenMetrics gets no more of them.
    of_openmetrics = generate_openmetrics(registry(snapshot(), bound)).decode()
    assert len(series(of_openmetrics)) == len(series(text))
    assert dropped(text) == {"lingering": 0, "live": 4 * (250 - pods)}
    assert pods == min(250, max(0, bound - len(without_pods)) // 4)


def test_other_nodes_pods_get_the_room_that_is_left_the_busiest_first() -> None:
    document = snapshot(10, 1)
    for number, one in enumerate(document["remote_pods"]):
        one["bytes"] = number
    everything = series(page(document))
    remote = [line for line in everything if line.startswith("netmgr_remote_pod_")]
    assert len(remote) == catalog.REMOTE_POD_BYTES.series
    room = len(everything) - len(remote) + 3
    shown = series(page(document, room))
    assert len(shown) == room
    remote = [float(line.split()[-1]) for line in shown if line.startswith("netmgr_remote")]
    assert remote == [199.0, 198.0, 197.0]


def test_what_is_left_out_is_counted_by_the_pods_state() -> None:
    document = crowded_by()
    for number, total in enumerate(document["pods"]):
        total["live"] = number % 4 < 2
    rest = len(series(page(document))) - 400
    text = page(document, rest + 120)
    assert dropped(text) == {"lingering": 200, "live": 80}
    assert names(text, "netmgr_pod_traffic_bytes", "pod") == {
        f"training-worker-{n}" for n in range(40, 100, 2)
    }


@pytest.mark.parametrize(
    ("kind", "size", "series_each", "family"),
    [
        ("limits", "bytes", SERIES_PER_LIMIT, "netmgr_limit_backlog_bytes"),
        ("quotas", "used", SERIES_PER_QUOTA, "netmgr_quota_used_bytes"),
    ],
)
def test_limits_and_quotas_have_the_room_that_is_left_namespaces_first(
    kind: str, size: str, series_each: int, family: str
) -> None:
    document = crowded_by(kind)
    for number, one in enumerate(document[kind]):
        one[size] = number
    rest = len(series(page(document))) - len(document[kind]) * series_each
    text = page(document, rest + 7 * series_each - 1)
    # Four of the two namespaces, and two of the pods.
    assert names(text, family, "pod") == {"", "pod-9"}
    assert dropped(text) == {"lingering": 0, "live": 0}


def test_of_namespaces_that_budgets_hold_back_those_held_back_longest_are_shown() -> None:
    document = crowded_by("throttled", pods=1, namespaces=1)
    throttled = document["budgets"]["throttled"]
    for number, one in enumerate(throttled):
        one["seconds"] = number
    rest = len(series(page(document))) - len(throttled)
    text = page(document, rest + 2)
    assert names(text, "netmgr_budget_throttled_seconds", "budget") == {"budget-8", "budget-7"}
    assert len(series(text)) == rest + 2


def test_limits_of_namespaces_come_first_and_then_the_largest() -> None:
    in_order = [("", 1, "z"), ("pod-b", 9, "a"), ("pod-a", 8, "z"), ("pod-c", 8, "z")]
    limits = [
        cast(LimitState, {"pod": pod, "bytes": size, "namespace": namespace})
        for pod, size, namespace in reversed(in_order)
    ]
    assert by_size(limits) == limits[::-1]


def test_quotas_of_namespaces_come_first_and_then_those_used_most() -> None:
    # A quota of nothing is used by as much as it has bytes.
    in_order = [("", 0, 9), ("pod-b", 3, 0), ("pod-a", 2, 1), ("pod-c", 300, 200), ("pod-d", 9, 9)]
    quotas = [
        cast(QuotaState, {"pod": pod, "used": used, "budget": budget, "namespace": "a"})
        for pod, used, budget in reversed(in_order)
    ]
    assert by_use(quotas) == quotas[::-1]


def test_a_pod_is_as_large_as_its_totals_together() -> None:
    sizes = ("one", 60), ("two", 1), ("one", 60), ("two", 100)
    totals = [total | {"bytes": size} for pod, size in sizes for total in crowd((pod, 0, True))[:1]]
    chosen = select(totals, 4)
    assert [total["pod"] for total in chosen.shown] == ["one", "one"]
    assert (chosen.dropped_live, chosen.dropped_lingering) == (4, 0)
    # What has just enough room is shown as it came.
    assert select(totals, 8).shown is totals


def test_a_value_that_is_too_long_keeps_its_beginning() -> None:
    assert bounded("p" * LONGEST_LABEL) == "p" * LONGEST_LABEL
    beginning, _, digest = bounded("é" * 300).partition("~")
    assert (beginning, len(digest)) == ("é" * 110, 32)


@given(
    st.text() | st.sampled_from(HOSTILE) | st.integers(200, 400).map(lambda size: "p" * size),
    st.text(),
)
def test_two_values_never_become_one_however_long(first: str, second: str) -> None:
    values = {first, second, first * 40 + "1", first * 40 + "2", first[:10] * 30, second * 99}
    values |= {bounded(value) for value in values}
    shown = {bounded(value) for value in values}
    assert len(shown) == len(values)
    assert max(len(value.encode()) for value in shown) <= LONGEST_LABEL


def hostile_document() -> Snapshot:
    document = snapshot(len(HOSTILE), len(HOSTILE))
    for entry, text in zip(document["pods"][::2], HOSTILE, strict=True):
        entry |= {"pod": text, "namespace": text[::-1]}
    for entry, text in zip(document["namespaces"][::2], HOSTILE, strict=True):
        entry["namespace"] = text
    document["rules"][0]["rule"] = document["backend"] = "".join(HOSTILE)
    return document


def test_hostile_names_leave_a_page_that_both_parsers_read_back() -> None:
    document = hostile_document()
    of_openmetrics = generate_openmetrics(registry(document)).decode()
    for parsed in (
        text_string_to_metric_families(page(document)),
        openmetrics.text_string_to_metric_families(of_openmetrics),
    ):
        families = {family.name: family for family in parsed}
        pods = {sample.labels["pod"] for sample in families["netmgr_pod_traffic_bytes"].samples}
        assert pods > set(map(bounded, HOSTILE))
        assert [sample.value for sample in families["netmgr_up"].samples] == [1]


def test_a_page_is_as_large_after_a_thousand_pods_as_after_ten(tmp_path: Path) -> None:
    clock = Clock()
    ledger = opened(tmp_path / "ledger.sqlite", clock)
    sizes = []
    for generation in range(100):
        for number in range(10):
            counters = [Counter.of_pod(Address.parse(f"10.1.0.{number}"), way) for way in Traffic]
            name = f"{generation:03}-{number}"
            ledger.begin(counters, PodRef(f"team-{number % 3}", f"job-{name}", f"uid-{name}"))
            ledger.post([Sample(counter, 1000, 10) for counter in counters])
            ledger.end(counters)
        if generation in (0, 99):
            totals = ledger.totals()
            given = snapshot(0, 0) | {"pods": totals.pods, "namespaces": totals.namespaces}
            sizes.append(len(series(page(given))))
        clock.time += LINGER + 1
        ledger.sweep()
    ledger.close()
    assert sizes[0] == sizes[1]


SUFFIXES = {
    MetricKind.COUNTER: ("_total",),
    MetricKind.GAUGE: ("",),
    MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count"),
}


def families(document: Snapshot) -> dict:
    return {family.name: family for family in Collector(lambda: document).collect()}


def exposed_name(metric: Metric) -> str:
    return metric.name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else metric.name


def test_every_family_is_in_the_catalogue_and_the_other_way_round() -> None:
    for document in (snapshot(), snapshot(0, 0)):
        assert sorted(families(document)) == sorted(map(exposed_name, CATALOG))


def test_families_are_as_the_catalogue_says_with_the_series_that_it_states_for_250_pods() -> None:
    busy = snapshot(catalog.PODS, catalog.NAMESPACES)
    given = families({**busy, "pods": on_wires(busy["pods"])})
    for metric in CATALOG:
        family = given[exposed_name(metric)]
        described = (family.type, family.documentation, family.unit)
        assert described == (metric.kind.value, metric.help, metric.unit)
        for sample in family.samples:
            assert sample.name.removeprefix(family.name) in SUFFIXES[metric.kind]
            assert tuple(label for label in sample.labels if label != "le") == metric.labels
        assert len(family.samples) == metric.series, metric.name
        ids = {(sample.name, *sample.labels.items()) for sample in family.samples}
        assert len(ids) == metric.series, metric.name


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
    text = page(document)
    pod = '{namespace="team-0",pod="training-worker-0",traffic="internet-in"}'
    (exact,) = re.findall(f"netmgr_pod_traffic_bytes_total{pod} (.*)", text)
    assert int(float(exact)) == 2**53 - 1
    rule = '{chain="input",ip_version="4",rule="openai traffic=internet-in",table="mangle"}'
    assert f"iptables_bytes_total{rule} 640.0\n" in text
    assert f"iptables_packets_total{rule} 5.0\n" in text
