"""Faults of a cluster: none costs a pod its start for long, or a byte of what was counted."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.e2e import agents, counting, netmgr, network, pods
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.pods import Pod
from tests.lab import exchange
from tests.lab.exchange import End

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

NODE = network.NODES[0]
PODS = 10
KUBELET_RETRY_SECONDS = 15


def start_pods(cluster: Cluster, prefix: str) -> list[float]:
    """Start pods at once on one node; seconds until each was Ready."""

    def start(name: str) -> float:
        begin = time.monotonic()
        pods.create(cluster, name, NODE)
        pods.started(cluster, name)
        return time.monotonic() - begin

    with ThreadPoolExecutor(PODS) as pool:
        return list(pool.map(start, [f"{prefix}-{number}" for number in range(PODS)]))


def talk(speaker: Pod, internet: End) -> None:
    exchange.datagrams(speaker.end(), internet, [1000] * 10, [500] * 10)


def delete_pods(cluster: Cluster, prefix: str) -> None:
    pods.delete(cluster, [f"{prefix}-{number}" for number in range(PODS)])


def test_a_killed_agent_costs_no_pod_the_kubelets_retry(installed: Cluster) -> None:
    undisturbed = start_pods(installed, "calm")
    delete_pods(installed, "calm")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start_pods, installed, "killed")
        # With the first sandboxes under way.
        time.sleep(0.3)
        agents.kill(installed, NODE)
        took = starting.result()
    assert pods.refusals(installed, "killed") == []
    assert max(took) < max(undisturbed) + KUBELET_RETRY_SECONDS
    wait_for(
        lambda: netmgr.links(installed, NODE) == netmgr.leases(installed, NODE) == PODS,
        "as many links and leases as pods",
        60,
    )
    delete_pods(installed, "killed")


def test_an_agent_whose_pod_is_replaced_costs_no_pod_the_kubelets_retry(installed: Cluster) -> None:
    agents.replace(installed, NODE)
    assert not agents.serves(installed, NODE)
    took = start_pods(installed, "replaced")
    assert pods.refusals(installed, "replaced") == []
    assert max(took) < KUBELET_RETRY_SECONDS
    netmgr.roll_out(installed)
    delete_pods(installed, "replaced")


def test_pods_keep_their_network_and_counts_while_containerd_restarts(
    installed: Cluster, internet: End
) -> None:
    (speaker,) = pods.run(installed, {"speaker": NODE}).values()
    gained = partial(counting.difference, installed, counting.counts(installed))
    talk(speaker, internet)
    node = installed.node(NODE)
    (server,) = [int(each) for each in node.machine.run("pgrep", "-x", "containerd").split()]
    node.machine.run("kill", "-9", str(server))
    talk(speaker, internet)
    node.machine.start("containerd", "containerd")
    wait_for(node.containerd_answers, "containerd", 30)
    talk(speaker, internet)
    expected = {30 * 1028, 30 * 528}
    wait_for(
        lambda: {tally.bytes for tally in gained().values()} == expected,
        "every byte of the pod",
        30,
    )
    start_pods(installed, "after")
    assert pods.refusals(installed, "after") == []
    delete_pods(installed, "after")
    pods.delete(installed, ["speaker"])
    wait_for(partial(_is_empty, installed), "no link and no lease", 60)


def _is_empty(cluster: Cluster) -> bool:
    return netmgr.links(cluster, NODE) == netmgr.leases(cluster, NODE) == 0


def test_an_agent_starts_and_counts_while_the_api_server_is_away(
    installed: Cluster, internet: End
) -> None:
    (speaker,) = pods.run(installed, {"lonely": NODE}).values()
    gained = partial(counting.difference, installed, counting.counts(installed))
    killed = agents.process(installed, NODE)
    installed.plane.stop_server()
    try:
        talk(speaker, internet)
        os.kill(killed, signal.SIGKILL)
        talk(speaker, internet)
        expected = {20 * 1028, 20 * 528}
        wait_for(
            lambda: {each.bytes for each in gained().values()} == expected,
            "every byte of the pod, counted by the agent's successor",
            # The second end of a container within ten minutes costs the kubelet's backoff, too.
            120,
        )
    finally:
        installed.plane.start_server()
    start_pods(installed, "back")
    assert pods.refusals(installed, "back") == []
    delete_pods(installed, "back")
    pods.delete(installed, ["lonely"])
