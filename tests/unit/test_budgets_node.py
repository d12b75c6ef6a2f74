"""Budgets on a node: the classes that follow from them, and who is said to be held back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from netmgr.api.snapshot import PodTotals
from netmgr.budgets.allocator import BudgetAllocator
from netmgr.budgets.held import HeldGrants, decode
from netmgr.budgets.messages import Budget, BudgetAnswer, BudgetReport, BudgetUse, Grant, encode
from netmgr.budgets.terms import LEAST
from netmgr.kernel.traffic_control import ClassUsage, Shape
from netmgr.limits import budgets, held_back, tree
from netmgr.limits.budgets import NodeBudget
from netmgr.limits.held_back import BudgetRates, Look
from netmgr.limits.quotas import NodeQuota, QuotaPeriod, Standing
from netmgr.limits.tree import Limited, Tree
from netmgr.model import Traffic
from tests.unit.limit_cases import NOW, limits, pod

OUT, IN = Traffic.INTERNET_OUT, Traffic.INTERNET_IN
M = 1_000_000
EVERYONE = Budget("everyone", "", ("*",), OUT, 1000 * M)
RESEARCH = Budget("research", "everyone", ("research-*", "lab"), OUT, 100 * M)
DEEP = Budget("deep", "research", ("research-deep",), OUT, 50 * M)
ALL_IN = Budget("all-in", "", ("*",), IN, 500 * M)
EVERY = (EVERYONE, RESEARCH, DEEP, ALL_IN)


def held(*given: Budget, **rates: int) -> list[NodeBudget]:
    """Budgets with rates in Mbit/s in force; 10 where none is given."""
    return [NodeBudget(one, rates.get(one.name, 10) * M, 0, 20_000, 5 * M) for one in given]


def made(*items: dict, pods: Sequence[tuple[str, str]], of: list[NodeBudget]) -> Tree:
    return tree.tree(limits(*items), [pod(*names) for names in pods], OUT, NOW, of)


def path(of: Tree, link: str) -> list[str]:
    """Names of the classes around a link's packets, outermost first."""
    names: list[str] = []
    key = of.links[link].internet
    while key:
        limited = of.classes[key]
        names.insert(0, limited.budget or f"{limited.namespace}/{limited.pod}")
        key = limited.parent
    return names


def test_a_pod_is_in_its_budgets_then_its_namespaces_limit_then_its_own() -> None:
    found = made(
        {"namespaces": "research-*", "internet-out": "30M"},
        {"pods": "lab/*", "internet-out": "5M"},
        pods=[("research-deep", "a"), ("research-1", "b"), ("lab", "c"), ("other", "d")],
        of=held(*EVERY),
    )
    assert [path(found, f"nm{name}") for name in "abcd"] == [
        ["everyone", "research", "deep", "research-deep/", "research-deep/a"],
        ["everyone", "research", "research-1/", "research-1/b"],
        ["everyone", "research", "lab/c"],
        ["everyone", "other/d"],
    ]
    rates = {limited.pod: limited.rate for limited in found.classes.values() if limited.pod}
    # Not as fast as the budget is on this node now: that changes every few seconds.
    assert rates == {"a": 30 * M, "b": 30 * M, "c": 5 * M, "d": 1000 * M}
    shown = {limited.pod for limited in found.classes.values() if limited.is_shown}
    assert shown == {"", "a", "b", "c"}
    assert {limited.budget for limited in found.classes.values() if limited.is_shown} == {""}
    owners = {
        (limited.namespace, limited.pod) for limited in found.classes.values() if limited.budget
    }
    assert owners == {("", "")}


def test_no_class_in_a_budget_has_a_rate_whatever_the_budget_has() -> None:
    of = made(
        {"namespaces": "research-*", "internet-out": "30M"},
        pods=[("research-1", "b"), ("other", "d")],
        of=held(EVERYONE, RESEARCH, everyone=80, research=8),
    )
    numbers = {key: number for number, key in enumerate(sorted(of.classes), 2)}
    shapes = tree.shapes(of, numbers)
    outer, inner = 10 * M, M
    by_name = {
        of.classes[key].budget or of.classes[key].namespace + of.classes[key].pod: shapes[number]
        for key, number in numbers.items()
    }
    top = numbers[">everyone:internet-out"]
    assert by_name["everyone"] == Shape(0, outer, outer, 65_536)
    assert (by_name["research"].parent, by_name["research"].rate) == (top, 1)
    assert by_name["research"].ceiling == inner
    assert {by_name[name].rate for name in ("research-1", "research-1b", "otherd")} == {1}
    parents = [list(shapes).index(shape.parent) for shape in shapes.values() if shape.parent]
    assert all(above < number for number, above in enumerate(parents, 1)), "parents come first"


