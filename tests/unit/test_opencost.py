"""OpenCost's own queries, on a real Prometheus with our rules, give the money that was spent.

The queries are those of its `PrometheusMetricsQuerier`, as its code forms them: of commit
1ea64d02df68 (2026, with a subquery of PROMETHEUS_QUERY_RESOLUTION_SECONDS, by default 300), and of
5f6533303e38 (October 2024, without one). A price is one of a GiB.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from urllib.parse import quote

import pytest
import yaml

from tests.fakes.exporter_port import get
from tests.unit.monitoring import CONFIGS, promtool
from tests.unit.test_exporter_prometheus import prometheus
from tests.waiting import eventually

pytestmark = [pytest.mark.programs, pytest.mark.slow]

RULES = CONFIGS / "billing" / "opencost-rules.yml"
FILTER, CLUSTER_LABEL = 'cluster_id="training"', "cluster_id"
INTERNET, ZONE = 'internet="true"', 'internet="false", same_zone="false", same_region="true"'
REGION = 'internet="false", same_zone="false", same_region="false"'
WAYS = {"egress": "out", "ingress": "in"}
HOUR, SCRAPE, GIB = 3600, 30, 1 << 30
PRICE = {INTERNET: 0.12, ZONE: 0.01, REGION: 0.02}
STEADY = 1 << 20
"""Bytes a second."""


def query(labels: str, window: str, way: str = "egress", by: str = "uid, ") -> str:
    metric = f"kubecost_pod_network_{way}_bytes_total"
    selected = f"{metric}{{{labels}, {FILTER}}}[{window}]"
    grouped = f"by (pod_name, namespace, {by}{CLUSTER_LABEL})"
    return f"sum(increase({selected})) {grouped} / 1024 / 1024 / 1024"


NOW, FORMERLY = ("1h:5m", "uid, "), ("1h", "")
"""Window and further group of the two queries."""


@dataclass(frozen=True)
class Bill:
    port: int
    end: int
    """Of the hour that is asked for."""

    def money(self, labels: str, form: tuple[str, str], way: str = "egress") -> dict[str, float]:
        window, group = form
        text = query(labels, window, way, group)
        _, body = get(self.port, f"/api/v1/query?query={quote(text)}&time={self.end}")
        series = json.loads(body)["data"]["result"]
        assert {one["metric"]["namespace"] for one in series} <= {"team-a"}
        return {one["metric"]["pod_name"]: float(one["value"][1]) * PRICE[labels] for one in series}


def sent(pod: str, begin: int, at: int) -> int:
    """What a pod's counter shows at a time."""
    passed = at - begin
    if pod == "steady":
        return STEADY * passed
    # A GiB within one scrape, in the middle of the second hour, or a minute after it began.
    moment = HOUR + (1800 if pod == "burst" else 60)
    return GIB * (100 + (passed > moment))


def exposition(begin: int) -> Iterator[str]:
    """Three hours of scrapes of one node, as a Prometheus has stored them."""
    yield "# TYPE netmgr_pod_traffic_bytes counter"
    kinds = ("internet", "same-zone", "same-region", "other-region", "internal", "vendor")
    labels = 'cluster="training",instance="node-1",job="netmgr",namespace="team-a"'
    for pod in ("steady", "burst", "early"):
        for number, kind in enumerate(kinds, 1):
            for way in ("in", "out"):
                series = f'{labels},pod="{pod}",traffic="{kind}-{way}"'
                for at in range(begin, begin + 3 * HOUR + SCRAPE, SCRAPE):
                    size = number * sent(pod, begin, at) * (2 if way == "in" else 1)
                    yield f"netmgr_pod_traffic_bytes_total{{{series}}} {size} {at}"
    yield "# EOF\n"


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bill]:
    folder = tmp_path_factory.mktemp("opencost")
    # The hour that is asked for is inside a block of two: where one ends, promtool leaves a sample
    # out, by the rule group's offset, which is of its file's path.
    begin = int(time.time()) // (2 * HOUR) * 2 * HOUR - 6 * HOUR - HOUR // 2
    (folder / "scrapes").write_text("\n".join(exposition(begin)))
    promtool(folder, "tsdb", "create-blocks-from", "openmetrics", "-q", "scrapes", "data")
    configuration = folder / "prometheus.yml"
    configuration.write_text(yaml.safe_dump({"rule_files": [str(RULES)]}))
    with prometheus(configuration) as port:
        eventually(lambda: is_up(port), (folder / "log").read_text)
        # As its rules would have recorded it meanwhile.
        promtool(
            folder,
            *("tsdb", "create-blocks-from", "rules", f"--url=http://127.0.0.1:{port}"),
            *(f"--start={begin}", f"--end={begin + 3 * HOUR}", "--eval-interval=60s"),
            *("--output-dir=data", str(RULES)),
        )
    # Blocks that others wrote are found at the start.
    with prometheus(configuration) as port:
        eventually(lambda: is_up(port), (folder / "log").read_text)
        yield Bill(port, begin + 2 * HOUR)


def is_up(port: int) -> bool:
    try:
        return get(port, "/-/ready")[0].status == 200
    except (OSError, HTTPException):
        return False


KINDS = {INTERNET: 1 + 6, ZONE: 3, REGION: 4}
"""How much of the pods' traffic each query is to count: vendors' prefixes are internet."""


@pytest.mark.parametrize("form", [NOW, FORMERLY], ids=["2026", "2024"])
@pytest.mark.parametrize("labels", [INTERNET, ZONE, REGION])
def test_an_hour_of_steady_traffic_costs_what_it_cost(
    bill: Bill, labels: str, form: tuple[str, str]
) -> None:
    for way, times in (("egress", 1), ("ingress", 2)):
        spent = PRICE[labels] * KINDS[labels] * times * STEADY * HOUR / GIB
        assert bill.money(labels, form, way)["steady"] == pytest.approx(spent, rel=1e-9)


def test_a_burst_costs_what_it_cost_where_samples_are_at_both_ends_of_the_hour(bill: Bill) -> None:
    money = bill.money(INTERNET, NOW)
    spent = PRICE[INTERNET] * KINDS[INTERNET]
    assert (money["burst"], money["early"]) == pytest.approx((spent, spent), rel=1e-9)


def test_increase_extrapolates_a_burst_by_the_minute_that_has_no_samples(bill: Bill) -> None:
    money = bill.money(INTERNET, FORMERLY)
    spent = PRICE[INTERNET] * KINDS[INTERNET]
    assert money["burst"] == pytest.approx(spent * 60 / 59, rel=1e-9)


def test_every_pod_and_byte_is_in_one_category() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    for way, suffix in WAYS.items():
        named = [rule for rule in rules if f"_{way}_" in rule["record"]]
        assert len({json.dumps(rule["labels"]) for rule in named}) == len(named) == 4
        assert all(f"-{suffix}" in rule["expr"] for rule in named)


def test_promtool_finds_nothing_to_complain_about() -> None:
    for rules in ("opencost-rules.yml", "price-rules.yml"):
        promtool(CONFIGS / "billing", "check", "rules", "--lint=all", "--lint-fatal", rules)
