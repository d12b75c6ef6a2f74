"""What a node document may say about quotas, which of them are in force, and when the kernel is to
see one spent.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from netmgr.documents.limits import QuotaPeriod
from netmgr.limits import quotas, tree
from netmgr.limits.quotas import NodeQuota, QuotaReading, Standing
from netmgr.limits.tree import Limited, LinkClasses
from netmgr.model import PodRef, Traffic
from tests.fakes.sites import document
from tests.unit.limit_cases import MONTHLY, NOW, limits, pod

OUT, IN = Traffic.INTERNET_OUT, Traffic.INTERNET_IN
DAY, MONTH = QuotaPeriod
STORAGE = {"name": "storage", "prefixes": ["198.51.100.0/24"]}


def of_pod(*items: dict, traffic: Traffic = OUT) -> list[tuple[str, str, int, int]]:
    found = quotas.of_pod(PodRef("a", "b"), limits(*items), traffic, NOW)
    assert {(one.namespace, one.traffic) for one in found} <= {("a", traffic)}
    return [(one.pod, one.period, one.bytes, one.slow) for one in found]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"per-day": {}}, "give bytes for internet-in, internet-out or both"),
        ({"per-day": {"internet-out": "10k"}}, "greater than or equal to 1000000"),
        ({"internet-in": "1M", "when-spent": "drop"}, "when-spent has no quota; give per-day"),
        ({"per-day": {"internet-out": "1G"}, "when-spent": "stop"}, "'stop' is no rate"),
        ({"per-day": {"internet-out": "1G"}, "when-spent": "1k"}, "give at least 64k"),
    ],
)
def test_a_quota_that_means_nothing_is_refused(limit: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        limits({"pods": "a/b"} | limit)


@pytest.mark.parametrize(
    ("who", "accounting", "words"),
    [
        ({"pods": "a/b"}, {"history_hours": 168}, "set accounting.history_hours to 744 or more"),
        ({"pods": "a/b"}, {"history_hours": 744}, "set accounting.history_rows to 163680"),
        ({"pods": "a/b"}, MONTHLY | {"classes": [STORAGE]}, "up to 491040 rows"),
        ({"namespaces": "a"}, {"history_hours": 743}, "up to 744 hours"),
    ],
)
def test_a_quota_that_the_ledger_would_forget_is_refused(
    who: dict, accounting: dict, words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        limits(who | {"per-month": {"internet-out": "1G"}}, **accounting)


def test_what_the_ledger_remembers_by_default_is_enough_for_a_day_and_for_namespaces() -> None:
    quota = {"internet-out": "1G"}
    assert document("node", limits=[{"pods": "a/b", "per-day": quota}]).limits
    assert limits({"namespaces": "a", "per-month": quota}, history_hours=744)


@pytest.mark.parametrize("order", [1, -1])
def test_the_lowest_quota_is_in_force_and_what_drops_comes_first(order: int) -> None:
    given = [
        {"pods": "a/*", "per-day": {"internet-out": "5G"}, "when-spent": "1M"},
        {"pods": "a/b", "per-day": {"internet-out": "3G"}, "when-spent": "2M"},
        {"pods": "a/b", "per-month": {"internet-out": "9G"}, "when-spent": "5M"},
        {"namespaces": "a", "per-day": {"internet-out": "7G", "internet-in": "1G"}},
        {"pods": "other/*", "per-day": {"internet-out": "1G"}},
    ]
    assert of_pod(*given[::order]) == [
        ("", "day", 7 * 10**9, 0),
        ("b", "month", 9 * 10**9, 5_000_000),
        ("b", "day", 3 * 10**9, 2_000_000),
    ]
    assert of_pod({"pods": "a/b", "per-day": {"internet-out": "5G"}}, traffic=IN) == []


def test_an_object_is_of_one_period_and_size_and_keeps_its_name_at_another_rate() -> None:
    one = NodeQuota("a", "b" * 253, OUT, DAY, 1, 0, 0)
    assert one.object == replace(one, slow=3).object
    assert len(one.object) < 128
    others = ({"pod": ""}, {"traffic": IN}, {"period": MONTH}, {"bytes": 2}, {"began": 86_400})
    for other in others:
        assert one.object != replace(one, **other).object


def test_a_quota_is_of_the_period_that_it_is_asked_in() -> None:
    given = limits(
        {"pods": "a/b", "per-day": {"internet-out": "1G"}, "per-month": {"internet-out": "9G"}}
    )
    found = quotas.of_pod(PodRef("a", "b"), given, OUT, NOW)
    assert {one.period: one.began for one in found} == {
        period: quotas.beginning(period, NOW) for period in (DAY, MONTH)
    }


def test_who_is_charged_to_a_quota() -> None:
    own, shared = (NodeQuota("a", name, OUT, DAY, 1, 0, 0) for name in ("b", ""))
    for quota, charged in ((own, {"a/b"}), (shared, {"a/b", "a/c"})):
        packets = ("a/b", "a/c", "other/b")
        assert {name for name in packets if quota.charges(*name.split("/"))} == charged
    research = NodeQuota("", "", OUT, DAY, 1, 0, 0, "research", ("lab*", "*-1"))
    assert research.charges("lab-2", "b")
    assert not research.charges("other", "b")
    # A class of the budget itself; one without a namespace is in no other.
    everyone = replace(research, budget="everyone", namespaces=("*",))
    assert everyone.charges("", "", "everyone")
    assert not everyone.charges("", "", "research")


@pytest.mark.parametrize(
    ("now", "day", "month"),
    [
        ("2026-02-28T23:59:59", ("02-28", "03-01"), ("02-01", "03-01")),
        ("2028-02-29T00:00:00", ("02-29", "03-01"), ("02-01", "03-01")),
        ("2026-07-31T12:00:00", ("07-31", "08-01"), ("07-01", "08-01")),
    ],
)
def test_periods_are_days_and_months_of_utc(
    now: str, day: tuple[str, str], month: tuple[str, str]
) -> None:
    at = datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp()

    def shown(seconds: int) -> str:
        return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d")

    for period, expected in ((DAY, day), (MONTH, month)):
        assert (shown(quotas.beginning(period, at)), shown(quotas.end(period, at))) == expected
    december = datetime(2026, 12, 31, tzinfo=UTC).timestamp()
    assert quotas.end(MONTH, december) == datetime(2027, 1, 1, tzinfo=UTC).timestamp()


def test_periods_are_of_utc_whatever_time_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        july = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
        assert [quotas.beginning(period, july + 7200) for period in (DAY, MONTH)] == [july, july]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("period", [DAY, MONTH])
def test_a_forecast_goes_on_as_it_went_but_is_not_made_of_an_instant(period: QuotaPeriod) -> None:
    budget = NodeQuota("a", "b", OUT, period, 10**9, 0, 0)
    began = quotas.beginning(period, 1_780_000_000)
    length = quotas.end(period, began) - began
    assert quotas.forecast(budget, 600, began + length * 3 // 4) == 800
    assert quotas.forecast(budget, 100, began + 10) == 100 * length // 3600


def test_a_quota_is_spent_when_a_longest_packet_would_not_pass_any_more() -> None:
    budget = NodeQuota("a", "b", OUT, DAY, 10**9, 0, 0)
    assert not quotas.is_spent(budget, 10**9 - quotas.LONGEST_PACKET)
    assert quotas.is_spent(budget, 10**9 - quotas.LONGEST_PACKET + 1)


BUDGET = NodeQuota("a", "b", OUT, DAY, 1000, 0, 0)


def reading(*amounts: int) -> QuotaReading:
    return QuotaReading(*amounts, BUDGET.bytes)


def settled(
    *looks: QuotaReading, former: Standing | None = None, blind: Collection[int] = ()
) -> list[tuple[int, int]]:
    """The bound, and what the ledger has missed at least, after each look."""
    found = []
    for number, look in enumerate(looks):
        former = quotas.corrected(BUDGET, look, former, is_whole=number not in blind)
        found.append((former.bound, former.least))
    return found


NEW = Standing(1000, 1000, 0, 1000)
HALF = reading(1000, 500, 500, 0, 500)
OVER = reading(0, 0, 0, 0, 500)


def test_a_bound_rises_by_what_did_not_pass_once_that_is_certain() -> None:
    # 50 of 300 were dropped, 20 of them in vain: they wait.
    look = reading(1000, 300, 300, 20, 250)
    assert settled(look, look, look._replace(bound=1030, waiting=0, used=270), former=NEW) == [
        (1000, 0),
        (1030, 0),
        (1030, 0),
    ]
    # Over, with nothing passing: half of it had been dropped.
    assert settled(HALF, OVER, OVER, former=NEW) == [(1000, 0), (0, 0), (500, 0)]


def test_what_is_not_known_of_a_look_is_a_range() -> None:
    """By an agent that has just started, and by the next look, which saw everything."""
    look = reading(1000, 300, 400, 20, 350)
    first = quotas.corrected(BUDGET, look, None, is_whole=True)
    # By the ledger it is spent at a count between 930 and 1,050.
    assert first == Standing(1000, 600, 350, 1000, credit=-120, least=0, most=50)
    look = reading(1000, 500, 520, 0, 470)
    second = quotas.corrected(BUDGET, look, first, is_whole=True)
    assert second == Standing(1000, 480, 470, 1000, credit=-20, least=0, most=50)
    # Of 130 that the ledger lacks, 50 may have passed before the start, and are never given back.
    third = quotas.corrected(BUDGET, reading(1000, 600, 600, 0, 470), second, is_whole=True)
    assert third == Standing(1000, 400, 470, 1000, credit=80, least=0, most=50)
    fourth = quotas.corrected(BUDGET, reading(1000, 600, 600, 0, 470), third, is_whole=True)
    assert fourth == Standing(1080, 480, 470, 1000, credit=0, least=0, most=50)
    # Unless the ledger has 60 of them meanwhile.
    late = quotas.corrected(BUDGET, reading(1000, 600, 600, 0, 530), third, is_whole=True)
    assert late.bound == 1020


def test_a_bound_falls_to_what_is_left_beside_what_the_ledger_missed() -> None:
    former = Standing(1000, 500, 600, 1000, least=100, most=100)
    look = reading(1000, 600, 600, 0, 700)
    assert quotas.corrected(BUDGET, look, former, is_whole=True).bound == 800
    assert quotas.corrected(BUDGET, look, None, is_whole=True)[-2:] == (0, 0)


def test_what_passes_during_a_look_changes_no_bound() -> None:
    looks = [reading(1000, 300, 400, 0, 350), reading(1000, 600, 600, 0, 600)]
    assert settled(*looks, former=NEW) == [(1000, 0)] * 2
    # Nor is it taken for missed by an agent that knows nothing.
    assert settled(*looks, reading(1000, 700, 700, 0, 700)) == [(1000, 0)] * 3


@pytest.mark.parametrize("used", [200, 10], ids=["rules", "ledger"])
def test_no_bound_rises_by_what_the_ledger_missed(used: int) -> None:
    missing = reading(1000, 600, 600, 0, used)
    blind = {1} if used > 100 else ()
    looks = [reading(1000, 100, 100, 0, 100), missing, missing, missing]
    assert settled(*looks, former=NEW, blind=blind)[1:] == [(1000, 600 - used)] * 3
    # The next agent knows the object alone.
    assert settled(missing, missing, missing) == [(1000, 600 - used)] * 3
    assert settled(*[OVER] * 3) == [(0, 500)] * 3


def test_a_count_that_was_reset_opens_nothing() -> None:
    again = reading(1000, 50, 50, 0, 550)
    assert settled(HALF, again, again, former=NEW) == [(1000, 0), (500, 0), (500, 0)]
    # Not even where the ledger missed what passed.
    again = again._replace(used=500)
    assert settled(HALF, again, former=NEW, blind={1})[1] == (550, 0)


def test_more_than_there_is_may_be_used() -> None:
    assert settled(reading(1000, 250, 250, 0, 2000), former=NEW) == [(0, 0)]


def test_the_class_of_what_is_beyond_a_quota_is_in_its_namespaces() -> None:
    given = limits(
        {"namespaces": "a", "internet-out": "10M"},
        {"pods": "a/b", "per-day": {"internet-out": "1G"}, "when-spent": "1M"},
    )
    found = tree.tree(given, [pod("a", "b")], OUT, NOW)
    ((budget, slow),) = found.links["nmb"].charges
    assert found.classes[slow] == Limited(
        "a", "b", OUT, parent=next(iter(found.classes)), rate=10**6, burst=65_536, beyond="day"
    )
    assert budget.bytes == 10**9
    assert found.classes[found.classes[slow].parent].pod == ""
    assert [one.is_shown for one in found.classes.values()] == [True, True, False]


def test_a_quota_alone_charges_without_a_class_and_drops_what_is_beyond() -> None:
    given = limits(
        {"pods": "a/b", "per-day": {"internet-out": "2G"}},
        {"namespaces": "a", "per-month": {"internet-out": "9G"}, "when-spent": "5M"},
    )
    found = tree.tree(given, [pod("a", "b")], OUT, NOW)
    drops, slows = quotas.of_pod(PodRef("a", "b"), given, OUT, NOW)
    (slow,) = found.classes
    assert found.links == {"nmb": LinkClasses("", charges=((drops, ""), (slows, slow)))}
    assert found.classes[slow] == Limited(
        "a", "", OUT, parent="", rate=5 * 10**6, burst=65_536, beyond="month"
    )
    assert tree.tree(given, [pod("a", "b")], IN, NOW) == tree.Tree({}, {})
