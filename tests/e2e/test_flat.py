"""The overlay `flat` on a network that knows no podCIDR: the README's lines, and pods reach each
other.

Kubernetes is the minor version before the newest everywhere.
"""

from __future__ import annotations

import sys
import time

import pytest

from netmgr.prefixes import Family
from tests.e2e import companions, network, pods, quick_starts
from tests.e2e.cluster import Cluster, wait_for
from tests.lab import exchange
from tests.lab.exchange import End

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

SECONDS = 120
"""In which every node has routes to the others: what is promised, and time to start."""

POD_NETWORK = {Family.V4: "10.244.0.0/16", Family.V6: "fd00:244::/56"}


@pytest.fixture(scope="module")
def options() -> dict[str, object]:
    return {"families": tuple(Family), "with_previous": network.MACHINES}


def routes(cluster: Cluster, node: str) -> set[str]:
    """Destinations of the routes to other nodes."""
    lines = cluster.run_at(node, "ip", "route", "show", "proto", "111")
    lines += cluster.run_at(node, "ip", "-6", "route", "show", "proto", "111")
    return {line.split()[0] for line in lines.splitlines()}


def test_the_quick_start_connects_the_pods_of_all_nodes(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for family, pod_network in POD_NETWORK.items():
        flush = ("route", "flush", "root", pod_network)
        cluster.run_at(network.FABRIC, "ip", f"-{family.value}", *flush)
    # The control plane is no node here: it lacks the routes that nodes get, and takes no pod.
    cluster.route_pod_cidrs(network.CONTROL_PLANE)
    label = "node-restriction.kubernetes.io/netmgr-controller="
    cluster.plane.kubectl("label", "node", "node-2", label)
    companions.bring_dns(cluster)
    begin = time.monotonic()
    printed = quick_starts.run(cluster, "Give pods native addresses")
    assert printed.splitlines()[-1] == "passed"
    for node, other in (network.NODES, network.NODES[::-1]):
        wanted = set(cluster.pod_cidrs(other))
        wait_for(lambda node=node, wanted=wanted: routes(cluster, node) == wanted, node, SECONDS)
    with capsys.disabled():
        sys.stdout.write(f"\nall of it: {time.monotonic() - begin:.0f} s\n")
    running = pods.run(cluster, {"a": "node-1", "b": "node-2"})
    for family in Family:
        heard = exchange.stream(running["a"].end(family), running["b"].end(family), 200_000, 70_000)
        assert heard.peer == running["a"].end(family).address
        # A machine of the LAN that is no Node, and knows no pods: it sees the node.
        machine = End(cluster.namespace(network.FABRIC), network.gateway(family))
        heard = exchange.stream(running["a"].end(family), machine, 200_000, 70_000)
        assert heard.peer == network.address("node-1", family)
