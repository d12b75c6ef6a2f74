"""Both families, beside a kube-proxy that writes nftables itself."""

from __future__ import annotations

import re

import pytest

from netmgr.model import Traffic
from netmgr.prefixes import Address, Family
from tests.e2e import counting, netmgr, network, pods
from tests.e2e.cluster import Cluster
from tests.e2e.pods import Pod
from tests.kubernetes.control_plane import Object
from tests.lab import comparison
from tests.lab.capture import Capture
from tests.lab.exchange import End, Frontend
from tests.lab.topology import INTERNET

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]
each_family = pytest.mark.parametrize("family", list(Family))


@pytest.fixture(scope="module")
def options() -> dict[str, object]:
    return {"families": tuple(Family), "proxy_mode": "nftables"}


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    cidrs = [str(prefix) for prefix in network.POD_CIDRS.values()]
    node_yaml = {"accounting": {"cluster_cidrs": cidrs}, "limits_by_annotation": True}
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni", node_yaml=node_yaml))
    netmgr.roll_out(cluster)
    return cluster


def test_pods_reach_each_other_with_their_own_addresses(running: dict[str, Pod]):
    pods.reach_each_other(running, *Family)


def test_a_service_leads_to_its_pod_in_both_families(installed: Cluster, running: dict[str, Pod]):
    made = pods.serve(installed, "b1", 80)
    addresses = [Address.parse(each) for each in made["clusterIPs"]]
    assert {each.family for each in addresses} == set(Family)
    for address in addresses:
        for name in ("a1", "b2", "b1"):
            client = running[name].end(address.family)
            pods.reach(client, running["b1"], Frontend(address, 80))


@pytest.fixture(scope="module")
def exposed(installed: Cluster) -> Object:
    """A Service with a node port for a pod of node-2."""
    return pods.serve(installed, "b2", 80)


@each_family
def test_what_enters_by_a_node_port_for_another_nodes_pod_is_counted_where_it_enters(
    installed: Cluster, running: dict[str, Pod], exposed: Object, family: Family
):
    internet = End(installed.namespace("internet"), INTERNET[family])
    node_port = Frontend(network.address("node-1", family), exposed["ports"][0]["nodePort"])
    pods.reach(internet, running["b2"], node_port)
    settled = counting.settled(installed)
    before = counting.origins(installed, "node-1")
    with Capture(internet.namespace, "eth0") as capture:
        pods.reach(internet, running["b2"], node_port)
        capture.settle()
        flows = capture.flows()
    seen = {way: sum(flows[flow].bytes for flow in flows if flow.traffic is way) for way in Traffic}

    def gained() -> dict[tuple[str, str], int]:
        after = counting.origins(installed, "node-1")
        return {key: after[key] - before[key] for key in after if after[key] != before[key]}

    expected = {("remote-pods", way): size for way, size in seen.items()}
    assert comparison.wait_for(gained, expected, counting.SECONDS_TO_COUNT) == expected
    assert counting.difference(installed, settled) == {}, "no pod is counted for it"


@pytest.mark.parametrize("node", network.NODES)
def test_annotations_limit_a_pod(installed: Cluster, node: str):
    name = f"limited-on-{node}"
    annotations = {
        "kubernetes.io/ingress-bandwidth": "80M",
        "netmgr.io/internet-egress-bandwidth": "40M",
    }
    pods.create(installed, name, node, annotations)
    pods.started(installed, name)
    try:
        page = netmgr.page(installed, node)
        found = re.findall(
            rf'netmgr_limit_bytes_per_second{{namespace="default",pod="{name}",traffic="(.+?)"}} '
            r"(\S+)",
            page,
        )
        assert {way: float(rate) for way, rate in found} == {"all-in": 10e6, "internet-out": 5e6}
    finally:
        pods.delete(installed, [name])


@each_family
def test_every_byte_of_the_internet_is_counted_for_its_pod(
    installed: Cluster, running: dict[str, Pod], family: Family
):
    internet = End(installed.namespace("internet"), INTERNET[family])
    counting.check(installed, running, internet)
