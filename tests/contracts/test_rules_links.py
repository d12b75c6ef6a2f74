"""What counting at links leaves behind, and what it does beside others' qdiscs."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from dataclasses import replace

import pytest

from netmgr.agent.health import doctor
from netmgr.errors import KernelError
from netmgr.kernel import bpf, netns, traffic_filters
from netmgr.kernel.netlink import Netlink, index_of
from netmgr.kernel.traffic_filters import FilterPlace
from netmgr.model import PROTECTED, Sample, Traffic
from netmgr.prefixes import Address, Family
from netmgr.rules.classifier import Classifier
from netmgr.rules.link_filters import LinkFilters
from netmgr.rules.link_programs import CLUSTER, MOST_UPLINKS, ONLY_KEY, UPLINKS, UPLINKS_MAP
from netmgr.rules.link_programs import INTERNET as INTERNET_CLASS
from netmgr.rules.protection import Protection
from netmgr.rules.transaction import CountAtLinks
from tests.contracts.conftest import put_right
from tests.contracts.routed import (
    INTERNAL,
    INTERNET,
    LINK,
    POD_ADDRESSES,
    PODS,
    counts,
    guarded,
    of_pod,
    routed,
)
from tests.contracts.star import HEADERS, PORT
from tests.contracts.wide import (
    ABOVE_UPLINK,
    ETHERNET,
    exchange_is_counted_once,
    put_above,
    widen,
)
from tests.fakes.sites import document

SURROUNDINGS = routed
GO_ON, ACCEPT = -1, 0
EVERY_PACKET, IPV4 = socket.htons(3), socket.htons(0x0800)
AS_OURS, BEHIND_OURS, OF_IPV4 = 1 << 16 | EVERY_PACKET, 2 << 16 | EVERY_PACKET, 1 << 16 | IPV4
"""Priority of a filter, and which packets it is for."""
pytestmark = [pytest.mark.root, pytest.mark.parametrize("real_kernel", ["links"], indirect=True)]


def test_a_check_of_one_pod_keeps_no_other_from_being_put_right(
    world, real_kernel, policy, program
):
    del world
    neighbours, link = (Address.parse("10.1.0.6"),), "nm00000000000a"
    pods = (*POD_ADDRESSES, *neighbours)
    program(f"ip link add {link} type veth peer name neighbour")
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    rules.know(neighbours, "research", link)
    put_right(rules, pods)
    for broken in (LINK, link):
        program(f"tc qdisc del dev {broken} clsact")
    plan = rules.plan(pods)
    assert rules.check(neighbours)
    rules.apply(plan)
    assert not rules.plan(pods)


def test_what_is_removed_leaves_no_filter_and_no_qdisc(world, real_kernel, policy, program):
    del world
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    assert "clsact" in program("tc qdisc show dev uplink")
    assert f"dev {LINK}" in program("tc qdisc show")
    rules.remove()
    with Netlink() as channel:
        traffic_filters.remove_unused(channel)
    assert "clsact" not in program("tc qdisc show")
    assert "netmgr" not in program("nft list ruleset")


def put_anothers(monkeypatch, verdict: int, order: int = AS_OURS) -> None:
    """Have somebody else's program decide on what leaves by the uplink."""
    foreign = bpf.load("foreign", f"r0 = {verdict}; exit", ())
    place = FilterPlace.leaving(index_of("uplink"))
    with Netlink() as channel, monkeypatch.context() as patch:
        patch.setattr(traffic_filters, "_HANDLE", 7)
        patch.setattr(traffic_filters, "_INFO", order)
        channel.transact([traffic_filters.put_filter(place, foreign.descriptor, "foreign")])
    os.close(foreign.descriptor)


def test_anothers_filters_and_their_clsact_stay(world, real_kernel, policy, program, monkeypatch):
    del world
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    put_anothers(monkeypatch, GO_ON)
    rules.remove()
    with Netlink() as channel:
        traffic_filters.remove_unused(channel)
    shown = program("tc filter show dev uplink egress")
    assert "foreign" in shown
    assert "netmgr" not in shown