def test_other_rates_change_the_classes_of_budgets_alone() -> None:
    slow = replace(RESEARCH, per_day=10 * M, slow=50 * M)
    pods = [("research-1", "b")]
    of = made(pods=pods, of=held(EVERYONE, slow))
    again = held(EVERYONE, slow, everyone=10, research=400)
    changed = tree.retuned(of, again)
    assert {(one.budget, one.beyond): one.rate for one in changed.values()} == {
        ("research", ""): 400 * M,
        # As large a part of what all nodes have beyond the quota as of the budget.
        ("research", "day"): 200 * M,
    }
    assert of.classes | changed == made(pods=pods, of=again).classes
    assert tree.retuned(of, held(EVERYONE, slow)) == {}


def test_all_pods_of_a_budget_are_charged_to_one_quota_after_those_of_their_own() -> None:
    slow = replace(EVERYONE, per_day=10 * M, slow=100 * M)
    drops = replace(RESEARCH, per_day=8 * M)
    of = made(
        {"pods": "lab/*", "per-day": {"internet-out": "1G"}, "when-spent": "1M"},
        pods=[("research-1", "a"), ("lab", "b")],
        of=held(slow, drops, everyone=100),
    )
    charges = {link: target.charges for link, target in of.links.items()}
    drop, last = charges["nma"]
    assert [quota.budget for quota, _ in charges["nmb"]] == ["research", "", "everyone"]
    assert charges["nmb"][0] == drop
    assert charges["nmb"][2] == last
    assert drop == (
        NodeQuota(
            *("", "", OUT, QuotaPeriod.DAY, 5 * M, 0, 20_000 * 86_400),
            "research",
            ("research-*", "lab"),
        ),
        "",
    )
    beyond = of.classes[last[1]]
    assert (beyond.rate, beyond.parent) == (10 * M, ">everyone:internet-out")


def test_the_kernels_object_is_the_same_for_each_allowance_and_rate() -> None:
    (one,) = held(replace(EVERYONE, per_day=10 * M, slow=50 * M))
    quota, other = one.quota, replace(one, rate=3 * M, allowance=1).quota
    assert quota
    assert other
    assert quota != other
    assert quota.objects == other.objects
    assert quota.without_size == other.without_size
    tomorrow = replace(one, day=20_001).quota
    assert tomorrow
    assert tomorrow.object != quota.object


def test_a_quota_of_another_size_lets_as_much_more_pass() -> None:
    standing = Standing(bound=1000, left=400, used=600, size=1000)
    assert standing.resized(1300) == Standing(1300, 700, 600, 1300)
    assert standing.resized(700) == Standing(700, 100, 600, 700)
    # What may have passed stays.
    assert standing.resized(100) == Standing(600, 0, 600, 600)
    assert standing._replace(left=-50).resized(100).size == 1000


def answered(*given: Budget, day: int = 20_000) -> HeldGrants:
    grants = {one.name: Grant(80 * M, 40 * M, 20 * M, 0, day, 1) for one in given}
    return HeldGrants(
        "boot", 100, BudgetAnswer(1, 1, "v", enforce=True, budgets=given, grants=grants)
    )


def test_rates_are_those_of_the_boot_time() -> None:
    for now, rate in ((101, 80), (116, 40), (300, 20)):
        (one,) = budgets.on_node(answered(EVERYONE), "boot", now, 1)
        assert (one.rate, one.day, one.allowance) == (rate * M, 20_000, 1)
    (new,) = budgets.on_node(HeldGrants.before_an_answer((EVERYONE,)), "boot", 1, 20_001)
    assert (new.day, new.allowance) == (20_001, 0)
    assert 0 < new.rate < M


UNSOUND = {
    "name": replace(EVERYONE, name="a/b"),
    "pattern": replace(EVERYONE, namespaces=("[a-z]",)),
    "patterns": replace(EVERYONE, namespaces=("a",) * 65),
    "traffic": replace(EVERYONE, traffic=Traffic("hub-out")),
    "slow rate": replace(EVERYONE, rate=1),
    "fast rate": replace(EVERYONE, rate=10**13),
    "slow": replace(EVERYONE, slow=1001 * M),
    "parent": RESEARCH,
}


@pytest.mark.parametrize("fault", UNSOUND)
def test_budgets_that_no_document_can_have_are_refused(fault: str) -> None:
    with pytest.raises(ValueError, match=r"that no document can have|Expected|Invalid"):
        budgets.require_sound(decode(encode(answered(UNSOUND[fault]))))


