"""What every backend must do about sites and Services: recognise, repair, go away, and lose no
count.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmgr.api.snapshot import DroppedTotals
from netmgr.prefixes import Prefix
from netmgr.rules.engine import Rules
from netmgr.rules.isolation import Isolation
from netmgr.rules.model import Hook, Spoke
from netmgr.rules.policy import Policy
from tests.contracts.conftest import put_right, settled
from tests.fakes.sites import SERVICES, SITES, document

LONG = "a-name-as-long-as-the-name-of-a-site-can-be-which-is-63-letters"
RENAMED = [{**site, "name": site["name"].replace("spoke", LONG[:-8])} for site in SITES]
ADDRESSES = {
    "addresses": ["10.1.255.1", "10.1.255.2", "10.1.255.3", "fd00:1:0:ff::1", "fd00:1:0:ff::2"]
}
SHORT = {
    "services": [
        {"vip_range": "100.64.1.7", "service_cidr": "10.96.0.9"},
        {"vip_range": "fd64:1::7", "service_cidr": "fd96::9"},
    ]
}
MACHINES = {
    "node": document("node"),
    "node of a spoke with a long name": document("node", sites=RENAMED, site=RENAMED[1]["name"]),
    "node of the hub": document(
        "node", site="hub", node={"name": "machine-1"}, ranges=["10.0.3.0/24"]
    ),
    "hub router": document("hub-router"),
    "NAT host": document("nat-host"),
    "NAT host, many addresses": document("nat-host", nat=ADDRESSES),
    "NAT host, no addresses": document("nat-host", node={"name": "machine-1"}),
    "NAT host, single addresses": document("nat-host", nat=SHORT),
    "NAT host, machines": document("nat-host", nat={"machines": ["10.1.8.0/24", "fd00:1:8::/64"]}),
    "NAT host, source preserved": document("nat-host", nat={"source": "preserve"}),
}
B_TO_A = ("spoke-b", "spoke-a")


def rules_of(kernel, machine: str) -> Rules:
    return settled(kernel.backend, Policy.of(MACHINES[machine]))


@pytest.fixture(params=MACHINES)
def machine(request) -> str:
    return request.param


def test_a_second_plan_is_empty_and_so_is_a_successors(kernel, machine):
    rules = rules_of(kernel, machine)
    assert rules.plan([]).repairs == ()
    assert not rules.plan([])
    assert not Rules(kernel.backend, Policy.of(MACHINES[machine])).plan([])


def test_changing_a_machines_part_or_removing_it_leaves_nothing_of_the_former(
    kernel, policy, machine
):
    rules_of(kernel, machine)
    plain = Rules(kernel.backend, policy)
    put_right(plain)
    wanted = kernel.backend.observe(plain._skeleton)
    assert wanted.members.keys() == {spec.name for spec in plain._skeleton.sets}
    assert wanted.orphans == frozenset()
    rules = rules_of(kernel, machine)
    assert not rules.plan([])
    rules.remove()
    assert rules.plan([]).repairs == ("the whole ruleset was missing",)


def test_a_set_that_nothing_uses_any_more_is_told_and_removed(kernel, policy):
    node, rules = rules_of(kernel, "node"), Rules(kernel.backend, policy)
    needed, made = ({spec.name for spec in each._skeleton.sets} for each in (rules, node))
    told = [line for line in rules.plan([]).repairs if line.startswith("set ") and ":" not in line]
    assert len(told) == len(made - needed) > 0
    assert all(line.endswith("does not belong there") for line in told)


@pytest.mark.parametrize(
    ("machine", "hook", "rule"),
    [
        ("node", Hook.FORWARD, "isolation forward spoke-a spoke-b v4"),
        ("node", Hook.FORWARD, "isolation forward passes own v6"),
        ("node", Hook.INPUT, "isolation input spoke-b spoke-a v6"),
        ("node", Hook.OUTPUT, "isolation output spoke-a spoke-c v4"),
        ("hub router", Hook.FORWARD, "isolation forward passes hub dst v6"),
        ("hub router", Hook.POSTROUTING, "masquerade v4"),
        ("NAT host, many addresses", Hook.POSTROUTING, "snat 100.64.1.0/24 2 v4"),
        ("NAT host, no addresses", Hook.POSTROUTING, "snat fd64:1::/120 1 v6"),
    ],
)
def test_a_rule_that_is_lost_is_told_in_one_sentence_and_put_back(kernel, machine, hook, rule):
    rules = rules_of(kernel, machine)
    kernel.lose_rule(hook, rule)
    plan = put_right(rules)
    assert plan.repairs == (f"chain {hook}: rule '{rule}' was missing",)
    assert plan.created == frozenset()


def test_a_lost_rule_of_a_netmap_is_put_back(kernel):
    rules = rules_of(kernel, "NAT host")
    hook, rule = (
        (Hook.DEPARTURE, "netmap out")
        if kernel.backend.abilities.rewrites
        else (Hook.DSTNAT, "netmap")
    )
    kernel.lose_rule(hook, f"{rule} 100.64.1.0/24 v4")
    told = f"chain {hook}: rule '{rule} 100.64.1.0/24 v4' was missing"
    assert put_right(rules).repairs == (told,)


def test_a_members_loss_is_told_and_put_right(kernel):
    rules = rules_of(kernel, "node")
    kernel.lose_element("site_spoke-b4", Prefix.parse("10.130.0.0/16"))
    assert put_right(rules).repairs == ("set site_spoke-b4: 10.130.0.0/16 was missing",)


def dropped(origin: str, destination: str, packets: int, size: int) -> DroppedTotals:
    return {"origin": origin, "destination": destination, "bytes": size, "packets": packets}


def test_every_pair_and_every_range_is_read_and_begins_at_zero(kernel):
    router = rules_of(kernel, "hub router")
    names = [site["name"] for site in SITES[1:]]
    pairs = {(origin, to) for origin in names for to in names if origin != to}
    assert {(one["origin"], one["destination"]) for one in router.drops().between} == pairs
    assert {(one["packets"], one["bytes"]) for one in router.drops().between} == {(0, 0)}
    assert router.translated() == []
    host = rules_of(kernel, "NAT host")
    assert host.translated() == [
        {key: service[key] for key in ("vip_range", "service_cidr")} | {"bytes": 0, "packets": 0}
        for service in SERVICES
    ]
    assert {(one["origin"], one["destination"]) for one in host.drops().between} == {
        pair for pair in pairs if "spoke-a" in pair
    }


def test_where_nobody_is_kept_apart_nothing_is_read(rules):
    rules.apply(rules.plan([]))
    assert rules.drops().between == []
    assert rules.translated() == []


def test_a_missing_ruleset_reads_as_zero(kernel):
    rules = Rules(kernel.backend, Policy.of(MACHINES["node"]))
    assert {one["packets"] for one in rules.drops().between} == {0}


def test_a_new_spoke_costs_the_others_no_count(kernel):
    """On iptables a rule is its own counter, so a chain that is filled again must take the counts
    along.
    """
    policy = Policy.of(MACHINES["node"])
    rules = rules_of(kernel, "node")
    kernel.set_drops(*B_TO_A, packets=5, octets=500)
    rules.apply(rules.plan([]))
    assert dropped(*B_TO_A, 5, 500) in rules.drops().between
    wider = replace(
        policy,
        isolation=Isolation(
            (*policy.isolation.spokes, Spoke("spoke-d", (Prefix.parse("10.4.0.0/16"),))), "spoke-a"
        ),
    )
    more = Rules(kernel.backend, wider)
    put_right(more)
    assert dropped(*B_TO_A, 5, 500) in more.drops().between
    assert dropped("spoke-d", "spoke-a", 0, 0) in more.drops().between
