"""Agents that run no pods, where sites meet: whatever of netmgr's is altered or taken away is put
back, and all else stays as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import cycle, islice

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.joined import HUB_ROUTER, SITES, Joined, joined, nat_host, own
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

ROUNDS = 40
BACK = {"to": "192.0.2.0/24", "via": str(own("researcher", Family.V4))}
BACK6 = {"to": "2001:db8:9::/48", "via": str(own("researcher", Family.V6))}
SETTINGS = {**nat_host(), "reconcile_seconds": 0.02, "routes": [BACK, BACK6]}
FOREIGN_NFT = """
table inet foreign {
    set netmgr {
        type ipv4_addr
        elements = { 192.0.2.1 }
    }
    chain netmgr_forward {
        type filter hook forward priority mangle;
        ip saddr @netmgr counter drop
    }
}
table ip netmgr-not-quite {
    chain NETMGR-FORWARD {
        type nat hook postrouting priority 99;
        ip daddr 192.0.2.7 masquerade
    }
}
"""
FOREIGN = (
    "ipset create foreign hash:ip",
    "ipset add foreign 192.0.2.1",
    *(
        f"ip{family}tables-legacy -t {table} -N FOREIGN"
        for family in ("", "6")
        for table in ("mangle", "nat")
    ),
    "iptables-legacy -t mangle -I FORWARD -m set --match-set foreign src -j DROP",
    "iptables-legacy -t mangle -A FORWARD -j FOREIGN",
    "iptables-legacy -t mangle -A FOREIGN -m comment --comment NETMGR -j ACCEPT",
    "ip6tables-legacy -t mangle -A FORWARD -j FOREIGN",
    "iptables-legacy -t nat -A POSTROUTING -d 192.0.2.9 -j MASQUERADE",
    f"ip route add 198.51.100.0/24 via {own('b', Family.V4)} proto static",
    f"ip route add 198.51.100.7/32 via {own('b', Family.V4)} proto 112",
    f"ip -6 route add 2001:db8:7::/48 via {own('b', Family.V6)} proto static",
)
EVERYWHERE = {
    "forwarding": ["sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv6.conf.all.forwarding=0"],
    "routes": [
        "ip route del 192.0.2.0/24",
        "ip -6 route del 2001:db8:9::/48",
        "ip route add 192.0.2.128/25 via 10.0.0.10 proto 110",
    ],
}
RULES = {
    Backend.NFTABLES: [
        "nft delete table inet netmgr",
        "nft flush chain inet netmgr before_srcnat6",
        "nft flush chain inet netmgr output",
        "nft insert rule inet netmgr postrouting accept",
    ],
    Backend.IPTABLES_LEGACY: [
        "iptables-legacy -t mangle -F NETMGR-FORWARD",
        "iptables-legacy -t nat -D PREROUTING -j NETMGR-DSTNAT",
        "ip6tables-legacy -t nat -F NETMGR-POSTROUTING",
        "ipset flush netmgr-internal4",
        "iptables-legacy -t mangle -I NETMGR-FORWARD -j ACCEPT",
    ],
}


@pytest.fixture
def world(backend: Backend) -> Iterator[Joined]:
    with joined(backend, f"test-{os.getpid()}-drift") as made:
        made.run("nft", FOREIGN_NFT)
        for command in FOREIGN:
            made.run(*command.split())
        yield made


def routes(world: Joined) -> str:
    return world.run("ip", "route") + world.run("ip", "-6", "route")


def foreign(world: Joined) -> list[str]:
    """Everything in the machine's kernel that is not netmgr's, with the packets it counted."""
    nft = [
        world.run("nft", "-a", "list", "table", *name.split())
        for name in ("inet foreign", "ip netmgr-not-quite")
    ]
    saved = world.run("iptables-legacy-save") + world.run("ip6tables-legacy-save")
    kept = [
        line
        for line in saved.splitlines()
        if "FOREIGN" in line or ("-A" in line and "NETMGR-" not in line)
        if "iptables-exporter" not in line
    ]
    others = [line for line in routes(world).splitlines() if "proto 110" not in line]
    return [*nft, *kept, world.run("ipset", "list", "foreign"), *others]


@pytest.mark.slow
def test_what_is_ours_is_put_back_and_what_is_not_is_left_alone(world: Joined) -> None:
    before = foreign(world)
    assert len(before) > len(FOREIGN)
    world.start(SETTINGS)
    ours = world.rules()
    harm = [(area, command) for area, commands in EVERYWHERE.items() for command in commands]
    harm += [("rules", command) for command in RULES[world.world.backend]]
    for area, command in islice(cycle(harm), ROUNDS):
        known = world.repaired(area)
        world.run(*command.split())
        world.wait_until(lambda area=area, known=known: world.repaired(area) > known)
    assert foreign(world) == before
    # What was counted last may have been the rest of an earlier repair.
    world.wait_until(lambda: without_handles(world.rules()) == without_handles(ours))


def without_handles(rules: str) -> list[str]:
    """Without the ledger's mark as well, which moves with every gap."""
    lines = re.sub(
        r"(set ledger_mark6 .*?elements = ){.*?}", r"\1{}", rules, flags=re.DOTALL
    ).splitlines()
    return sorted(line.split(" # handle ")[0] for line in lines)


