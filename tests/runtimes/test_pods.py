"""Real container engines start pods through the installed plugin; what netmgr counted is compared
with what the internet host counted on its own side.
"""

from __future__ import annotations

import ipaddress
import re

import pytest

from netmgr.prefixes import Address, Family
from tests.lab.topology import INTERNET, Node
from tests.runtimes.engines import Engine
from tests.runtimes.internet import DATAGRAMS, PAGE, PAYLOAD, Internet, browsing, probing
from tests.runtimes.node import NetmgrNode, settled

pytestmark = [pytest.mark.root, pytest.mark.runtimes]


def addresses_on_eth0(engine: Engine, pod: str) -> list[Address]:
    shown = engine.speak(pod, "ip", "-o", "address", "show", "dev", "eth0")
    found = [Address.parse(text) for text in re.findall(r"inet6? ([0-9a-f.:]+)", shown)]
    return [address for address in found if not ipaddress.ip_address(str(address)).is_link_local]


def test_a_pod_is_wired_counted_to_the_byte_and_leaves_nothing_but_addresses_in_cooldown(
    engine: Engine, netmgr_node: NetmgrNode, internet: Internet, node: Node
):
    pod = engine.run("talker")
    held = addresses_on_eth0(engine, "talker")
    assert sorted(address.family for address in held) == [Family.V4, Family.V6]
    assert all(any(block.holds(address) for block in node.ranges) for address in held)
    for family in Family:
        engine.speak("talker", *probing(INTERNET[family]))
        page = engine.speak("talker", *browsing(INTERNET[family]))
        assert page.partition("\r\n\r\n")[2] == PAGE.decode()
    assert internet.visitors == {str(address) for address in node.addresses}
    counted = settled(lambda: netmgr_node.counted(*pod), internet.meter)
    assert counted == internet.meter()
    headers = (20 + 8) + (40 + 8)
    assert counted["internet-out"][0] > DATAGRAMS * (2 * PAYLOAD + headers)
    assert netmgr_node.addresses("allocated") == len(held)
    assert all(netmgr_node.traces(str(address)) for address in held)

    engine.remove("talker")
    assert netmgr_node.counted(*pod) == internet.meter()
    for address in held:
        assert settled(lambda address=address: netmgr_node.traces(str(address)), list) == []
    assert (netmgr_node.addresses("allocated"), netmgr_node.addresses("cooldown")) == (0, len(held))
