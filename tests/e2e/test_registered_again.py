"""A Node that is deleted and registered again, on a real cluster: its agent, which runs on, gives
out the new podCIDR alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from netmgr.api.client import read_snapshot
from netmgr.kube.controller.nodes import STARTUP_TAINT
from netmgr.ranges.assigned import NODE_RANGES, AssignedRanges
from tests.e2e import netmgr, network, pods
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.pods import Pod
from tests.kubernetes.control_plane import Object

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

NODE = "node-1"
SECONDS = 60
"""In which a range that is no longer the Node's is given out no more: what is promised."""


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    # There is no control plane among the nodes.
    label = "node-restriction.kubernetes.io/netmgr-controller="
    cluster.plane.kubectl("label", "node", "node-2", label)
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni"))
    netmgr.roll_out(cluster)
    # One of two: with one such machine the other one stays Pending.
    available = ("--for=condition=Available", "deployment/netmgr-controller", "--timeout=120s")
    cluster.plane.kubectl("-n", "netmgr", "wait", *available, timeout=130)
    return cluster


@pytest.fixture(scope="module")
def before(installed: Cluster) -> Pod:
    """A pod that has an address of the first podCIDR."""
    return pods.run(installed, {"before": NODE})["before"]


def agent(cluster: Cluster) -> Object:
    """The agent's pod on the node."""
    found = cluster.plane.ask("GET", "/api/v1/namespaces/netmgr/pods")["items"]
    return next(
        each
        for each in found
        if each["spec"].get("nodeName") == NODE
        and each["metadata"]["name"].startswith("netmgr-")
        and each["metadata"]["labels"]["app.kubernetes.io/component"] == "agent"
    )


def annotation(cluster: Cluster) -> AssignedRanges:
    return AssignedRanges.parse(agent(cluster)["metadata"]["annotations"].get(NODE_RANGES, "{}"))


def ranges(cluster: Cluster) -> Mapping[str, Any]:
    """What the node's agent reports of its ranges; by its socket, for which it needs no Node."""
    socket = cluster.node(NODE).machine.path("/run/netmgr/ledger.sock")
    return read_snapshot(socket)["ranges"]


def measured(capsys: pytest.CaptureFixture[str], what: str, since: float) -> None:
    taken = time.monotonic() - since
    with capsys.disabled():
        sys.stdout.write(f"\n{what}: {taken:.1f} s")
    assert taken < SECONDS


def test_an_agent_knows_its_nodes_range(installed: Cluster, before: Pod):
    (pod_cidr,) = installed.pod_cidrs(NODE)
    assert [str(each) for each in annotation(installed).ranges] == [pod_cidr]
    assert ip_address(str(before.addresses[0])) in ip_network(pod_cidr)
    assert ranges(installed)["changed"] == ""


@pytest.mark.usefixtures("before")
def test_a_deleted_nodes_agent_gives_out_nothing(
    installed: Cluster, capsys: pytest.CaptureFixture[str]
):
    uid = agent(installed)["metadata"]["uid"]
    since = time.monotonic()
    installed.plane.kubectl("delete", "node", NODE, "--wait=false")
    wait_for(lambda: annotation(installed).node == "", "an annotation without a Node", SECONDS)
    measured(capsys, "Node deleted until the annotation says so", since)
    machine = installed.node(NODE).machine
    volume = f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~downward-api/node-ranges/ranges"
    wait_for(lambda: '"node": ""' in machine.run("cat", volume), "the kubelet's file", SECONDS)
    measured(capsys, "Node deleted until the kubelet has renewed the file", since)
    wait_for(lambda: "deleted" in ranges(installed)["changed"], "the agent's report", SECONDS)
    measured(capsys, "Node deleted until its agent gives out no address", since)
    assert agent(installed)["metadata"]["uid"] == uid, "the same pod"


def test_the_node_registered_again_gives_out_its_new_range_alone(
    installed: Cluster, before: Pod, capsys: pytest.CaptureFixture[str]
):
    node, agent_before = installed.node(NODE), agent(installed)["metadata"]["uid"]
    old = ip_network(str(annotation(installed).ranges[0]))
    since = time.monotonic()
    node.stop_kubelet()
    taint = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
    node.start_kubelet(registerWithTaints=[taint])
    (pod_cidr,) = wait_for(partial(_pod_cidrs, installed), "podCIDRs", SECONDS)
    assert ip_network(pod_cidr) != old
    registered = time.monotonic()
    wait_for(lambda: pod_cidr in ranges(installed)["changed"], "the agent's report", SECONDS)
    measured(capsys, "Node registered until its agent gives out the new range", registered)
    wait_for(lambda: STARTUP_TAINT not in _taints(installed), "a Node without the taint", SECONDS)
    measured(capsys, "kubelet restarted until the startup taint is gone", since)
    assert agent(installed)["metadata"]["uid"] == agent_before, "the same pod: it ran on"
    after = pods.run(installed, {f"after-{number}": NODE for number in range(3)})
    for pod in after.values():
        assert ip_address(str(pod.addresses[0])) in ip_network(pod_cidr)
    events = installed.plane.kubectl("get", "events", "-n", "default")
    assert "NodeRangesChanged" in events
    held = ranges(installed)["withdrawn"]
    assert [each["address"] for each in held] == [str(before.addresses[0])]
    installed.route_pod_cidrs()
    assert network.address(NODE) not in after["after-0"].addresses


def _pod_cidrs(cluster: Cluster) -> list[str]:
    status, found = cluster.plane.answer("GET", f"/api/v1/nodes/{NODE}")
    return list(json.loads(found)["spec"].get("podCIDRs", [])) if status == 200 else []


def _taints(cluster: Cluster) -> str:
    return str(cluster.plane.ask("GET", f"/api/v1/nodes/{NODE}")["spec"].get("taints", ""))
