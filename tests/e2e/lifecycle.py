"""What every overlay goes through: an upgrade, a bad configuration, and its end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from tests.e2e import counting, netmgr, network
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.load import Background, Churn, Conversation
from tests.e2e.pods import Pod
from tests.kubernetes.control_plane import Object
from tests.lab.capture import Capture
from tests.lab.exchange import End

AGENTS = "/api/v1/namespaces/netmgr/pods?labelSelector=app.kubernetes.io/component%3Dagent"
OTHERS_TABLES = "KUBE|kube|^table ip6? |chain [A-Z]+ '"
SECONDS_TO_SPREAD = 20
"""A roll-out that does not stop would be at the second node by then."""

TAG = "0.1.1"


def disturb_nobody(
    cluster: Cluster, running: Mapping[str, Pod], internet: End, change: Callable[[], object]
) -> None:
    """Roll a change out while pods talk, come and go: no byte is lost, no pod disturbed."""
    before = counting.counts(cluster)
    talk, churn = Conversation(running, internet), Churn(cluster)
    with Capture(internet.namespace, network.UPLINK) as capture:
        with (
            Background(lambda _: capture.drain(), ["capture"]),
            Background(talk.step, running),
            Background(churn.step, network.NODES),
        ):
            change()
            netmgr.roll_out(cluster)
        seen = talk.seen(capture)
    assert counting.gained(cluster, before, seen) == seen
    assert len(churn.seconds) > len(network.NODES), churn.seconds


def upgrade(cluster: Cluster, running: Mapping[str, Pod], internet: End, overlay: str) -> None:
    """Roll another image out, which disturbs nobody."""
    folder = netmgr.overlay(cluster, overlay, tag=TAG)
    disturb_nobody(cluster, running, internet, lambda: netmgr.apply(cluster, folder))
    images = {
        container["image"]
        for pod in agents(cluster)
        for container in pod["spec"]["initContainers"] + pod["spec"]["containers"]
    }
    assert images == {f"registry.example.com/netmgr:{TAG}"}


def stop_a_bad_configuration(
    cluster: Cluster, running: Mapping[str, Pod], internet: End, overlay: str
) -> None:
    """After an upgrade: a bad node.yaml stops at one node, whose pods run on; then go back."""
    talk = Conversation(running, internet)
    with Background(talk.step, running):
        bad = netmgr.overlay(cluster, overlay, tag=TAG, node_yaml={"backend": "abacus"})
        netmgr.apply(cluster, bad)
        wait_for(partial(failed_agents, cluster), "an agent that fails", 60)
        time.sleep(SECONDS_TO_SPREAD)
        assert len(failed_agents(cluster)) == 1
        (message,) = failed_agents(cluster).values()
        assert "backend: " in message
        cluster.plane.kubectl("-n", "netmgr", "rollout", "undo", "daemonset/netmgr")
        netmgr.roll_out(cluster)
    assert not failed_agents(cluster)


def uninstall(cluster: Cluster, *overlays: str) -> None:
    """Drain the nodes, delete the overlays, and run the overlay `uninstall`."""
    kubectl = cluster.plane.kubectl
    for node in network.NODES:
        kubectl("drain", node, "--ignore-daemonsets", "--force", timeout=90)
    for overlay in overlays:
        folder = netmgr.overlay(cluster, overlay)
        kubectl("delete", "--ignore-not-found", "-k", folder, timeout=90)
    netmgr.apply(cluster, netmgr.overlay(cluster, "uninstall"))
    netmgr.roll_out(cluster, "netmgr-uninstall")
    kubectl("delete", "-k", netmgr.overlay(cluster, "uninstall"), timeout=90)


def agents(cluster: Cluster) -> list[Object]:
    return cluster.plane.ask("GET", AGENTS)["items"]


def failed_agents(cluster: Cluster) -> dict[str, str]:
    """The nodes whose agent's pod has a container that failed, with its last words."""
    failed = {}
    for pod in agents(cluster):
        for status in pod["status"].get("initContainerStatuses", []):
            ended = {**status["lastState"], **status["state"]}.get("terminated")
            if ended and ended["exitCode"] != 0:
                name = pod["metadata"]["name"]
                kubectl = cluster.plane.kubectl
                log = kubectl("-n", "netmgr", "logs", name, "-c", status["name"])
                failed[pod["spec"]["nodeName"]] = log
    return failed


def additions(cluster: Cluster, node: str, before: list[str]) -> list[str]:
    """The traces on a node that were not there before."""
    return list((Counter(traces(cluster, node)) - Counter(before)).elements())


def traces(cluster: Cluster, node: str) -> list[str]:
    """Everything on a node that netmgr might leave, but for what kube-proxy keeps there."""
    looks = (
        "ip -o link | sed 's/ *link.*//'",
        "ip route show table all; ip -6 route show table all",
        "ip rule; ip -6 rule",
        # Tables and chains, without those of every iptables and of kube-proxy.
        r"nft list ruleset | grep -E '^table|^\s*(chain|set|map) ' | grep -vE '" + OTHERS_TABLES,
        "nft list ruleset | grep -i netmgr",
        "ipset list",
        "find /opt/cni /etc/cni /var/lib/netmgr /run/netmgr /var/lib/cni -type f 2>/dev/null",
    )
    return [
        line
        for look in looks
        for line in cluster.node(node).machine.run("sh", "-c", look, check=False).splitlines()
    ]