@pytest.mark.parametrize(
    ("order", "was_there"),
    [(AS_OURS, False), (AS_OURS, True), (BEHIND_OURS, True)],
    ids=["newer", "older", "behind"],
)
def test_anothers_filter_hides_what_it_accepts_only_where_it_runs_before_ours(
    world, real_kernel, policy, program, monkeypatch, order, was_there
):
    """Of one priority the newest filter runs first; `netmgr doctor` names it."""
    program("tc qdisc add dev uplink clsact")
    if was_there:
        put_anothers(monkeypatch, ACCEPT, order)
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    if not was_there:
        put_anothers(monkeypatch, ACCEPT, order)
    family = Family.V4
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, INTERNET[family], PORT)
    assert world.reaches(pod, host, INTERNET[family])
    node = document(accounting={"rule_owner": "openai", "at": "links"})
    warning = (
        "a filter comes before netmgr's, which counts only what it lets pass: dev uplink egress"
    )
    found = [finding.message for finding in doctor.CHECKS["order"](node)]
    assert found == ([] if was_there else [warning])
    assert bool(counts(rules)) is was_there


@pytest.mark.parametrize("qdisc", ["ingress", "clsact"])
def test_a_link_whose_place_another_program_has_is_refused_and_the_others_count(
    world, real_kernel, policy, program, monkeypatch, qdisc
):
    """By an `ingress`, or a filter of other packets at the first priority of a clsact."""
    del world
    program(f"tc qdisc add dev uplink {qdisc}")
    if qdisc == "clsact":
        put_anothers(monkeypatch, GO_ON, OF_IPV4)
    with pytest.raises(KernelError, match="dev uplink"):
        guarded(real_kernel.backend, policy, knows_links=True)
    assert "netmgr" not in program("tc filter show dev uplink egress")
    assert "netmgr arriving" in program(f"tc filter show dev {LINK} egress")


def test_a_refused_link_keeps_nothing_else_from_being_put_right(
    world, real_kernel, policy, program
):
    """Neither rules, nor pods, nor what another uplink's programs write down."""
    del world
    add_other(program, "192.0.2.0/24")
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    program("tc qdisc del dev uplink clsact")
    program("tc qdisc add dev uplink ingress")
    program(f"tc qdisc del dev {LINK} clsact")
    add_other(program, "198.51.100.0/24", name="further")
    real_kernel.lose_everything()
    with pytest.raises(KernelError, match=r"qdisc add dev .* clsact"):
        put_right(rules, POD_ADDRESSES)
    left = rules.plan(POD_ADDRESSES)
    assert {type(operation) for operation in left.operations} == {CountAtLinks}
    assert not [fault for fault in left.repairs if LINK in fault]
    assert known_uplinks() == {index_of("other"), index_of("further")}
    program("tc qdisc del dev uplink ingress")
    put_right(rules, POD_ADDRESSES)
    assert index_of("uplink") in known_uplinks()


def known_uplinks() -> set[int]:
    """Those that the programs believe."""
    with closing(LinkFilters()) as filters:
        *numbers, _, _ = UPLINKS.unpack(filters.maps[UPLINKS_MAP].get(ONLY_KEY))
    return {number for number in numbers if number}


def add_other(program, prefix: str, name: str = "other") -> None:
    """One more link of the node's, with a route."""
    program(f"ip link add {name} up type veth peer name {name}-far")
    program(f"ip link set {name}-far up")
    program(f"ip route add {prefix} dev {name}")


def test_of_more_uplinks_than_programs_can_know_those_that_lead_outside_are_known(
    world, real_kernel, policy, program, caplog
):
    """All count; the log names those that are not known."""
    del world
    inside = [f"inside-{number}" for number in range(MOST_UPLINKS)]
    ends = [f"link add {link} up type veth peer name {link}-far" for link in inside]
    ends += [f"link set {link}-far up" for link in inside]
    program("ip -b -", "\n".join(ends) + "\n")
    add_other(program, "192.0.2.0/24")
    rules = guarded(real_kernel.backend, replace(policy, limited=True), knows_links=True)
    assert not rules.plan(POD_ADDRESSES)
    known = known_uplinks()
    assert len(known) == MOST_UPLINKS
    assert {index_of("uplink"), index_of("other")} <= known
    left_out = {name for index, name in socket.if_nameindex() if index not in known}
    left_out -= {"lo", LINK, "netmgr-in"}
    for link in left_out:
        assert "netmgr leaving" in program(f"tc filter show dev {link} egress")
    (told,) = [line for line in caplog.messages if line.startswith("uplinks-unknown ")]
    assert {*told.partition("links=")[2].split(",")} == left_out
    for link in inside:
        program(f"ip link del {link}")
    caplog.clear()
    put_right(rules, POD_ADDRESSES)
    assert known_uplinks() == {index_of("uplink"), index_of("other"), index_of("other-far")}
    assert not caplog.messages


