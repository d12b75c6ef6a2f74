"""`components/preflight`: a node to which the network does not deliver its range gets no pods."""

from __future__ import annotations

from functools import partial

import pytest

from netmgr.kube.controller.nodes import HEALTHY, STARTUP_TAINT
from netmgr.model import PROBE_LINK
from tests.e2e import lifecycle, netmgr, network, pods
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.pods import BACK, FORTH
from tests.kubernetes.control_plane import Object
from tests.lab import exchange

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

SOUND, CUT_OFF = network.NODES
BACKOFF_SECONDS = 200
"""The kubelet starts a container again after 10, 20, 40, 80 s; probes take a few seconds."""

PREFLIGHT = {"peers": [str(network.address(network.CONTROL_PLANE))], "answer_seconds": 1}


def overlay(cluster: Cluster, tag: str = "0.1.0") -> None:
    folder = netmgr.overlay(
        cluster, "cni", tag=tag, node_yaml={"preflight": PREFLIGHT}, components=["preflight"]
    )
    netmgr.apply(cluster, folder)


def deliver(cluster: Cluster, how: str) -> str:
    """Add or delete the fabric's route to the podCIDR of the node that is cut off."""
    (pod_cidr,) = cluster.pod_cidrs(CUT_OFF)
    via = str(network.address(CUT_OFF))
    cluster.run_at(network.FABRIC, "ip", "route", how, pod_cidr, "via", via)
    return pod_cidr


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    # There is no control plane among the nodes.
    cluster.label(SOUND, "node-restriction.kubernetes.io/netmgr-controller")
    for node in network.NODES:
        cluster.plane.kubectl("taint", "node", node, f"{STARTUP_TAINT}:NoSchedule")
    deliver(cluster, "delete")
    overlay(cluster)
    return cluster


def is_tainted(cluster: Cluster, node: str) -> bool:
    found = cluster.plane.ask("GET", f"/api/v1/nodes/{node}")["spec"].get("taints") or []
    return any(taint["key"] == STARTUP_TAINT for taint in found)


def condition(cluster: Cluster, node: str) -> Object:
    found = cluster.plane.ask("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]
    return next((each for each in found if each["type"] == HEALTHY), {})


def has_failed(cluster: Cluster, node: str) -> bool:
    return condition(cluster, node).get("reason") == "PreflightFailed"


def agent(cluster: Cluster, node: str) -> Object:
    return next(each for each in lifecycle.agents(cluster) if each["spec"]["nodeName"] == node)


def is_ready(cluster: Cluster, node: str) -> bool:
    conditions = agent(cluster, node)["status"].get("conditions") or []
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def test_the_node_without_its_range_keeps_the_taint_and_says_why(installed: Cluster) -> None:
    wait_for(lambda: not is_tainted(installed, SOUND), "a sound node without the taint", 120)
    wait_for(partial(has_failed, installed, CUT_OFF), "the condition of the other", 60)
    (pod_cidr,) = installed.pod_cidrs(CUT_OFF)
    message = condition(installed, CUT_OFF)["message"]
    assert f"routes of {pod_cidr} by peers" in message
    assert f"have the network deliver {pod_cidr} to this node" in message
    assert is_tainted(installed, CUT_OFF)
    assert not is_ready(installed, CUT_OFF)
    assert not has_failed(installed, SOUND)
    described = installed.plane.kubectl("describe", "node", CUT_OFF)
    assert "PreflightFailed" in described
    # It has one while it probes, which the kubelet has it do again and again.
    wait_for(lambda: PROBE_LINK not in installed.run_at(CUT_OFF, "ip", "-o", "link"), "no link", 30)


def test_once_the_range_is_delivered_the_node_takes_pods_within_the_backoff(
    installed: Cluster,
) -> None:
    deliver(installed, "add")
    wait_for(lambda: not is_tainted(installed, CUT_OFF), "no taint", BACKOFF_SECONDS)
    netmgr.roll_out(installed)
    wait_for(
        lambda: condition(installed, CUT_OFF)["reason"] == "PreflightPassed", "the condition", 30
    )
    wait_for(installed.nodes_are_ready, "Ready Nodes", 30)
    running = pods.run(installed, {"a": SOUND, "b": CUT_OFF})
    heard = exchange.stream(running["a"].end(), running["b"].end(), FORTH, BACK)
    assert heard.peer == running["a"].addresses[0]


def test_a_node_that_runs_pods_is_upgraded_whatever_its_network_is_like(
    installed: Cluster,
) -> None:
    deliver(installed, "delete")
    overlay(installed, lifecycle.TAG)
    netmgr.roll_out(installed)
    statuses = agent(installed, CUT_OFF)["status"]["initContainerStatuses"]
    (preflight,) = [each for each in statuses if each["name"] == "preflight"]
    ended = preflight["state"]["terminated"]
    assert (ended["exitCode"], ended["message"].strip()) == (0, "skipped: this node runs 1 pods")
    assert not has_failed(installed, CUT_OFF)
