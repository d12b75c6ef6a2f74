"""What the ledger shows of its book, and how one total is told apart by where it came from."""

from __future__ import annotations

from netmgr.ledger.audit import Audit
from netmgr.ledger.book import Book, Moment
from netmgr.ledger.history import By, Period, usage_row, view
from netmgr.ledger.tables import NOTHING, Amount, Gap, Tracked
from netmgr.ledger.totals import AuditTotal, Totals, picture
from netmgr.model import REMOTE_PODS, UNATTRIBUTED, Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family

IN, OUT = Traffic.INTERNET_IN, Traffic.INTERNET_OUT
WEB, DB = PodRef("team-b", "web"), PodRef("team-a", "db")
NOW = Moment(7200.0, 100.0)


def audited(
    audit: Audit, traffic: Traffic, missed: int, remote: Amount | None = None
) -> AuditTotal:
    return AuditTotal(
        audit, traffic, Amount(1000, 10), Amount(700, 7), Amount(missed, missed // 100), remote
    )


def totals(*audits: AuditTotal) -> Totals:
    return Totals([], [], [], [], [], list(audits))


def test_what_was_forwarded_for_no_pod_is_listed_where_there_are_pods() -> None:
    both = totals(audited(Audit.FORWARD, OUT, 300), audited(Audit.LOCAL, OUT, 200))
    assert both.unattributed(runs_pods=True) == [
        {"traffic": OUT, "bytes": 300, "packets": 3, "forwarded": 1000}
    ]
    assert both.unattributed(runs_pods=False) == []
    assert both.forward_audit() == [
        {"traffic": OUT, "forwarded": 1000, "attributed": 700, "unattributed": 300}
    ]


def test_the_nodes_total_comes_in_parts_that_are_named_by_whose_they_are() -> None:
    found = totals(
        audited(Audit.FORWARD, IN, 300),
        audited(Audit.FORWARD, OUT, 100, Amount(200, 2)),
        audited(Audit.LOCAL, OUT, 50),
    )

    def parts(*, runs_pods: bool) -> list[tuple[str, Traffic, int, int]]:
        return [
            (part["origin"], Traffic(part["traffic"]), part["bytes"], part["packets"])
            for part in found.origins(runs_pods=runs_pods)
        ]

    assert parts(runs_pods=True) == [
        ("pods", IN, 700, 7),
        ("unattributed", IN, 300, 3),
        ("remote-pods", OUT, 200, 2),
        ("pods", OUT, 500, 5),
        ("unattributed", OUT, 100, 1),
        ("host-pods", OUT, 700, 7),
        ("node", OUT, 50, 0),
    ]
    assert [origin for origin, *_ in parts(runs_pods=False)] == [
        *("pods", "transit", "remote-pods", "pods", "transit", "host-pods", "node")
    ]


def counters(pod: PodRef, number: int) -> dict[Counter, PodRef]:
    address = Address(Family.V4, number)
    return {Counter.of_pod(address, traffic): pod for traffic in Traffic}


HOOKS = [
    Counter(hook, family, traffic)
    for hook, traffic in (("OUTPUT", OUT), ("FORWARD", OUT), ("FORWARD", IN), ("INPUT", IN))
    for family in Family
]


def test_a_picture_has_every_table_of_the_book_in_order() -> None:
    book = Book(Tracked(), Tracked(), Tracked(), Tracked(), Tracked())
    book.open(NOW, "boot")
    others = [Counter(REMOTE_PODS, Family.V4, OUT), Counter(UNATTRIBUTED, Family.V4, IN)]
    book.begin([*HOOKS, *others], None, NOW)
    for pod, number in ((WEB, 5), (DB, 6)):
        book.begin(counters(pod, number), pod, NOW)
    sizes = ((WEB, 5, 40), (DB, 6, 7))
    of_pods = [Sample(counter, size, 1) for pod, n, size in sizes for counter in counters(pod, n)]
    of_node = [Sample(hook, 100 * (index + 1), index + 1) for index, hook in enumerate(HOOKS)]
    book.post([*of_pods, *of_node, Sample(others[0], 20, 2), Sample(others[1], 30, 3)], NOW)
    book.end(counters(DB, 6), NOW)
    book.note(Gap.LATE, NOW.steady - 1.5, NOW)

    found = picture(book, durable=False)
    assert found.namespaces == [
        {"namespace": namespace, "traffic": traffic, "bytes": size, "packets": 1}
        for namespace, size in (("team-a", 7), ("team-b", 40))
        for traffic in (IN, OUT)
    ]
    names = {"team-a": ("db", False), "team-b": ("web", True)}
    assert found.pods == [
        total
        | dict(zip(("pod", "live"), names[total["namespace"]], strict=True))
        | {"wire": 0, "wire_unknown": total["bytes"]}
        for total in found.namespaces
    ]
    assert found.node == [
        {"traffic": IN, "bytes": 500 + 600 + 700 + 800, "packets": 5 + 6 + 7 + 8},
        {"traffic": OUT, "bytes": 100 + 200 + 300 + 400, "packets": 1 + 2 + 3 + 4},
    ]
    # Readings of hooks alone, by name.
    assert found.rules == sorted(of_node, key=lambda sample: str(sample.counter))
    never = {"count": 0, "seconds": 0.0, "bytes": 0, "since": 0.0, "last": 0.0}
    none = never | {"concerned": 0, "counters": []}
    late = none | {"count": 1, "seconds": 1.5, "since": round(NOW.wall - 1.5)}
    assert found.gaps == [
        {"reason": gap, **(late | {"last": NOW.wall} if gap is Gap.LATE else none)} for gap in Gap
    ]
    assert [
        (total.audit, total.traffic, total.counted, total.remote_pods) for total in found.audits
    ] == [
        (Audit.FORWARD, IN, Amount(47, 2), None),
        (Audit.FORWARD, OUT, Amount(67, 4), Amount(20, 2)),
        (Audit.LOCAL, IN, NOTHING, None),
        (Audit.LOCAL, OUT, NOTHING, None),
    ]
    assert found.audits[0].missed == Amount(30, 3)
    assert found.forwarded == found.audits[:2]
    assert found.durable is False


def test_an_answer_about_usage_has_as_many_rows_as_there_is_room_for() -> None:
    rows = [
        usage_row(0, "team", f"pod-{number}", OUT, Amount(number, 1)) for number in range(10_003)
    ]
    period = Period(5, 7)
    assert view(period, [By.POD, By.HOUR], rows[:2]) == {
        "version": 1,
        "since": 18_000,
        "until": 25_200,
        "by": ["pod", "hour"],
        "rows": rows[:2],
        "left_out": 0,
    }
    found = view(period, [By.POD], rows)
    assert (found["rows"], found["left_out"]) == (rows[:10_000], 3)
    assert [period.holds(hour) for hour in (4, 5, 6, 7)] == [False, True, True, False]
