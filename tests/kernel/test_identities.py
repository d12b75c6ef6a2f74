"""Whose a link is: for names as long as Kubernetes allows, after a loss of memory, and when an ADD
fails midway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest

from netmgr.dataplane.desired import host_link_name
from netmgr.documents.node import Backend
from netmgr.model import LINK_GROUP, AttachmentKey
from tests.kernel.common import UNCHANGEABLE, repairs
from tests.kernel.conforming import Caller, Pod, one_node
from tests.kernel.conftest import one_of
from tests.kernel.namespaces import inside, ipv6_kept_off
from tests.lab import named_netns
from tests.waiting import eventually

pytestmark = pytest.mark.root

LONGEST_NAMESPACE, LONGEST_NAME = "n" * 63, "p" * 253
UID = "12345678-1234-1234-1234-123456789abc"


# Links and their names do not depend on what holds the rules.
backend = one_of([Backend.NFTABLES])


@pytest.fixture(scope="module")
def cni(backend: Backend) -> Iterator[Caller]:
    with one_node(backend=backend, reconcile_seconds=0.5) as caller:
        yield caller


@pytest.fixture
def pod(cni: Caller) -> Iterator[Pod]:
    with cni.sandbox() as made:
        yield made


def named(pod: Pod, namespace: str, name: str, container: str = "") -> Pod:
    """The sandbox under another identity."""
    arguments = (
        f"IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={UID}"
    )
    return replace(pod, container=container or pod.container, more={"CNI_ARGS": arguments})


IDENTITIES: dict[str, Callable[[Pod], Pod]] = {
    "a text of 255 bytes": lambda pod: named(
        pod, "n" * 63, "p" * (255 - len(f"netmgr  eth0  {UID} ") - 2 * 63 - 1), "c" * 64
    ),
    "the longest names": lambda pod: named(pod, LONGEST_NAMESPACE, LONGEST_NAME, "c" * 64),
    "the longest container id": lambda pod: named(pod, LONGEST_NAMESPACE, LONGEST_NAME, "c" * 255),
    # As runtimes outside Kubernetes have it.
    "a long container id alone": lambda pod: replace(
        pod, container="c" * 200, more={"CNI_ARGS": ""}
    ),
}


def node_links(cni: Caller) -> list[str]:
    """Names of the links of pods in the node's namespace."""
    listed = inside(cni.node.namespace, "ip", "-o", "link")
    return re.findall(r"^\d+: (nm[^:@]*)", listed, re.MULTILINE)


def attachments(cni: Caller) -> list[dict[str, object]]:
    return [
        {key: item[key] for key in ("container_id", "namespace", "pod", "addresses")}
        for item in cni.node.ask("pods")["attachments"]
    ]


@pytest.fixture
def restarted(cni: Caller) -> Iterator[None]:
    yield
    cni.node.stop_agent()
    cni.node.start_until_ready()


@pytest.mark.slow
@pytest.mark.usefixtures("restarted")
@pytest.mark.parametrize("identity", IDENTITIES)
def test_long_identities_are_attached_remembered_by_the_kernel_alone_and_deleted(
    cni: Caller, pod: Pod, identity: str
) -> None:
    long = IDENTITIES[identity](pod)
    result = cni.add(long)
    before = attachments(cni)
    cni.node.kill_agent()
    for path in (cni.node.directory / "state").iterdir():
        if path.is_file():
            path.unlink()
    cni.node.start_until_ready()
    assert attachments(cni) == before
    assert cni.check(long, result).exit_code == 0
    assert cni.call("DEL", long).exit_code == 0
    assert attachments(cni) == []
    eventually(lambda: not node_links(cni))


def test_a_container_id_longer_than_any_file_name_is_refused(cni: Caller, pod: Pod) -> None:
    answer = cni.call("ADD", pod, CNI_CONTAINERID="c" * 256)
    assert answer.code == 4
    assert "CNI_CONTAINERID" in answer.body["msg"]


def own_link(pod: Pod) -> str:
    return host_link_name(AttachmentKey(pod.container, "eth0"))


@contextmanager
def interface_name_taken(_cni: Caller, pod: Pod) -> Iterator[None]:
    inside(pod.netns, "ip", "link", "add", "eth0", "type", "bridge")
    yield
    inside(pod.netns, "ip", "link", "del", "eth0")


@contextmanager
def host_link_name_taken(cni: Caller, pod: Pod) -> Iterator[None]:
    name = own_link(pod)
    inside(cni.node.namespace, "ip", "link", "add", name, "type", "bridge")
    yield
    # Still there, still down, still nobody's.
    shown = inside(cni.node.namespace, "ip", "-d", "link", "show", name)
    assert "state DOWN" in shown
    assert "alias" not in shown
    assert "group default" in shown
    inside(cni.node.namespace, "ip", "link", "del", name)


@contextmanager
def alternative_name_taken(cni: Caller, pod: Pod) -> Iterator[None]:
    name = own_link(pod)
    text = f"netmgr {pod.container} eth0 {LONGEST_NAMESPACE} {UID} {LONGEST_NAME}"
    first = f"{name}.00.{text[255:]}"[:127]
    inside(cni.node.namespace, "ip", "link", "add", "other", "type", "bridge")
    inside(cni.node.namespace, "ip", "link", "property", "add", "dev", "other", "altname", first)
    yield
    inside(cni.node.namespace, "ip", "link", "del", "other")


