"""What is made, or made anew, while a pass reads the kernel is never taken for something old.

The parts of a node's agent are in this process, so that a pod can be attached between any two
readings of a pass.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from errno import EBUSY
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, Protocol

import pytest

from cni.request import Request, Verb
from cni.runtime_config import RuntimeConfig
from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.accounting.connections import ConnectionLimits
from netmgr.agent.accounting.limits import Limits
from netmgr.agent.cni.node import LOCK_SECONDS, Node
from netmgr.agent.cni.repairs import Repairs
from netmgr.agent.core.components import Agent
from netmgr.agent.core.files import Files
from netmgr.agent.main import SystemClock
from netmgr.agent.network.pool import NodeAddresses
from netmgr.agent.network.router import Router
from netmgr.dataplane import desired
from netmgr.dataplane.node_routes import RoutesToNodes
from netmgr.documents import loader
from netmgr.documents.node import Backend, NodeDocument
from netmgr.documents.node_list import ListedNode
from netmgr.errors import KernelError
from netmgr.kernel.libnftables import LibNftables
from netmgr.kernel.netlink import Netlink
from netmgr.model import Attachment, AttachmentKey, PodRef, Requested
from netmgr.prefixes import Address, Prefix
from tests.kernel.conforming import one_node
from tests.kernel.namespaces import inside
from tests.lab import named_netns, wiring
from tests.lab.topology import cluster
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

PARTS = (Files, NodeAddresses, Router, NodeAccounting, Limits, ConnectionLimits, Node, Repairs)
LIMITS = [
    {"pods": "*/*", "internet-out": "50M", "internet-in": "50M"},
    {"pods": "*/*", "connections": {"at-once": 100, "new-per-second": 100}},
]
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Parts:
    """An agent's parts, and where its sandboxes are."""

    agent: Agent
    namespace: Path
    sandboxes: Path

    @property
    def node(self) -> Node:
        return self.agent.get(Node)

    @property
    def repairs(self) -> Repairs:
        return self.agent.get(Repairs)

    def attach(self, pod: Pod, requested: Requested) -> None:
        name = pod.key.container_id
        request = Request(
            Verb.ADD,
            "1.1.0",
            self.agent.document.network,
            {},
            container_id=name,
            netns=str(pod.netns),
            ifname=pod.key.ifname,
            args={"K8S_POD_NAMESPACE": "research", "K8S_POD_NAME": name},
            runtime=RuntimeConfig(requested, {}, ()),
        )
        with self.node.locks.holding(pod.key, LOCK_SECONDS):
            self.node.attach(request, 1.0)

    def detach(self, pod: Pod) -> None:
        with self.node.locks.holding(pod.key, LOCK_SECONDS):
            self.node.detach(self.attachment(pod))

    def attachment(self, pod: Pod) -> Attachment:
        found = self.node.leases.get(pod.key)
        assert found
        return found

    def faults(self, pod: Pod) -> list[str]:
        """What a pod lacks of what its ADD made."""
        attachment = self.attachment(pod)
        found = self.node.dataplane.check(attachment, str(pod.netns))
        found += self.node.accounts.check(attachment)
        if self.node.dataplane.neighbours.outdated(self.node.leases.all):
            found.append("the host's neighbours of the pod")
        for table in ("netdev netmgr", "inet netmgr_limits"):
            listed = inside(self.namespace, "nft", "list", "table", *table.split())
            if attachment.host_link not in listed:
                found.append(f"its link in {table}")
        shown = [one[0].pod for one in self.agent.get(Limits).shaper.usage()]
        if shown.count(attachment.pod.name) != 2:
            found.append("its classes")
        return found


@dataclass(frozen=True)
class Pod:
    key: AttachmentKey
    netns: Path


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    settings: dict[str, Any] = {"limits": LIMITS, "accounting": {"min_reading_seconds": 0}}
    topology = cluster(nodes=1, pods=0)
    with ExitStack() as stack:
        cni = stack.enter_context(one_node(topology, backend=Backend.NFTABLES, **settings))
        cni.node.stop_agent()
        stack.enter_context(wiring.inside(cni.node.namespace))
        document = loader.load(cni.node.document, NodeDocument)
        agent = Agent(cni.node.document, document, SystemClock(), (), stack)
        agent.open(PARTS)
        for part in agent.components:
            part.start()
        yield Parts(agent, cni.node.namespace, cni.node.directory / "sandboxes")


