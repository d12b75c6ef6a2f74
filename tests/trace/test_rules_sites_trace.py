"""Packets between sites, to Services and back, through the fake kernel with either way of
translating.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from netmgr.prefixes import Address
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from tests.fakes.passage import FORWARDED, RECEIVED, SENT, Connection, Outcome, Packet
from tests.fakes.rules import FakeBackend
from tests.fakes.sites import document

HUB, A, A2, B, B2, C, WEB = (
    "10.0.0.9",
    "10.1.0.9",
    "10.1.7.8",
    "10.2.0.9",
    "10.130.0.9",
    "10.3.0.9",
    "203.0.113.9",
)
HUB6, A6, B6, WEB6 = "fd00::9", "fd00:1::9", "fd00:2::9", "2001:db8::9"
NODE, NODE6 = "10.1.255.1", "fd00:1:0:ff::1"
VIP, VIP6, VIP_B = "100.64.1.9", "fd64:1::9", "100.64.2.9"
CLUSTER_IP, CLUSTER_IP6 = "10.96.0.9", "fd96::9"
PASSES = ""


def passing(*pairs: tuple[str, str]) -> list[tuple[str, str, str]]:
    return [(*pair, PASSES) for pair in pairs]


FORWARDS = {
    "node": [
        (A, B, "isolated_spoke-a_spoke-b_v4"),
        (B, A, "isolated_spoke-b_spoke-a_v4"),
        (B2, A, "isolated_spoke-b_spoke-a_v4"),
        (A, VIP_B, "isolated_spoke-a_spoke-b_v4"),
        (C, A, "isolated_spoke-c_spoke-a_v4"),
        (A6, B6, "isolated_spoke-a_spoke-b_v6"),
        (B6, A6, "isolated_spoke-b_spoke-a_v6"),
        *passing((A, A2), (A, HUB), (HUB, A), (A6, HUB6), (HUB6, A6), (A, WEB), (WEB, A)),
    ],
    "hub-router": [
        (A, B, "isolated_spoke-a_spoke-b_v4"),
        (B2, A, "isolated_spoke-b_spoke-a_v4"),
        (B, C, "isolated_spoke-b_spoke-c_v4"),
        (C, VIP, "isolated_spoke-c_spoke-a_v4"),
        (B6, VIP6, "isolated_spoke-b_spoke-a_v6"),
        *passing((A, A2), (B, B2), (HUB, VIP), (A, HUB), (HUB, B), (B6, HUB6), (C, WEB)),
    ],
    "nat-host": [
        (B, VIP, "isolated_spoke-b_spoke-a_v4"),
        (C, VIP, "isolated_spoke-c_spoke-a_v4"),
        (B6, VIP6, "isolated_spoke-b_spoke-a_v6"),
        (B, CLUSTER_IP, "isolated_spoke-b_spoke-a_v4"),
        *passing((HUB, VIP), (HUB6, VIP6)),
    ],
}


def made(role: str, *, rewrites: bool = True, **keys) -> Rules:
    rules = Rules(FakeBackend(rewrites=rewrites), Policy.of(document(role, **keys)))
    rules.apply(rules.plan([]))
    return rules


@pytest.fixture(params=[True, False], ids=["rewriting", "connections"])
def machine(request) -> Callable[..., Rules]:
    return partial(made, rewrites=request.param)


def send(rules: Rules, src: str, dst: str, hooks=FORWARDED, **keys) -> Outcome:
    """As it would come in: from the node's pod by the pod's link,
    from the machine itself by none."""
    link = {A: "nm0123456789ab", A6: "nm0123456789ab", NODE: "", "127.0.0.1": "lo"}.get(src, "eth0")
    packet = Packet(
        Address.parse(src), Address.parse(dst), hooks, **{"iif": link, "way_back": link, **keys}
    )
    return rules.backend.send(packet)


def ends(outcome: Outcome) -> tuple[str, str]:
    return str(outcome.src), str(outcome.dst)


@pytest.mark.parametrize(
    ("role", "src", "dst", "dropped_by"),
    [(role, *case) for role, cases in FORWARDS.items() for case in cases],
)
def test_a_forwarded_packet_is_dropped_by_the_pairs_rule_and_by_no_other(
    machine, role, src, dst, dropped_by
):
    assert send(machine(role), src, dst).dropped_by == dropped_by


@pytest.mark.parametrize(
    ("src", "dst", "hooks", "dropped_by"),
    [
        (B, NODE, RECEIVED, "isolated_spoke-b_spoke-a_v4"),
        (B6, NODE6, RECEIVED, "isolated_spoke-b_spoke-a_v6"),
        (B6, "fe80::1", RECEIVED, PASSES),
        (B6, "ff02::1:ff00:1", RECEIVED, PASSES),
        (HUB, NODE, RECEIVED, PASSES),
        (A, NODE, RECEIVED, PASSES),
        (WEB, NODE, RECEIVED, PASSES),
        ("127.0.0.1", "127.0.0.1", RECEIVED, PASSES),
        (NODE, B, SENT, "isolated_spoke-a_spoke-b_v4"),
        (NODE6, B6, SENT, "isolated_spoke-a_spoke-b_v6"),
        ("fe80::1", B6, SENT, PASSES),
        (NODE, HUB, SENT, PASSES),
        (NODE, WEB, SENT, PASSES),
        (NODE, NODE, SENT, PASSES),
    ],
)
@pytest.mark.parametrize("role", ["node", "nat-host"])
def test_a_machine_of_a_spoke_does_not_exchange_packets_with_another(
    machine, role, src, dst, hooks, dropped_by
):
    assert send(machine(role), src, dst, hooks).dropped_by == dropped_by


def test_a_node_of_the_hub_keeps_nobody_apart(machine):
    rules = machine("node", site="hub", node={"name": "desk"}, ranges=["10.0.3.0/24"])
    assert [send(rules, src, dst).dropped_by for src, dst in [(HUB, A), (B, HUB)]] == ["", ""]
    assert rules.drops().between == []


def test_what_is_dropped_is_told_by_pair_over_hooks_and_families(machine):
    rules = machine("node")
    for src, dst, hooks in [
        (A, B, FORWARDED),
        (NODE, B, SENT),
        (A6, B6, FORWARDED),
        (B, A, FORWARDED),
        (A, A2, FORWARDED),
    ]:
        send(rules, src, dst, hooks)
    assert [one for one in rules.drops().between if one["packets"]] == [
        {"origin": "spoke-a", "destination": "spoke-b", "bytes": 300, "packets": 3},
        {"origin": "spoke-b", "destination": "spoke-a", "bytes": 100, "packets": 1},
    ]


@pytest.mark.parametrize(
    ("src", "dst", "dropped_by"),
    [
        ("192.168.7.7", A, "unplanned4"),
        ("169.254.7.7", B, "unplanned4"),
        ("fd99::7", A6, "unplanned6"),
        ("192.168.7.7", HUB, PASSES),
        # A cloud's DHCP, to an address of the router's own among a spoke's.
        ("169.254.7.7", NODE, PASSES),
        *passing((WEB, A), (WEB6, A6), (HUB, A), (HUB6, A6)),
    ],
)
def test_a_hub_router_passes_nothing_to_a_spoke_from_a_private_address_that_no_site_has(
    machine, src, dst, dropped_by
):
    assert send(machine("hub-router"), src, dst).dropped_by == dropped_by


@pytest.mark.parametrize("role", ["node", "hub-router", "nat-host"])
def test_loopback_is_reached_from_loopback_alone(machine, role):
    rules = machine(role)
    assert send(rules, HUB, "127.0.0.1", RECEIVED).dropped_by == "loopback4"
    assert send(rules, "127.0.0.1", "127.0.0.1", RECEIVED).dropped_by == PASSES


@pytest.mark.parametrize(
    ("src", "dst", "is_masqueraded"), [(A, WEB, True), (B6, WEB6, True), (A, HUB, False)]
)
def test_a_hub_router_masquerades_what_leaves_for_the_internet_alone(
    machine, src, dst, is_masqueraded
):
    assert send(machine("hub-router"), src, dst).masqueraded is is_masqueraded
    assert not send(machine("hub-router", masquerade=False), src, dst).masqueraded


def test_kube_proxy_on_the_same_host_finds_the_services_address_where_packets_are_rewritten():
    rules = made("nat-host")
    endpoint = {Address.parse(CLUSTER_IP): Address.parse(A)}
    there = send(rules, HUB, VIP, elsewhere=lambda address: endpoint.get(address, address))
    assert ends(there) == (NODE, A)
    assert ends(send(rules, A, NODE)) == (VIP, HUB)


@pytest.mark.parametrize(
    ("endpoint", "hooks", "dropped_by"),
    [
        (A, FORWARDED, PASSES),
        (A2, FORWARDED, "endpoint_100.64.1.0_24"),
        (B, FORWARDED, "endpoint_100.64.1.0_24"),
        (HUB, FORWARDED, "endpoint_100.64.1.0_24"),
        (WEB, FORWARDED, "endpoint_100.64.1.0_24"),
        ("10.96.0.1", FORWARDED, "endpoint_100.64.1.0_24"),
        (NODE, RECEIVED, "endpoint_100.64.1.0_24"),
    ],
)
def test_kube_proxy_leads_the_hub_to_pods_of_the_spoke_alone(endpoint, hooks, dropped_by):
    rules = made("nat-host", nat={"machines": [f"{A2}/32"]})
    outcome = send(rules, HUB, VIP, hooks, elsewhere=lambda _: Address.parse(endpoint))
    assert outcome.dropped_by == dropped_by
    # The spoke's own clients go where kube-proxy leads them, as anywhere else in the cluster.
    if endpoint in (A2, WEB):
        own = send(rules, A, CLUSTER_IP, hooks, elsewhere=lambda _: Address.parse(endpoint))
        assert own.dropped_by == PASSES
    assert {one["reason"]: one["packets"] for one in rules.drops().refused}["endpoint"] == bool(
        dropped_by
    )


def test_answers_of_a_service_outside_reach_the_host_that_asked():
    rules = made("nat-host")
    connection = Connection(
        (Address.parse(NODE), Address.parse(CLUSTER_IP)), (Address.parse(WEB), Address.parse(NODE))
    )
    rules.backend.connections.append(connection)
    assert send(rules, WEB, NODE, RECEIVED).dropped_by == PASSES


@pytest.mark.parametrize(("own", "vip"), [(A, VIP), (A6, VIP6)])
def test_what_is_not_translated_is_not_sent_round_in_circles(machine, own, vip):
    outcome = send(machine("nat-host"), own, vip)
    assert (ends(outcome), outcome.dropped_by[:8]) == ((own, vip), "stranded")


def test_a_range_that_the_hub_sees_where_it_is_is_passed_on_to_the_next_machine(machine):
    same = {"services": [{"vip_range": "100.64.1.0/24", "service_cidr": "100.64.1.0/24"}]}
    assert send(machine("nat-host", nat=same), A, VIP).dropped_by == PASSES
