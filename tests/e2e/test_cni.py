"""The overlay `cni` from `kubectl apply` to the uninstallation, on a real cluster."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from ipaddress import ip_address, ip_network
from itertools import permutations

import pytest

from netmgr.lab import exchange
from netmgr.lab.capture import Capture
from netmgr.lab.exchange import End, Frontend
from netmgr.prefixes import Address
from tests.e2e import counting, netmgr, network, pods, programs
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.load import Background, Churn, Conversation
from tests.e2e.pods import BACK, FORTH, PODS, Pod
from tests.kubernetes.control_plane import Object

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.smoke, pytest.mark.timeout(600)]


AGENTS = "/api/v1/namespaces/netmgr/pods?labelSelector=app.kubernetes.io/component%3Dagent"
OTHERS_TABLES = "KUBE|kube|^table ip6? |chain [A-Z]+ '"
SECONDS_TO_SPREAD = 20
"""A roll-out that does not stop would be at the second node by then."""


@pytest.fixture(scope="module")
def pristine(cluster: Cluster) -> dict[str, list[str]]:
    """What is on the nodes before netmgr."""
    return {node: traces(cluster, node) for node in network.NODES}


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


@pytest.mark.parametrize(("client", "server"), list(permutations(PODS, 2)))
def test_pods_reach_each_other_with_their_own_addresses(
    running: dict[str, Pod], client: str, server: str
):
    heard = exchange.stream(running[client].end(), running[server].end(), FORTH, BACK)
    assert heard.peer == running[client].addresses[0]


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
    before = counting.counts(installed)
    talk, churn = Conversation(running, internet), Churn(installed)
    with Capture(internet.namespace, "eth0") as capture:
        with (
            Background(lambda _: capture.drain(), ["capture"]),
            Background(talk.step, running),
            Background(churn.step, network.NODES),
        ):
            netmgr.apply(installed, netmgr.overlay(installed, "cni", tag="0.1.1"))
            netmgr.roll_out(installed)
        seen = talk.seen(capture)
    assert counting.gained(installed, before, seen) == seen
    assert images_of_agents(installed) == {"registry.example.com/netmgr:0.1.1"}
    assert len(churn.seconds) > len(network.NODES), churn.seconds
    wait_for(partial(nothing_is_left_over, installed), "as many links and leases as pods", 30)


def test_a_bad_configuration_stops_at_one_node_and_can_be_rolled_back(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    talk = Conversation(running, internet)
    with Background(talk.step, running):
        bad = netmgr.overlay(installed, "cni", tag="0.1.1", node_yaml={"backend": "abacus"})
        netmgr.apply(installed, bad)
        wait_for(partial(failed_agents, installed), "an agent that fails", 60)
        time.sleep(SECONDS_TO_SPREAD)
        assert len(failed_agents(installed)) == 1
        (message,) = failed_agents(installed).values()
        assert "backend: Input should be" in message
        installed.plane.kubectl("-n", "netmgr", "rollout", "undo", "daemonset/netmgr")
        netmgr.roll_out(installed)
    assert not failed_agents(installed)


def test_uninstalling_leaves_the_nodes_as_they_were(
    pristine: dict[str, list[str]], installed: Cluster
):
    kubectl = installed.plane.kubectl
    for node in network.NODES:
        kubectl("drain", node, "--ignore-daemonsets", "--force", timeout=90)
    kubectl("delete", "-k", netmgr.overlay(installed, "cni"), timeout=90)
    netmgr.apply(installed, netmgr.overlay(installed, "uninstall"))
    netmgr.roll_out(installed, "netmgr-uninstall")
    kubectl("delete", "-k", netmgr.overlay(installed, "uninstall"), timeout=90)
    for node in network.NODES:
        assert Counter(traces(installed, node)) - Counter(pristine[node]) == Counter()


def images_of_agents(cluster: Cluster) -> set[str]:
    return {
        container["image"]
        for pod in agents(cluster)
        for container in pod["spec"]["initContainers"] + pod["spec"]["containers"]
    }


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


def nothing_is_left_over(cluster: Cluster) -> bool:
    return all(
        len([name for name in PODS if PODS[name] == node])
        == netmgr.links(cluster, node)
        == netmgr.leases(cluster, node)
        for node in network.NODES
    )


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
