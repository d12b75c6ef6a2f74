"""Controllers whose wall clocks are wrong, or are set while they run."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import (
    Program,
    Starter,
    add_nodes,
    node,
    pod_cidrs,
    write_plan,
)
from tests.waiting import eventually
from tests.wall_clock import HOUR, WallClock

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

COOLDOWN = 8
LEASE = 5
RETRY = 1
LEASES = "/apis/coordination.k8s.io/v1/namespaces/netmgr-claims/leases"
EITHER_WAY = pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "behind"])


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


def start(starter: Starter, plan: Path, clock: WallClock | None = None) -> Program:
    return starter.start(
        "controller",
        f"--plan={plan}",
        "--cluster=train",
        "--namespace=netmgr-claims",
        "--listen=127.0.0.1:0",
        f"--quarantine={COOLDOWN}",
        f"--lease-seconds={LEASE}",
        account=starter.account("netmgr", "netmgr-controller"),
        environment=clock.environment if clock else None,
    )


def reasons(plane: ControlPlane, name: str) -> set[str]:
    events = plane.ask("GET", "/api/v1/namespaces/default/events")["items"]
    return {each["reason"] for each in events if each["involvedObject"]["name"] == name}


@EITHER_WAY
def test_a_step_of_the_clock_neither_ends_nor_prolongs_a_cooldown(
    installed: ControlPlane, starter: Starter, tmp_path: Path, clock: WallClock, step: int
) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 1, surge: 0}}")
    controller = start(starter, plan, clock)
    add_nodes(installed, [node("first", "gpu")])
    eventually(lambda: pod_cidrs(installed))
    installed.ask("DELETE", "/api/v1/nodes/first")
    gone = time.monotonic()
    add_nodes(installed, [node("second", "gpu")])
    eventually(lambda: "NodePoolFull" in reasons(installed, "second"))
    clock.set(step)
    eventually(lambda: pod_cidrs(installed), seconds=COOLDOWN + 15)
    assert time.monotonic() - gone >= COOLDOWN
    assert controller.end() == 0


def test_a_cooldown_that_a_leader_an_hour_ahead_began_ends(
    installed: ControlPlane, starter: Starter, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 1, surge: 0}}")
    leader = start(starter, plan, WallClock(tmp_path, HOUR))
    add_nodes(installed, [node("first", "gpu")])
    eventually(lambda: pod_cidrs(installed))
    installed.ask("DELETE", "/api/v1/nodes/first")
    add_nodes(installed, [node("second", "gpu")])
    eventually(lambda: "NodePoolFull" in reasons(installed, "second"))
    assert leader.end() == 0
    ended = time.monotonic()
    start(starter, plan)
    eventually(lambda: pod_cidrs(installed), seconds=COOLDOWN + 15)
    assert time.monotonic() - ended >= COOLDOWN


def test_a_cooldown_lasts_though_its_leaders_clock_was_wrong_when_it_began_to_lead(
    installed: ControlPlane, starter: Starter, tmp_path: Path, clock: WallClock
) -> None:
    """As on a control plane that starts an hour slow, until NTP sets its clock."""
    plan = write_plan(tmp_path, "{gpu: {nodes: 1, surge: 0}}")
    clock.set(-HOUR)
    leader = start(starter, plan, clock)
    add_nodes(installed, [node("first", "gpu")])
    eventually(lambda: pod_cidrs(installed))
    clock.set(0)
    installed.ask("DELETE", "/api/v1/nodes/first")
    gone = time.monotonic()
    add_nodes(installed, [node("second", "gpu")])
    eventually(lambda: "NodePoolFull" in reasons(installed, "second"))
    assert leader.end() == 0
    start(starter, plan)
    eventually(lambda: pod_cidrs(installed), seconds=COOLDOWN + 15)
    assert time.monotonic() - gone >= COOLDOWN


@EITHER_WAY
def test_a_follower_whose_clock_is_set_takes_over_from_a_dead_leader_and_from_no_other(
    installed: ControlPlane, starter: Starter, tmp_path: Path, clock: WallClock, step: int
) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 2, surge: 0}}")
    leader = start(starter, plan)
    eventually(lambda: " leading " in leader.said)
    follower = start(starter, plan, clock)
    add_nodes(installed, [node("first", "gpu")])
    eventually(lambda: pod_cidrs(installed))
    # The client reads the clock anew with each renewal that it sees: some steps are in between.
    for offset in [step, 0] * 4 * LEASE:
        clock.set(offset)
        time.sleep(0.25)
    assert " leading " not in follower.said
    assert " leads-no-more " not in leader.said
    leader.kill()
    killed = time.monotonic()
    time.sleep(LEASE / 3)
    clock.set(step)
    eventually(lambda: " leading " in follower.said, seconds=3 * LEASE)
    assert time.monotonic() - killed > LEASE / 2
    add_nodes(installed, [node("second", "gpu")])
    eventually(lambda: len(pod_cidrs(installed)) == 2)


def test_a_follower_whose_clock_is_set_back_while_it_reads_the_lease_follows(
    installed: ControlPlane, starter: Starter, tmp_path: Path, clock: WallClock
) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 2, surge: 0}}")
    leader = start(starter, plan)
    eventually(lambda: " leading " in leader.said)
    follower = start(starter, plan, clock)
    (lease,) = installed.ask("GET", LEASES)["items"]
    leader.kill()
    path = f"{LEASES}/{lease['metadata']['name']}"
    assert installed.server
    for second in range(4):
        clock.set(0)
        renewed = {"spec": {"renewTime": f"2026-01-01T00:00:0{second}.000000Z"}}
        installed.ask("PATCH", path, renewed, kind="merge-patch+json")
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
    installed: ControlPlane, starter: Starter, tmp_path: Path, clock: WallClock
) -> None:
    leader = start(starter, write_plan(tmp_path, "{gpu: {nodes: 2, surge: 0}}"), clock)
    eventually(lambda: " leading " in leader.said)
    installed.stop_server()
    try:
        # In the middle of an attempt to renew, which began before.
        time.sleep(LEASE / 2)
        clock.set(-HOUR)
        eventually(lambda: " leads-no-more " in leader.said, seconds=2 * LEASE)
    finally:
        installed.start_server()
    eventually(lambda: leader.said.count(" leading ") == 2, seconds=4 * LEASE)
