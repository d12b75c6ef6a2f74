"""What a preflight probes, what it makes of what it finds, and how it asks nameservers."""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from netmgr.cli.preflight import _tables
from netmgr.documents.node import NodeDocument
from netmgr.documents.preflight import Endpoint, Preflight, Unmeasured
from netmgr.prefixes import Address, Family, Prefix
from netmgr.preflight import dns, results, targets
from netmgr.preflight.dns import Knowledge
from netmgr.preflight.probing import Bounds
from netmgr.preflight.results import CheckOutcome, CheckResult, PreflightReport
from netmgr.preflight.targets import MOST_DRAWN, MOST_RANGES, GroupKind
from netmgr.preflight.tcp import Attempt, TcpEnding
from tests.builders import NODE_KEYS
from tests.fakes.nameserver import answer
from tests.waiting import PATIENCE, eventually

CHANCE = Random(1)  # noqa: S311  no secret


def address(text: str) -> Address:
    return Address.parse(text)


def document(**keys: Any) -> NodeDocument:
    given = {"node": {"name": "n"}, "ranges": ["10.1.0.0/28", "2001:db8::/120"]}
    return NodeDocument.model_validate(NODE_KEYS | given | keys)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"egress": ["2001:db8::1:443"]}, "is no ADDRESS:PORT; write 203.0.113.1:443 or"),
        ({"egress": ["203.0.113.1:65536"]}, "is no ADDRESS:PORT"),
        ({"egress": ["[203.0.113.1:443"]}, "'[203.0.113.1' is not an IP address"),
        ({"egress": ["registry.example.com:443"]}, "is not an IP address"),
        ({"peers": ["10.0.0.1"] * 257}, "at most 256 items"),
        ({"dns_name": "two..dots"}, "should match pattern"),
        ({"dns_name": "a" * 64 + ".example"}, "should match pattern"),
        ({"dns_name": "-"}, "should match pattern"),
        ({"most_loss": 1}, "less than 1"),
        ({"answer_seconds": 0}, "greater than 0"),
        ({"throughput_seconds": 601}, "less than or equal to 600"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused(keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint.replace("[", r"\[")):
        Preflight.model_validate(keys)


def test_destinations_are_of_either_family() -> None:
    given = ["203.0.113.1:443", "[2001:db8::1]:80"]
    egress = Preflight.model_validate({"egress": given}).egress
    assert list(map(str, egress)) == given
    assert egress[1] == Endpoint(address("2001:db8::1"), 80)


def test_a_group_is_a_few_machines_of_a_family_and_never_this_one() -> None:
    peers = [f"10.0.0.{number}" for number in range(1, 21)]
    given = document(preflight={"peers": [*peers, "2001:db8:1::1"], "hub": ["10.9.0.1"]})
    own = [address("10.0.0.1"), address("10.0.0.2")]
    nodes = [address("10.0.1.1"), address("10.0.0.2")]
    drawn: set[Address] = set()
    for _ in range(200):
        found = targets.groups(given, nodes, own, CHANCE)
        assert [(each.kind, each.family, len(each.machines)) for each in found] == [
            (GroupKind.PEERS, Family.V4, MOST_DRAWN),
            (GroupKind.PEERS, Family.V6, 1),
            (GroupKind.NODES, Family.V4, 1),
            (GroupKind.HUB, Family.V4, 1),
        ]
        drawn |= set(found[0].machines)
    assert drawn == set(map(address, peers)) - set(own)
    assert [each.knows_ranges for each in found] == [True, True, False, True]


@pytest.mark.parametrize(
    ("ranges", "addresses", "families"),
    [
        (["10.1.0.0/28"], [], [Family.V4]),
        (["2001:db8::/120"], ["2001:db8:9::9"], [Family.V6]),
        (["2001:db8::/120"], ["10.0.0.9"], [Family.V4, Family.V6]),
    ],
)
def test_machines_of_a_family_that_this_node_lacks_are_not_probed(
    ranges: list[str], addresses: list[str], families: list[Family]
) -> None:
    hub = {"hub": ["10.9.0.1", "2001:db8:9::1"]}
    given = document(ranges=ranges, node={"name": "n", "addresses": addresses}, preflight=hub)
    assert [each.family for each in targets.groups(given, [], [], CHANCE)] == families


def test_a_node_that_states_no_family_probes_both() -> None:
    peers = {"peers": ["10.9.0.1", "2001:db8:9::1"]}
    given = document(ranges=[], range_source="azure", preflight=peers)
    assert len(targets.groups(given, [], [], CHANCE)) == 2


def test_nothing_is_probed_that_is_not_named() -> None:
    assert targets.groups(document(), [], [], CHANCE) == []
    assert targets.is_empty(document())
    machines = {"peers": ["10.0.0.1"], "hub": ["10.0.0.1"]}
    for key, value in (machines | {"egress": ["10.0.0.1:1"], "dns_name": "a"}).items():
        assert not targets.is_empty(document(preflight={key: value}))
    assert not targets.is_empty(document(nodes_file="/nodes"))


def test_the_last_free_address_of_each_range_is_held() -> None:
    ranges = [*map(Prefix.parse, ("10.1.0.0/29", "10.1.0.8/29", "10.2.0.7/32", "2001:db8::/120"))]
    taken = {address("10.1.0.15"), address("10.2.0.7")}
    assert targets.held_addresses(ranges, taken) == {
        Prefix.parse("10.1.0.0/28"): address("10.1.0.14"),
        Prefix.parse("2001:db8::/120"): address("2001:db8::ff"),
    }


def test_of_very_many_ranges_some_are_probed() -> None:
    many = [Prefix(Family.V4, 2 * number, 32) for number in range(1, 200)]
    assert len(targets.held_addresses(many, ())) == MOST_RANGES


STORAGE = {"classes": [{"name": "storage", "prefixes": ["203.0.113.0/24"]}]}


@pytest.mark.parametrize(
    ("keys", "destination", "source"),
    [
        ({}, "203.0.113.1:443", None),
        ({"masquerade": False}, "203.0.113.1:443", "10.1.0.15"),
        ({}, "10.7.0.1:443", "10.1.0.15"),
        ({"native": ["10.7.1.0/24"]}, "10.7.0.1:443", None),
        ({"native": ["10.7.1.0/24"]}, "10.7.1.1:443", "10.1.0.15"),
        ({"accounting": STORAGE}, "203.0.113.1:443", None),
        ({"masquerade": False}, "[2001:db8:ffff::1]:443", "2001:db8::ff"),
        ({"role": "hub-router", "ranges": [], "masquerade": False}, "203.0.113.1:443", None),
    ],
)
def test_egress_is_tried_as_a_pods_packets_leave(
    keys: dict[str, Any], destination: str, source: str | None
) -> None:
    given = document(preflight={"egress": [destination]}, **keys)
    held = [address("10.1.0.15"), address("2001:db8::ff")] if given.ranges else []
    ((endpoint, found),) = targets.egress_sources(given, held)
    assert str(endpoint) == destination
    assert found == (source and address(source))


@pytest.mark.parametrize("masquerade", [True, False])
def test_egress_of_a_family_that_pods_do_not_have_is_not_tried(*, masquerade: bool) -> None:
    egress = {"egress": ["[2001:db8:ffff::1]:443", "203.0.113.1:443"]}
    given = document(masquerade=masquerade, preflight=egress, ranges=["10.1.0.0/28"])
    ((endpoint, _),) = targets.egress_sources(given, [address("10.1.0.15")])
    assert str(endpoint) == "203.0.113.1:443"


def test_while_ranges_are_not_known_egress_is_tried_of_both_families() -> None:
    egress = ["203.0.113.1:443", "[2001:db8:ffff::1]:443"]
    keys = {"ranges": [], "range_source": "azure", "preflight": {"egress": egress}}
    assert len(list(targets.egress_sources(document(**keys), []))) == 2


def test_one_connection_of_each_family_has_to_be_accepted() -> None:
    accepted = TcpEnding(is_accepted=True, is_answered=True)
    silent = TcpEnding(is_accepted=False, is_answered=False, fault="no answer")
    v4, v6 = (Endpoint(address(text), 443) for text in ("203.0.113.1", "2001:db8::1"))
    first, second = results.of_egress({Attempt(v4): accepted, Attempt(v6): silent})
    assert first == CheckResult("egress", "203.0.113.1:443", CheckOutcome.PASSED)
    assert (second.subject, second.outcome) == ("[2001:db8::1]:443", CheckOutcome.FAILED)


def test_what_nobody_could_measure_is_no_failure_unless_it_has_to_be() -> None:
    passed, none = (
        CheckResult("loss", "peers", outcome)
        for outcome in (CheckOutcome.PASSED, CheckOutcome.UNMEASURED)
    )
    for unmeasured, failures in ((Unmeasured.PASS, []), (Unmeasured.FAIL, [none])):
        assert PreflightReport(results=(passed, none), unmeasured=unmeasured).failures == failures


def test_the_text_begins_with_what_failed_and_fits_a_termination_message() -> None:
    passed = CheckResult("reach", "peers", CheckOutcome.PASSED)
    unknown = CheckResult("throughput", "1 Gbit/s", CheckOutcome.UNMEASURED, "nobody had time")
    failed = CheckResult("routes", "10.1.0.0/28", CheckOutcome.FAILED, "lost", "route it")
    assert PreflightReport(results=(passed,)).text() == "passed: 1 checks"
    assert (
        PreflightReport(skipped="this node runs 3 pods").text() == "skipped: this node runs 3 pods"
    )
    assert PreflightReport(results=(passed, unknown, failed)).text().splitlines() == [
        "routes of 10.1.0.0/28: lost; route it",
        "not measured: throughput of 1 Gbit/s: nobody had time",
    ]
    strict = PreflightReport(results=(unknown, failed), unmeasured=Unmeasured.FAIL)
    assert strict.text().splitlines() == [
        "routes of 10.1.0.0/28: lost; route it",
        "throughput of 1 Gbit/s: nobody had time",
    ]
    many = PreflightReport(results=(failed._replace(message="ü" * 1000),) * 20)
    assert 4090 < len(many.text().encode()) <= 4096


def plain(part: object) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", str(part))


@pytest.mark.parametrize(("unmeasured", "severity"), [("pass", "warning"), ("fail", "error")])
def test_its_table_is_doctors_with_what_passed_first(unmeasured: str, severity: str) -> None:
    reach = CheckResult("reach", "peers")
    unknown = CheckResult("throughput", "1 Gbit/s").unmeasured("nobody had time")
    loss = CheckResult("loss", "peers", message="0.0% of echoes are lost")
    failed = CheckResult("routes", "10.1.0.0/28").failed("lost", "route it")
    checks = (reach, unknown, loss, failed)
    (table,) = _tables(PreflightReport(results=checks, unmeasured=Unmeasured(unmeasured)))
    assert [line.split() for line in plain(table).splitlines()] == [
        ["CHECK", "OF", "FINDING"],
        ["ok", "reach", "peers"],
        ["ok", "loss", "peers", "0.0%", "of", "echoes", "are", "lost"],
        [severity, "throughput", "1", "Gbit/s", "nobody", "had", "time"],
        ["error", "routes", "10.1.0.0/28", "lost"],
        ["→", "route", "it"],
    ]


def test_its_table_ends_with_a_word_if_it_passed() -> None:
    *_, word = _tables(PreflightReport(results=(CheckResult("reach", "peers"),)))
    assert plain(word) == "passed"
    assert _tables(PreflightReport(skipped="it runs pods")) == ["skipped: it runs pods"]


@pytest.mark.parametrize(
    ("mtu", "carried"),
    [(101, 84), (1280, 1279), (1500, 84), (1500, 1499), (9001, 1500), (9001, 8999)],
)
def test_what_a_path_carries_is_found_to_the_byte_and_soon(mtu: int, carried: int) -> None:
    bounds, rounds = Bounds(84, mtu), 0
    while bounds.differ:
        tried = bounds.between()
        bounds = bounds.narrowed(tried, [size for size in tried if size <= carried])
        rounds += 1
    assert bounds.passes == carried
    assert rounds <= 5


def test_nameservers_are_read_as_the_c_library_reads_them() -> None:
    text = "# nameserver 9.9.9.9\nsearch a b\nnameserver 10.0.0.1\n nameserver\tfe80::1%eth0 x\n"
    assert dns.nameservers(text) == ["10.0.0.1", "fe80::1%eth0"]
    assert len(dns.nameservers("nameserver 10.0.0.1\n" * 5)) == 3
    assert dns.nameservers("nameserver\noptions x") == []


QUESTION = dns.query("a.example.", dns.A, 0x1234)


def test_a_question_is_encoded_as_rfc_1035_says() -> None:
    assert QUESTION[12:] == b"\x01a\x07example\x00\x00\x01\x00\x01"
    assert QUESTION[:12] == bytes.fromhex("123401000001000000000000")


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (answer(QUESTION), Knowledge.ADDRESS),
        (answer(QUESTION.upper()), Knowledge.ADDRESS),
        (answer(QUESTION, records=0), Knowledge.NO_ADDRESS),
        (answer(QUESTION, 3, 0), Knowledge.NO_NAME),
        (answer(QUESTION, 5, 0), Knowledge.FAILURE),
        # Not an answer, to another question, of another query, or cut off.
        (QUESTION, None),
        (answer(dns.query("b.example.", dns.A, 0x1234)), None),
        (answer(dns.query("a.example.", dns.AAAA, 0x1234)), None),
        (answer(dns.query("a.example.", dns.A, 0x1235)), None),
        (answer(QUESTION)[:20], None),
        (b"", None),
        (b"\x12\x34" + b"\xff" * 600, None),
    ],
)
def test_an_answer_says_what_its_nameserver_knows(said: bytes, found: Knowledge | None) -> None:
    assert dns.knowledge(said, QUESTION) == found


