"""A budget's bytes of a day on a node: to the packet, through crashes and other allowances."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.granted import DAY, GrantFile, budget
from tests.kernel.limited import NewPod, pods_of
from tests.kernel.quota_traffic import MEGABYTE, SETTLED, Exchange
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import eventually
from tests.wall_clock import WallClock

pytestmark = [pytest.mark.root, pytest.mark.alone]

NewExchange = Callable[..., Exchange]
NewAllowance = Callable[[int], Exchange]
PER_DAY = 10**12


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    # At noon, so that no day ends in between.
    return WallClock(tmp_path_factory.mktemp("clock"), offset=DAY // 2 - int(time.time()) % DAY)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("budgets") / "budgets.json"


@pytest.fixture(scope="module")
def world(clock: WallClock, path: Path) -> Iterator[World]:
    room = replace(cluster(nodes=1, pods=30), pods=())
    settings = {"budgets_file": str(path), "reconcile_seconds": 0.5}
    name = f"allowed-{os.getpid()}"
    with (
        patch.dict(os.environ, clock.environment),
        World(room, backend=Backend.NFTABLES, name=name, settings=settings) as made,
    ):
        yield made


@pytest.fixture
def new_pod(node: LabNode) -> Iterator[NewPod]:
    with pods_of(node) as add:
        yield add


@pytest.fixture
def exchange(world: World) -> Iterator[NewExchange]:
    with ExitStack() as stack:
        yield lambda pod, family=Family.V4: Exchange(world, pod, stack, family)


@pytest.fixture
def file(path: Path, request: pytest.FixtureRequest) -> GrantFile:
    # Another name is another quota, which begins anew.
    name = re.sub(r"[_[\]]", "-", request.node.name).strip("-")[-40:].strip("-")
    return GrantFile(path, (budget(name, f"{name}-*", per_day=PER_DAY),))


def allow(node: LabNode, file: GrantFile, allowance: int, *, is_had: bool = True) -> None:
    """Grant so many bytes, and wait until the node has them."""
    (one,) = file.budgets
    file.allowances[one.name] = allowance
    file.grant({one.name: 900})
    eventually(
        lambda: (use := uses(node, file)) and (use["allowance"] == allowance) is is_had,
        f"not allowed: {allowance}",
    )


@pytest.fixture
def allowed(node: LabNode, new_pod: NewPod, exchange: NewExchange, file: GrantFile) -> NewAllowance:
    """What a pod of the budget exchanges, with so many bytes at first."""

    def begin(allowance: int) -> Exchange:
        allow(node, file, allowance)
        return exchange(new_pod("a", f"{file.budgets[0].name}-1"))

    return begin


def uses(node: LabNode, file: GrantFile) -> dict[str, int]:
    return node.ask("budgets")["uses"].get(file.budgets[0].name, {})


def test_pods_of_several_namespaces_have_one_allowance_to_the_packet(
    node: LabNode, new_pod: NewPod, exchange: NewExchange, file: GrantFile
) -> None:
    name = file.budgets[0].name
    allow(node, file, MEGABYTE)
    one, other = exchange(new_pod("a", f"{name}-1")), exchange(new_pod("b", f"{name}-2"))
    free = exchange(new_pod("c", "other"))
    assert one.send(600_000) == 600_000
    assert other.exhaust() == 400_000
    assert one.send(MEGABYTE) == 0
    assert free.send(2 * MEGABYTE) == 2 * MEGABYTE
    assert uses(node, file)["bytes"] == MEGABYTE


def test_an_allowance_is_raised_and_lowered_in_place(
    node: LabNode, allowed: NewAllowance, file: GrantFile
) -> None:
    pod = allowed(MEGABYTE)
    assert pod.exhaust() == MEGABYTE
    allow(node, file, 3 * MEGABYTE)
    assert pod.send(MEGABYTE) == MEGABYTE
    # What has passed cannot be taken back; what has not can.
    allow(node, file, 2 * MEGABYTE + 500_000)
    assert pod.exhaust() == 500_000
    assert uses(node, file)["bytes"] == 2 * MEGABYTE + 500_000


@pytest.mark.slow
def test_an_allowance_below_what_passed_stays_as_much_and_is_told_so(
    node: LabNode, allowed: NewAllowance, file: GrantFile
) -> None:
    pod = allowed(3 * MEGABYTE)
    assert pod.send(2 * MEGABYTE) == 2 * MEGABYTE
    allow(node, file, MEGABYTE, is_had=False)
    eventually(lambda: uses(node, file)["allowance"] == 2 * MEGABYTE, "not told")
    assert pod.exhaust() == 0
    # A later one begins with what passed.
    allow(node, file, 2 * MEGABYTE + 300_000)
    assert pod.exhaust() == 300_000


@pytest.mark.parametrize(
    "after",
    [MEGABYTE, *(pytest.param(size, marks=pytest.mark.slow) for size in (2 * MEGABYTE, 700_000))],
)
def test_no_allowance_is_exceeded_by_an_agent_that_was_killed(
    node: LabNode, allowed: NewAllowance, file: GrantFile, after: int
) -> None:
    """It may find another one than the kernel has."""
    name, pod = file.budgets[0].name, allowed(MEGABYTE)
    assert pod.send(600_000) == 600_000
    node.kill_agent()
    assert pod.send(50_000) == 50_000
    file.allowances[name] = after
    file.grant({name: 900})
    node.start_until_ready()
    assert pod.exhaust() == after - 650_000
    node.restart_after_kill()
    assert pod.send(MEGABYTE) == 0
    assert uses(node, file)["bytes"] == uses(node, file)["allowance"] == after


@pytest.mark.slow
def test_while_no_agent_runs_no_more_than_the_allowance_passes(
    node: LabNode, allowed: NewAllowance
) -> None:
    pod = allowed(MEGABYTE)
    node.kill_agent()
    assert pod.send(2 * MEGABYTE) == MEGABYTE
    node.start_until_ready()
    assert pod.send(MEGABYTE) == 0


@pytest.mark.slow
def test_what_is_beyond_an_allowance_passes_slowly_if_the_budget_says_so(
    node: LabNode, allowed: NewAllowance, file: GrantFile
) -> None:
    (one,) = file.budgets
    file.budgets = (replace(one, slow=10_000_000),)
    pod = allowed(MEGABYTE)
    assert pod.send(MEGABYTE) == MEGABYTE
    began = time.monotonic()
    passed = pod.send(4 * MEGABYTE, seconds=1)
    # 9 of 10 Mbit/s: a node's part of the rate of all nodes, as of the budget. And a burst.
    assert 0 < passed <= 9_000_000 / 8 * 1.05 * (time.monotonic() - began) + 70_000
    # That the budget holds it back is reported, since otherwise nobody would be lent more.
    assert any(
        pod.send(2 * MEGABYTE, seconds=1) and uses(node, file)["waiting"] == 1 for _ in range(8)
    )
    assert uses(node, file)["rate"] > 100 * 2_000_000


def test_the_next_day_begins_when_the_server_says_so(
    node: LabNode, allowed: NewAllowance, file: GrantFile
) -> None:
    file.day = int(time.time()) // DAY + 1
    pod = allowed(MEGABYTE)
    assert pod.exhaust() == MEGABYTE
    file.day += 1
    allow(node, file, 700_000)
    eventually(lambda: uses(node, file)["day"] == file.day, "not begun")
    # By the node's clock it has not begun: the ledger has it all for the day before.
    assert pod.exhaust() == 700_000
    time.sleep(SETTLED)
    assert pod.send(MEGABYTE) == 0
