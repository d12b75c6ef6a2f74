"""The kernel's settings that a pod's packets depend on, of its own link and of the uplink."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.kernel.conforming import Answer, Caller, Pod, one_node
from tests.kernel.namespaces import inside
from tests.lab.exchange import End, datagrams
from tests.lab.topology import cluster
from tests.waiting import eventually

pytestmark = pytest.mark.root

SETTINGS = [
    "ipv4.conf.{link}.forwarding=0",
    "ipv4.conf.{uplink}.forwarding=0",
    "ipv6.conf.all.forwarding=0",
    "ipv4.conf.{link}.accept_source_route=1",
    "ipv6.conf.{link}.disable_ipv6=1",
    "ipv6.conf.{link}.addr_gen_mode=0",
    "ipv6.conf.{link}.accept_ra=1",
]


@pytest.fixture(scope="module")
def cni() -> Iterator[Caller]:
    with one_node(cluster(nodes=1, pods=0), backend=Backend.NFTABLES) as caller:
        yield caller


@pytest.fixture
def pod(cni: Caller) -> Iterator[Pod]:
    with cni.sandbox() as made:
        yield made


class Wired(NamedTuple):
    """A pod that was added, and what ADD answered."""

    cni: Caller
    pod: Pod
    result: dict[str, Any]

    @property
    def link(self) -> str:
        """The host's end."""
        (found,) = (one["name"] for one in self.result["interfaces"] if "sandbox" not in one)
        return str(found)

    def check(self) -> Answer:
        return self.cni.call("CHECK", self.pod, keys={"prevResult": self.result})

    def assert_talks(self) -> None:
        for entry in self.result["ips"]:
            address = Address.parse(entry["address"].partition("/")[0])
            peer = self.cni.world.outside(address.family)
            datagrams(End(self.pod.netns, address), peer, [100], [100])


def added(cni: Caller, pod: Pod) -> Wired:
    answer = cni.call("ADD", pod)
    assert answer.code == 0, answer.body
    return Wired(cni, pod, answer.body)


def set_in(cni: Caller, setting: str) -> None:
    inside(cni.node.namespace, "sysctl", "-qw", f"net.{setting}")


def examined(cni: Caller) -> str:
    """What `netmgr doctor` says of the node."""
    command = [sys.executable, "-m", "netmgr", "doctor", "-c", str(cni.node.document)]
    return programs.run(["nsenter", f"--net={cni.node.namespace}", *command]).stdout.decode()


def restart(cni: Caller) -> None:
    cni.node.stop_agent()
    cni.node.start_until_ready()


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_another_program_changed_is_told_and_repaired(
    cni: Caller, pod: Pod, setting: str
) -> None:
    wired = added(cni, pod)
    link = wired.link
    changed = setting.format(link=link, uplink=cni.node.node.uplink)
    set_in(cni, changed)
    *_, place, name = changed.partition("=")[0].split(".")
    answer = wired.check()
    assert answer.code == 104
    assert name in answer.body["msg"]
    assert any(place in line and name in line for line in examined(cni).splitlines())
    restart(cni)
    assert wired.check().code == 0
    assert name not in examined(cni)
    wired.assert_talks()


@pytest.mark.parametrize("family", Family)
def test_new_links_do_not_inherit_what_keeps_pods_from_the_network(
    cni: Caller, pod: Pod, family: Family
) -> None:
    default = f"ipv{family.value}.conf.default"
    bad, good = (
        (f"{default}.forwarding=0", f"{default}.forwarding=1")
        if family is Family.V4
        else (f"{default}.disable_ipv6=1", f"{default}.disable_ipv6=0")
    )
    set_in(cni, bad)
    try:
        wired = added(cni, pod)
        wired.assert_talks()
        assert wired.check().code == 0
    finally:
        set_in(cni, good)


def test_a_links_own_switch_of_ipv6_forwarding_decides_nothing(cni: Caller, pod: Pod) -> None:
    wired = added(cni, pod)
    for name in (wired.link, cni.node.node.uplink):
        set_in(cni, f"ipv6.conf.{name}.forwarding=0")
    wired.assert_talks()


def test_a_check_reads_and_repairs_nothing(cni: Caller, pod: Pod) -> None:
    wired = added(cni, pod)
    setting = f"net.ipv4.conf.{wired.link}.forwarding"
    inside(cni.node.namespace, "sysctl", "-qw", f"{setting}=0")
    assert wired.check().code == 104
    assert inside(cni.node.namespace, "sysctl", "-n", setting).strip() == "0"


def test_a_check_names_the_neighbour_that_is_missing(cni: Caller, pod: Pod) -> None:
    wired = added(cni, pod)
    (address, *_) = (each["address"].partition("/")[0] for each in wired.result["ips"])

    def is_named() -> bool:
        # The kernel tells the agent of it, which puts it back: the CHECK has to come sooner.
        inside(cni.node.namespace, "ip", "neigh", "del", address, "dev", wired.link)
        answer = wired.check()
        return answer.code == 104 and f"host neighbour {address}" in answer.body["msg"]

    eventually(is_named)
