"""An uplink that is a VLAN, a tunnel or a bond counts once, on a kernel that has them.

`tests/kernel/test_flowtable.py` runs this, if need be in a virtual machine.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmgr.model import Traffic
from netmgr.prefixes import Family
from tests.contracts.routed import FAMILIES, INTERNET, PODS, counts, guarded, of_pod, routed
from tests.contracts.star import HEADERS, PORT, wait_until_up
from tests.contracts.wide import BOND, exchange_is_counted_once, widen

SURROUNDINGS = routed
pytestmark = [pytest.mark.root, pytest.mark.parametrize("real_kernel", ["links"], indirect=True)]


@FAMILIES
def test_an_uplink_that_is_a_vlan_counts_once(world, real_kernel, policy, program, family):
    """Also where the card below it is an uplink itself."""
    at = "tc filter show dev"
    program("ip link add vlan7 link uplink type vlan id 7")
    program("ip link set vlan7 up")
    wait_until_up("vlan7")
    program("ip route add 192.0.2.0/24 dev vlan7")
    address, far = ("192.0.2.9", "32") if family is Family.V4 else ("2001:db8:7::9", "128")
    program(f"ip -{family.value} route replace {address}/{far} dev vlan7")
    program(f"ip -{family.value} neigh add {address} lladdr 02:00:00:00:00:02 dev vlan7")
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    for link in ("uplink", "vlan7"):
        assert "netmgr leaving" in program(f"{at} {link} egress")
    pod = world.socket(world.pod, family, PODS[family], PORT)
    for _ in range(5):
        pod.sendto(b"x" * 100, (address, PORT))
    out = of_pod(family, Traffic.INTERNET_OUT)
    assert counts(rules)[out] == (5 * (100 + HEADERS[family]), 5)
    host = world.socket(world.host, family, INTERNET[family], PORT)
    assert world.reaches(pod, host, INTERNET[family])
    assert counts(rules)[out] == (6 * (100 + HEADERS[family]), 6), "without a tag, by the card"


@pytest.mark.parametrize("kind", ["ipip", "gre"])
def test_a_tunnel_without_ethernet_counts_what_the_pod_exchanges_once(
    world, real_kernel, policy, program, kind
):
    """Also where what carries it is an uplink itself."""
    widen(world, program, kind)
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    for link in ("uplink", "wide"):
        assert "netmgr leaving" in program(f"tc filter show dev {link} egress")
    exchange_is_counted_once(world, rules)


@pytest.mark.parametrize("limited", [False, True])
def test_a_bond_counts_what_the_pod_exchanges_once(world, real_kernel, policy, program, limited):
    """Its parts do not, also where every link is an uplink."""
    widen(world, program, BOND)
    program("ip link add netmgr-in up type ifb")
    rules = guarded(real_kernel.backend, replace(policy, limited=limited), knows_links=True)
    assert "netmgr leaving" in program("tc filter show dev wide egress")
    assert "netmgr" not in program("tc filter show dev part egress")
    exchange_is_counted_once(world, rules)
