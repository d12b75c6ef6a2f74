"""Both families, beside a kube-proxy that writes nftables itself."""

from __future__ import annotations

from itertools import permutations

import pytest

from netmgr.lab import exchange
from netmgr.lab.exchange import End, Frontend
from netmgr.lab.topology import INTERNET
from netmgr.prefixes import Address, Family
from tests.e2e import counting, netmgr, network, pods
from tests.e2e.cluster import Cluster
from tests.e2e.pods import BACK, FORTH, PODS, Pod

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]
each_family = pytest.mark.parametrize("family", list(Family))


@pytest.fixture(scope="module")
def options() -> dict[str, object]:
    return {"families": tuple(Family), "proxy_mode": "nftables"}


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni"))
    netmgr.roll_out(cluster)
    return cluster


@each_family
@pytest.mark.parametrize(("client", "server"), list(permutations(PODS, 2)))
def test_pods_reach_each_other_with_their_own_addresses(
    running: dict[str, Pod], client: str, server: str, family: Family
):
    own = running[client].end(family)
    heard = exchange.stream(own, running[server].end(family), FORTH, BACK)
    assert heard.peer == own.address


def test_a_service_leads_to_its_pod_in_both_families(installed: Cluster, running: dict[str, Pod]):
    made = pods.serve(installed, "b1", 80)
    addresses = [Address.parse(each) for each in made["clusterIPs"]]
    assert {each.family for each in addresses} == set(Family)
    for address in addresses:
        for name in ("a1", "b2", "b1"):
            client = running[name].end(address.family)
            pods.reach(client, running["b1"], Frontend(address, 80))
        internet = End(installed.namespace("internet"), INTERNET[address.family])
        node_port = made["ports"][0]["nodePort"]
        outside = Frontend(network.address("node-1", address.family), node_port)
        pods.reach(internet, running["b1"], outside)


@each_family
def test_every_byte_of_the_internet_is_counted_for_its_pod(
    installed: Cluster, running: dict[str, Pod], family: Family
):
    internet = End(installed.namespace("internet"), INTERNET[family])
    counting.check(installed, running, internet)
