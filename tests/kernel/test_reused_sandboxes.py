"""A sandbox that outlives its attachment: whoever is attached next finds nothing of the former (CNI
1.1.0, "DEL").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netmgr.documents.node import Backend
from tests.kernel.conforming import Answer, Caller, Pod, one_node, ptp, valid
from tests.kernel.namespaces import inside, process_in
from tests.lab import named_netns
from tests.lab.topology import cluster

pytestmark = pytest.mark.root

MANY = 100
ALL_ROUTES = ("ip", "route", "show", "table", "all")


@pytest.fixture(scope="module")
def cni() -> Iterator[Caller]:
    # Nothing here depends on what holds the rules.
    ranges = ["10.128.0.0/24", "fd00:128::/112"]
    with one_node(cluster(nodes=1, pods=0), backend=Backend.NFTABLES, ranges=ranges) as caller:
        yield caller


@pytest.fixture
def pod(cni: Caller) -> Iterator[Pod]:
    with cni.sandbox() as made:
        yield made


def carried(namespace: Path) -> dict[str, list[str]]:
    """Addresses by link, the loopback's left out."""
    listed = json.loads(inside(namespace, "ip", "-j", "address"))
    return {
        link["ifname"]: [each["local"] for each in link["addr_info"]]
        for link in listed
        if link["ifname"] != "lo"
    }


def is_as_new(namespace: Path) -> bool:
    """Whether nothing but the loopback is there."""
    return not carried(namespace) and "default" not in inside(namespace, *ALL_ROUTES)


def add(cni: Caller, pod: Pod, **changes: str) -> dict[str, Any]:
    answer = cni.call("ADD", pod, **changes)
    assert answer.exit_code == 0, answer.body
    assert answer.body is not None
    return answer.body


@pytest.mark.parametrize(
    "end",
    [
        lambda cni, pod: cni.call("DEL", pod),
        lambda cni, pod: cni.call("DEL", pod, CNI_NETNS=""),
        lambda cni, _: cni.call("GC", version="1.1.0", keys=valid()),
    ],
    ids=["DEL", "DEL that names no sandbox", "GC"],
)
def test_the_interface_is_gone_when_its_end_was_told(
    cni: Caller, pod: Pod, end: Callable[[Caller, Pod], Answer]
) -> None:
    add(cni, pod)
    inside(pod.netns, "ip", "address", "add", "198.51.100.9/24", "dev", "eth0")
    inside(pod.netns, "sysctl", "-qw", "net.ipv6.conf.eth0.keep_addr_on_down=1")
    assert end(cni, pod).exit_code == 0
    assert is_as_new(pod.netns)


def test_an_interface_that_was_moved_elsewhere_is_gone_when_del_returns(
    cni: Caller, pod: Pod
) -> None:
    add(cni, pod)
    with cni.sandbox() as other:
        inside(pod.netns, "ip", "link", "set", "eth0", "netns", str(other.netns))
        assert cni.call("DEL", pod).exit_code == 0
        assert is_as_new(other.netns)


def test_del_of_one_interface_leaves_the_other_alone(cni: Caller, pod: Pod) -> None:
    first = add(cni, pod)
    add(cni, pod, CNI_IFNAME="net1")
    assert cni.call("DEL", pod, CNI_IFNAME="net1").exit_code == 0
    assert "net1" not in carried(pod.netns)
    assert cni.call("CHECK", pod, keys={"prevResult": first}).exit_code == 0


def test_del_touches_no_other_sandbox_that_came_to_be_at_the_path(cni: Caller, pod: Pod) -> None:
    with cni.sandbox() as other:
        add(cni, pod)
        result = add(cni, other)
        elsewhere = replace(pod, netns=other.netns)
        assert cni.call("DEL", elsewhere).exit_code == 0
        assert cni.call("CHECK", other, keys={"prevResult": result}).exit_code == 0
        assert is_as_new(pod.netns)


@pytest.mark.slow
def test_a_hundred_containers_one_after_the_other_have_the_same_sandbox(
    cni: Caller, pod: Pod
) -> None:
    for number in range(MANY):
        each = replace(pod, container=f"{pod.container}-{number}")
        add(cni, each)
        assert cni.call("DEL", each).exit_code == 0
        assert is_as_new(pod.netns)


def test_one_container_is_attached_again_and_again(cni: Caller, pod: Pod) -> None:
    for _ in range(MANY):
        add(cni, pod)
        assert cni.call("DEL", pod).exit_code == 0