def test_links_that_lead_nowhere_outside_count_only_where_pods_have_limits(
    world, real_kernel, policy, program
):
    """What comes back from an IFB does not say by which link it came in."""
    del world
    program("ip link add other up type veth peer name other-far")
    program("ip link set other-far up")
    program("ip route add 10.99.0.0/24 dev other")
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    assert "netmgr" not in program("tc filter show dev other egress")
    assert "netmgr" not in program(f"tc filter show dev {LINK} ingress")
    program("ip link add netmgr-in up type ifb")
    rules.change_policy(replace(policy, limited=True))
    put_right(rules, POD_ADDRESSES)
    assert "netmgr sending" in program(f"tc filter show dev {LINK} ingress")
    assert "netmgr leaving" in program("tc filter show dev other egress")
    assert "netmgr entering" in program("tc filter show dev other ingress")
    assert "netmgr" not in program("tc filter show dev netmgr-in egress")


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("forged", [INTERNET_CLASS, INTERNET_CLASS | CLUSTER])
def test_what_a_pod_writes_beside_its_packets_makes_them_nobodys_internet(
    world, real_kernel, policy, forged, limited
):
    forgery = bpf.load("forgery", f"r2 = {forged}; *(u32 *)(r1 + 44) = r2; r0 = -1; exit", ())
    with netns.entered(world.pod), Netlink() as channel:
        place = FilterPlace.leaving(index_of("eth0"))
        adding = traffic_filters.add_clsact(place.link)
        putting = traffic_filters.put_filter(place, forgery.descriptor, "forgery")
        channel.transact([adding, putting])
    rules = guarded(real_kernel.backend, replace(policy, limited=limited), knows_links=True)
    family, internal = Family.V4, INTERNAL[Family.V4]
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, internal, PORT)
    assert world.reaches(pod, host, internal)
    assert not counts(rules)


def test_no_link_that_is_gone_is_asked_for_by_its_name(
    world, real_kernel, policy, program, monkeypatch
):
    """A kernel with modules would look for one of that name, which starts a program."""
    del world
    rules = guarded(real_kernel.backend, policy, knows_links=True)

    def present(name: str) -> int:
        return {name: index for index, name in socket.if_nameindex()}[name]

    monkeypatch.setattr(socket, "if_nametoindex", present)
    program(f"ip link del {LINK}")
    # As long as a pod is attached, it is wanted.
    put_right(rules, POD_ADDRESSES)
    rules.expel(POD_ADDRESSES)
    rules.know(POD_ADDRESSES, "", "")
    put_right(rules)


def test_pods_that_are_gone_are_forgotten(world, real_kernel, policy):
    del world
    backend = real_kernel.backend
    rules = guarded(backend, policy, knows_links=True)
    assert backend._links.keys() == {*POD_ADDRESSES}
    rules.expel(POD_ADDRESSES)
    assert not backend._links


def test_a_class_comes_and_goes_and_the_internet_goes_on(world, real_kernel, policy):
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    family = Family.V4
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, INTERNET[family], PORT)
    storage = Classifier((("storage", (Address.parse(INTERNET[family]).prefix,)),))
    packets = []
    for classifier in (None, storage, None):
        rules.change_policy(replace(policy, classifier=classifier))
        put_right(rules, POD_ADDRESSES)
        assert world.reaches(pod, host, INTERNET[family])
        shown = counts(rules)
        ways = (Traffic.INTERNET_OUT, Traffic("storage-out"))
        packets.append([shown.get(of_pod(family, way), (0, 0))[1] for way in ways])
    assert packets == [[1, 0], [1, 1], [2, 0]]


def test_what_was_kept_away_is_read_before_protection_ends(world, real_kernel, policy):
    """Rules count it, here too."""
    family, away = Family.V4, INTERNAL[Family.V4]
    protection = Protection((Address.parse(away).prefix,))
    protecting = replace(policy, protection=protection)
    rules = guarded(real_kernel.backend, protecting, knows_links=True)
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, away, PORT)
    assert world.is_lost(pod, host, away)
    kept_away, internet = (of_pod(family, one) for one in (PROTECTED, Traffic.INTERNET_OUT))
    rules.change_policy(policy)
    read: list[Sample] = []
    plan = rules.plan(POD_ADDRESSES)
    rules.apply(plan, lambda: read.extend(rules.read_former([kept_away, internet])))
    assert [(one.counter, one.packets) for one in read] == [(kept_away, 1)]
    assert not rules.read_former([kept_away])


