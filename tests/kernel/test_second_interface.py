"""A pod with two of our interfaces: each is reached, and answers, by itself; nothing of one stays
when it goes.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.kernel.conforming import Caller, Pod, one_node, ptp
from tests.kernel.namespaces import inside, ipv6_kept_off, process_in
from tests.lab import named_netns
from tests.lab.exchange import End, datagrams, open_socket
from tests.lab.topology import INTERNET, cluster
from tests.waiting import eventually

pytestmark = pytest.mark.root

INTERFACES = ("eth0", "net1", "net2")


@pytest.fixture(scope="module")
def cni() -> Iterator[Caller]:
    # Nothing here depends on what holds the rules.
    settings = {"accounting": {"reading_seconds": 0.2}}
    with one_node(cluster(pods=0), backend=Backend.NFTABLES, **settings) as caller:
        yield caller


@pytest.fixture
def pod(cni: Caller) -> Iterator[Pod]:
    with cni.sandbox() as made:
        yield made
        for ifname in INTERFACES[1:]:
            cni.call("DEL", made, CNI_IFNAME=ifname)


def add(cni: Caller, pod: Pod, ifname: str) -> dict[str, object]:
    answer = cni.call("ADD", pod, CNI_IFNAME=ifname)
    assert answer.exit_code == 0, answer.body
    assert answer.body is not None
    return answer.body


def addresses(result: dict[str, object]) -> list[Address]:
    listed = result["ips"]
    assert isinstance(listed, list)
    return [Address.parse(entry["address"].partition("/")[0]) for entry in listed]


def exchange(near: End, far: End) -> None:
    """A datagram there and one back, from a socket that is bound to its end's address."""
    family = near.address.family
    with (
        open_socket(near.namespace, family, socket.SOCK_DGRAM) as client,
        open_socket(far.namespace, family, socket.SOCK_DGRAM) as server,
    ):
        client.bind((str(near.address), 0))
        server.bind((str(far.address), 0))
        client.sendto(b"there", server.getsockname())
        _, peer = server.recvfrom(100)
        server.sendto(b"back", peer)
        assert client.recv(100) == b"back"


def rules(pod: Pod) -> str:
    return inside(pod.netns, "ip", "rule") + inside(pod.netns, "ip", "-6", "rule")


@pytest.mark.parametrize("order", [INTERFACES, INTERFACES[::-1]], ids=" ".join)
def test_every_interface_talks_to_the_internet_and_to_the_node(
    cni: Caller, pod: Pod, order: tuple[str, ...]
) -> None:
    results = {ifname: add(cni, pod, ifname) for ifname in order}
    for ifname, result in results.items():
        for address in addresses(result):
            far = cni.world.outside(address.family)
            own = End(pod.netns, address)
            exchange(own, far)
            node = cni.node.end(address.family)
            datagrams(node, own, [100] * 3, [100] * 3)
        assert cni.call("CHECK", pod, CNI_IFNAME=ifname, keys={"prevResult": result}).exit_code == 0


def test_an_interface_beside_another_plugins_talks_as_well(
    cni: Caller, pod: Pod, tmp_path: Path
) -> None:
    ptp(cni, "ADD", pod, tmp_path)
    try:
        result = add(cni, pod, "net1")
        for address in addresses(result):
            exchange(End(pod.netns, address), cni.world.outside(address.family))
        assert cni.call("CHECK", pod, CNI_IFNAME="net1", keys={"prevResult": result}).exit_code == 0
        assert "dev eth0" in way_to_the_internet(pod, Family.V4)
    finally:
        ptp(cni, "DEL", pod, tmp_path)


def test_an_interface_can_be_chosen_by_name_as_well(cni: Caller, pod: Pod) -> None:
    for ifname in INTERFACES:
        add(cni, pod, ifname)
        for family in Family:
            assert f"dev {ifname}" in way_to_the_internet(pod, family, "oif", ifname)
    for family in Family:
        assert "dev eth0" in way_to_the_internet(pod, family)


def way_to_the_internet(pod: Pod, family: Family, *choice: str) -> str:
    asked = ("route", "get", str(INTERNET[family]), *choice)
    return inside(pod.netns, "ip", f"-{family.value}", *asked)