OBSTACLES: dict[str, Callable[[Caller, Pod], AbstractContextManager[None]]] = {
    "the sandbox has such an interface": interface_name_taken,
    "the sandbox takes no IPv6 address": lambda _cni, pod: ipv6_kept_off(pod.netns),
    "the host end's name is another's": host_link_name_taken,
    "a further name is another's": alternative_name_taken,
}


def fails(cni: Caller, pod: Pod) -> bool:
    """Whether an ADD fails. On a busy machine an obstacle may come too late; then DEL undoes it."""
    if cni.call("ADD", pod).exit_code:
        return True
    cni.call("DEL", pod)
    return False


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_failed_add_leaves_nothing_whatever_step_failed(
    cni: Caller, pod: Pod, obstacle: str
) -> None:
    long = named(pod, LONGEST_NAMESPACE, LONGEST_NAME)
    before = (cni.occupancy(), attachments(cni))
    with OBSTACLES[obstacle](cni, long):
        eventually(lambda: fails(cni, long))
        assert (cni.occupancy(), attachments(cni)) == before
    eventually(lambda: not node_links(cni))
    assert "eth0" not in inside(pod.netns, "ip", "-o", "link")
    cni.add(long)


@pytest.mark.slow
@pytest.mark.parametrize("backend", UNCHANGEABLE, indirect=True, ids=str)
def test_a_failed_add_that_could_not_be_undone_is_undone_when_that_is_possible(
    cni: Caller, pod: Pod, backend: Backend
) -> None:
    before = cni.occupancy()
    with UNCHANGEABLE[backend](cni.node):
        assert cni.call("ADD", pod).exit_code == 1
        assert not node_links(cni)
    eventually(lambda: cni.occupancy() == before)
    cni.add(pod)


def test_a_half_made_link_of_a_killed_agent_is_removed(cni: Caller, pod: Pod) -> None:
    cni.node.kill_agent()
    for name in ("nm0123456789ab", "nm0123456789ac"):
        made = f"ip link add {name} group {0x6E6E} type veth peer name p{name[-2:]}"
        inside(cni.node.namespace, *made.split())
    cni.node.start_until_ready()
    eventually(lambda: not node_links(cni))
    cni.add(pod)


MARKS = {
    "alias taken away": ("alias", ""),
    "alias written over": ("alias", "somebody's own words"),
    "group": ("group", "7"),
    "both": ("alias", "somebody's own words", "group", "7"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("restarted")
@pytest.mark.parametrize("changed", MARKS.values(), ids=MARKS)
def test_a_pod_whose_links_marks_another_program_changed_stays_and_gets_them_back(
    cni: Caller, pod: Pod, changed: tuple[str, ...]
) -> None:
    result = cni.add(pod)
    name = own_link(pod)

    def has_its_marks() -> bool:
        shown = inside(cni.node.namespace, "ip", "link", "show", name)
        return f"alias netmgr {pod.container}" in shown and f"group {LINK_GROUP} " in shown

    before = attachments(cni)
    index = inside(pod.netns, "cat", "/sys/class/net/eth0/ifindex")
    inside(cni.node.namespace, "ip", "link", "set", name, *changed)
    eventually(has_its_marks)
    cni.node.kill_agent()
    inside(cni.node.namespace, "ip", "link", "set", name, *changed)
    cni.node.start_until_ready()
    eventually(has_its_marks)
    assert attachments(cni) == before
    assert inside(pod.netns, "cat", "/sys/class/net/eth0/ifindex") == index
    assert "state UP" in inside(cni.node.namespace, "ip", "link", "show", name)
    assert cni.check(pod, result).exit_code == 0


@pytest.mark.parametrize("changed", MARKS.values(), ids=MARKS)
def test_del_takes_down_a_link_whose_marks_are_anothers(
    cni: Caller, pod: Pod, changed: tuple[str, ...]
) -> None:
    cni.add(pod)
    name = own_link(pod)
    inside(cni.node.namespace, "ip", "link", "set", name, *changed)
    assert cni.call("DEL", pod).exit_code == 0
    assert "eth0" not in inside(pod.netns, "ip", "-o", "link")
    eventually(lambda: name not in node_links(cni))


def deleted_links(cni: Caller) -> int:
    return repairs(cni.node, "deleted-links")


@pytest.mark.parametrize("agent", ["runs", "is killed"])
def test_a_link_that_is_deleted_under_a_living_pod_is_told(
    cni: Caller, pod: Pod, agent: str
) -> None:
    cni.add(pod)
    name = own_link(pod)
    before = deleted_links(cni) if agent == "runs" else 0
    if agent == "is killed":
        cni.node.kill_agent()
    inside(cni.node.namespace, "ip", "link", "delete", name)
    if agent == "is killed":
        cni.node.start_until_ready()
    eventually(lambda: deleted_links(cni) == before + 1)
    told = f"link {name} of pod train/{pod.container} was deleted, its sandbox {pod.netns} lives"
    eventually(lambda: told in (cni.node.directory / "agent.log").read_text())
    eventually(lambda: "PodLinkDeleted" in cni.node.problems())
    eventually(lambda: cni.occupancy() == {"ipv4": 0, "ipv6": 0})


def test_a_link_that_goes_with_its_sandbox_is_no_fault(cni: Caller, pod: Pod) -> None:
    cni.add(pod)
    before = deleted_links(cni)
    named_netns.delete(pod.netns)
    eventually(lambda: cni.occupancy() == {"ipv4": 0, "ipv6": 0})
    assert deleted_links(cni) == before