@pytest.fixture
def sandbox(parts: Parts) -> Iterator[Callable[[], Pod]]:
    """Makes sandboxes; whatever is attached to one is detached in the end."""
    made: list[Pod] = []

    def make() -> Pod:
        name = f"new-{next(_numbers)}"
        pod = Pod(AttachmentKey(name, "eth0"), parts.sandboxes / name)
        pod.netns.parent.mkdir(exist_ok=True)
        named_netns.create(pod.netns)
        made.append(pod)
        return pod

    yield make
    for pod in made:
        if parts.node.leases.get(pod.key):
            parts.detach(pod)
        named_netns.delete(pod.netns)


class Lock(Protocol):
    def acquire(self, *, blocking: bool = ...) -> bool: ...
    def release(self) -> None: ...


class Told:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, lock: Lock, waits: threading.Event) -> None:
        self._lock = lock
        self._waits = waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Between:
    """Does something before the reading with this number of the thread that made it.

    The pass goes on when that is done, or waits for a lock that the pass holds.
    """

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self.readings = 0
        self.goes_on = threading.Event()
        self._number = number
        self._thread = threading.get_ident()
        self._is_done = False
        self._act = act
        self._beside = threading.Thread(target=self._run)

    def reading(self) -> None:
        if threading.get_ident() == self._thread:
            if self.readings == self._number:
                self._beside.start()
                assert self.goes_on.wait(PATIENCE)
            self.readings += 1

    def _run(self) -> None:
        try:
            self._act()
            self._is_done = True
        finally:
            self.goes_on.set()

    def finish(self) -> None:
        if self.readings > self._number:
            self._beside.join(PATIENCE)
            assert self._is_done


def beside(
    parts: Parts, patched: pytest.MonkeyPatch, number: int, look: Callable[[], object], act: Act
) -> bool:
    """Run a pass with something done before one of its readings; whether it has so many."""
    between = Between(number, act)
    listed, shown = Netlink.dump_once, LibNftables.run

    def dump_once(*arguments: Any) -> Any:
        between.reading()
        return listed(*arguments)

    def run(*arguments: Any, **named: Any) -> Any:
        between.reading()
        return shown(*arguments, **named)

    agent = parts.agent
    holders: tuple[Any, ...] = parts.node.accounts, agent.get(Limits).shaper
    holders += agent.get(ConnectionLimits), agent.get(Router)._unused
    with patched.context() as patch:
        for holder in holders:
            patch.setattr(holder, "_lock", Told(holder._lock, between.goes_on))
        patch.setattr(Netlink, "dump_once", dump_once)
        patch.setattr(LibNftables, "run", run)
        look()
        between.finish()
    return between.readings > number


Act = Callable[[], None]

PASSES: Mapping[str, Callable[[Parts], object]] = {
    "wiring": lambda parts: parts.repairs.reconcile(),
    "rules": lambda parts: parts.agent.get(NodeAccounting).reconcile(),
    "limits": lambda parts: parts.agent.get(Limits).reconcile(),
    "connections": lambda parts: parts.agent.get(ConnectionLimits).reconcile(),
    "neighbours": lambda parts: parts.repairs.follow_all_macs(),
    "routes": lambda parts: parts.agent.get(Router).reconcile(),
}


def repaired(parts: Parts) -> int:
    return sum(one["count"] for one in parts.agent.health.repairs())