@pytest.fixture(scope="module")
def sites() -> Iterator[Joined]:
    with joined(Backend.NFTABLES, f"test-{os.getpid()}-gateway") as made:
        yield made


@pytest.fixture
def router(sites: Joined) -> Iterator[Joined]:
    sites.start(HUB_ROUTER | {"routes": [BACK, BACK6]})
    yield sites
    sites.stop()


def test_a_hub_router_forwards_as_soon_as_it_is_ready(router: Joined) -> None:
    for family in Family:
        seen = router.send("researcher", "a", family, seconds=PATIENCE)
        assert seen == str(own("researcher", family))
    snapshot = router.agent.snapshot()
    repaired = {item["reason"]: item["count"] for item in snapshot["drift_repaired"]}
    assert repaired.keys() >= {"rules", "routes"}
    assert not any(repaired.values())
    assert (snapshot["role"], snapshot["pool"], snapshot["pods"]) == ("hub-router", [], [])


def test_a_route_that_changed_hands_is_told_and_not_taken(router: Joined) -> None:
    foreign = ["192.0.2.0/24", "via", str(own("b", Family.V4))]
    router.run("ip", "route", "replace", *foreign, "proto", "static")
    router.wait_until(lambda: not router.agent.snapshot()["ready"])
    assert "a route that is not netmgr's goes there already" in router.agent.snapshot()["reason"]
    assert " ".join(foreign) in routes(router)
    router.run("ip", "route", "del", *foreign)
    router.wait_until(lambda: router.agent.snapshot()["ready"])


def test_routes_that_a_document_no_longer_lists_go_with_the_next_start(router: Joined) -> None:
    router.agent.stop_agent()
    assert BACK["to"] in routes(router)
    router.start(HUB_ROUTER | {"routes": [BACK6]})
    assert BACK["to"] not in routes(router)
    assert BACK6["to"] in routes(router)


def test_a_node_keeps_routes_and_spokes_apart_as_a_router_does(sites: Joined) -> None:
    sites.start({"site": "a", "sites": SITES, "ranges": ["10.1.0.128/28"], "routes": [BACK]})
    try:
        assert f"{BACK['to']} via {BACK['via']}" in routes(sites)
        sites.run("ip", "route", "del", BACK["to"])
        sites.wait_until(lambda: sites.repaired("routes") > 0)
        sites.run("sysctl", "-w", "net.ipv4.ip_forward=0")
        sites.wait_until(lambda: sites.repaired("forwarding") > 0)
        assert sites.agent.snapshot()["role"] == "node"
        assert sites.drops() == {("a", "b"): 0, ("b", "a"): 0}
        assert sites.send("a", "b", Family.V4) == ""
        sites.wait_until(lambda: sites.drops() == {("a", "b"): 1, ("b", "a"): 0})
    finally:
        sites.stop()
