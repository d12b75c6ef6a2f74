"""The overlay `nat-host` beside `cni`: node-1 has pods, node-2 opens their Services to the hub."""

from __future__ import annotations

import re

import pytest

from netmgr.prefixes import Address
from tests.e2e import counting, netmgr, network, pods
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.load import Background, Conversation
from tests.e2e.network import HUB, NAT_HOST, SPOKE
from tests.e2e.pods import BACK, FORTH, TARGET_PORT, Pod
from tests.lab import exchange
from tests.lab.capture import Capture
from tests.lab.errors import LabError
from tests.lab.exchange import End, Frontend
from tests.runtimes.node import NETMGR

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

LABEL = "node-restriction.kubernetes.io/netmgr-role"
NODE = network.NODES[0]
SITES = [
    {"name": "hub", "prefixes": [str(network.OUTSIDE[HUB])]},
    {
        "name": "training",
        "prefixes": [
            str(prefix) for prefix in (*network.LAN.values(), *network.POD_CIDRS.values())
        ],
        "services": [str(network.VIP_RANGE)],
    },
    {"name": "evals", "prefixes": [str(network.OUTSIDE[SPOKE])]},
]
SPOKE_OF = {"site": "training", "sites": SITES}
NAT = {
    "services": [
        {
            "vip_range": str(network.VIP_RANGE),
            "service_cidr": str(network.SERVICE_CIDRS[network.VIP_RANGE.family]),
        }
    ],
    "translation": "endpoints",
    "source": "snat",
    "documents": "/services/cluster",
}


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    cluster.label(NAT_HOST, LABEL, "nat-host")
    netmgr.apply(cluster, netmgr.overlay(cluster, "cni", node_yaml=SPOKE_OF))
    node_yaml = {**SPOKE_OF, "nat": NAT}
    folder = netmgr.overlay(cluster, "nat-host", node_yaml=node_yaml, config_map="netmgr-nat-host")
    netmgr.apply(cluster, folder)
    netmgr.roll_out(cluster)
    netmgr.roll_out(cluster, "netmgr-nat-host")
    return cluster


@pytest.fixture(scope="module")
def running(installed: Cluster) -> dict[str, Pod]:
    return pods.run(installed, {"a1": NODE, "a2": NODE})


@pytest.fixture(scope="module")
def vip(installed: Cluster) -> Frontend:
    """Where the hub reaches the Service of pod a1."""
    cluster_ip = Address.parse(pods.serve(installed, "a1", 80)["clusterIP"])
    service_cidr = network.SERVICE_CIDRS[cluster_ip.family]
    return Frontend(service_cidr.counterpart(cluster_ip, network.VIP_RANGE), 80)


def at(cluster: Cluster, host: str) -> End:
    return End(cluster.namespace(host), network.outside(host))


def translated(cluster: Cluster) -> int:
    found = re.findall(
        r"^netmgr_nat_translated_bytes_total\{.*\} (\S+)$",
        netmgr.page(cluster, NAT_HOST),
        re.MULTILINE,
    )
    return sum(int(float(each)) for each in found)


def test_each_machine_has_the_agent_of_its_role(installed: Cluster):
    found = installed.plane.ask("GET", f"/api/v1/namespaces/{netmgr.NAMESPACE}/pods")["items"]
    roles = {
        each["spec"]["nodeName"]: each["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in found
        if each["metadata"]["labels"]["app.kubernetes.io/component"] != "controller"
    }
    assert roles == {NODE: "agent", NAT_HOST: "nat-host"}


def test_the_hub_reaches_a_service_by_its_vip_and_every_byte_is_counted(
    installed: Cluster, running: dict[str, Pod], vip: Frontend
):
    hub = at(installed, HUB)
    pods.reach(hub, running["a1"], vip)
    before = translated(installed)
    with Capture(hub.namespace, network.UPLINK) as capture:
        heard = exchange.stream(
            hub, running["a1"].end(), FORTH, BACK, port=TARGET_PORT, frontend=vip
        )
        capture.settle()
        passed = sum(tally.bytes for tally in capture.flows().values())
    assert heard.peer == network.address(NAT_HOST), "the NAT host gives its own address"
    wait_for(lambda: translated(installed) - before == passed, "every byte", 20)


def test_another_spoke_reaches_neither_services_nor_pods(
    installed: Cluster, running: dict[str, Pod], vip: Frontend
):
    pod, spoke = running["a1"].end(), at(installed, SPOKE)
    for frontend in (vip, None):
        with pytest.raises(LabError):
            exchange.stream(spoke, pod, 1, 1, port=TARGET_PORT, frontend=frontend)
    with pytest.raises(LabError):
        exchange.stream(pod, spoke, 1, 1)
    # The way is there: it is the rules that keep them apart.
    exchange.stream(at(installed, HUB), pod, FORTH, BACK)
    exchange.stream(spoke, at(installed, HUB), FORTH, BACK)


def test_every_byte_of_the_internet_is_counted_for_its_pod(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    before = counting.settled(installed)
    talk = Conversation(running, internet)
    with Capture(internet.namespace, network.UPLINK) as capture:
        for name in running:
            talk.step(name)
        seen = talk.seen(capture)
    assert {column.pod for column in seen} == set(running)
    assert counting.gained(installed, before, seen) == seen


def test_while_the_nat_hosts_agent_is_replaced_the_hub_reaches_services(
    installed: Cluster, running: dict[str, Pod], vip: Frontend
):
    options = {"node_yaml": {**SPOKE_OF, "nat": NAT}, "config_map": "netmgr-nat-host"}
    netmgr.apply(installed, netmgr.overlay(installed, "nat-host", tag="0.1.1", **options))
    hub, server = at(installed, HUB), running["a1"].end()

    def step(_: str) -> None:
        exchange.stream(hub, server, FORTH, BACK, port=TARGET_PORT, frontend=vip)

    with Background(step, ["hub"]):
        netmgr.roll_out(installed, "netmgr-nat-host")
    step("after")


def test_nothing_of_it_is_left_on_the_nat_host(installed: Cluster):
    installed.plane.kubectl("delete", "-k", installed.folder / "overlay" / "nat-host", timeout=90)
    machine = installed.node(NAT_HOST).machine
    machine.run(*NETMGR, "host", "clean")
    assert "netmgr" not in machine.run("nft", "list", "tables")
    assert not machine.path("/var/lib/netmgr").exists()