@contextmanager
def nameserver(say: Callable[[bytes], list[bytes]]) -> Iterator[str]:
    """A nameserver on a loopback address of its own; the address."""
    where = f"127.53.{CHANCE.randrange(256)}.{CHANCE.randrange(1, 255)}"

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            question, listener = self.request
            for datagram in say(question):
                listener.sendto(datagram, self.client_address)

    with socketserver.UDPServer((where, 0), Handler) as server:
        worker = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        worker.start()
        try:
            yield f"{where}:{server.server_address[1]}"
        finally:
            server.shutdown()
            worker.join()


def asked(
    monkeypatch: pytest.MonkeyPatch, say: Callable[[bytes], list[bytes]], seconds: float = 1.0
) -> Knowledge:
    with nameserver(say) as where:
        server, _, port = where.partition(":")
        monkeypatch.setattr(dns, "PORT", int(port))
        return dns.ask([server], "a.example", seconds)[server]


def test_a_nameserver_is_asked_for_both_families_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[bytes] = []

    def only_v6_and_late(question: bytes) -> list[bytes]:
        questions.append(question)
        is_v6 = question.endswith(b"\x00\x1c\x00\x01")
        return [answer(question, records=int(is_v6))] if len(questions) > 2 else []

    def is_known_in_the_end() -> bool:
        questions.clear()
        is_known = asked(monkeypatch, only_v6_and_late) is Knowledge.ADDRESS
        return is_known and len(questions) == 4

    # Whoever is stopped for the half second of a round has heard nothing in it.
    eventually(is_known_in_the_end)
    assert len({question[:2] for question in questions}) > 1


@pytest.mark.parametrize(
    ("say", "found"),
    [
        (lambda question: [answer(question, 3, 0)], Knowledge.NO_NAME),
        (lambda _: [], Knowledge.SILENCE),
        # A flood of wrong answers, with the right one behind them or without it.
        (lambda question: [b"\0" * 100] * 200 + [answer(question)], Knowledge.ADDRESS),
        (lambda question: [question] * 200, Knowledge.SILENCE),
    ],
    ids=["no-name", "silent", "late", "flood"],
)
def test_what_does_not_answer_the_question_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, say: Callable[[bytes], list[bytes]], found: Knowledge
) -> None:
    seconds = 1.0 if found is Knowledge.SILENCE else PATIENCE
    assert asked(monkeypatch, say, seconds) is found


def test_a_nameserver_that_is_no_address_is_silent() -> None:
    found = dns.ask(["nonsense", "127.53.0.1"], "a.example", 0.2)
    assert set(found.values()) == {Knowledge.SILENCE}