def test_check_misses_a_rule_and_a_route(cni: Caller, pod: Pod) -> None:
    add(cni, pod, "eth0")
    result = add(cni, pod, "net1")
    table = next(line.split()[-1] for line in rules(pod).splitlines() if line.startswith("30000:"))
    for family in Family:
        ip = ("ip", f"-{family.value}")
        inside(pod.netns, *ip, "route", "flush", "table", table)
        lost = f"default route of table {table} is missing in the sandbox"
        assert fault(cni, pod, result) == lost
        via = "169.254.1.1" if family is Family.V4 else "fe80::1"
        back = f"route add default via {via} dev net1 onlink table {table}"
        inside(pod.netns, *ip, *back.split())
        assert fault(cni, pod, result) == ""
        address = next(each for each in addresses(result) if each.family is family)
        rule = ("from", str(address), "table", table, "pref", "30000")
        inside(pod.netns, *ip, "rule", "del", *rule)
        lost = f"rule of {address} for table {table} is missing in the sandbox"
        assert fault(cni, pod, result) == lost
        inside(pod.netns, *ip, "rule", "add", *rule)
    assert fault(cni, pod, result) == ""


def fault(cni: Caller, pod: Pod, result: dict[str, object]) -> str:
    answer = cni.call("CHECK", pod, CNI_IFNAME="net1", keys={"prevResult": result})
    return answer.body["msg"] if answer.body else ""


def test_del_removes_the_rules_of_its_interface_alone(cni: Caller, pod: Pod) -> None:
    before = rules(pod)
    first = add(cni, pod, "eth0")
    assert rules(pod) == before
    add(cni, pod, "net1")
    with_one = rules(pod)
    add(cni, pod, "net2")
    assert cni.call("DEL", pod, CNI_IFNAME="net2").exit_code == 0
    assert rules(pod) == with_one
    assert cni.call("DEL", pod, CNI_IFNAME="net1").exit_code == 0
    assert rules(pod) == before
    assert cni.call("CHECK", pod, keys={"prevResult": first}).exit_code == 0


def test_del_removes_them_although_another_program_wrote_on_the_link(cni: Caller, pod: Pod) -> None:
    before = rules(pod)
    host = add(cni, pod, "net1")["interfaces"]
    assert isinstance(host, list)
    inside(cni.node.namespace, "ip", "link", "set", host[0]["name"], "alias", "words", "group", "7")
    assert cni.call("DEL", pod, CNI_IFNAME="net1").exit_code == 0
    assert rules(pod) == before


def test_a_failed_add_of_a_second_interface_leaves_no_rules(cni: Caller, pod: Pod) -> None:
    before = rules(pod)
    add(cni, pod, "eth0")

    def fails() -> bool:
        if cni.call("ADD", pod, CNI_IFNAME="net1").exit_code:
            return True
        # On a busy machine IPv6 was switched off too late.
        cni.call("DEL", pod, CNI_IFNAME="net1")
        return False

    with ipv6_kept_off(pod.netns):
        eventually(fails)
    assert rules(pod) == before
    assert "net1" not in inside(pod.netns, "ip", "link")


def test_a_sandbox_that_went_takes_the_rules_with_it(cni: Caller, pod: Pod) -> None:
    add(cni, pod, "net1")
    named_netns.delete(pod.netns)
    assert cni.call("DEL", pod, CNI_IFNAME="net1").exit_code == 0


@pytest.mark.parametrize("is_mounted", [True, False], ids=["by a mount", "by a process"])
def test_del_finds_a_sandbox_whose_process_has_ended(
    cni: Caller, pod: Pod, *, is_mounted: bool
) -> None:
    before = rules(pod)
    with process_in(pod.netns) as other:
        with process_in(pod.netns) as path:
            assert cni.call("ADD", pod, CNI_NETNS=str(path), CNI_IFNAME="net1").exit_code == 0
            assert rules(pod) != before
        assert not path.exists()
        if not is_mounted:
            named_netns.delete(pod.netns)
        assert cni.call("DEL", pod, CNI_NETNS=str(path), CNI_IFNAME="net1").exit_code == 0
        assert rules(replace(pod, netns=other)) == before