@pytest.mark.parametrize("look", PASSES)
def test_a_pod_that_is_attached_while_a_pass_reads_keeps_all_it_has(
    parts: Parts, sandbox: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    before = repaired(parts)
    for number in itertools.count():
        pod = sandbox()
        attach = partial(parts.attach, pod, Requested())
        if not beside(parts, monkeypatch, number, lambda: PASSES[look](parts), attach):
            break
        assert parts.faults(pod) == [], f"attached before reading {number}"
        parts.detach(pod)
    assert number > 0, "the pass read nothing"
    assert (repaired(parts), parts.agent.health.failing) == (before, {})


@pytest.mark.parametrize("look", PASSES)
def test_a_pod_that_is_attached_again_while_a_pass_reads_keeps_all_it_has(
    parts: Parts, sandbox: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """The same key and addresses, and another link of the same name."""
    pod = sandbox()
    parts.attach(pod, Requested())
    addresses = parts.attachment(pod).addresses
    before = repaired(parts)

    def again() -> None:
        parts.detach(pod)
        parts.attach(pod, Requested(addresses))

    for number in itertools.count():
        if not beside(parts, monkeypatch, number, lambda: PASSES[look](parts), again):
            break
        assert parts.faults(pod) == [], f"attached again before reading {number}"
        assert parts.attachment(pod).addresses == addresses
    assert number > 0, "the pass read nothing"
    assert (repaired(parts), parts.agent.health.failing) == (before, {})


@pytest.mark.parametrize(
    ("look", "table"), [("limits", "netdev netmgr"), ("connections", "inet netmgr_limits")]
)
def test_what_another_program_removes_while_a_pass_writes_is_put_back(
    parts: Parts, sandbox: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch, look: str, table: str
) -> None:
    staying, going = sandbox(), sandbox()
    parts.attach(staying, Requested())
    for number in itertools.count():
        # What is left of it has to be taken away: the pass writes.
        parts.attach(going, Requested())
        parts.detach(going)
        before = repaired(parts)
        remove = partial(inside, parts.namespace, "nft", "delete", "table", *table.split())
        has_more = beside(parts, monkeypatch, number, lambda: PASSES[look](parts), remove)
        PASSES[look](parts)
        assert parts.faults(staying) == [], f"removed before reading {number}"
        # Limits of connections are written whole, which must not hide that they were gone.
        assert repaired(parts) > before or look == "limits" or not has_more
        if not has_more:
            break
    assert number > 1, "the pass wrote nothing"


@pytest.mark.parametrize("hops", ["dev lo", "nexthop dev lo nexthop dev eth0"])
def test_what_is_foreign_goes_also_while_its_pod_is_attached_again(
    parts: Parts, sandbox: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch, hops: str
) -> None:
    pod = sandbox()
    parts.attach(pod, Requested())
    attachment = parts.attachment(pod)
    other = str(attachment.addresses[0])
    foreign = ["route", "add", other, "metric", "7", "proto", "static", *hops.split()]

    def again() -> None:
        parts.detach(pod)
        parts.attach(pod, Requested(attachment.addresses))

    def listed() -> str:
        return inside(parts.namespace, "ip", "route", "show", other)

    for number in itertools.count():
        inside(parts.namespace, "ip", *foreign)
        has_more = beside(parts, monkeypatch, number, parts.repairs.repair_wiring, again)
        parts.repairs.repair_wiring()
        assert "metric 7" not in listed()
        assert parts.faults(pod) == []
        if not has_more:
            break


def gc(parts: Parts, started_at: float, *valid: Pod) -> None:
    """As a runtime that keeps these pods has the garbage collected."""
    keys = frozenset(pod.key for pod in valid)
    request = Request(Verb.GC, "1.1.0", parts.agent.document.network, {}, valid_attachments=keys)
    parts.repairs.collect_garbage(request, started_at)


def test_gc_leaves_what_was_added_after_the_runtime_made_its_list(
    parts: Parts, sandbox: Callable[[], Pod]
) -> None:
    pod = sandbox()
    parts.attach(pod, Requested())
    gc(parts, 0.5)
    assert parts.faults(pod) == []
    gc(parts, 1.5, pod)
    assert parts.faults(pod) == []
    gc(parts, 1.5)
    assert parts.node.leases.get(pod.key) is None


def test_gc_goes_on_with_the_next_pod_when_one_fails(
    parts: Parts, sandbox: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [sandbox() for _ in range(3)]
    for pod in pods:
        parts.attach(pod, Requested())
    stuck, ended = parts.attachment(pods[1]), parts.node.accounts.end

    def end(attachment: Attachment) -> None:
        if attachment == stuck:
            raise KernelError("nft transaction", EBUSY)
        ended(attachment)

    with monkeypatch.context() as patch:
        patch.setattr(parts.node.accounts, "end", end)
        with pytest.raises(KernelError, match="nft transaction"):
            gc(parts, 1.5)
    assert parts.node.leases.all() == [stuck]


def test_a_link_that_the_kernel_does_not_let_go_of_keeps_no_orphan_and_no_node_from_its_start(
    parts: Parts, sandbox: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = sandbox()
    parts.attach(pod, Requested())
    orphans = []
    for _ in range(3):
        key = replace(pod.key, container_id=f"orphan-{next(_numbers)}")
        orphans.append(desired.host_link_name(key))
        text = desired.identity_text(key, PodRef("research", "orphan"))
        made = f"link add {orphans[-1]} type veth peer name peer{next(_numbers)}"
        inside(parts.namespace, "ip", *made.split())
        inside(parts.namespace, "ip", "link", "set", orphans[-1], "alias", text)
    dataplane, stuck = parts.node.dataplane, min(orphans)
    detached = dataplane.detach

    def detach(name: str, netns_path: str = "") -> bool:
        if name == stuck:
            raise KernelError("delete link", details="the kernel takes too long")
        return detached(name, netns_path)

    with monkeypatch.context() as patch:
        patch.setattr(dataplane, "detach", detach)
        parts.agent.get(NodeAddresses).start()
    assert "takes too long" in parts.agent.health.failing["orphans"]
    assert dataplane.attached_links() == {stuck, parts.attachment(pod).host_link}
    parts.agent.get(NodeAddresses).start()
    assert dataplane.attached_links() == {parts.attachment(pod).host_link}
    assert (parts.faults(pod), parts.agent.health.failing) == ([], {})


def test_a_range_that_comes_while_a_pass_reads_the_routes_keeps_its_blackhole(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    router, former = parts.agent.get(Router), parts.agent.document
    ranges = (*former.ranges, Prefix.parse("10.128.99.0/28"))
    for number in itertools.count():
        follow = partial(router.follow, former.model_copy(update={"ranges": ranges}))
        has_more = beside(parts, monkeypatch, number, router.reconcile, follow)
        listed = inside(parts.namespace, "ip", "route", "show", "type", "blackhole")
        router.follow(former)
        if not has_more:
            break
        assert "10.128.99.0/28" in listed, f"it came before reading {number}"
    assert number > 0, "the pass read nothing"


def test_a_listing_that_lacks_a_network_for_once_costs_no_node_its_route(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel leaves out what it cannot find again when an IPv6 table changes meanwhile."""
    network = Prefix.parse("fd00:77::/64")
    for command in (
        "link add lan0 type veth peer name lan1",
        *("link set lan0 up", "link set lan1 up"),
        "address add fd00:77::1/64 dev lan0 nodad",
    ):
        inside(parts.namespace, "ip", *command.split())
    other = ListedNode("other", (Address.parse("fd00:77::2"),), (Prefix.parse("fd00:64::/64"),))
    to_nodes, listed = RoutesToNodes(), Netlink.dump_once
    made = "route to fd00:64::/64 via fd00:77::2 of Node other was missing"
    reached = (*other.ranges, other.addresses[0].prefix)
    assert to_nodes.reconcile((other,), parts.agent.document) == ([made], [], reached)
    readings = itertools.count()

    def lacking(channel: Netlink, request: Any, decode: Any, left_out: int) -> Any:
        found, interrupted = listed(channel, request, decode)
        if next(readings) == left_out:
            found = [each for each in found if each.destination != network]
        return found, interrupted

    try:
        for number in range(4):
            readings = itertools.count()
            with monkeypatch.context() as patch:
                patch.setattr(Netlink, "dump_once", partialmethod(lacking, left_out=number))
                done, _, found = to_nodes.reconcile((other,), parts.agent.document)
                assert (done, found) == ([], reached)
        gone = "route to fd00:64::/64 via fd00:77::2 is no other node's"
        assert to_nodes.reconcile((), parts.agent.document) == ([gone], [], ())
    finally:
        to_nodes.close()
        inside(parts.namespace, "ip", "link", "delete", "lan0")
