"""Controllers whose wall clocks are wrong, or are set while they run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import (
    MERGE,
    Program,
    Start,
    add_nodes,
    events_of,
    node,
    pod_cidrs,
    write_plan,
)
from tests.waiting import PATIENCE, eventually
from tests.wall_clock import HOUR, WallClock

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

COOLDOWN = 15
LEASE = 15
RETRY = LEASE / 8
LEASES = "/apis/coordination.k8s.io/v1/namespaces/netmgr-claims/leases"
POOL = "{{gpu: {{nodes: {}, surge: 0}}}}"
Begin = Callable[..., Program]


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


@pytest.fixture
def begin(start: Start, tmp_path: Path) -> Begin:
    """Starts a controller by a clock, for so many nodes."""

    def started(clock: WallClock | None = None, nodes: int = 2) -> Program:
        plan = write_plan(tmp_path, POOL.format(nodes))
        options = (f"--quarantine={COOLDOWN}", f"--lease-seconds={LEASE}")
        environment = clock.environment if clock else None
        return start(f"--plan={plan}", *options, environment=environment)

    return started


def release(plane: ControlPlane) -> float:
    """Delete the Node that has the only allocation, register another; when it was still there."""
    gone = time.monotonic()
    plane.ask("DELETE", "/api/v1/nodes/first")
    add_nodes(plane, [node("second", "gpu")])
    eventually(lambda: "NodePoolFull" in events_of(plane, "second"))
    return gone


def assert_cooldown(plane: ControlPlane, since: float) -> None:
    eventually(lambda: pod_cidrs(plane), seconds=COOLDOWN + PATIENCE)
    assert time.monotonic() - since >= COOLDOWN


def test_no_step_of_the_clock_ends_or_prolongs_a_cooldown(
    installed: ControlPlane, clock: WallClock, begin: Begin
) -> None:
    controller = begin(clock, 1)
    add_nodes(installed, [node("first", "gpu")])
    eventually(lambda: pod_cidrs(installed))
    gone = release(installed)
    clock.set(HOUR)
    # A wrong decision would be taken by now, and come too early.
    time.sleep(COOLDOWN / 4)
    clock.set(-HOUR)
    assert_cooldown(installed, gone)
    assert controller.end() == 0


def test_a_cooldown_that_a_leader_an_hour_ahead_began_ends(
    installed: ControlPlane, tmp_path: Path, begin: Begin
) -> None:
    leader = begin(WallClock(tmp_path, HOUR), 1)
    add_nodes(installed, [node("first", "gpu")])
    eventually(lambda: pod_cidrs(installed))
    release(installed)
    assert leader.end() == 0
    ended = time.monotonic()
    begin(nodes=1)
    assert_cooldown(installed, ended)


def test_a_cooldown_lasts_though_its_leaders_clock_was_wrong_when_it_began_to_lead(
    installed: ControlPlane, clock: WallClock, begin: Begin
) -> None:
    """As on a control plane that starts an hour slow, until NTP sets its clock."""
    clock.set(-HOUR)
    leader = begin(clock, 1)
    add_nodes(installed, [node("first", "gpu")])
    eventually(lambda: pod_cidrs(installed))
    clock.set(0)
    gone = release(installed)
    assert leader.end() == 0
    begin(nodes=1)
    assert_cooldown(installed, gone)


def test_a_follower_whose_clock_is_set_takes_over_from_a_dead_leader_and_from_no_other(
    installed: ControlPlane, clock: WallClock, begin: Begin
) -> None:
    leader = begin()
    eventually(lambda: " leading " in leader.said)
    follower = begin(clock)
    add_nodes(installed, [node("first", "gpu")])
    eventually(lambda: pod_cidrs(installed))
    # The client reads the clock anew with each renewal that it sees: some steps are in between.
    for offset in [HOUR, 0, -HOUR, 0] * LEASE:
        clock.set(offset)
        time.sleep(0.25)
    assert " leading " not in follower.said
    assert " leadership-lost " not in leader.said
    killed = time.monotonic()
    leader.kill()
    time.sleep(LEASE / 3)
    clock.set(HOUR)
    time.sleep(LEASE / 6)
    clock.set(-HOUR)
    eventually(lambda: " leading " in follower.said, seconds=3 * LEASE)
    assert time.monotonic() - killed > LEASE / 2
    add_nodes(installed, [node("second", "gpu")])
    eventually(lambda: len(pod_cidrs(installed)) == 2)


def test_a_follower_whose_clock_is_set_back_while_it_reads_the_lease_follows(
    installed: ControlPlane, clock: WallClock, begin: Begin
) -> None:
    leader = begin()
    eventually(lambda: " leading " in leader.said)
    follower = begin(clock)
    (lease,) = installed.ask("GET", LEASES)["items"]
    leader.kill()
    path = f"{LEASES}/{lease['metadata']['name']}"
    assert installed.server
    for second in range(4):
        clock.set(0)
        renewed = {"spec": {"renewTime": f"2026-01-01T00:00:0{second}.000000Z"}}
        installed.ask("PATCH", path, renewed, kind=MERGE)
        # The follower's next request is sent now, and answered after the step.
        installed.server.send_signal(signal.SIGSTOP)
        try:
            time.sleep(RETRY + 0.5)
            clock.set(-HOUR)
        finally:
            installed.server.send_signal(signal.SIGCONT)
        time.sleep(RETRY)
        assert " leading " not in follower.said
    eventually(lambda: " leading " in follower.said, seconds=3 * LEASE)


def test_a_leader_whose_clock_is_set_back_gives_up_when_it_cannot_renew(
    installed: ControlPlane, clock: WallClock, begin: Begin
) -> None:
    leader = begin(clock)
    eventually(lambda: " leading " in leader.said)
    installed.stop_server()
    try:
        # In the middle of an attempt to renew, which began before.
        time.sleep(LEASE / 2)
        clock.set(-HOUR)
        eventually(lambda: " leadership-lost " in leader.said, seconds=2 * LEASE)
    finally:
        installed.start_server()
    eventually(lambda: leader.said.count(" leading ") >= 2, seconds=4 * LEASE)
