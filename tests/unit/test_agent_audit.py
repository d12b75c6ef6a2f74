"""What was counted compared with what passed, by value."""

from __future__ import annotations

import pytest

from netmgr.agent.accounting.audit import AuditReport, Passed, link_audits, through
from netmgr.kernel.links import Carried
from netmgr.ledger.audit import Audit
from netmgr.ledger.tables import NOTHING, Amount
from netmgr.ledger.totals import AuditTotal, Totals
from netmgr.model import PROTECTED, Attachment, AttachmentKey, Counter, PodRef, Traffic
from netmgr.prefixes import Address

IN, OUT = Traffic.INTERNET_IN, Traffic.INTERNET_OUT
OF_CLASS = "object-store-out"
WEB4, WEB6, SIDE4, DB4 = map(Address.parse, ("10.0.0.5", "2001:db8::5", "10.1.0.5", "10.0.0.6"))


def attachment(name: str, link: str, *addresses: Address) -> Attachment:
    return Attachment(AttachmentKey(name, link), PodRef("team", name), addresses, link, "netns")


def counter(address: Address, traffic: str = OUT) -> Counter:
    return Counter.of_pod(address, traffic)


def forwarded(traffic: Traffic, passed: int, missed: int) -> AuditTotal:
    return AuditTotal(Audit.FORWARD, traffic, Amount(passed, 1), NOTHING, Amount(missed, 1))


def report(*audits: AuditTotal) -> AuditReport:
    """Two links: one of a pod with both families, one that two pods share."""
    links = link_audits(
        [
            attachment("web", "nm1", WEB4, WEB6),
            attachment("side", "nm0", SIDE4),
            attachment("db", "nm0", DB4),
            attachment("gone", "nm9", Address.parse("10.0.0.9")),
        ],
        {
            counter(WEB4): Amount(1000, 10),
            counter(WEB6): Amount(500, 5),
            counter(WEB4, OF_CLASS): Amount(300, 2),
            counter(WEB4, IN): Amount(60, 1),
            counter(WEB4, PROTECTED): Amount(9999, 99),
            counter(DB4): Amount(200, 3),
            counter(SIDE4, IN): Amount(40, 2),
            counter(Address.parse("10.0.0.9")): Amount(7777, 77),
        },
        {
            "nm0": Carried(received=442, received_packets=3, sent=68, sent_packets=2),
            "nm1": Carried(received=2280, received_packets=20, sent=174, sent_packets=1),
            "eth0": Carried(received=1, received_packets=1, sent=1, sent_packets=1),
        },
    )
    return AuditReport(Totals([], [], [], [], [], list(audits)), links)


def test_each_direction_of_each_link_says_what_was_counted_and_what_the_rest_is() -> None:
    keys = ("pods", "link", "direction", "carried", "packets", "headers", "counted")
    both, web = ["team/db", "team/side"], ["team/web"]
    assert report().links == [
        dict(zip((*keys, "counted_packets", "rest"), row, strict=True))
        for row in (
            (both, "nm0", "in", 68, 2, 28, {IN: 40}, 2, 0),
            (both, "nm0", "out", 442, 3, 42, {OUT: 200}, 3, 200),
            (web, "nm1", "in", 174, 1, 14, {IN: 60}, 1, 100),
            (web, "nm1", "out", 2280, 20, 280, {OUT: 1500, OF_CLASS: 300}, 17, 200),
        )
    ]


def test_ratios_are_of_all_links_together_and_of_what_was_forwarded() -> None:
    found = report(forwarded(IN, 0, 0), forwarded(OUT, 1000, 250)).ratios()
    assert found == [
        {"against": "forward", "traffic": IN, "ratio": 1.0},
        {"against": "forward", "traffic": OUT, "ratio": 0.75},
        {"against": "links", "traffic": IN, "ratio": pytest.approx(100 / 200)},
        {"against": "links", "traffic": OUT, "ratio": pytest.approx(1700 / 2400)},
        {"against": "links", "traffic": OF_CLASS, "ratio": pytest.approx(300 / 2400)},
    ]


def test_uplinks_are_compared_with_what_was_counted_as_the_internets() -> None:
    node = [
        {"traffic": traffic, "bytes": size, "packets": 1} for traffic, size in ((IN, 50), (OUT, 90))
    ]
    totals = Totals([], [], node, [], [], [])
    links = [Carried(100 + 28, 2, 200 + 14, 1), Carried(100 + 14, 1, 100, 0)]
    passed = through(links, totals, link_layer=0)
    assert passed == {IN: Passed(200, 50, 3, 1), OUT: Passed(300, 90, 1, 1)}
    assert passed[OUT].since(Passed(100, 30)) == Passed(200, 60, 1, 1)
    assert AuditReport(totals, [], {OUT: Passed(200, 60), IN: Passed(0, 0)}).ratios() == [
        {"against": "uplinks", "traffic": IN, "ratio": 1.0},
        {"against": "uplinks", "traffic": OUT, "ratio": 0.3},
    ]


def test_a_link_that_carried_nothing_has_the_ratio_0() -> None:
    links = link_audits(
        [attachment("web", "nm1", WEB4)], {counter(WEB4): NOTHING}, {"nm1": Carried(0, 0, 0, 0)}
    )
    assert AuditReport(Totals([], [], [], [], [], []), links).ratios() == [
        {"against": "links", "traffic": OUT, "ratio": 0.0}
    ]
