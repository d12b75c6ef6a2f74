"""netmgr beside other interfaces in one pod, as GPU clusters have them for RDMA: behind Multus."""

from __future__ import annotations

import re
from collections.abc import Callable

import grpc
import pytest

from netmgr.documents.node import POD_GATEWAYS
from tests.kernel.namespaces import inside
from tests.lab.topology import INTERNET, Node
from tests.lab.world import World
from tests.runtimes.engines import ContainerdCri
from tests.runtimes.internet import Internet, probing
from tests.runtimes.multus import IPAM, RESULTS, Conf, Multus
from tests.runtimes.node import NetmgrNode, settled

pytestmark = [pytest.mark.root, pytest.mark.runtimes, pytest.mark.slow]

NETMGR: Conf = {
    "cniVersion": "1.0.0",
    "name": "netmgr",
    "plugins": [{"type": "netmgr", "capabilities": {"ips": True, "mac": True, "dns": True}}],
}
"""As `netmgr cni install --cni-version 1.0.0` writes it."""

FABRIC = "192.0.2.1"
"""A host beyond the node's second interface, as in an RDMA fabric."""

PTP: Conf = {
    "cniVersion": "1.0.0",
    "name": "another",
    "plugins": [{"type": "ptp", "ipMasq": True, "ipam": IPAM}],
}
SECOND: Conf = {
    "cniVersion": "1.0.0",
    "name": "rdma",
    "type": "host-device",
    "device": "rdma0",
    "ipam": {"type": "static", "addresses": [{"address": "192.0.2.10/24"}]},
}


@pytest.fixture
def fabric(world: World, node: Node) -> Callable[..., str]:
    """A second interface of the node, rdma0, and a host at its other end; runs commands of the
    node.
    """

    def on_node(*command: str) -> str:
        return inside(world.namespace(node.host), *command)

    far = ("peer", "name", "fabric", "netns", str(world.internet))
    on_node("ip", "link", "add", "rdma0", "type", "veth", *far)
    on_node("ip", "link", "set", "rdma0", "up")
    inside(world.internet, "ip", "address", "add", f"{FABRIC}/24", "dev", "fabric")
    inside(world.internet, "ip", "link", "set", "fabric", "up")
    return on_node


@pytest.fixture
def kubelet(netmgr_node: NetmgrNode, probe: bytes) -> ContainerdCri:
    """containerd as kubelet uses it, with Multus in front of netmgr."""
    Multus(netmgr_node.machine, NETMGR)
    return ContainerdCri(netmgr_node.machine, probe)


def exchange(kubelet: ContainerdCri, pod: str, *targets: str) -> None:
    for target in targets or map(str, INTERNET.values()):
        kubelet.speak(pod, *probing(target))


def held(kubelet: ContainerdCri, pod: str, ifname: str) -> list[str]:
    """Addresses of an interface, without link-local ones."""
    shown = kubelet.speak(pod, "ip", "-o", "address", "show", "dev", ifname)
    found = re.findall(r"inet6? ([0-9a-f.:]+)", shown)
    return [each for each in found if not each.startswith("fe80:")]


def way_out(kubelet: ContainerdCri, pod: str) -> set[str]:
    """Interfaces that packets to the internet leave by."""
    ways = [kubelet.speak(pod, "ip", "route", "get", str(each)) for each in INTERNET.values()]
    return {re.search(r" dev (\S+)", way)[1] for way in ways}


def choose_net1(kubelet: ContainerdCri, pod: str, multus: Multus) -> None:
    """Have the pod's packets to the internet go by its further interface."""
    entered = ("nsenter", f"--net={multus.netns(kubelet.ids[pod])}")
    for family, address in INTERNET.items():
        route = ("route", "add", str(address), "via", str(POD_GATEWAYS[family]), "dev", "net1")
        kubelet.machine.run(*entered, "ip", f"-{family.value}", *route)
    assert way_out(kubelet, pod) == {"net1"}


def test_the_default_network_beside_another_interface(
    kubelet: ContainerdCri, netmgr_node: NetmgrNode, internet: Internet, fabric: Callable[..., str]
) -> None:
    multus = Multus(kubelet.machine, NETMGR, SECOND)
    pod = kubelet.run("trainer")
    sandbox = kubelet.ids["trainer"]
    assert kubelet.cri.addresses(sandbox) == held(kubelet, "trainer", "eth0")
    assert held(kubelet, "trainer", "net1") == ["192.0.2.10"]
    assert way_out(kubelet, "trainer") == {"eth0"}

    exchange(kubelet, "trainer")
    exchange(kubelet, "trainer", FABRIC)
    assert settled(lambda: netmgr_node.counted(*pod), internet.meter) == internet.meter()
    assert internet.meter()["internet-out"][1] == 40

    multus.call("STATUS")
    multus.call("CHECK", sandbox)
    multus.call("GC")
    multus.call("CHECK", sandbox)
    exchange(kubelet, "trainer", FABRIC)

    kubelet.remove("trainer")
    assert netmgr_node.counted(*pod) == internet.meter()
    assert multus.cached() == []
    assert "rdma0" in fabric("ip", "link")
    assert netmgr_node.addresses("allocated") == 0


