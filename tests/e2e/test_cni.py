"""The overlay `cni` from `kubectl apply` to the uninstallation, on a real cluster."""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address, ip_network

import pytest

from netmgr.prefixes import Address, Family
from tests.e2e import counting, lifecycle, netmgr, network, pods, programs
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.pods import BACK, FORTH, PODS, Pod
from tests.lab import exchange
from tests.lab.exchange import End, Frontend

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.smoke, pytest.mark.timeout(600)]

OVERLAY = "cni"


@pytest.fixture(scope="module")
def installed(cluster: Cluster, pristine: dict[str, list[str]]) -> Cluster:
    assert pristine
    before = cluster.nodes_ready()
    assert all("cni plugin not initialized" in condition for condition in before.values()), before
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni"))
    netmgr.roll_out(cluster)
    return cluster


def test_every_machine_has_its_versions_of_kubernetes_and_containerd(cluster: Cluster):
    plane = cluster.plane
    server = plane.ask("GET", "/version")["gitVersion"]
    assert server == programs.version(is_previous=plane.has_previous)
    for node in cluster.nodes:
        about = plane.ask("GET", f"/api/v1/nodes/{node.name}")["status"]["nodeInfo"]
        assert about["kubeletVersion"] == programs.version(is_previous=node.has_previous)
        major = "2." if node.has_containerd_2 else "1."
        assert about["containerRuntimeVersion"].startswith(f"containerd://{major}")


def test_nodes_become_ready_when_netmgr_serves(installed: Cluster):
    wait_for(installed.nodes_are_ready, "Ready Nodes", 30)


def test_pods_have_addresses_of_their_nodes_podcidrs(installed: Cluster, running: dict[str, Pod]):
    for pod in running.values():
        (pod_cidr,) = installed.pod_cidrs(pod.node)
        assert ip_address(str(pod.addresses[0])) in ip_network(pod_cidr)


def test_pods_reach_each_other_with_their_own_addresses(running: dict[str, Pod]):
    pods.reach_each_other(running, Family.V4)


def test_pods_reach_the_internet_as_their_nodes(running: dict[str, Pod], internet: End):
    for pod in running.values():
        heard = exchange.stream(pod.end(), internet, FORTH, BACK)
        assert heard.peer == network.address(pod.node)


def test_nodes_reach_their_pods_as_probes_do(installed: Cluster, running: dict[str, Pod]):
    for pod in running.values():
        node = End(installed.namespace(pod.node), network.address(pod.node))
        exchange.stream(node, pod.end(), FORTH, BACK)


def test_a_service_leads_to_its_pod_from_everywhere(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    made = pods.serve(installed, "b1", 80)
    cluster_ip = Frontend(Address.parse(made["clusterIP"]), 80)
    node_port = Frontend(network.address("node-1"), made["ports"][0]["nodePort"])
    for name in ("a1", "b2", "b1"):
        pods.reach(running[name].end(), running["b1"], cluster_ip)
    pods.reach(internet, running["b1"], node_port)


def test_every_byte_of_the_internet_is_counted_for_its_pod(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    counting.check(installed, running, internet)


def test_an_upgrade_under_load_disturbs_no_pod_and_loses_no_byte(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    lifecycle.upgrade(installed, running, internet, OVERLAY)
    wait_for(partial(nothing_is_left_over, installed), "as many links and leases as pods", 30)


def test_a_bad_configuration_stops_at_one_node_and_can_be_rolled_back(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    lifecycle.stop_a_bad_configuration(installed, running, internet, OVERLAY)


def test_uninstalling_leaves_the_nodes_as_they_were(
    pristine: dict[str, list[str]], installed: Cluster
):
    lifecycle.uninstall(installed, OVERLAY)
    for node in network.NODES:
        assert lifecycle.additions(installed, node, pristine[node]) == []


def nothing_is_left_over(cluster: Cluster) -> bool:
    return all(
        len([name for name in PODS if PODS[name] == node])
        == netmgr.links(cluster, node)
        == netmgr.leases(cluster, node)
        for node in network.NODES
    )
