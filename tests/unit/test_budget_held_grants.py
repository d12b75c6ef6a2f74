"""What a node keeps of an answer, and what is in force by its age."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from netmgr.budgets.held import HeldGrants, decode
from netmgr.budgets.messages import Budget, BudgetAnswer, BudgetReport, Grant, encode
from netmgr.budgets.terms import GRACE, HOLD, LEASE, LEAST
from netmgr.model import Traffic

BUDGETS = (
    Budget("everyone", "", ("*",), Traffic.INTERNET_IN, 10**9),
    Budget("research", "everyone", ("research-*",), Traffic.INTERNET_IN, 10**8, 10**12, 10**6),
)
K = 1000
GRANT = Grant(rate=900 * K, firm=700 * K, safe=500 * K, level=30, day=20_000, allowance=10**10)
SMALL = replace(GRANT, rate=90 * K, firm=70 * K)
ANSWER = BudgetAnswer(
    3, 8, "v", enforce=True, budgets=BUDGETS, grants={"everyone": GRANT, "research": SMALL}
)
REPORT = BudgetReport(3, "boot-1", 8, "v", {})
NEW = HeldGrants.before_an_answer(BUDGETS)
HELD = NEW.after(REPORT, 1000.0, ANSWER)


@pytest.mark.parametrize(
    ("age", "everyone", "research"),
    [
        (0, 900, 90),
        (HOLD, 900, 90),
        (HOLD + 0.1, 700, 70),
        (LEASE, 700, 70),
        # Who had less than the safe rate has to wait for it.
        (LEASE + 0.1, 500, 70),
        (LEASE + GRACE, 500, 70),
        (LEASE + GRACE + 0.1, 500, 500),
        (1e6, 500, 500),
    ],
)
def test_the_rate_in_force_is_by_the_age_of_the_report(
    age: float, everyone: int, research: int
) -> None:
    rates = HELD.rates("boot-1", 1000.0 + age)
    assert rates == {"everyone": everyone * K, "research": research * K}


def test_a_rebooted_node_has_no_more_than_it_had_until_its_lease_has_ended() -> None:
    assert HELD.rates("boot-2", 1.0) == {"everyone": 500 * K, "research": 70 * K}
    assert HELD.rates("boot-2", LEASE + GRACE + 1) == {"everyone": 500 * K, "research": 500 * K}


def test_a_report_of_the_future_is_of_no_use() -> None:
    assert HELD.rates("boot-1", 999.0) == HELD.rates("boot-2", 999.0)


def test_a_node_without_an_answer_and_one_that_is_lent_nothing_have_the_least() -> None:
    assert NEW.rates("boot-1", 50.0) == {"everyone": LEAST, "research": LEAST}
    nothing = dict.fromkeys(ANSWER.grants, Grant(0, 0, 0, 0, 20_000, 0))
    held = NEW.after(REPORT, 1000.0, replace(ANSWER, grants=nothing))
    assert held.rates("boot-1", 1000.0) == {"everyone": LEAST, "research": LEAST}


def test_the_next_change_is_when_the_rates_change() -> None:
    now, ends = 1000.0, []
    while (end := HELD.changes("boot-1", now)) is not None:
        assert HELD.rates("boot-1", end) == HELD.rates("boot-1", now)
        now = end + 1e-6
        ends.append(end)
    assert ends == [1000 + HOLD, 1000 + LEASE, 1000 + LEASE + GRACE]
    assert HELD.changes("boot-2", 5.0) == HOLD


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (replace(ANSWER, epoch=2), "epoch 2, before 3"),
        (replace(ANSWER, sequence=8), "answers report 8, not 9"),
        (replace(ANSWER, sequence=9, version="w", budgets=None), "budgets that this node lacks"),
        (replace(ANSWER, sequence=9, grants={"everyone": GRANT}), "grants are not those"),
    ],
)
def test_an_answer_is_refused_that_is_not_to_the_last_report(
    answer: BudgetAnswer, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        HELD.after(replace(REPORT, sequence=9), 1005.0, answer)


def test_an_answer_without_budgets_is_for_those_that_are_known() -> None:
    held = HELD.after(
        replace(REPORT, sequence=9), 1005.0, replace(ANSWER, sequence=9, budgets=None)
    )
    assert held.budgets == BUDGETS
    assert held.asked == 1005.0


@pytest.mark.parametrize("held", [NEW, HELD])
def test_the_file_says_what_is_held(held: HeldGrants) -> None:
    assert decode(encode(held)) == held


def test_a_newer_version_may_say_more() -> None:
    content = json.loads(encode(HELD))
    content["more"] = content["answer"]["more"] = content["answer"]["budgets"][0]["more"] = 1
    assert decode(json.dumps(content).encode()) == HELD


@pytest.mark.parametrize(
    "change",
    [
        {"boot": 5},
        {"asked": "now"},
        {"asked": -1},
        {"asked": True},
        {"asked": float("nan")},
        {"asked": 1e300},
        {"answer": []},
        {"answer": 7},
        {"answer": {"epoch": 1}},
        {"answer": {"budgets": None}},
        {"answer": {"budgets": {}}},
        {"answer": {"budgets": []}},
        {"answer": {"budgets": [{"name": "everyone"}]}},
    ],
)
def test_a_file_that_says_anything_else_is_refused(change: dict[str, object]) -> None:
    content = json.loads(encode(HELD))
    if isinstance(of_answer := change.get("answer"), dict) and "budgets" in of_answer:
        change = {"answer": {**content["answer"], **of_answer}}
    content |= change
    with pytest.raises(ValueError):  # noqa: PT011 - each says something else
        decode(json.dumps(content).encode())


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000, b" " * 300_000]
)
def test_what_is_no_such_file_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says something else
        decode(text)
