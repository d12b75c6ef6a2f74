"""Byte quotas: what passes in a period, to the packet, through crashes, repairs and clock steps."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
import time
from calendar import monthrange
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import patch

import pytest

from netmgr.agent.accounting.audit import ETHERNET_HEADER
from netmgr.api.snapshot import QuotaState
from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.flows import attain, flows
from tests.kernel.limited import NewPod, pods_of, repaired
from tests.kernel.quota_traffic import MEGABYTE, PACKET, SETTLED, Exchange, pump
from tests.kernel.spending import run
from tests.lab.exchange import open_socket
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.wall_clock import WallClock

pytestmark = [pytest.mark.root, pytest.mark.alone]

DAY = 86_400
UDP_SEGMENT = 103
SEGS_IN = 140
"""Offset in struct tcp_info (linux/tcp.h): segments as on a wire."""
TCP_HEADERS = 20 + 20 + 12
LIMITS = [
    {"pods": "*/daily-*", "per-day": {"internet-in": "1M", "internet-out": "1M"}},
    {"pods": "*/monthly-*", "per-month": {"internet-out": "4M"}},
    {"pods": "*/both-*", "internet-out": "100M", "per-day": {"internet-out": "4M"}},
    {"namespaces": "shared", "per-day": {"internet-out": "1M"}},
    {"pods": "*/slow-*", "per-day": {"internet-out": "1M"}, "when-spent": "5M"},
    {"pods": "*/queued-*", "internet-out": "4M", "per-day": {"internet-out": "1M"}},
    {"pods": "*/rated-*", "internet-out": "50M", "per-day": {"internet-out": "1M"}}
    | {"when-spent": "5M"},
]


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    # At noon, so that no day ends in between.
    return WallClock(tmp_path_factory.mktemp("clock"), offset=noon())


def noon() -> int:
    return DAY // 2 - int(time.time()) % DAY


@pytest.fixture(scope="module")
def world(clock: WallClock) -> Iterator[World]:
    settings = {
        "limits": LIMITS,
        "reconcile_seconds": 0.5,
        "accounting": {"history_hours": 744, "history_rows": 200_000},
    }
    room = replace(cluster(pods=30), pods=())
    name = f"quotas-{os.getpid()}"
    with (
        patch.dict(os.environ, clock.environment),
        World(room, backend=Backend.NFTABLES, name=name, settings=settings) as made,
    ):
        yield made


@pytest.fixture
def new_pod(node: LabNode) -> Iterator[NewPod]:
    with pods_of(node) as add:
        yield add


NewExchange = Callable[..., Exchange]


@pytest.fixture
def exchange(world: World) -> Iterator[Callable[..., Exchange]]:
    with ExitStack() as stack:
        yield lambda pod, family=Family.V4: Exchange(world, pod, stack, family)


@pytest.mark.parametrize("family", [Family.V4, pytest.param(Family.V6, marks=pytest.mark.slow)])
def test_a_quota_is_kept_to_the_packet(
    new_pod: NewPod, exchange: NewExchange, family: Family
) -> None:
    found = exchange(new_pod("daily"), family)
    assert found.exhaust() == MEGABYTE
    # Nor does anything pass after the agent has looked again.
    time.sleep(SETTLED)
    assert found.send(MEGABYTE) == 0


def test_both_families_are_charged_to_one_quota(new_pod: NewPod, exchange: NewExchange) -> None:
    pod = new_pod("daily")
    assert exchange(pod, Family.V4).send(700_000) == 700_000
    assert exchange(pod, Family.V6).exhaust() == 300_000


@pytest.mark.parametrize("family", [Family.V4, pytest.param(Family.V6, marks=pytest.mark.slow)])
def test_what_comes_in_has_a_quota_too(
    new_pod: NewPod, exchange: NewExchange, family: Family
) -> None:
    found = exchange(new_pod("daily"), family)
    # The kernel counts Ethernet headers here, until the agent has looked.
    assert 0.95 * MEGABYTE <= found.answer(2 * MEGABYTE) <= MEGABYTE


def test_datagrams_that_are_segmented_later_are_charged_as_on_a_wire(
    world: World, new_pod: NewPod
) -> None:
    """The smallest, which have 28 bytes of headers each and would be charged with one of them."""
    pod, wire, arrived = new_pod("daily"), 29, 0
    with (
        open_socket(world.internet, Family.V4, socket.SOCK_DGRAM) as far,
        open_socket(pod.netns, Family.V4, socket.SOCK_DGRAM) as near,
    ):
        far.bind((str(INTERNET[Family.V4]), 0))
        far.settimeout(0)
        near.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1)
        for number in range(2 * MEGABYTE // wire // 64):
            near.sendto(bytes(64), far.getsockname())
            if number % 4 == 3:
                time.sleep(0.002)
                arrived += received(far)
        time.sleep(0.1)
        arrived += received(far)
    assert 0.95 * MEGABYTE < wire * arrived <= MEGABYTE


def received(end: socket.socket) -> int:
    many = 0
    with suppress(BlockingIOError):
        while end.recv(1):
            many += 1
    return many


def test_small_segments_of_tcp_pass_a_quota_by_a_tenth_at_most(
    world: World, new_pod: NewPod
) -> None:
    pod = new_pod("daily")
    with (
        open_socket(world.internet, Family.V4, socket.SOCK_STREAM) as listening,
        open_socket(pod.netns, Family.V4, socket.SOCK_STREAM) as near,
    ):
        listening.bind((str(INTERNET[Family.V4]), 0))
        listening.listen()
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 88)
        near.connect(listening.getsockname())
        far, _ = listening.accept()
        with far:
            size = pump(near, far, still_seconds=1)
            info = far.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    (segments,) = struct.unpack_from("I", info, SEGS_IN)
    assert 0.95 * MEGABYTE < size + segments * TCP_HEADERS < 1.1 * MEGABYTE


@pytest.mark.slow
def test_the_pods_of_a_namespace_share_its_quota_and_others_have_none(
    new_pod: NewPod, exchange: NewExchange
) -> None:
    one, other, free = new_pod("a", "shared"), new_pod("b", "shared"), new_pod("c")
    assert exchange(one).send(600_000) == 600_000
    assert exchange(other).exhaust() == 400_000
    assert exchange(one).send(MEGABYTE) == 0
    assert exchange(free).send(2 * MEGABYTE) == 2 * MEGABYTE
    # Internal traffic is not charged.
    with flows(one.netns, free.netns, free.address(Family.V4)) as found:
        assert attain(lambda unlimited: unlimited > 200, found)


@pytest.mark.slow
def test_what_is_used_of_a_quota_is_shown(
    node: LabNode, clock: WallClock, new_pod: NewPod, exchange: NewExchange
) -> None:
    clock.set(noon())  # again: other tests have taken their time
    before = repaired(node)
    pod = new_pod("daily")
    assert exchange(pod).send(600_000) == 600_000
    time.sleep(SETTLED)
    # The agent knows its own rules again.
    assert repaired(node) == before
    (row,) = quotas_of(node, pod)
    at = int(time.time() + noon())
    assert (row["budget"], row["used"]) == (MEGABYTE, 600_000)
    assert row["until"] == at - at % DAY + DAY
    assert row["forecast"] == pytest.approx(1_200_000, rel=0.02)
    assert not row["spent"]
    labels = f'namespace="research",period="day",pod="{pod.pod.name}",traffic="internet-out"'
    assert f"netmgr_quota_used_bytes{{{labels}}} 600000.0" in node.scrape()
    (explained,) = node.ask("explain", address=str(pod.address(Family.V4)))["limits"]
    assert explained.endswith("per-day: {internet-in: 1M, internet-out: 1M}}")
    exchange(pod).exhaust()
    time.sleep(SETTLED)
    (row,) = quotas_of(node, pod)
    assert row["spent"]
    assert row["used"] == MEGABYTE


def quotas_of(node: LabNode, pod: Sandbox) -> list[QuotaState]:
    return [
        one
        for one in node.snapshot()["quotas"]
        if (one["pod"], one["traffic"]) == (pod.pod.name, "internet-out")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slow", "rated"])
def test_what_is_beyond_a_quota_may_pass_slowly(
    new_pod: NewPod, exchange: NewExchange, kind: str
) -> None:
    # Datagrams, because TCP's rate behind a policer varies by a fifth: a lost retransmission
    # silences it for 0.2 s or more.
    found = exchange(new_pod(kind))
    assert found.send(MEGABYTE, seconds=0.5) == MEGABYTE
    found.send(MEGABYTE, seconds=0.5)  # and the burst
    began = time.monotonic()
    passed = found.send(4 * MEGABYTE, seconds=2)
    bits = 8 * passed * (PACKET + ETHERNET_HEADER) / PACKET
    assert bits / (time.monotonic() - began) == pytest.approx(5_000_000, rel=0.05)


@pytest.mark.slow
def test_what_waits_is_charged(new_pod: NewPod, exchange: NewExchange) -> None:
    found = exchange(new_pod("queued"))
    # Twice the rate, so that all the while a quarter of a second of it waits, unseen by the ledger.
    found.send(4 * MEGABYTE, seconds=4)
    time.sleep(SETTLED)
    found.send(2 * MEGABYTE, seconds=2)
    assert 0.95 * MEGABYTE < found.arrived <= MEGABYTE


@pytest.mark.slow
def test_a_pod_that_comes_back_by_its_name_has_what_is_left(
    node: LabNode, exchange: NewExchange
) -> None:
    passed = []
    for last in (False, False, True):
        pod = node.add("daily-0")
        try:
            found = exchange(pod)
            passed.append(found.exhaust() if last else found.send(400_000))
        finally:
            node.runtime.delete(pod)
        # Its quota's object has gone with it.
        time.sleep(SETTLED)
        assert "_day_" not in objects(node)
    assert passed == [400_000, 400_000, 200_000]


def objects(node: LabNode) -> str:
    return run(node, "nft", "--handle", "list", "quotas").stdout


def handles(node: LabNode) -> list[str]:
    return re.findall(r"# handle \d+", objects(node))


def restart(node: LabNode, clock: WallClock, *, kill: bool = True) -> None:
    node.kill_agent() if kill else node.stop_agent()
    node.start_agent(environment=clock.environment)
    node.wait_until_ready()


@pytest.mark.slow
def test_no_packet_is_lost_to_a_quota_through_crashes_and_restarts(
    node: LabNode, clock: WallClock, new_pod: NewPod, exchange: NewExchange
) -> None:
    others = handles(node)  # of pods that other tests had, and that go meanwhile
    found = exchange(new_pod("monthly"))
    own = {*handles(node)} - {*others}
    with sending(found, 4 * MEGABYTE) as thread:
        while thread.is_alive():
            restart(node, clock)
            restart(node, clock, kill=False)
    assert found.arrived <= 4 * MEGABYTE
    found.send(MEGABYTE)
    assert found.arrived == 4 * MEGABYTE
    # The same object all the time: one that is made anew has lost what passes meanwhile.
    assert own
    assert own <= {*handles(node)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        "nft flush table netdev netmgr",
        "nft delete table netdev netmgr",
        "ip link delete netmgr-out",
        "nft reset quotas",
    ],
)
def test_what_passed_while_rules_were_missing_is_charged(
    node: LabNode, new_pod: NewPod, exchange: NewExchange, damage: str
) -> None:
    found = exchange(new_pod("both"))
    with sending(found, 3 * MEGABYTE) as thread:
        while thread.is_alive():
            assert run(node, *damage.split()).returncode == 0
            time.sleep(SETTLED)
    for _ in range(2):
        time.sleep(SETTLED)
        found.send(2 * MEGABYTE, seconds=0.5)
    # What was lost with a link is not charged in the end.
    assert found.arrived == 4 * MEGABYTE


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["pod", "rules", "rules while no agent runs"])
def test_a_quota_of_which_more_is_used_than_there_is_is_made_again(
    node: LabNode, clock: WallClock, new_pod: NewPod, exchange: NewExchange, lost: str
) -> None:
    pod = new_pod("slow")
    # Beyond its quota a pod goes on, at a rate.
    while exchange(pod).send(MEGABYTE, seconds=0.2) == MEGABYTE:
        time.sleep(SETTLED)
    time.sleep(SETTLED)
    if lost == "pod":
        # As the next pod of a StatefulSet, by the same name.
        node.runtime.delete(pod)
        time.sleep(SETTLED)
        pod = node.add(pod.pod.name)
    else:
        if "agent" in lost:
            node.kill_agent()
        assert run(node, "nft", "delete", "table", "netdev", "netmgr").returncode == 0
        if "agent" in lost:
            restart(node, clock)
    time.sleep(SETTLED)
    found = exchange(pod)
    assert 0 < found.send(2 * MEGABYTE, seconds=0.5) < MEGABYTE
    node.runtime.delete(pod)


@pytest.mark.slow
def test_nothing_that_the_ledger_misses_opens_a_quota_again(
    node: LabNode, clock: WallClock, new_pod: NewPod, exchange: NewExchange
) -> None:
    pod = new_pod("daily")
    found, spared = exchange(pod), exchange(new_pod("daily"))
    assert spared.send(400_000) == 400_000
    for _ in range(6):
        # The ledger does not see what passes until the table is there again.
        assert run(node, "nft", "delete", "table", "inet", "netmgr").returncode == 0
        found.send(MEGABYTE // 4, seconds=0.3)
        time.sleep(SETTLED)
    assert 0.9 * MEGABYTE < found.arrived <= MEGABYTE
    found.exhaust()
    assert found.arrived <= MEGABYTE
    (row,) = quotas_of(node, pod)
    assert row["spent"]
    for _ in range(2):
        assert run(node, "nft", "reset", "quotas").returncode == 0
        assert found.send(MEGABYTE) == 0
        time.sleep(SETTLED)
        node.kill_agent()
        os.truncate(node.directory / "state" / "ledger.sqlite", 0)
        node.start_agent(environment=clock.environment)
        node.wait_until_ready()
    time.sleep(SETTLED)
    assert found.send(MEGABYTE) == 0
    # Whose ledger says less is not charged for others.
    assert spared.exhaust() == MEGABYTE - 400_000


@contextmanager
def sending(found: Exchange, size: int) -> Iterator[threading.Thread]:
    """Send at half a megabyte a second, in the background."""
    thread = threading.Thread(target=found.send, args=(size, 2 * size / MEGABYTE))
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("spending", ["all", "a part"])
def test_each_day_has_its_quota_and_a_clock_set_back_gives_no_second_one(
    clock: WallClock, new_pod: NewPod, exchange: NewExchange, spending: str
) -> None:
    found, today = exchange(new_pod("daily")), noon()

    def on(day: int) -> int:
        clock.set(today + day * DAY)
        time.sleep(SETTLED)
        passed = found.exhaust()
        # What is read after a step is charged to the day of the reading.
        time.sleep(SETTLED)
        return passed

    try:
        if spending == "all":
            assert found.exhaust() == MEGABYTE
        else:
            assert found.send(600_000) == 600_000
        time.sleep(SETTLED)
        assert on(1) == MEGABYTE
        assert on(0) == 0
        assert on(-1) == 0
        assert on(1) == 0
        assert on(2) == MEGABYTE
    finally:
        clock.set(today)


@pytest.mark.slow
def test_a_month_has_one_quota(clock: WallClock, new_pod: NewPod, exchange: NewExchange) -> None:
    found, today = exchange(new_pod("monthly")), noon()
    day = datetime.fromtimestamp(time.time() + today, UTC).day
    first, next_one = (1 - day) * DAY, (32 - day) * DAY
    try:
        assert found.send(3 * MEGABYTE, seconds=0.5) == 3 * MEGABYTE
        for offset in (first, first + 20 * DAY):
            clock.set(today + offset)
            time.sleep(SETTLED)
            assert found.exhaust() == (MEGABYTE if offset == first else 0)
        clock.set(today + next_one)
        time.sleep(SETTLED)
        assert found.exhaust(6 * MEGABYTE) == 4 * MEGABYTE
    finally:
        clock.set(today)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["daily", "monthly"])
def test_what_passes_while_a_period_ends_is_within_both_quotas(
    clock: WallClock, new_pod: NewPod, exchange: NewExchange, kind: str
) -> None:
    size = {"daily": MEGABYTE, "monthly": 4 * MEGABYTE}[kind]
    found, today = exchange(new_pod(kind)), noon()
    now = datetime.fromtimestamp(time.time() + today, UTC)
    last = now.replace(day=monthrange(now.year, now.month)[1], hour=23, minute=59, second=54)
    try:
        # The month's last seconds are the day's as well, and then time passes as it does.
        clock.set(today + int((last - now).total_seconds()))
        assert found.exhaust(size) == size
        assert time.time() + today < now.timestamp() + 6, "too slow: it is midnight already"
        for _ in range(8):
            found.send(size, seconds=1)
            assert found.arrived <= 2 * size
        found.send(size, seconds=1)
        assert found.arrived == 2 * size
    finally:
        clock.set(today)


@pytest.mark.slow
def test_a_quota_is_kept_where_iptables_counts() -> None:
    settings = {"limits": LIMITS[:1], "reconcile_seconds": 0.5}
    room = replace(cluster(pods=30), pods=())
    name = f"quotas-{os.getpid()}-iptables"
    with (
        World(room, backend=Backend.IPTABLES_LEGACY, name=name, settings=settings) as world,
        ExitStack() as stack,
    ):
        pod = world.nodes[0].add("daily-1")
        assert Exchange(world, pod, stack, Family.V4).send(900_000) == 900_000
        time.sleep(SETTLED)
        found = Exchange(world, pod, stack, Family.V6)
        assert found.exhaust() == 100_000
        world.nodes[0].kill_agent()
        assert found.send(MEGABYTE) == 0