@pytest.mark.parametrize("kind", ETHERNET, ids=lambda kind: kind.split()[0])
def test_an_uplink_of_another_kind_counts_what_the_pod_exchanges_once(
    world, real_kernel, policy, program, kind
):
    """Also where every link is one: what carries a tunnel is, too, and a bridge's ports are not."""
    widen(world, program, kind)
    program("ip link add netmgr-in up type ifb")
    limited = replace(policy, limited=True)
    rules = guarded(real_kernel.backend, limited, knows_links=True)
    assert "netmgr leaving" in program("tc filter show dev wide egress")
    if kind == "bridge":
        assert "netmgr" not in program("tc filter show dev part egress")
    exchange_is_counted_once(world, rules)


@pytest.mark.parametrize("leads_outside", [False, True])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("kind", ABOVE_UPLINK)
def test_what_leaves_by_an_uplink_and_by_a_link_made_above_it_later_counts_once(
    world, real_kernel, policy, program, kind, limited, leads_outside
):
    rules = guarded(real_kernel.backend, replace(policy, limited=limited), knows_links=True)
    assert "netmgr leaving" in program("tc filter show dev uplink egress")
    put_above(world, program, kind)
    if not leads_outside:
        program("ip addr flush dev uplink")
        program("ip -4 route flush dev uplink")
        program("ip -6 route flush dev uplink")
    put_right(rules, POD_ADDRESSES)
    exchange_is_counted_once(world, rules)


def test_a_macvlan_counts_what_leaves_while_the_link_below_it_is_none_of_the_nodes(
    world, real_kernel, policy, program, namespaces
):
    """Also where one of the node's has the same index."""
    beside, index = namespaces("beside"), index_of("uplink")
    put_above(world, program, "a macvlan")
    program(f"ip link set uplink netns {beside.name}")
    program(f"ip -n {beside.name} link set uplink up")
    program(f"ip link add other index {index} up type veth peer name other-far")
    program("ip link set other-far up")
    program("ip route add 198.51.100.0/24 dev other")
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    exchange_is_counted_once(world, rules)


@pytest.mark.parametrize("are_shared", [True, False])
def test_a_new_pods_link_counts_though_another_program_gave_it_a_clsact(
    world, real_kernel, policy, program, are_shared
):
    """Whether or not other pods' links share our blocks."""
    del world
    rules, pod, link = (
        guarded(real_kernel.backend, policy, knows_links=True),
        "10.1.0.6",
        "nm0000000a",
    )
    if not are_shared:
        rules.expel(POD_ADDRESSES)
        program(f"tc qdisc del dev {LINK} clsact")
    program(f"ip link add {link} type veth peer name newcomer")
    program(f"tc qdisc add dev {link} clsact")
    rules.know([Address.parse(pod)], "research", link)
    rules.admit([Address.parse(pod)])
    assert "netmgr arriving" in program(f"tc filter show dev {link} egress")


def test_a_pods_link_that_is_part_of_a_bridge_goes_on_counting(world, real_kernel, policy, program):
    """Also where its filters are in a clsact of another program's."""
    del world
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    program(f"tc qdisc del dev {LINK} clsact")
    program(f"tc qdisc add dev {LINK} clsact")
    put_right(rules, POD_ADDRESSES)
    filters = program(f"tc filter show dev {LINK} egress")
    assert "netmgr arriving" in filters
    program("ip link add others type bridge")
    program(f"ip link set {LINK} master others")
    assert not rules.check([])
    put_right(rules, POD_ADDRESSES)
    assert program(f"tc filter show dev {LINK} egress") == filters


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 2),
    reason="these kernels rename no link that is up",
)
def test_an_uplink_that_is_renamed_counts_on(world, real_kernel, policy, program):
    family = Family.V6
    rules = guarded(real_kernel.backend, policy, knows_links=True)
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, INTERNET[family], PORT)
    assert world.reaches(pod, host, INTERNET[family])
    filters = program("tc filter show dev uplink egress")
    program("ip link set uplink name wan")
    assert world.reaches(pod, host, INTERNET[family])
    put_right(rules, POD_ADDRESSES)
    assert program("tc filter show dev wan egress") == filters, "written again"
    out = of_pod(family, Traffic.INTERNET_OUT)
    assert counts(rules)[out] == (2 * (100 + HEADERS[family]), 2)
