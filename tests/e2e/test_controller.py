"""The overlays `cni` and `controller`: the plan decides the podCIDRs of every Node."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
import yaml

from netmgr.prefixes import Prefix
from tests.e2e import counting, lifecycle, netmgr, network
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.pods import Pod
from tests.kubernetes import manifests
from tests.lab.exchange import End

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

LOCK = manifests.HERE / "overlays" / "controller" / "plan.lock.yaml"


@pytest.fixture(scope="module")
def options() -> dict[str, object]:
    return {"allocates_node_cidrs": False}


@pytest.fixture(scope="module")
def installed(cluster: Cluster, pristine: dict[str, list[str]]) -> Cluster:
    assert pristine
    # As on a control plane of one's own: no kubelet can set this label.
    cluster.label("node-1", "node-restriction.kubernetes.io/netmgr-controller")
    for node in network.NODES:
        cluster.label(node, "netmgr.io/node-pool", "gpu")
    netmgr.apply(cluster, netmgr.overlay(cluster, "controller"))
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni"))
    cluster.route_pod_cidrs()
    netmgr.roll_out(cluster)
    return cluster


def test_the_plan_decides_the_podcidrs(installed: Cluster):
    given = [prefix for node in network.NODES for prefix in installed.pod_cidrs(node)]
    pool = yaml.safe_load(LOCK.read_text())["clusters"]["training"]["node_pools"]["gpu"]
    first = IPv4Address(pool["segments"][0]["v4"]["pod_base"])
    assert set(given) == {f"{first + 16 * number}/28" for number in range(len(network.NODES))}
    wait_for(installed.nodes_are_ready, "Ready Nodes", 30)


def test_pods_get_addresses_from_the_plan(installed: Cluster, running: dict[str, Pod]):
    for pod in running.values():
        (own,) = map(Prefix.parse, installed.pod_cidrs(pod.node))
        assert own.holds(pod.addresses[0])


def test_every_byte_of_the_internet_is_counted_for_its_pod(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    counting.check(installed, running, internet)


def test_uninstalling_leaves_the_nodes_as_they_were(
    installed: Cluster, pristine: dict[str, list[str]]
):
    lifecycle.uninstall(installed, "controller", "cni")
    for node in network.NODES:
        assert lifecycle.additions(installed, node, pristine[node]) == []
    namespaces = installed.plane.kubectl("get", "namespaces", "-o", "name")
    assert "netmgr" not in namespaces, "the claims are gone"
