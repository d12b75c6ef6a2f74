"""Every result of a preflight in full: what was found, as people read it, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netmgr.documents.preflight import Endpoint
from netmgr.prefixes import Address, Family, Prefix
from netmgr.preflight import results
from netmgr.preflight.dns import Knowledge
from netmgr.preflight.results import Answers, Outcome, PathMtu, Result
from netmgr.preflight.targets import Group, Kind
from netmgr.preflight.tcp import Ending
from netmgr.preflight.throughput import Throughput

A, B, OTHER = map(Address.parse, ("10.0.0.1", "10.0.0.2", "10.0.0.3"))
PEERS = Group(Kind.PEERS, Family.V4, (A, B))
BLOCK, SOURCE = Prefix.parse("10.1.0.0/28"), Address.parse("10.1.0.15")
FIRST, SECOND = Endpoint(A, 9119), Endpoint(B, 9119)
OUTSIDE, BEYOND = (Endpoint(Address.parse(f"203.0.113.{number}"), 443) for number in (1, 2))
ACCEPTED = Ending(is_accepted=True, is_answered=True)
REFUSED = Ending(is_accepted=False, is_answered=True, fault="connection refused")
PASSED, FAILED, UNMEASURED = Outcome.PASSED, Outcome.FAILED, Outcome.UNMEASURED
NO_NAME, SILENCE = Knowledge.NO_NAME, Knowledge.SILENCE
NAME = "registry.example.com"
WAY_OUT = "see to the way to the internet (NAT gateway, routes, firewall)"
INTERFACE = (
    "see to this node's interface (`ethtool`, its speed and errors) and to its instance type"
)

CASES: list[tuple[Callable[[], Result], Result]] = [
    (
        lambda: results.of_reach(PEERS, Answers({A}, {B}), 9119),
        Result("reach", "peers (10.0.0.1, 10.0.0.2)", PASSED),
    ),
    (
        lambda: results.of_reach(PEERS, Answers({OTHER}, {OTHER}), 9119),
        Result(
            "reach",
            "peers (10.0.0.1, 10.0.0.2)",
            FAILED,
            "none of them answers, neither to echoes nor at TCP port 9119",
            "see to this node's addresses, routes and security groups, and whether they run",
        ),
    ),
    (
        lambda: results.of_range(BLOCK, SOURCE, PEERS, {A}),
        Result("routes", "10.1.0.0/28 by peers", PASSED),
    ),
    (
        lambda: results.of_range(BLOCK, SOURCE, PEERS, {OTHER}),
        Result(
            "routes",
            "10.1.0.0/28 by peers",
            FAILED,
            "answers of peers (10.0.0.1, 10.0.0.2) come to this node's own address, and not to "
            "10.1.0.15",
            "have the network deliver 10.1.0.0/28 to this node: a route, or IP configurations of "
            "its interface; and let it send with these sources",
        ),
    ),
    # The path to one of them suffices.
    *(
        (
            lambda first=first: results.of_mtu(PEERS, 1500, {A: first, B: PathMtu(1500)}),
            Result("mtu", "1500 bytes to peers (10.0.0.1, 10.0.0.2)", PASSED),
        )
        for first in (PathMtu(1500), PathMtu(1300), PathMtu(1500, 1396))
    ),
    (
        lambda: results.of_mtu(PEERS, 1500, {A: PathMtu(1499), B: PathMtu(1300)}),
        Result(
            "mtu",
            "1500 bytes to peers (10.0.0.1, 10.0.0.2)",
            FAILED,
            "packets of up to 1499 bytes are answered, larger ones are lost",
            "raise the MTU on the way to 1500, or set mtu: 1499 in node.yaml",
        ),
    ),
    (
        lambda: results.of_mtu(PEERS, 1500, {A: PathMtu(1499), B: PathMtu(1500, 1396)}),
        Result(
            "mtu",
            "1500 bytes to peers (10.0.0.1, 10.0.0.2)",
            FAILED,
            "such packets arrive, and their answers come back in fragments of 1396",
            "raise the MTU on the way to 1500, or set mtu: 1396 in node.yaml",
        ),
    ),
    (
        lambda: results.of_mtu(PEERS, 1500, {OTHER: PathMtu(1500)}),
        Result(
            "mtu",
            "1500 bytes to peers (10.0.0.1, 10.0.0.2)",
            UNMEASURED,
            "none of them answers echoes",
        ),
    ),
    (
        lambda: results.of_loss(PEERS, 0.02, {A: 0.5, B: 0.02}),
        Result("loss", "peers (10.0.0.1, 10.0.0.2)", PASSED, "2.0% of echoes are lost"),
    ),
    (
        lambda: results.of_loss(PEERS, 0.02, {A: 0.5, B: 0.03}),
        Result(
            "loss",
            "peers (10.0.0.1, 10.0.0.2)",
            FAILED,
            "3.0% of echoes are lost, and at most 2.0% may be",
            "`ip -s -s link` shows whether this node's interface drops them; else see to the "
            "network",
        ),
    ),
    (
        lambda: results.of_loss(PEERS, 0.02, {OTHER: 0.0}),
        Result("loss", "peers (10.0.0.1, 10.0.0.2)", UNMEASURED, "none of them answers echoes"),
    ),
    (
        lambda: results.of_egress({(OUTSIDE, None): REFUSED, (BEYOND, None): ACCEPTED})[0],
        Result("egress", "203.0.113.1:443, 203.0.113.2:443", PASSED),
    ),
    (
        lambda: results.of_egress({(OUTSIDE, None): REFUSED})[0],
        Result(
            "egress",
            "203.0.113.1:443",
            FAILED,
            "no connection from this node's own address: connection refused",
            WAY_OUT,
        ),
    ),
    (
        lambda: results.of_egress({(OUTSIDE, SOURCE): REFUSED})[0],
        Result(
            "egress",
            "203.0.113.1:443",
            FAILED,
            "no connection from 10.1.0.15: connection refused",
            f"{WAY_OUT}, which has to translate pods' addresses",
        ),
    ),
    (
        lambda: results.of_dns(
            NAME, {"10.0.0.53": Knowledge.ADDRESS, "10.0.1.53": Knowledge.NO_NAME}
        ),
        Result("dns", NAME, PASSED),
    ),
    (
        lambda: results.of_dns(
            NAME, {"10.0.0.53": Knowledge.ADDRESS, "10.0.1.53": Knowledge.SILENCE}
        ),
        Result("dns", NAME, PASSED, "10.0.0.53 knows an address, 10.0.1.53 does not answer"),
    ),
    (
        lambda: results.of_dns(NAME, {"10.0.0.53": NO_NAME}),
        Result(
            "dns",
            NAME,
            FAILED,
            "10.0.0.53 says that there is no such name",
            "see to the nameservers of /etc/resolv.conf and the way to them",
        ),
    ),
    (
        lambda: results.of_dns(NAME, {}),
        Result(
            "dns", NAME, FAILED, "/etc/resolv.conf names no nameserver", "see to /etc/resolv.conf"
        ),
    ),
    (
        lambda: results.of_throughput(
            10**9, Throughput({FIRST: 1e8, SECOND: 1e9}, {FIRST: "busy"})
        ),
        Result(
            "throughput",
            "1 Gbit/s from peers",
            PASSED,
            "100 Mbit/s from 10.0.0.1:9119, 1 Gbit/s from 10.0.0.2:9119",
        ),
    ),
    (
        lambda: results.of_throughput(10**9, Throughput({FIRST: 999e6})),
        Result(
            "throughput", "1 Gbit/s from peers", FAILED, "999 Mbit/s from 10.0.0.1:9119", INTERFACE
        ),
    ),
    (
        lambda: results.of_throughput(10**9, Throughput({}, {FIRST: "its exporter was busy"})),
        Result(
            "throughput", "1 Gbit/s from peers", UNMEASURED, "10.0.0.1:9119: its exporter was busy"
        ),
    ),
    (
        lambda: results.of_throughput(10**9, Throughput()),
        Result("throughput", "1 Gbit/s from peers", UNMEASURED, "there is no other peer"),
    ),
]


@pytest.mark.parametrize(
    ("found", "expected"), CASES, ids=[f"{each.check}-{each.outcome}" for _, each in CASES]
)
def test_a_result_says_what_was_found_and_what_to_do(
    found: Callable[[], Result], expected: Result
) -> None:
    assert found() == expected


@pytest.mark.parametrize(
    ("bits", "shown"),
    [
        (0, "0 bit/s"),
        (999, "999 bit/s"),
        (1e3, "1 kbit/s"),
        (1e6, "1 Mbit/s"),
        (999.96e6, "1000 Mbit/s"),
        (1e9, "1 Gbit/s"),
        (12.34e9, "12.34 Gbit/s"),
    ],
)
def test_rates_are_shown_as_network_engineers_say_them(bits: float, shown: str) -> None:
    assert results.rate(bits) == shown