def test_a_further_interface_beside_another_default_network(
    kubelet: ContainerdCri, netmgr_node: NetmgrNode, internet: Internet
) -> None:
    multus = Multus(kubelet.machine, PTP, NETMGR)
    pod = kubelet.run("trainer")
    sandbox = kubelet.ids["trainer"]
    assert kubelet.cri.addresses(sandbox) == held(kubelet, "trainer", "eth0")
    assert held(kubelet, "trainer", "eth0")[0].startswith("10.88.1.")
    assert way_out(kubelet, "trainer") == {"eth0"}
    exchange(kubelet, "trainer")
    first = internet.meter()
    assert first["internet-out"][1] == 40
    assert netmgr_node.counted(*pod) == {"internet-out": (0, 0), "internet-in": (0, 0)}

    # What is asked for goes by it, and back.
    choose_net1(kubelet, "trainer", multus)
    exchange(kubelet, "trainer")
    own = {
        traffic: tuple(now - before for now, before in zip(amounts, first[traffic], strict=True))
        for traffic, amounts in internet.meter().items()
    }
    assert settled(lambda: netmgr_node.counted(*pod), lambda: own) == own
    multus.call("CHECK", sandbox)
    multus.call("GC")
    multus.call("CHECK", sandbox)

    kubelet.remove("trainer")
    assert netmgr_node.addresses("allocated") == 0


def test_two_interfaces_of_one_pod(
    kubelet: ContainerdCri, netmgr_node: NetmgrNode, internet: Internet
) -> None:
    multus = Multus(kubelet.machine, NETMGR, NETMGR)
    pod = kubelet.run("trainer")
    sandbox = kubelet.ids["trainer"]
    first, further = held(kubelet, "trainer", "eth0"), held(kubelet, "trainer", "net1")
    assert len({*first, *further}) == 4
    assert netmgr_node.addresses("allocated") == 4
    exchange(kubelet, "trainer")
    choose_net1(kubelet, "trainer", multus)
    exchange(kubelet, "trainer")
    assert internet.meter()["internet-out"][1] == 80
    assert settled(lambda: netmgr_node.counted(*pod), internet.meter) == internet.meter()
    multus.call("CHECK", sandbox)
    multus.call("GC")
    multus.call("CHECK", sandbox)

    # One goes, the other stays; then GC finds what Multus no longer lists.
    multus.execute(NETMGR, "DEL", sandbox, "net1")
    assert netmgr_node.addresses("allocated") == 2
    assert way_out(kubelet, "trainer") == {"eth0"}
    exchange(kubelet, "trainer")
    assert settled(lambda: netmgr_node.counted(*pod), internet.meter) == internet.meter()
    kubelet.remove("trainer")
    assert netmgr_node.addresses("allocated") == 0
    assert netmgr_node.counted(*pod) == internet.meter()


def test_garbage_is_what_multus_has_no_result_of(
    kubelet: ContainerdCri, netmgr_node: NetmgrNode, internet: Internet
) -> None:
    multus = Multus(kubelet.machine, NETMGR, NETMGR)
    kubelet.run("stays")
    pod = kubelet.run("lost")
    exchange(kubelet, "lost")
    (result,) = kubelet.machine.path(RESULTS).glob(f"*{kubelet.ids['lost']}-net1")
    result.unlink()
    multus.call("GC")
    assert netmgr_node.addresses("allocated") == 6
    multus.call("CHECK", kubelet.ids["stays"])
    for pod_name in ("stays", "lost"):
        assert way_out(kubelet, pod_name) == {"eth0"}
        kubelet.remove(pod_name)
    assert netmgr_node.addresses("allocated") == 0
    assert netmgr_node.counted(*pod) == internet.meter()


def test_a_failing_delegate_leaves_nothing_of_the_others(
    kubelet: ContainerdCri, netmgr_node: NetmgrNode
) -> None:
    multus = Multus(kubelet.machine, NETMGR, NETMGR, SECOND | {"device": "rdma9"})
    with pytest.raises(grpc.RpcError, match="failed to find host device"):
        kubelet.run("trainer")
    assert netmgr_node.addresses("allocated") == 0
    assert multus.cached() == []


def test_a_pod_that_goes_while_the_agent_is_away_leaves_no_interface(
    kubelet: ContainerdCri, netmgr_node: NetmgrNode, internet: Internet
) -> None:
    Multus(kubelet.machine, NETMGR, NETMGR)
    pod = kubelet.run("trainer")
    exchange(kubelet, "trainer")
    netmgr_node.stop_agent()
    kubelet.remove("trainer")
    netmgr_node.start_agent()
    assert settled(lambda: netmgr_node.addresses("allocated"), lambda: 0) == 0
    assert netmgr_node.counted(*pod) == internet.meter()
