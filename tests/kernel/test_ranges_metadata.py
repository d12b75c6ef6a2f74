"""Asking the instance metadata service at its own address: what is said, and what is made of every
bad answer.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.errors import RangesUnknown
from netmgr.prefixes import Prefix
from netmgr.ranges.azure import ENDPOINT, read
from netmgr.ranges.metadata import MAX_BYTES, MAX_RETRY_AFTER
from tests.fakes.metadata import MetadataServer, document, give_address, http
from tests.lab import named_netns, wiring
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

GOOD = document(["10.0.0.4", "10.0.0.5", "10.0.0.16/28"])
POOL = (Prefix.parse("10.0.0.5"), Prefix.parse("10.0.0.16/28"))
GIVEN_UP_SECONDS = 0.5


@pytest.fixture(scope="module")
def machine() -> Iterator[Path]:
    path = Path(f"/run/netmgr-lab/metadata-{os.getpid()}")
    named_netns.create(path)
    try:
        subprocess.run(["nsenter", f"--net={path}", "ip", "link", "set", "lo", "up"], check=True)
        yield path
    finally:
        named_netns.delete(path)


@pytest.fixture
def server(machine: Path) -> Iterator[MetadataServer]:
    with MetadataServer(machine) as made:
        yield made


def ask(machine: Path, seconds: float = PATIENCE) -> tuple[Prefix, ...]:
    with wiring.inside(machine):
        return read(replace(ENDPOINT, seconds=seconds))


def refusal(machine: Path, seconds: float = PATIENCE) -> RangesUnknown:
    with pytest.raises(RangesUnknown) as raised:
        ask(machine, seconds)
    return raised.value


def test_the_request_is_the_documented_one_whatever_proxies_the_environment_names(
    machine: Path, server: MetadataServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    server.answer = http(GOOD)
    assert ask(machine) == POOL
    ((_, text),) = server.requests
    first, *headers = text.splitlines()
    assert first == "GET /metadata/instance/network?api-version=2021-02-01 HTTP/1.1"
    assert {"Host: 169.254.169.254", "Metadata: true"} <= set(headers)
    assert "x-forwarded-for" not in text.lower()


def test_an_answer_may_come_in_chunks_or_end_with_the_connection(
    machine: Path, server: MetadataServer
):
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        len(GOOD),
        GOOD,
    )
    for answer in (chunked, b"HTTP/1.0 200 OK\r\n\r\n" + GOOD):
        server.answer = answer
        assert ask(machine) == POOL


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "no whole HTTP answer"),
        (b"\x16\x03\x01garbage", "no whole HTTP answer"),
        (http(GOOD)[:-1], "no whole HTTP answer: IncompleteRead"),
        (http(GOOD, Content_Length=str(len(GOOD) + 1)), "no whole HTTP answer: IncompleteRead"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + GOOD[:-9], "not JSON"),
        (http(b"<html/>"), "not JSON"),
        (
            http(GOOD, "301 Moved", Location="http://203.0.113.9/"),
            "redirects to http://203.0.113.9/, which is not",
        ),
        (http(GOOD, "500 Broken"), r"answers \(500 Broken\)"),
        (http(b"", "404 Not Found"), r"answers \(404 Not Found\)"),
        (http(b" " * (MAX_BYTES + 1) + GOOD), "more than 512 KiB"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n" + GOOD, "no whole HTTP answer"),
    ],
    ids=range(11),
)
def test_a_bad_answer_is_told_for_what_it_is(
    machine: Path, server: MetadataServer, answer: bytes | None, reason: str
):
    server.answer = answer
    assert re.search(reason, refusal(machine).message)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ({}, 0),
        ({"Retry_After": "17"}, 17),
        ({"Retry_After": "9" * 50}, MAX_RETRY_AFTER),
        ({"Retry_After": "soon"}, 0),
    ],
    ids=["none", "seconds", "an age", "nonsense"],
)
def test_throttling_says_how_long_to_stay_away(
    machine: Path, server: MetadataServer, header: dict[str, str], seconds: float
):
    server.answer = http(b"{}", "429 Too Many Requests", **header)
    error = refusal(machine)
    assert "asks to be asked less often (429" in error.message
    assert error.retry_after == seconds


@pytest.mark.parametrize("dribbles", [False, True], ids=["silent", "a byte now and then"])
def test_a_server_that_takes_its_time_is_given_up(
    machine: Path,
    server: MetadataServer,
    dribbles: bool,  # noqa: FBT001  pytest's way
):
    server.answer, server.dribbles, server.pause = http(GOOD), dribbles, 0 if dribbles else 30
    began = time.monotonic()
    assert "no whole answer within 0.5 s" in refusal(machine, GIVEN_UP_SECONDS).message
    assert time.monotonic() - began < PATIENCE


def test_nobody_at_the_address_is_told_at_once(machine: Path):
    give_address(machine)
    assert "refused" in refusal(machine).message.lower()


def test_no_way_to_the_address_is_told_at_once():
    path = Path(f"/run/netmgr-lab/island-{os.getpid()}")
    named_netns.create(path)
    try:
        assert "unreachable" in refusal(path).message.lower()
    finally:
        named_netns.delete(path)
