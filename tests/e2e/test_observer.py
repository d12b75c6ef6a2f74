"""The overlay `observer` beside other plugins: it counts for the pods that they wire."""

from __future__ import annotations

import json
import re
import sys
import time

import pytest

from tests.e2e import counting, lifecycle, network, pods, quick_starts
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.pods import Pod
from tests.lab.exchange import End

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

MAINS = {"ptp": {}, "bridge": {"bridge": "cni0", "isGateway": True}}
"""What wires the pods: a link for each, or a bridge as flannel's."""


OTHERS = re.compile("cni0|CNI-|/var/lib/cni/networks/")
"""What the other plugins make for their first pod, and leave."""


@pytest.fixture(scope="module", params=sorted(MAINS))
def main(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def options(main: str) -> dict[str, object]:
    """Depends on the plugin, so that each gets a cluster of its own."""
    assert main in MAINS
    return {}


@pytest.fixture(scope="module")
def installed(main: str, cluster: Cluster, request: pytest.FixtureRequest) -> Cluster:
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
    # What is on the nodes before netmgr, once the plugins are installed.
    request.getfixturevalue("pristine")
    own = pods.run(cluster, {f"own-{node}": node for node in network.NODES})
    begin = time.monotonic()
    printed = quick_starts.run(cluster, "Count traffic beside the CNI you have")
    sys.stdout.write(f"from the first line to the first figure: {time.monotonic() - begin:.0f} s\n")
    assert 'daemon set "netmgr" successfully rolled out' in printed
    assert re.search(r"\bown-node-[12]\b", printed), printed
    pods.delete(cluster, own)
    return cluster


def test_every_byte_of_the_internet_is_counted_for_its_pod(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    counting.check(installed, running, internet)


def test_an_upgrade_under_load_disturbs_no_pod_and_loses_no_byte(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    lifecycle.upgrade(installed, running, internet, "observer")


def test_uninstalling_leaves_the_nodes_as_they_were(
    installed: Cluster, pristine: dict[str, list[str]]
):
    lifecycle.uninstall(installed, "observer")
    for node in network.NODES:
        found = lifecycle.additions(installed, node, pristine[node])
        assert [line for line in found if not OTHERS.search(line)] == []
