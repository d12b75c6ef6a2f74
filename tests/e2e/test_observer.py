"""The overlay `observer` beside other plugins: it counts for the pods that they wire."""

from __future__ import annotations

import json

import pytest

from netmgr.lab.exchange import End
from tests.e2e import counting, netmgr
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.pods import Pod

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

MAINS = {"ptp": {}, "bridge": {"bridge": "cni0", "isGateway": True}}
"""What wires the pods: a link for each, or a bridge as flannel's."""


@pytest.fixture(scope="module", params=sorted(MAINS))
def main(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def options(main: str) -> dict[str, object]:
    """Depends on the plugin, so that each gets a cluster of its own."""
    assert main in MAINS
    return {}


@pytest.fixture(scope="module")
def installed(main: str, cluster: Cluster) -> Cluster:
    for node in cluster.nodes:
        (pod_cidr,) = cluster.pod_cidrs(node.name)
        for plugin in (main, "host-local"):
            node.add_plugin(plugin)
        plugin = {"type": main, "ipMasq": True, **MAINS[main]}
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": pod_cidr}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        conflist = {"cniVersion": "0.4.0", "name": "other", "plugins": [{**plugin, "ipam": ipam}]}
        node.machine.write("/etc/cni/net.d/20-other.conflist", json.dumps(conflist))
    wait_for(cluster.nodes_are_ready, "Ready Nodes", 30)
    netmgr.apply(cluster, netmgr.overlay(cluster, "observer"))
    netmgr.roll_out(cluster)
    return cluster


def test_every_byte_of_the_internet_is_counted_for_its_pod(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    counting.check(installed, running, internet)
