"""A real Prometheus scrapes the nodes of a lab, by the files in configs/, and has an answer for
every dashboard.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from netmgr.kube.client.api import Api
from netmgr.kube.controller import health
from netmgr.kube.controller.health import Telemetry
from netmgr.prefixes import Family
from tests.kernel.granted import GrantFile, budget
from tests.kernel.scraped import CONFIGS, PORT, Prometheus, Result, by, scraping
from tests.lab import wiring
from tests.lab.errors import LabError
from tests.lab.exchange import datagrams
from tests.lab.topology import Pod, cluster
from tests.lab.world import World

pytestmark = pytest.mark.root

ELSEWHERE = {"netmgr-sites", "netmgr-accounting", "netmgr-nodes", "netmgr-controller"}
ELSEWHERE |= {"netmgr-costs"}
DASHBOARDS = sorted(
    path for path in (CONFIGS / "grafana").glob("*.json") if path.stem not in ELSEWHERE
)
"""Those of a healthy cluster. `test_prometheus_sites` has the one of several sites,
`test_prometheus_troubled` those of what is wrong, and `test_monitoring_files` that of costs, which
takes prices and the labels of namespaces.
"""
BUSIEST_PODS = "cluster_namespace_pod_traffic:netmgr_pod_traffic_bytes:rate5m_topk20"
NAMESPACE_BYTES = "cluster_namespace_traffic:netmgr_namespace_traffic_bytes:rate5m"
CLUSTER_BYTES = "cluster_traffic:netmgr_node_traffic_bytes:rate5m"
NAMESPACES = {"research": ("pod-1", "pod-2"), "serving": ("pod-3",)}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    granted = GrantFile(
        tmp_path_factory.mktemp("budgets") / "budgets.json", (budget("everyone", "*"),)
    )
    # Less than the pods send.
    granted.grant({"everyone": 0.3})
    pods = tuple(
        Pod(pod, "node-1", namespace) for namespace, names in NAMESPACES.items() for pod in names
    )
    # Little enough that packets wait.
    limit = {"namespaces": "*", "internet-in": "1G", "internet-out": "1M", "burst": 3000}
    quota = {"namespaces": "*", "per-day": {"internet-in": "1G", "internet-out": "1G"}}
    with World(
        replace(cluster(nodes=2, pods=3), pods=pods),
        name=f"prometheus-{os.getpid()}",
        settings={"limits": [limit, quota], "budgets_file": str(granted.path)},
    ) as made:
        yield made


@pytest.fixture(scope="module")
def prometheus(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    fabric = world.namespace("fabric")
    targets = [f"{node.node.address(Family.V4)}:{PORT}" for node in world.nodes]
    controllers = [controller_metrics(fabric)]
    folder = tmp_path_factory.mktemp("prometheus")
    with scraping(fabric, targets, folder, controllers) as running:
        yield running


def controller_metrics(namespace: Path) -> str:
    """Serve the figures of a leading range controller; a lab has no API server for a whole one."""
    telemetry = Telemetry(cast(Api, SimpleNamespace(asked=dict)))
    telemetry.leader.set(1)
    telemetry.nodes.labels("served").set(2)
    telemetry.allocations.labels("gpu", "used").set(2)
    with wiring.inside(namespace):
        port = health.serve(telemetry.registry, "127.0.0.1:0", str)
    return f"127.0.0.1:{port}"


def send(world: World) -> None:
    """From each pod to the internet: from the second twice as much as from the first one."""
    for number, pod in enumerate(world.pods(), 1):
        near, many = pod.end(Family.V4), 20 * number
        datagrams(near, world.outside(Family.V4), [1200] * many, [100] * many)


@pytest.fixture
def sending(world: World) -> Iterator[None]:
    """Pods send meanwhile: who waits, and a connection, is there as long as it lasts alone."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            with suppress(LabError):
                send(world)

    thread = threading.Thread(target=go_on)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.fixture(scope="module")
def busy(world: World, prometheus: Prometheus) -> Prometheus:
    """Prometheus after the pods were busy between two scrapes and more: traffic, a new pod, a
    failed request.
    """
    prometheus.wait_for(f"count(up == 1) == {len(world.nodes) + 1}", bool)
    for _ in range(2):
        send(world)
        stranger = replace(world.pods()[0], container_id="stranger")
        with pytest.raises(LabError):
            world.nodes[0].runtime.execute("CHECK", stranger, {"cniVersion": "1.1.0", "ips": []})
        world.nodes[1].runtime.delete(world.nodes[1].add("short", "serving"))
        prometheus.wait_for_scrapes()
    return prometheus


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("sending")
def test_every_query_of_a_dashboard_has_a_result(busy: Prometheus, dashboard: Path) -> None:
    busy.answers(dashboard)


def sent_alike(result: Result) -> bool:
    sent = by(result, "namespace")
    return len(sent) == len(NAMESPACES) and math.isclose(*sent.values(), rel_tol=0.1)


def test_the_busiest_pods_and_namespaces_are_those_that_sent_most(busy: Prometheus) -> None:
    out = '{traffic="internet-out"}'
    # What rules recorded may be of a scrape in the middle of the traffic.
    busy.wait_for(
        f"sort_desc({BUSIEST_PODS}{out} > 0)",
        lambda result: [pod for (pod,) in by(result, "pod")] == ["pod-3", "pod-2", "pod-1"],
    )
    busy.wait_for(f"{NAMESPACE_BYTES}{out}", sent_alike)
    clusters = busy.wait_for(CLUSTER_BYTES, bool)
    assert {series["metric"]["cluster"] for series in clusters} == {"training"}


def test_the_counters_arrive_to_the_byte(busy: Prometheus, world: World) -> None:
    labels = ("namespace", "pod", "traffic")

    def counted() -> dict[tuple[str, ...], int]:
        totals = world.nodes[0].snapshot()["pods"]
        return {tuple(total[label] for label in labels): total["bytes"] for total in totals}

    before = counted()
    send(world)
    told, busiest = counted(), ("serving", "pod-3", "internet-out")
    assert told[busiest] - before[busiest] == 20 * 3 * (1200 + 28)
    # Nothing is there after a scrape that a busy machine did not answer within a second.
    busy.wait_for(
        'netmgr_pod_traffic_bytes_total{pod!="short"}', lambda result: by(result, *labels) == told
    )


def test_every_rule_is_evaluated_without_complaint(busy: Prometheus) -> None:
    rules = [rule for group in busy.get("rules")["groups"] for rule in group["rules"]]
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    assert [rule for rule in rules if rule.get("state") == "firing"] == []


def test_an_agent_that_dies_is_noticed(busy: Prometheus, world: World) -> None:
    world.nodes[1].kill_agent()
    try:
        (alert,) = busy.wait_for("ALERTS{alertname='NetmgrAgentDown'}", bool)
    finally:
        world.nodes[1].start_until_ready()
        busy.wait_for("ALERTS{alertname='NetmgrAgentDown'}", lambda result: not result)
    assert alert["metric"]["instance"] == f"{world.nodes[1].node.address(Family.V4)}:{PORT}"