def test_budgets_of_one_name_or_nested_too_deeply_or_backwards_are_refused() -> None:
    inner = [replace(EVERYONE, name=f"n{one + 1}", within=f"n{one}") for one in range(6)]
    nested = [replace(EVERYONE, name="n0"), *inner]
    budgets.require_sound(answered(*nested[:6]))
    budgets.require_sound(answered(*EVERY))
    twice = [EVERYONE, replace(ALL_IN, name="everyone")]
    other = [ALL_IN, replace(RESEARCH, within="all-in")]
    for given in (nested, EVERY[::-1], [RESEARCH, EVERYONE], other, twice):
        with pytest.raises(ValueError, match="that no document can have"):
            budgets.require_sound(answered(*given))
    with pytest.raises(ValueError, match=r"`int` <= 1000000"):
        decode(encode(answered(EVERYONE, day=10**7)))


def test_a_file_that_is_wrong_has_no_pod_in_two_branches() -> None:
    twice = replace(RESEARCH, name="twice", within="")
    (one,) = budgets.around(held(EVERYONE, RESEARCH, twice), "lab", OUT)
    assert one.budget is twice


def usage(of: Tree, over: str, waits: str, sent: int) -> list[tuple[Limited, ClassUsage]]:
    """Classes, of which those named in `over` may not send, and in `waits` have packets waiting."""
    return [
        (
            limited,
            ClassUsage(
                *(sent, 0, 0, 0, int(limited.pod in waits.split()) * 1500),
                is_over=(limited.budget or f"{limited.namespace}/{limited.pod}") in over.split(),
            ),
        )
        for limited in of.classes.values()
    ]


@pytest.mark.parametrize(
    ("over", "waits", "blocking"),
    [
        ("research", "a b", {"a": "research", "b": ""}),
        ("everyone", "a b", {"a": "everyone", "b": "everyone"}),
        # The innermost decides, whoever is over beyond it.
        ("research everyone", "a b", {"a": "research", "b": "everyone"}),
        ("research everyone research-1/", "a", {"a": "", "b": ""}),
        # That class is there for turns alone.
        ("other/b everyone", "b", {"a": "", "b": "everyone"}),
        ("everyone", "", {"a": "", "b": ""}),
    ],
)
def test_a_pod_is_held_back_by_the_innermost_class_that_may_not_send(
    over: str, waits: str, blocking: dict[str, str]
) -> None:
    of = made(
        {"namespaces": "research-*", "internet-out": "30M"},
        pods=[("research-1", "a"), ("other", "b")],
        of=held(EVERYONE, RESEARCH),
    )
    look = held_back.seen(1.0, usage(of, over, waits, sent=7))
    assert {name: told for (_, name, _), (_, told) in look.pods.items()} == blocking
    assert look.budgets == {"everyone": 7, "research": 7}


def looks(*rows: tuple[int, str, int, str]) -> list[Look]:
    """A second apart: bytes of two pods, and what held back each."""
    return [
        Look(
            float(second),
            {"everyone": a + b, "research": a},
            {("research-1", "a", OUT): (a, held_a), ("other", "b", OUT): (b, held_b)},
        )
        for second, (a, held_a, b, held_b) in enumerate(rows)
    ]


def test_who_was_held_back_for_a_third_of_the_time_waits_and_the_others_are_free() -> None:
    of = held(EVERYONE, RESEARCH)
    first = (0, "research", 0, "everyone")
    found = held_back.rates(
        looks(first, (100, "research", 10, ""), (200, "research", 20, ""), (300, "", 30, "")), of
    )
    assert found == {
        "everyone": BudgetRates(880, 0, 880),
        "research": BudgetRates(800, 1, 0),
    }
    once = [first, (100, "research", 0, ""), *[(100, "", 0, "")] * 3]
    assert held_back.rates(looks(*once), of)["research"].waiting == 0
    assert held_back.rates(looks(first), of)["research"] == BudgetRates()


def test_a_pod_above_the_last_level_waits() -> None:
    everyone, research = held(EVERYONE, RESEARCH)
    of = [replace(everyone, level=700), research]
    found = held_back.rates(looks((0, "", 0, ""), (100, "", 10, "")), of)
    assert found["everyone"] == BudgetRates(880, 1, 80)


SLOW = replace(RESEARCH, per_day=10**9, slow=20 * M)
BEYOND = ("", "research", OUT)


