"""A cluster's budgets on a node, with TCP through the kernel's own queues."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.budgets.terms import HOLD, LEASE
from netmgr.documents.budgets import MOST_NESTED
from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.flows import MEGABIT, Flow, attain, flows
from tests.kernel.granted import GrantFile, budget
from tests.kernel.limited import NewPod, pods_of, repaired, shown
from tests.kernel.spending import run
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.alone]

EVERYONE = budget("everyone", "*")
RESEARCH = budget("research", "research-*", within="everyone")
LIMITS = [
    {"pods": "*/limited-*", "internet-out": "5M"},
    {"namespaces": "deep", "internet-out": "8M"},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("budgets") / "budgets.json"


@pytest.fixture(scope="module")
def world(path: Path) -> Iterator[World]:
    room = replace(cluster(nodes=1, pods=30), pods=())
    settings = {"limits": LIMITS, "budgets_file": str(path), "reconcile_seconds": 1}
    name = f"budgets-{os.getpid()}"
    with World(room, backend=Backend.NFTABLES, name=name, settings=settings) as made:
        yield made


@pytest.fixture
def new_pod(node: LabNode) -> Iterator[NewPod]:
    with pods_of(node) as add:
        yield add


@pytest.fixture
def file(path: Path) -> GrantFile:
    return GrantFile(path, (EVERYONE, RESEARCH))


def throttled(node: LabNode) -> Counter[tuple[str, str]]:
    """Seconds that pods of a namespace were held back by a budget, or would have been."""
    rows = node.snapshot()["budgets"]["throttled"]
    return Counter({(row["namespace"], row["budget"]): row["seconds"] for row in rows})


@contextmanager
def to_internet(world: World, *pods: Sandbox) -> Iterator[list[list[Flow]]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                flows(pod.netns, world.internet, INTERNET[Family.V4], 1 + 3 * number)
            )
            for number, pod in enumerate(pods)
        ]


def in_force(node: LabNode) -> dict[str, float]:
    """Mbit/s of each budget, by the kernel's classes."""
    uses = node.snapshot()["budgets"]["uses"]
    return {use["budget"]: use["use"]["held"] / MEGABIT for use in uses}


def has(node: LabNode, **rates: float) -> None:
    eventually(lambda: in_force(node) == rates, f"not in force: {rates}")
    # That is what the agent goes by; it has told the kernel a moment later. A budget without a pod
    # has no class.
    rate = f"ceil {rates['everyone']:g}Mbit"
    eventually(
        lambda: rate in shown(node, "tc", "class", "show", "dev", "netmgr-out"),
        f"not in the kernel: {rate}",
    )


SHARES = {
    "pods of all namespaces share by pod": (
        (("a", "one"), ("b", "two"), ("c", "two")),
        {"everyone": 60, "research": 50},
        lambda *rates: sum(rates) == pytest.approx(60, rel=0.05) and min(rates) >= 18,
    ),
    "a nested budget leaves the others their part": (
        (("a", "research-1"), ("b", "research-2"), ("c", "other")),
        {"everyone": 60, "research": 10},
        lambda first, second, other: (
            first + second == pytest.approx(10, rel=0.05)
            and min(first, second) >= 4
            and other == pytest.approx(50, rel=0.05)
        ),
    ),
    "a pod's own limit is kept": (
        (("limited", "one"), ("free", "one")),
        {"everyone": 30, "research": 10},
        lambda own, other: (
            own == pytest.approx(5, rel=0.05) and other == pytest.approx(25, rel=0.05)
        ),
    ),
}
"""Pods, rates that are granted, and what each pod gets."""


@pytest.mark.parametrize(("pods", "rates", "expected"), SHARES.values(), ids=SHARES)
def test_a_budget_is_kept_and_shared(
    world: World,
    node: LabNode,
    new_pod: NewPod,
    file: GrantFile,
    pods: Sequence[tuple[str, str]],
    rates: dict[str, float],
    expected: Callable[..., bool],
) -> None:
    sandboxes = [new_pod(*pod) for pod in pods]
    file.grant(rates)
    has(node, **rates)
    with to_internet(world, *sandboxes) as groups:
        assert attain(expected, *groups)


def test_the_kernel_takes_as_many_nested_budgets_as_a_document_may_have(
    world: World, node: LabNode, new_pod: NewPod, file: GrantFile
) -> None:
    inner = [budget(f"n{one + 1}", "deep", within=f"n{one}") for one in range(MOST_NESTED - 2)]
    file.budgets = (EVERYONE, budget("n0", "deep", within="everyone"), *inner)
    file.grant({one.name: 90 - number for number, one in enumerate(file.budgets)})
    with to_internet(world, new_pod("limited", "deep"), new_pod("free", "deep")) as groups:
        assert attain(lambda *rates: sum(rates) == pytest.approx(8, rel=0.05), *groups)
    assert "limits" not in node.problems().get("AgentNotReady", "")
    listed = shown(node, "tc", "class", "show", "dev", "netmgr-out")
    assert all(f"ceil {90 - number}Mbit" in listed for number in range(MOST_NESTED))


def test_a_rate_changes_while_pods_send_and_no_class_is_made_anew(
    world: World, node: LabNode, new_pod: NewPod, file: GrantFile
) -> None:
    pod = new_pod("a", "research-1")
    file.grant({"everyone": 60, "research": 50})
    before = repaired(node)
    with to_internet(world, pod) as groups:
        for rate in (20, 40, 8):
            file.grant({"everyone": 60, "research": rate})
            assert attain(lambda own, rate=rate: own == pytest.approx(rate, rel=0.05), *groups)
    assert repaired(node) == before


