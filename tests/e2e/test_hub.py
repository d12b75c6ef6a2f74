"""The overlay `nat-host` beside `cni`: node-1 has pods, node-2 opens their Services to the hub.

kube-proxy of node-2 leads the Services to their pods, in either of its modes.
"""

from __future__ import annotations

import re
import select
import socket
from contextlib import ExitStack
from dataclasses import replace

import pytest

from netmgr.prefixes import Address, Family
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

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(900)]

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
    "source": "snat",
    "machines": [str(prefix) for prefix in network.LAN.values()],
}
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


@pytest.fixture(scope="module", params=["iptables", "nftables"])
def options(request: pytest.FixtureRequest) -> dict[str, object]:
    return {"proxy_mode": request.param}


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


def figure(cluster: Cluster, series: str) -> int:
    """The sum of the series of the NAT host whose names and labels match."""
    page = netmgr.page(cluster, NAT_HOST)
    found = re.findall(rf"^{series} (\S+)$", page, re.MULTILINE)
    return sum(int(float(each)) for each in found)


def translated(cluster: Cluster) -> int:
    return figure(cluster, r"netmgr_nat_translated_bytes_total\{.*\}")


def dropped(cluster: Cluster) -> int:
    return figure(cluster, r'netmgr_dropped_packets_total\{reason="endpoint"\}')


def serve(cluster: Cluster, name: str, protocol: str = "TCP", **spec: object) -> Frontend:
    """A Service of this name; where the hub reaches it."""
    ports = [{"port": 80, "protocol": protocol, "targetPort": TARGET_PORT}]
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": ports, **spec},
    }
    cluster_ip = Address.parse(cluster.plane.ask("POST", SERVICES, body)["spec"]["clusterIP"])
    return Frontend(network.SERVICE_CIDRS[Family.V4].counterpart(cluster_ip, network.VIP_RANGE), 80)


def lead(
    cluster: Cluster, name: str, *addresses: Address, protocol: str = "TCP", verb: str = "POST"
) -> None:
    """Say by an EndpointSlice where a Service without a selector leads."""
    body = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [str(address)]} for address in addresses],
        "ports": [{"port": TARGET_PORT, "protocol": protocol}],
    }
    cluster.plane.ask(verb, SLICES if verb == "POST" else f"{SLICES}/{name}", body)


def chosen(client: End, servers: dict[str, Pod], vip: Frontend, times: int) -> set[str]:
    """The pods that get connections, opened one after the other."""
    found = set()
    with ExitStack() as closing:
        listeners = {}
        for name, pod in servers.items():
            end = pod.end()
            opened = exchange.open_socket(end.namespace, Family.V4, socket.SOCK_STREAM)
            listeners[name] = closing.enter_context(opened)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((str(end.address), TARGET_PORT))
            opened.listen(times)
        for _ in range(times):
            with exchange.open_socket(client.namespace, Family.V4, socket.SOCK_STREAM) as near:
                near.bind((str(client.address), 0))
                near.connect((str(vip.address), vip.port))
                (ready,), _, _ = select.select(listeners.values(), (), (), exchange.PATIENCE)
                ready.accept()[0].close()
                found |= {name for name, one in listeners.items() if one is ready}
    return found


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


def test_connections_spread_over_the_pods_of_a_service_and_a_sticky_client_stays(
    installed: Cluster, running: dict[str, Pod]
):
    hub = at(installed, HUB)
    clients = [hub, *(replace(hub, address=Address.parse(f"10.200.0.{n}")) for n in range(11, 18))]
    for client in clients[1:]:
        installed.run_at(HUB, "ip", "address", "add", f"{client.address}/24", "dev", network.UPLINK)
    ends = [pod.end().address for pod in running.values()]
    spread, sticky = (
        serve(installed, "spread"),
        serve(installed, "sticky", sessionAffinity="ClientIP"),
    )
    for name, vip in (("spread", spread), ("sticky", sticky)):
        lead(installed, name, ends[0])
        pods.reach(hub, running["a1"], vip)
        lead(installed, name, *ends, verb="PUT")
    wait_for(lambda: len(chosen(hub, running, spread, 10)) == 2, "connections to both pods", 30)
    firsts = [chosen(client, running, sticky, 5) for client in clients]
    assert all(len(first) == 1 for first in firsts)
    # All of them move to the pod that is left, whatever kube-proxy remembers of them.
    lead(installed, "sticky", ends[1], verb="PUT")
    wait_for(
        lambda: all(chosen(client, running, sticky, 2) == {"a2"} for client in clients),
        "the pod that is left, for everybody",
        30,
    )