@pytest.mark.parametrize(
    ("over", "waits", "told"),
    [
        ("research", True, "research"),
        # Its own share is a part of the budget's.
        ("", True, "research"),
        ("everyone", True, "research"),
        ("research", False, ""),
    ],
)
def test_what_is_beyond_a_budgets_quota_is_held_back_by_that_budget(
    over: str, told: str, *, waits: bool
) -> None:
    of = made(pods=[("research-1", "a")], of=held(EVERYONE, SLOW))
    seen = [
        (
            limited,
            replace(amounts, backlog=waits * 1500, is_over=True) if limited.beyond else amounts,
        )
        for limited, amounts in usage(of, over, "", sent=7)
    ]
    look = held_back.seen(1.0, seen)
    assert look.pods == {("research-1", "a", OUT): (7, ""), BEYOND: (7, told)}
    assert look.budgets == {"everyone": 7, "research": 7}
    assert not held_back.throttled(look, 1.0)


def test_what_a_pod_sends_beyond_a_quota_of_its_own_is_of_its_budget_too() -> None:
    limit = {"pods": "*/*", "per-day": {"internet-out": "1M"}, "when-spent": "1M"}
    of = made(limit, pods=[("research-1", "a")], of=held(EVERYONE))
    look = held_back.seen(1.0, usage(of, "everyone", "a", sent=7))
    assert look.pods == {("research-1", "a", OUT): (14, "everyone")}


@pytest.mark.parametrize(("told", "waiting"), [("research", 1), ("", 0)])
def test_what_is_beyond_a_quota_counts_by_the_share_of_the_budget_that_it_needs(
    told: str, waiting: int
) -> None:
    passed = [
        Look(
            float(at),
            {"everyone": at * 100, "research": at * 100},
            {("", "research", OUT): (at * 100, told)},
        )
        for at in range(4)
    ]
    found = held_back.rates(passed, held(EVERYONE, SLOW))
    assert found == {
        "everyone": BudgetRates(800, 0, 800),
        "research": BudgetRates(4000, waiting, 0 if waiting else 4000),
    }
    # Of a budget that is gone, or whose quota drops by now.
    assert held_back.rates(passed, held(EVERYONE))["everyone"] == BudgetRates(800, 0, 0)
    assert held_back.rates(passed, held(RESEARCH))["research"].rate == 800


def test_one_node_may_have_all_that_passes_beyond_a_quota() -> None:
    leader = BudgetAllocator(1, 0.0, 20_000)
    leader.set_budgets([SLOW], "v", 0.0, enforce=True)
    leader.set_nodes({f"node-{number}": 30 for number in range(50)}, 0.0)
    grants = {f"node-{number}": Grant(0, 0, 0, 0, 20_000, 0) for number in range(50)}
    slow = 0
    for report in range(30):
        leader.tick(5.0 * report, 20_000)
        for name, grant in grants.items():
            made = BudgetRates()
            if name == "node-7":
                node = NodeBudget(SLOW, max(LEAST, grant.rate), grant.level, 20_000, 0)
                slow = node.quota.slow if node.quota else 0
                sent = {0.0: 0, 5.0: 5 * slow // 8}
                passed = [Look(at, {}, {BEYOND: (sent[at], "research")}) for at in sent]
                made = held_back.rates(passed, [node])["research"]
            use = BudgetUse(grant.rate, made.rate, made.waiting, made.free, 20_000, 0, 0)
            said = BudgetReport(1, "boot", report, "v", {"research": use})
            grants[name] = leader.answer(name, said, 5.0 * report).grants["research"]
    assert slow >= 0.95 * SLOW.slow


def test_classes_that_were_made_anew_begin_at_nothing() -> None:
    found = held_back.rates(looks((900, "", 900, ""), (100, "", 10, "")), held(EVERYONE))
    assert found["everyone"] == BudgetRates(880, 0, 880)


def test_without_enforcing_who_had_more_than_an_equal_share_would_have_been_held_back() -> None:
    of = held(EVERYONE, RESEARCH, everyone=8, research=100)

    def look(at: float, a: int, b: int, former: Look | None) -> Look:
        pods: list[PodTotals] = [
            {"namespace": namespace, "pod": name, "traffic": OUT, "live": True}
            | {"bytes": size, "packets": 0}
            for namespace, name, size in (
                ("research-1", "a", a),
                ("other", "b", b),
                ("other", "c", 0),
            )
        ]
        return held_back.reckoned(at, pods, pods, of, former)

    first = look(0.0, 0, 0, None)
    assert first.budgets == {"everyone": 0, "research": 0}
    below = look(1.0, 900_000, 90_000, first)
    assert {told for _, told in below.pods.values()} == {""}
    over = look(1.0, 900_000, 200_000, first)
    assert {name: told for (_, name, _), (_, told) in over.pods.items()} == {
        "a": "everyone",
        "b": "",
        "c": "",
    }