def test_a_rate_expires_while_the_agent_runs_and_while_it_is_dead(
    node: LabNode, new_pod: NewPod, file: GrantFile
) -> None:
    new_pod("a", "research-1")
    # Half a second before the ends, so that nobody waits for long.
    file.grant({"everyone": 80, "research": 50}, age=HOLD - 0.5, firm=0.5)
    has(node, everyone=40, research=25)
    file.grant({"everyone": 80, "research": 50}, age=LEASE - 0.5, firm=0.5)
    has(node, everyone=8, research=5)
    file.grant({"everyone": 80, "research": 50}, age=HOLD - 0.5, firm=0.5)
    node.restart_after_kill()
    has(node, everyone=40, research=25)


def test_after_a_boot_nobody_has_more_than_the_safe_rate(
    node: LabNode, new_pod: NewPod, file: GrantFile
) -> None:
    new_pod("a", "research-1")
    file.boot = "another"
    file.grant({"everyone": 80, "research": 50})
    has(node, everyone=8, research=5)


DAMAGES = ["long", "link", "directory", "lost", "unsound"]


@pytest.mark.parametrize(
    "damage", ["garbage", *(pytest.param(name, marks=pytest.mark.slow) for name in DAMAGES)]
)
def test_what_cannot_be_read_leaves_the_last_rates_in_force_and_is_told(
    node: LabNode, new_pod: NewPod, file: GrantFile, tmp_path: Path, damage: str
) -> None:
    new_pod("a", "research-1")
    file.grant({"everyone": 80, "research": 50})
    has(node, everyone=80, research=50)
    good = file.path.read_bytes()
    if damage in ("garbage", "long", "unsound"):
        text = {"garbage": b"{", "long": b" " * (1 << 20) + good}
        file.write(text.get(damage, good.replace(b'"research-*"', b'"[a-z]*"')))
    else:
        file.path.unlink()
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(good.replace(b"80000000", b"90000000"))
        file.path.symlink_to(tmp_path / "elsewhere")
    elif damage == "directory":
        file.path.mkdir()
    try:
        if damage != "lost":
            eventually(lambda: "BudgetsUnreadable" in node.problems(), "not told")
            assert str(file.path) in node.problems()["BudgetsUnreadable"]
        assert in_force(node) == {"everyone": 80, "research": 50}
        # Nor does another agent open them: it goes by its own copy.
        node.restart_after_kill()
        rates = in_force(node)
        assert rates.keys() == {"everyone", "research"}
        assert rates["everyone"] <= 80
    finally:
        if damage == "directory":
            file.path.rmdir()
    file.grant({"everyone": 70, "research": 50})
    has(node, everyone=70, research=50)
    assert "BudgetsUnreadable" not in node.problems()


def test_a_dry_run_holds_back_nobody_and_tells_whom_it_would(
    world: World, node: LabNode, new_pod: NewPod, file: GrantFile
) -> None:
    file.enforce = False
    pod, quiet = new_pod("a", "research-1"), new_pod("b", "quiet")
    file.grant({"everyone": 900, "research": 10})
    eventually(lambda: not node.snapshot()["budgets"]["enforced"], "not read")
    before = throttled(node)["research-1", "research"]
    with to_internet(world, pod) as groups:
        assert attain(lambda unlimited: unlimited > 100, *groups)
        assert run(node, "tc", "class", "show", "dev", "netmgr-out").stdout == ""
        assert attain(lambda _: throttled(node)["research-1", "research"] > before, *groups)
        use = node.ask("budgets")["uses"]["research"]
        assert use["held"] == 10 * MEGABIT
        assert use["rate"] > 50 * MEGABIT
        assert use["waiting"] == 1
    assert ("quiet", "everyone") not in throttled(node)
    assert node.ask("explain", address=str(quiet.address(Family.V4)))["budgets"] != []


def test_who_is_held_back_and_who_is_free_is_told(
    world: World, node: LabNode, new_pod: NewPod, file: GrantFile
) -> None:
    pods = new_pod("a", "research-1"), new_pod("limited", "one")
    file.grant({"everyone": 60, "research": 10})
    has(node, everyone=60, research=10)
    before = throttled(node)
    with to_internet(world, *pods) as groups:

        def is_told(*_: float) -> bool:
            uses = node.ask("budgets")["uses"]
            research, everyone = uses["research"], uses["everyone"]
            return (
                research["waiting"] == 1
                and research["free"] == 0
                and research["rate"] == pytest.approx(10 * MEGABIT, rel=0.1)
                # Nobody waits for it: one is held back by another budget, one by its own limit.
                and everyone["waiting"] == 0
                and everyone["free"] == pytest.approx(15 * MEGABIT, rel=0.1)
            )

        # Pods that wait are those of the last seconds.
        assert any(attain(is_told, *groups) for _ in range(4)), node.ask("budgets")
    seconds = throttled(node) - before
    assert seconds["research-1", "research"] > 1
    assert ("one", "everyone") not in seconds
    (told, *_) = [
        line
        for line in node.ask("explain", address=str(pods[0].address(Family.V4)))["budgets"]
        if line.startswith("budget research")
    ]
    assert "internet-out 10M of 1G on this node; held back " in told
