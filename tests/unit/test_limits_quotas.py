"""What a node document may say about quotas, and when the kernel is to see them spent."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from netmgr.documents.limits import Limit, QuotaPeriod
from netmgr.limits import quotas, rules, tree
from netmgr.limits.quotas import Budget
from netmgr.limits.rules import Chain, Peers
from netmgr.limits.tree import Limited, Target
from netmgr.model import Attachment, AttachmentKey, PodRef, Traffic
from netmgr.prefixes import Address
from tests.fakes.sites import document

OUT, IN = Traffic.INTERNET_OUT, Traffic.INTERNET_IN
DAY, MONTH = QuotaPeriod
POD = Attachment(
    AttachmentKey("b", "eth0"), PodRef("a", "b"), (Address.parse("10.0.0.1"),), "nm1", ""
)
STORAGE = {"name": "storage", "prefixes": ["198.51.100.0/24"]}
MONTHLY = {"history_hours": 744, "history_rows": 163_680}


def limits(*items: dict, **accounting: object) -> tuple[Limit, ...]:
    return document("node", limits=list(items), accounting=accounting or MONTHLY).limits


def of_pod(*items: dict, traffic: Traffic = OUT) -> list[tuple[str, str, int, int]]:
    found = quotas.of_pod(PodRef("a", "b"), limits(*items), traffic)
    assert {(one.namespace, one.traffic) for one in found} <= {("a", traffic)}
    return [(one.pod, one.period, one.bytes, one.slow) for one in found]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"per-day": {}}, "give bytes for internet-in, internet-out or both"),
        ({"per-day": {"internet-out": "10k"}}, "greater than or equal to 1000000"),
        ({"internet-in": "1M", "when-spent": "drop"}, "when-spent has no quota; give per-day"),
        ({"per-day": {"internet-out": "1G"}, "when-spent": "stop"}, "'stop' is no quantity"),
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


def test_an_object_is_named_by_whose_it_is_and_not_by_how_much() -> None:
    one = Budget("a", "b" * 253, OUT, DAY, 1, 0)
    assert one.object == Budget("a", "b" * 253, OUT, DAY, 2, 3).object
    assert len(one.object) < 128
    for other in ({"pod": ""}, {"traffic": IN}, {"period": MONTH}):
        assert one.object != replace(one, **other).object


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
    budget = Budget("a", "b", OUT, period, 10**9, 0)
    began = quotas.beginning(period, 1_780_000_000)
    length = quotas.end(period, began) - began
    assert quotas.forecast(budget, 600, began + length * 3 // 4) == 800
    assert quotas.forecast(budget, 100, began + 10) == 100 * length // 3600


def test_a_quota_is_spent_when_a_longest_packet_would_not_pass_any_more() -> None:
    budget = Budget("a", "b", OUT, DAY, 10**9, 0)
    assert not quotas.is_spent(budget, 10**9 - quotas.LONGEST_PACKET)
    assert quotas.is_spent(budget, 10**9 - quotas.LONGEST_PACKET + 1)


def test_what_the_kernel_counted_and_nobody_had_is_not_charged() -> None:
    budget = Budget("a", "b", OUT, DAY, 1000, 0)
    # 300 were used by a predecessor, 50 were dropped later.
    assert quotas.bound(budget, used=500, count=250, waiting=0) == 750
    # 100 wait, and the ledger may have them or not.
    assert quotas.bound(budget, used=400, count=250, waiting=100) == 750
    assert quotas.bound(budget, used=2000, count=250, waiting=0) == 0


def test_without_a_rate_only_what_is_beyond_a_quota_waits() -> None:
    chain = Chain("nm1", 7, IN, 0, quotas=(("day", 0x30),))
    text = rules.whole([chain], Peers([]))
    assert 'quota name "day" meta priority set 1:30\n' in text
    assert text.count("fwd") == text.count('meta priority 1:30 fwd to "netmgr-in"') == 1


def test_the_class_of_what_is_beyond_a_quota_is_in_its_namespaces() -> None:
    given = limits(
        {"namespaces": "a", "internet-out": "10M"},
        {"pods": "a/b", "per-day": {"internet-out": "1G"}, "when-spent": "1M"},
    )
    found = tree.tree(given, [POD], OUT)
    ((budget, slow),) = found.links["nm1"].charges
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
    found = tree.tree(given, [POD], OUT)
    drops, slows = quotas.of_pod(POD.pod, given, OUT)
    (slow,) = found.classes
    assert found.links == {"nm1": Target("", charges=((drops, ""), (slows, slow)))}
    assert found.classes[slow] == Limited(
        "a", "", OUT, parent="", rate=5 * 10**6, burst=65_536, beyond="month"
    )
    assert tree.tree(given, [POD], IN) == tree.Tree({}, {})
