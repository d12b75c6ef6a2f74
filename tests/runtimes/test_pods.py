"""Real container engines start pods through the installed plugin; what netmgr counted is compared
with what the internet host counted on its own side.
"""

from __future__ import annotations

import ipaddress
import re

import pytest

from netmgr.prefixes import Address, Family
from tests.lab.topology import INTERNET, Node
from tests.runtimes.engines import ContainerdCri, Engine
from tests.runtimes.internet import ECHO_PORT, PAGE, WEB_PORT, Internet
from tests.runtimes.node import NetmgrNode, settled

pytestmark = [pytest.mark.root, pytest.mark.runtimes]

DATAGRAMS, PAYLOAD = 20, 1000


def addresses_on_eth0(engine: Engine, pod: str) -> list[Address]:
    shown = engine.speak(pod, "ip", "-o", "address", "show", "dev", "eth0")
    found = [Address.parse(text) for text in re.findall(r"inet6? ([0-9a-f.:]+)", shown)]
    return [address for address in found if not ipaddress.ip_address(str(address)).is_link_local]


def exchange(engine: Engine, pod: str, family: Family) -> None:
    engine.speak(pod, "probe", str(INTERNET[family]), str(ECHO_PORT), str(DATAGRAMS), str(PAYLOAD))


def browse(engine: Engine, pod: str, family: Family) -> str:
    request = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc {INTERNET[family]} {WEB_PORT}"
    return engine.speak(pod, "sh", "-c", request).partition("\r\n\r\n")[2]


def test_a_pod_has_an_address_of_each_of_the_nodes_families_on_eth0(engine: Engine, node: Node):
    engine.run("first")
    found = addresses_on_eth0(engine, "first")
    assert sorted(address.family for address in found) == [Family.V4, Family.V6]
    assert all(any(block.holds(address) for block in node.ranges) for address in found)
    engine.remove("first")


def test_a_pod_reaches_the_internet_as_its_node_and_every_byte_is_counted_as_the_pods(
    engine: Engine, netmgr_node: NetmgrNode, internet: Internet, node: Node
):
    pod = engine.run("talker")
    for family in Family:
        exchange(engine, "talker", family)
        assert browse(engine, "talker", family) == PAGE.decode()
    assert internet.visitors == {str(address) for address in node.addresses}
    counted = settled(lambda: netmgr_node.counted(*pod), internet.meter)
    assert counted == internet.meter()
    headers = (20 + 8) + (40 + 8)
    assert counted["internet-out"][0] > DATAGRAMS * (2 * PAYLOAD + headers)
    engine.remove("talker")
    assert netmgr_node.counted(*pod) == internet.meter()


@pytest.mark.usefixtures("internet")
def test_a_removed_pod_leaves_nothing_but_a_resting_address(
    engine: Engine, netmgr_node: NetmgrNode
):
    engine.run("passing")
    held = addresses_on_eth0(engine, "passing")
    exchange(engine, "passing", Family.V4)
    assert netmgr_node.addresses("allocated") == len(held)
    assert all(netmgr_node.traces(str(address)) for address in held)
    engine.remove("passing")
    for address in held:
        assert settled(lambda address=address: netmgr_node.traces(str(address)), list) == []
    assert (netmgr_node.addresses("allocated"), netmgr_node.addresses("cooldown")) == (0, len(held))


def test_kubelet_is_told_both_addresses_of_the_sandbox(netmgr_node: NetmgrNode, probe: bytes):
    kubelet = ContainerdCri(netmgr_node.machine, probe)
    kubelet.run("sandbox")
    told = kubelet.cri.addresses(kubelet.ids["sandbox"])
    assert told == [str(address) for address in addresses_on_eth0(kubelet, "sandbox")]
    kubelet.remove("sandbox")
