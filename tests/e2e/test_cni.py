"""The overlay `cni` from `kubectl apply` to the uninstallation, on a real cluster."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from ipaddress import ip_address, ip_network
from itertools import permutations

import pytest

from netmgr.errors import LabError
from netmgr.lab import comparison, exchange
from netmgr.lab.capture import Capture, Tally
from netmgr.lab.comparison import Counts
from netmgr.lab.exchange import End, Frontend
from netmgr.lab.topology import INTERNET
from netmgr.lab.traffic import Column
from netmgr.prefixes import Address, Family
from tests.e2e import netmgr, network, pods
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.pods import Pod

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

PODS = {"a1": "node-1", "a2": "node-1", "b1": "node-2", "b2": "node-2"}
FORTH, BACK = 200_000, 70_000
PORT = 8080


def ready(cluster: Cluster) -> dict[str, str]:
    """The condition Ready of every Node: its status and reason."""
    found = {}
    for node in cluster.plane.ask("GET", "/api/v1/nodes")["items"]:
        condition = next(e for e in node["status"]["conditions"] if e["type"] == "Ready")
        found[node["metadata"]["name"]] = f"{condition['status']} {condition['message']}"
    return found


def are_ready(cluster: Cluster) -> bool:
    return all(condition.startswith("True") for condition in ready(cluster).values())


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    before = ready(cluster)
    assert all("cni plugin not initialized" in condition for condition in before.values()), before
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni"))
    netmgr.roll_out(cluster)
    return cluster


@pytest.fixture(scope="module")
def running(installed: Cluster) -> dict[str, Pod]:
    return pods.run(installed, PODS)


@pytest.fixture
def internet(installed: Cluster) -> End:
    return End(installed.namespace("internet"), INTERNET[Family.V4])


def test_nodes_become_ready_when_netmgr_serves(installed: Cluster):
    wait_for(partial(are_ready, installed), "Ready Nodes", 30)


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
    made = pods.serve(installed, "b1", 80, PORT)["spec"]
    cluster_ip = Frontend(Address.parse(made["clusterIP"]), 80)
    node_port = Frontend(network.address("node-1"), made["ports"][0]["nodePort"])
    for name in ("a1", "b2", "b1"):
        through(running[name].end(), running["b1"], cluster_ip)
    through(internet, running["b1"], node_port)


def through(client: End, server: Pod, frontend: Frontend) -> None:
    """Talk to a Service, once kube-proxy has it."""
    talk = partial(exchange.stream, port=PORT, frontend=frontend)

    def talked() -> bool:
        try:
            talk(client, server.end(), FORTH, BACK)
        except LabError:
            return False
        return True

    wait_for(talked, f"an answer of {frontend}", 20)


def test_every_byte_of_the_internet_is_counted_for_its_pod(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    before = netmgr.counts(installed)
    with Capture(internet.namespace, "eth0") as capture:
        ports = {}
        for name, pod in running.items():
            heard = exchange.stream(pod.end(), internet, FORTH, BACK)
            ports[heard.server_port] = name
            heard = exchange.datagrams(pod.end(), internet, [1, 1400, 700], [0, 900, 4])
            ports[heard.server_port] = name
            exchange.stream(pod.end(), running["a1" if name != "a1" else "b1"].end(), FORTH, BACK)
        capture.settle()
        seen = by_pod(capture, ports)
    counted = comparison.wait_for(partial(gained, installed, before), expected=seen, patience=90)
    assert counted == seen


def by_pod(capture: Capture, ports: dict[int, str]) -> Counts:
    """What the capture saw, by the port of the internet's side, which only one pod talked to."""
    seen: defaultdict[Column, Tally] = defaultdict(Tally)
    for flow, tally in capture.flows().items():
        seen[Column("default", ports[flow.own_port], flow.traffic)] += tally
    return dict(seen)


def gained(cluster: Cluster, before: Counts) -> Counts:
    """What each pod has more than before."""
    after = netmgr.counts(cluster)
    more = {column: tally - before.get(column, Tally()) for column, tally in after.items()}
    return {column: tally for column, tally in more.items() if tally != Tally()}
