"""Where kube-proxy on a NAT host can lead the hub, and where not, whatever EndpointSlices say.

kube-proxy is here by the rules that it writes for one Service, in each of its modes: it takes the
endpoint it was told, and masquerades whoever is not of the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from netmgr.prefixes import Family
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from tests.contracts.conftest import settled
from tests.contracts.routed import FAMILIES
from tests.contracts.star import (
    CLUSTER_IP,
    FURTHER,
    HOSTS,
    MACHINE,
    PORT,
    SECONDS_TO_BE_LOST,
    VIP,
    Star,
)
from tests.fakes.sites import document
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.root,
    pytest.mark.parametrize("real_kernel", ["nftables"], indirect=True),
    pytest.mark.parametrize("mode", ["nftables", "iptables-nft", "iptables-legacy"]),
    FAMILIES,
]

TARGET_PORT = 4444
MACHINES = [f"{HOSTS['neighbour'][family]}/{family.width}" for family in Family]
"""The neighbour is a machine of the spoke, `own` is one of its pods."""
OUR_MACHINES = {"a machine": "neighbour", "the NAT host": "machine"}
OUTSIDE = {"another spoke": "foreign", "the internet": "internet"}
INSIDE = {Family.V4: "10.1.0.0/16", Family.V6: "fd00:1::/48"}

BY_NFTABLES = """
table {ip} kube-proxy {{
    chain services {{
        {ip} daddr . meta l4proto . th dport vmap {{ {cluster_ip} . udp . {port} : goto service }}
    }}
    chain service {{
        {ip} saddr != {inside} jump mark-for-masquerade
        meta l4proto udp dnat to {target}
    }}
    chain mark-for-masquerade {{ meta mark set meta mark | 0x4000; }}
    chain masquerading {{
        meta mark & 0x4000 == 0 return
        meta mark set meta mark ^ 0x4000
        masquerade fully-random
    }}
    chain nat-prerouting {{
        type nat hook prerouting priority dstnat; policy accept;
        jump services
    }}
    chain nat-postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        jump masquerading
    }}
}}
"""
BY_IPTABLES = """*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-SERVICES -d {cluster_ip} -p udp -m udp --dport {port} -j KUBE-SVC
-A KUBE-SVC ! -s {inside} -j KUBE-MARK-MASQ
-A KUBE-SVC -p udp -m udp -j DNAT --to-destination {target}
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
"""


@pytest.fixture
def lead(program, mode, family) -> Callable[[str], None]:
    """Have kube-proxy lead the Service to this host."""

    def write(host: str) -> None:
        address = _address(host, family)
        words = {
            "ip": "ip" if family is Family.V4 else "ip6",
            "cluster_ip": CLUSTER_IP[family],
            "port": PORT,
            "inside": INSIDE[family],
            "target": f"{f'[{address}]' if family is Family.V6 else address}:{TARGET_PORT}",
        }
        if mode == "nftables":
            program("nft -f -", BY_NFTABLES.format_map(words))
        else:
            iptables = mode if family is Family.V4 else mode.replace("ip", "ip6", 1)
            program(f"{iptables}-restore", BY_IPTABLES.format_map(words))

    return write


def _address(host: str, family: Family) -> str:
    return MACHINE[family] if host == "machine" else HOSTS[host][family]


def nat_host(kernel, **nat: object) -> Rules:
    described = document("nat-host", nat={"machines": MACHINES, **nat})
    return settled(kernel.backend, Policy.of(described))


def reached(world: Star, host: str, family: Family, to: str, seconds: float = PATIENCE) -> str:
    """Whom a host sees when a researcher sends there; nobody if nothing arrives."""
    # It stays open: a later client with the same port would be of the same connection.
    client = world.socket("researcher", family)
    with world.socket(host, family, _address(host, family), TARGET_PORT) as server:
        seen = world.source(client, server, to, seconds=seconds)
        if seen is None:
            return ""
        server.sendto(b"answer", seen)
        assert client.recvfrom(100)[1][:2] == (to, PORT)
        return seen[0]


def dropped(rules: Rules) -> int:
    return sum(one["packets"] for one in rules.drops().refused if one["reason"] == "endpoint")


@pytest.mark.parametrize("endpoint", [*OUR_MACHINES, *OUTSIDE])
def test_a_service_leads_the_hub_neither_to_machines_nor_out_of_the_spoke(
    world, lead, real_kernel, family, endpoint
):
    host = (OUR_MACHINES | OUTSIDE)[endpoint]
    lead(host)
    assert reached(world, host, family, CLUSTER_IP[family]), "kube-proxy alone would lead there"
    rules = nat_host(real_kernel)
    for number, to in enumerate((VIP, CLUSTER_IP), start=1):
        assert not reached(world, host, family, to[family], SECONDS_TO_BE_LOST)
        assert dropped(rules) == number


@pytest.mark.parametrize("endpoint", OUR_MACHINES)
def test_machines_are_endpoints_where_the_document_allows_it_and_other_spokes_never(
    world, lead, real_kernel, family, endpoint
):
    lead(OUR_MACHINES[endpoint])
    rules = nat_host(real_kernel, host_endpoints=True)
    assert reached(world, OUR_MACHINES[endpoint], family, VIP[family])
    assert dropped(rules) == 0


def test_another_spoke_is_no_endpoint_where_machines_may_be(world, lead, real_kernel, family):
    lead("foreign")
    rules = nat_host(real_kernel, host_endpoints=True)
    assert not reached(world, "foreign", family, VIP[family], SECONDS_TO_BE_LOST)
    assert dropped(rules) == 1


@pytest.mark.parametrize("is_first", [True, False], ids=["kube-proxy first", "kube-proxy last"])
def test_the_document_decides_whose_address_a_pod_sees_and_not_kube_proxy(
    world, lead, real_kernel, family, is_first
):
    addresses = {one: [MACHINE[one], *FURTHER[one]] for one in Family}
    if is_first:
        lead("own")
    rules = nat_host(real_kernel, addresses=[*addresses[Family.V4], *addresses[Family.V6]])
    if not is_first:
        lead("own")
    sources = Counter(reached(world, "own", family, VIP[family]) for _ in range(6))
    assert sources == Counter(dict.fromkeys(addresses[family], 2))
    nat_host(real_kernel, source="preserve")
    assert reached(world, "own", family, VIP[family]) == HOSTS["researcher"][family]
    assert dropped(rules) == 0