def test_another_plugin_and_netmgr_take_turns_in_one_sandbox(
    cni: Caller, pod: Pod, tmp_path: Path
) -> None:
    for _ in range(6):
        add(cni, pod)
        assert cni.call("DEL", pod).exit_code == 0
        ptp(cni, "ADD", pod, tmp_path)
        ptp(cni, "DEL", pod, tmp_path)
    result = add(cni, pod)
    assert cni.call("CHECK", pod, keys={"prevResult": result}).exit_code == 0


def test_a_sandbox_that_went_before_its_del_is_no_fault(cni: Caller, pod: Pod) -> None:
    add(cni, pod)
    named_netns.delete(pod.netns)
    pod.netns.touch()
    assert cni.call("DEL", pod).exit_code == 0
    assert cni.occupancy() == {"ipv4": 0, "ipv6": 0}


def test_a_second_add_answers_what_the_link_is_like_now(cni: Caller, pod: Pod) -> None:
    first = cni.call("ADD", pod, "1.1.0").body
    assert first is not None
    inside(pod.netns, "ip", "link", "set", "eth0", "mtu", "1400", "address", "02:00:00:00:00:09")
    again = cni.call("ADD", pod, "1.1.0").body
    assert again is not None
    host, end = first["interfaces"]
    assert again["interfaces"] == [host, end | {"mtu": 1400, "mac": "02:00:00:00:00:09"}]
    assert cni.call("CHECK", pod, "1.1.0", keys={"prevResult": again}).exit_code == 0


@contextmanager
def by_a_link(path: Path) -> Iterator[Path]:
    other = path.with_name("linked")
    other.symlink_to(path)
    try:
        yield other
    finally:
        other.unlink()


@contextmanager
def when_its_path_is_gone(path: Path) -> Iterator[Path]:
    with process_in(path) as other:
        named_netns.delete(path)
        yield other


@pytest.mark.parametrize("found", [by_a_link, process_in, when_its_path_is_gone])
def test_a_second_add_by_another_path_finds_the_same_attachment(
    cni: Caller, pod: Pod, found: Callable[[Path], AbstractContextManager[Path]]
) -> None:
    first = add(cni, pod)
    with found(pod.netns) as other:
        before = inside(other, "ip", "-o", "link", "show", "eth0")
        again = add(cni, pod, CNI_NETNS=str(other))
        assert (again["ips"], again["routes"]) == (first["ips"], first["routes"])
        assert inside(other, "ip", "-o", "link", "show", "eth0") == before
        elsewhere = replace(pod, netns=other)
        assert cni.call("CHECK", elsewhere, keys={"prevResult": again}).exit_code == 0
        assert cni.call("DEL", pod, CNI_NETNS="").exit_code == 0
        assert is_as_new(other)


def test_another_sandbox_at_the_same_path_gets_an_attachment_of_its_own(
    cni: Caller, pod: Pod
) -> None:
    first = add(cni, pod)
    with process_in(pod.netns) as former:
        named_netns.delete(pod.netns)
        named_netns.create(pod.netns)
        second = add(cni, pod)
        assert first["ips"] != second["ips"]
        assert is_as_new(former)


@pytest.mark.parametrize("mode", [0o444, 0], ids=["readable", "as ip netns makes it"])
def test_a_namespace_file_that_is_only_unmounted_is_no_sandbox(
    cni: Caller, pod: Pod, mode: int
) -> None:
    result = add(cni, pod)
    named_netns.delete(pod.netns)
    pod.netns.touch(mode)
    for verb, code in (("ADD", 4), ("CHECK", 104), ("DEL", 0), ("ADD", 4)):
        answer = cni.call(verb, pod, keys={"prevResult": result} if verb == "CHECK" else {})
        assert answer.code == code, answer.body
        assert code != 4 or "it is no network namespace" in answer.body["msg"]
    assert cni.occupancy() == {"ipv4": 0, "ipv6": 0}


def test_a_namespace_that_can_be_no_path_is_refused_as_such(cni: Caller, pod: Pod) -> None:
    loop = pod.netns.with_name("loop")
    loop.symlink_to(loop)
    for path in ("/" + "n" * 300, str(loop)):
        answer = cni.call("ADD", pod, CNI_NETNS=path)
        assert answer.code == 4, answer.body
        assert "CNI_NETNS" in answer.body["msg"]
    loop.unlink()
