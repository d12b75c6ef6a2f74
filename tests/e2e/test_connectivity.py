"""`netmgr connectivity-test` as an administrator runs it: on a cluster that works, and on one in
which a single thing is broken.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from netmgr.kube.diagnose.connectivity_objects import LABEL
from netmgr.prefixes import Family
from tests.e2e import companions, netmgr, network
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.control_plane import API_PORT
from tests.kernel.greeting import greeting
from tests.kubernetes.control_plane import Object
from tests.lab.topology import BESIDE_INTERNET, INTERNET

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(900)]

HOST_PORT = 18080
NOWHERE = "198.51.100.77:80"
"""An address of the internet that no host has."""

INTERNAL = ["10.0.0.0/8", "172.16.0.0/12", "fc00::/7"]


@pytest.fixture(scope="module")
def options() -> dict[str, object]:
    return {"families": tuple(Family)}


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    for node in cluster.nodes:
        node.add_plugin("portmap")
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni"))
    netmgr.roll_out(cluster)
    wait_for(cluster.nodes_are_ready, "Ready Nodes", 60)
    companions.install_dns(cluster)
    return cluster


@pytest.fixture(scope="module")
def outside(installed: Cluster) -> Iterator[list[str]]:
    """Options for servers in the internet, by both families, inside, and for what is neither."""
    with greeting(installed.namespace("internet")) as port:
        yield [
            *("--internet", f"{INTERNET[Family.V4]}:{port}"),
            *("--internet", f"[{INTERNET[Family.V6]}]:{port}"),
            *("--internal", f"{network.address(network.CONTROL_PLANE)}:{API_PORT}"),
            *("--unreachable", NOWHERE),
            *("--host-port", str(HOST_PORT)),
        ]


def run(cluster: Cluster, *options: str) -> tuple[int, Object]:
    """The command's exit code and answer; afterwards its namespace is gone."""
    config = cluster.plane.kubeconfig()
    netns = f"--net={cluster.namespace(network.CONTROL_PLANE)}"
    command = [sys.executable, "-m", "netmgr", "connectivity-test", "--kubeconfig", str(config)]
    ended = subprocess.run(
        ["nsenter", netns, *command, "-o", "json", *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.stdout, ended.stderr
    answer = json.loads(ended.stdout)
    wait_for(lambda: not namespaces(cluster), "the end of the test's namespace", 60)
    return ended.returncode, answer


def namespaces(cluster: Cluster) -> list[str]:
    found = cluster.plane.ask("GET", f"/api/v1/namespaces?labelSelector={LABEL}")["items"]
    return [each["metadata"]["name"] for each in found]


def states(answer: Object, which: str) -> dict[str, set[str]]:
    """The checks of each node that ended so."""
    return {
        each["node"]: {check for check, state in each["checks"].items() if state == which}
        for each in answer["nodes"]
    }


def home_of_dns(cluster: Cluster) -> str:
    (pod,) = cluster.plane.ask(
        "GET", "/api/v1/namespaces/kube-system/pods?labelSelector=k8s-app=kube-dns"
    )["items"]
    return str(pod["spec"]["nodeName"])


def test_a_cluster_that_works_passes_every_check_on_every_node(
    installed: Cluster, outside: list[str]
) -> None:
    code, answer = run(installed, *outside)
    assert answer["findings"] == []
    assert (code, answer["passed"]) == (0, True)
    assert states(answer, "ok") == {
        node: set(answer["nodes"][0]["checks"]) for node in network.NODES
    }


def test_without_options_only_what_they_are_for_is_skipped(installed: Cluster) -> None:
    code, answer = run(installed, "--node", network.NODES[0])
    assert (code, answer["findings"]) == (0, [])
    left_out = {"other-nodes", "host-port", "internal", "internet", "unreachable"}
    if home_of_dns(installed) != network.NODES[0]:  # no other pod runs there
        left_out |= {"running-pods"}
    assert states(answer, "skipped") == {network.NODES[0]: left_out}


def test_a_podcidr_that_is_not_delivered_fails_what_needs_it_and_nothing_else(
    installed: Cluster, outside: list[str]
) -> None:
    # Not the DNS server's Node: that one would lose the API server, and fail everywhere.
    sound = home_of_dns(installed)
    (cut_off,) = set(network.NODES) - {sound}
    (pod_cidr,) = [each for each in installed.pod_cidrs(cut_off) if "." in each]
    via = str(network.address(cut_off))
    installed.run_at(network.FABRIC, "ip", "route", "delete", pod_cidr, "via", via)
    try:
        code, answer = run(installed, *outside)
    finally:
        installed.run_at(network.FABRIC, "ip", "route", "add", pod_cidr, "via", via)
    # Of the pods that ran before, that of the DNS server is one.
    lost = {"other-nodes", "running-pods", "dns", "internal"}
    failed = {sound: {"other-nodes"}, cut_off: lost}
    assert (code, states(answer, "failed")) == (1, failed), answer["findings"]
    between = [each for each in answer["findings"] if each["check"] == "other-nodes"]
    # By IPv6 the network is as it was.
    assert {each["message"].partition(":")[0] for each in between} == {"IPv4 TCP", "IPv4 UDP"}
    assert {name for each in between for name in each["objects"]} == {
        f"node/{sound} to node/{cut_off}",
        f"node/{cut_off} to node/{sound}",
    }


def test_internet_that_the_nodes_take_for_internal_is_reached_and_not_counted(
    installed: Cluster, outside: list[str]
) -> None:
    address = INTERNET[Family.V4]
    pods, via = str(network.POD_CIDRS[Family.V4]), str(BESIDE_INTERNET[Family.V4])
    # Internal traffic keeps its source, which the internet has to know then.
    installed.run_at("internet", "ip", "route", "add", pods, "via", via)
    node_yaml = {"internal": [*INTERNAL, f"{address}/32"]}
    try:
        netmgr.apply(installed, netmgr.overlay(installed, "cni", node_yaml=node_yaml))
        netmgr.roll_out(installed)
        code, answer = run(installed, *outside)
    finally:
        installed.run_at("internet", "ip", "route", "delete", pods, "via", via)
    failed = {node: {"counted"} for node in network.NODES}
    assert (code, states(answer, "failed")) == (1, failed), answer["findings"]
    assert all("bytes were counted, and it exchanged" in e["message"] for e in answer["findings"])
