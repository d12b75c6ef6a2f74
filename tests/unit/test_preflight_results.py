"""Every result of a preflight in full: what was found, as people read it, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from netmgr.documents.preflight import Endpoint
from netmgr.prefixes import Address, Family, Prefix
from netmgr.preflight import results
from netmgr.preflight.dns import Knowledge
from netmgr.preflight.results import Answers, CheckOutcome, CheckResult, PathMtu
from netmgr.preflight.targets import Group, GroupKind
from netmgr.preflight.tcp import Attempt, TcpEnding
from netmgr.preflight.throughput import Throughput

A, B, OTHER = map(Address.parse, ("10.0.0.1", "10.0.0.2", "10.0.0.3"))
PEERS = Group(GroupKind.PEERS, Family.V4, (A, B))
BLOCK, SOURCE = Prefix.parse("10.1.0.0/28"), Address.parse("10.1.0.15")
FIRST, SECOND = Endpoint(A, 9119), Endpoint(B, 9119)
OUTSIDE, BEYOND = (Endpoint(Address.parse(f"203.0.113.{number}"), 443) for number in (1, 2))
ACCEPTED = TcpEnding(is_accepted=True, is_answered=True)
REFUSED = TcpEnding(is_accepted=False, is_answered=True, fault="connection refused")
PASSED, FAILED, UNMEASURED = CheckOutcome.PASSED, CheckOutcome.FAILED, CheckOutcome.UNMEASURED
ADDRESS, NO_NAME, SILENCE = Knowledge.ADDRESS, Knowledge.NO_NAME, Knowledge.SILENCE
NAME = "registry.example.com"
WAY_OUT = "see to the way to the internet (NAT gateway, routes, firewall)"
NETWORK = "see to this node's addresses, routes and security groups, and whether they run"
DELIVERY = (
    "have the network deliver 10.1.0.0/28 to this node: a route, or IP configurations of its "
    "interface; and let it send with these sources"
)
INTERFACE = (
    "see to this node's interface (`ethtool`, its speed and errors) and to its instance type"
)
DROPS = "`ip -s -s link` shows whether this node's interface drops them; else see to the network"
FULL = PathMtu(1500)
BOTH, ROUTE = "peers (10.0.0.1, 10.0.0.2)", "10.1.0.0/28 by peers"
MTU, RATE = f"1500 bytes to {BOTH}", "1 Gbit/s from peers"
NO_ECHO = "none of them answers echoes"
NO_ANSWER = "none of them answers, neither to echoes nor at TCP port 9119"


def of_egress(attempts: dict[Attempt, TcpEnding]) -> CheckResult:
    (result,) = results.of_egress(attempts)
    return result


# Function, arguments, result.
CASES: list[tuple[Callable[..., CheckResult], tuple[Any, ...], CheckResult]] = [
    (results.of_reach, (PEERS, Answers({A}, {B}), 9119), CheckResult("reach", BOTH, PASSED)),
    (
        *(results.of_reach, (PEERS, Answers({OTHER}, {OTHER}), 9119)),
        CheckResult("reach", BOTH, FAILED, NO_ANSWER, NETWORK),
    ),
    (results.of_range, (BLOCK, SOURCE, PEERS, {A}), CheckResult("routes", ROUTE, PASSED)),
    (
        *(results.of_range, (BLOCK, SOURCE, PEERS, {OTHER})),
        CheckResult(
            *("routes", ROUTE, FAILED),
            f"answers of {BOTH} come to this node's own address, and not to 10.1.0.15",
            DELIVERY,
        ),
    ),
    # The path to one of them suffices.
    *(
        (results.of_mtu, (PEERS, 1500, {A: first, B: FULL}), CheckResult("mtu", MTU, PASSED))
        for first in (FULL, PathMtu(1300), PathMtu(1500, 1396))
    ),
    (
        *(results.of_mtu, (PEERS, 1500, {A: PathMtu(1499), B: PathMtu(1300)})),
        CheckResult(
            *("mtu", MTU, FAILED),
            "packets of up to 1499 bytes are answered, larger ones are lost",
            "raise the MTU on the way to 1500, or set mtu: 1499 in node.yaml",
        ),
    ),
    (
        *(results.of_mtu, (PEERS, 1500, {A: PathMtu(1499), B: PathMtu(1500, 1396)})),
        CheckResult(
            *("mtu", MTU, FAILED),
            "such packets arrive, and their answers come back in fragments of 1396",
            "raise the MTU on the way to 1500, or set mtu: 1396 in node.yaml",
        ),
    ),
    (results.of_mtu, (PEERS, 1500, {OTHER: FULL}), CheckResult("mtu", MTU, UNMEASURED, NO_ECHO)),
    (
        *(results.of_loss, (PEERS, 0.02, {A: 0.5, B: 0.02})),
        CheckResult("loss", BOTH, PASSED, "2.0% of echoes are lost"),
    ),
    (
        *(results.of_loss, (PEERS, 0.02, {A: 0.5, B: 0.03})),
        CheckResult(
            "loss", BOTH, FAILED, "3.0% of echoes are lost, and at most 2.0% may be", DROPS
        ),
    ),
    (results.of_loss, (PEERS, 0.02, {OTHER: 0.0}), CheckResult("loss", BOTH, UNMEASURED, NO_ECHO)),
    (
        *(of_egress, ({Attempt(OUTSIDE, None): REFUSED, Attempt(BEYOND, None): ACCEPTED},)),
        CheckResult("egress", "203.0.113.1:443, 203.0.113.2:443", PASSED),
    ),
    (
        *(of_egress, ({Attempt(OUTSIDE, None): REFUSED},)),
        CheckResult(
            *("egress", "203.0.113.1:443", FAILED),
            "no connection from this node's own address: connection refused",
            WAY_OUT,
        ),
    ),
    (
        *(of_egress, ({Attempt(OUTSIDE, SOURCE): REFUSED},)),
        CheckResult(
            *("egress", "203.0.113.1:443", FAILED),
            "no connection from 10.1.0.15: connection refused",
            f"{WAY_OUT}, which has to translate pods' addresses",
        ),
    ),
    (
        *(results.of_dns, (NAME, {"10.0.0.53": ADDRESS, "10.0.1.53": NO_NAME})),
        CheckResult("dns", NAME, PASSED),
    ),
    (
        *(results.of_dns, (NAME, {"10.0.0.53": ADDRESS, "10.0.1.53": SILENCE})),
        CheckResult("dns", NAME, PASSED, "10.0.0.53 knows an address, 10.0.1.53 does not answer"),
    ),
    (
        *(results.of_dns, (NAME, {"10.0.0.53": NO_NAME})),
        CheckResult(
            *("dns", NAME, FAILED),
            "10.0.0.53 says that there is no such name",
            "see to the nameservers of /etc/resolv.conf and the way to them",
        ),
    ),
    (
        *(results.of_dns, (NAME, {})),
        CheckResult(
            *("dns", NAME, FAILED),
            "/etc/resolv.conf names no nameserver",
            "see to /etc/resolv.conf",
        ),
    ),
    (
        *(results.of_throughput, (10**9, Throughput({FIRST: 1e8, SECOND: 1e9}, {FIRST: "busy"}))),
        CheckResult(
            *("throughput", RATE, PASSED),
            "100 Mbit/s from 10.0.0.1:9119, 1 Gbit/s from 10.0.0.2:9119",
        ),
    ),
    (
        *(results.of_throughput, (10**9, Throughput({FIRST: 999e6}))),
        CheckResult("throughput", RATE, FAILED, "999 Mbit/s from 10.0.0.1:9119", INTERFACE),
    ),
    (
        *(results.of_throughput, (10**9, Throughput({}, {FIRST: "its exporter was busy"}))),
        CheckResult("throughput", RATE, UNMEASURED, "10.0.0.1:9119: its exporter was busy"),
    ),
    (
        *(results.of_throughput, (10**9, Throughput())),
        CheckResult("throughput", RATE, UNMEASURED, "there is no other peer"),
    ),
]


@pytest.mark.parametrize(
    ("of", "arguments", "expected"),
    CASES,
    ids=[f"{result.check}-{result.outcome}" for *_, result in CASES],
)
def test_a_result_says_what_was_found_and_what_to_do(
    of: Callable[..., CheckResult], arguments: tuple[Any, ...], expected: CheckResult
) -> None:
    assert of(*arguments) == expected


@pytest.mark.parametrize(
    ("bits", "shown"),
    [
        *((0, "0 bit/s"), (999, "999 bit/s"), (1e3, "1 kbit/s"), (1e6, "1 Mbit/s")),
        *((999.96e6, "1000 Mbit/s"), (1e9, "1 Gbit/s"), (12.34e9, "12.34 Gbit/s")),
    ],
)
def test_rates_are_shown_as_network_engineers_say_them(bits: float, shown: str) -> None:
    assert results.rate(bits) == shown