def test_datagrams_of_one_client_follow_when_an_endpoint_goes_away(
    installed: Cluster, running: dict[str, Pod]
):
    vip = serve(installed, "datagrams", "UDP")
    hub, (a1, a2) = at(installed, HUB), (running[name].end() for name in ("a1", "a2"))
    lead(installed, "datagrams", a1.address, protocol="UDP")
    with ExitStack() as closing:
        client, *servers = (
            closing.enter_context(exchange.open_socket(end.namespace, Family.V4, socket.SOCK_DGRAM))
            for end in (hub, a1, a2)
        )
        for server, end in zip(servers, (a1, a2), strict=True):
            server.bind((str(end.address), TARGET_PORT))
            server.settimeout(0.5)

        def hears(server: socket.socket) -> bool:
            client.sendto(b"hello", (str(vip.address), vip.port))
            try:
                server.recv(100)
            except TimeoutError:
                return False
            return True

        wait_for(lambda: hears(servers[0]), "a datagram at a1", 30)
        lead(installed, "datagrams", a2.address, protocol="UDP", verb="PUT")
        wait_for(lambda: hears(servers[1]), "a datagram at a2", 30)


@pytest.mark.parametrize("led", ["node", "nat-host", "spoke", "hub", "internet"])
def test_an_endpoint_slice_leads_the_hub_neither_to_machines_nor_out_of_the_spoke(
    installed: Cluster, running: dict[str, Pod], internet: End, led: str
):
    hub = at(installed, HUB)
    target = {
        "node": End(installed.namespace(NODE), network.address(NODE)),
        "nat-host": End(installed.namespace(NAT_HOST), network.address(NAT_HOST)),
        "spoke": at(installed, SPOKE),
        "hub": hub,
        "internet": internet,
    }[led]
    vip = serve(installed, f"to-{led}")
    lead(installed, f"to-{led}", target.address)
    before = dropped(installed)

    def is_refused() -> bool:
        with pytest.raises(LabError):
            exchange.stream(hub, target, FORTH, BACK, port=TARGET_PORT, frontend=vip)
        return dropped(installed) > before

    wait_for(is_refused, "a drop: kube-proxy leads there", 60)
    # The same Service is opened by a pod instead.
    lead(installed, f"to-{led}", running["a1"].end().address, verb="PUT")
    pods.reach(hub, running["a1"], vip)


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


def test_a_pod_sees_the_client_where_its_address_is_preserved(
    installed: Cluster, running: dict[str, Pod], vip: Frontend
):
    hub = at(installed, HUB)
    way_back = (str(network.OUTSIDE[HUB]), "via", str(network.address(NAT_HOST)))
    installed.run_at(NODE, "ip", "route", "add", *way_back)
    node_yaml = {**SPOKE_OF, "nat": {**NAT, "source": "preserve"}}
    options = {"node_yaml": node_yaml, "config_map": "netmgr-nat-host"}
    netmgr.apply(installed, netmgr.overlay(installed, "nat-host", tag="0.1.1", **options))
    netmgr.roll_out(installed, "netmgr-nat-host")
    heard = exchange.stream(hub, running["a1"].end(), FORTH, BACK, port=TARGET_PORT, frontend=vip)
    assert network.OUTSIDE[HUB].holds(heard.peer)
    installed.run_at(NODE, "ip", "route", "del", *way_back)


def test_nothing_of_it_is_left_on_the_nat_host(installed: Cluster):
    installed.plane.kubectl("delete", "-k", installed.folder / "overlay" / "nat-host", timeout=90)
    machine = installed.node(NAT_HOST).machine
    machine.run(*NETMGR, "host", "clean")
    assert "netmgr" not in machine.run("nft", "list", "tables")
    assert not machine.path("/var/lib/netmgr").exists()
