"""Real scrapes over TCP of an exporter that asks a real Unix socket."""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from exporter.server import Server, Shared, serve
from exporter.settings import Settings, split_address
from netmgr import programs
from netmgr.api.client import ask, ask_report, ask_usage, read_snapshot
from netmgr.cli.exporter import exporter as command
from netmgr.errors import ConfigError, Exit, QueryFailed, RequestError, SetupError, TryAgainLater
from tests.fakes.agent_socket import agent, canned, snapshot
from tests.fakes.exporter_port import get, serving
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parent.parent.parent
NOBODY, READERS = 65534, 61234
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def port(socket_path: Path) -> Iterator[int]:
    with serving(lambda: read_snapshot(socket_path, timeout=PATIENCE)) as port:
        yield port


def samples(port: int, name: str) -> list[float]:
    _, body = get(port)
    return [
        sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name == name
    ]


USUAL_TEXT = "text/plain; version=0.0.4"


@pytest.mark.parametrize(
    "accept",
    [
        *("*/*", "text/plain;version=latest", "text/plain;version="),
        "application/openmetrics-text;version=1..0",
    ],
)
def test_a_scrape_gives_text_that_a_parser_takes_whatever_is_accepted(
    port: int, socket_path: Path, accept: str
) -> None:
    with agent(socket_path, canned(snapshot())):
        response, body = get(port, Accept=accept)
    assert (response.status, response.getheader("Content-Encoding")) == (200, None)
    assert response.getheader("Content-Type", "").startswith(USUAL_TEXT)
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert len(families["netmgr_pod_traffic_bytes"].samples) == 500
    assert families["netmgr_up"].samples[0].value == 1


def test_openmetrics_is_given_to_whoever_asks_for_it(port: int, socket_path: Path) -> None:
    with agent(socket_path, canned(snapshot())):
        response, body = get(port, Accept=f"{OPENMETRICS},text/plain;q=0.5")
    assert response.getheader("Content-Type", "").startswith("application/openmetrics-text")
    text = body.decode()
    assert text.endswith("# EOF\n")
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(text)}
    assert families["netmgr_pod_traffic_bytes"].unit == "bytes"
    assert families["netmgr_cni_request_duration_seconds"].type == "histogram"


def test_gzip_is_given_to_whoever_accepts_it(port: int, socket_path: Path) -> None:
    with agent(socket_path, canned(snapshot())):
        response, body = get(port, **{"Accept-Encoding": "gzip"})
        _, plain = get(port)
    assert response.getheader("Content-Encoding") == "gzip"
    without_durations = re.compile(rb"netmgr_exporter_scrape.*\n")
    assert without_durations.sub(b"", gzip.decompress(body)) == without_durations.sub(b"", plain)
    assert len(body) * 5 < len(plain)


def test_an_agent_that_goes_and_comes_back_is_followed_and_logged_once(
    port: int, socket_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        for _ in range(2):
            assert samples(port, "netmgr_up") == [0]
            assert samples(port, "netmgr_agent_ready") == []
        with agent(socket_path, canned(snapshot(3, 1))):
            assert samples(port, "netmgr_up") == [1]
            assert samples(port, "netmgr_agent_ready") == [1]
    assert samples(port, "netmgr_build_info") == [1]
    events = [
        record.getMessage().split()[0]
        for record in caplog.records
        if record.name == "exporter.collector"
    ]
    assert events == [*["agent-unread", "agent-read-again"] * 2, "agent-unread"]


def _without(key: str) -> dict:
    return {name: entry for name, entry in snapshot(2, 1).items() if name != key}


def _pod(**changes: object) -> dict:
    document = dict(snapshot(1, 1))
    document["pods"] = [document["pods"][0] | changes]
    return document


def _latency(buckets: list[object]) -> dict:
    return snapshot(1, 1) | {"cni_latency": [{"command": "ADD", "buckets": buckets, "sum": 1.0}]}


WHOLE = json.dumps(snapshot(2, 1)).encode()
NOTHING_OF_OURS = (b"", b"no JSON", b"[]", b"null", b"\xff\xfe", WHOLE[: len(WHOLE) // 2])
ODD = (
    *({"version": 2}, {"version": 1}, {"version": 1, "error": "not today"}),
    *(_without("pods"), _without("ready"), snapshot(1, 1) | {"pods": 7}),
    *(snapshot(1, 1) | {"backend": None}, _latency([])),
    # For these the library would fail only while it writes the page.
    *(_latency([[bound, 1], ["+Inf", 1]]) for bound in (True, None, 5, "\udcff")),
    *(_pod(pod=None), _pod(pod="\udcff"), _pod(bytes="many"), _pod(bytes=10**400)),
)


@pytest.mark.parametrize(
    "answer", [*NOTHING_OF_OURS, *(json.dumps(odd).encode() for odd in ODD)], ids=itertools.count()
)
def test_an_answer_that_makes_no_sense_is_an_agent_that_is_not_up(
    port: int, socket_path: Path, answer: bytes
) -> None:
    with agent(socket_path, lambda _question: answer):
        response, _ = get(port)
        assert response.status == 200
        assert samples(port, "netmgr_up") == [0]
        assert samples(port, "netmgr_build_info") == [1]
        assert samples(port, "netmgr_pod_traffic_bytes_total") == []


def test_health_is_the_exporter_s_and_readiness_the_agent_s(port: int, socket_path: Path) -> None:
    assert [(get(port, path)[0].status) for path in ("/healthz", "/readyz")] == [200, 503]
    assert b"netmgr agent" in get(port, "/readyz")[1]
    with agent(socket_path, canned(snapshot(1, 1))):
        assert get(port, "/readyz")[1] == b"ok\n"


def test_a_fault_of_ours_is_no_answer_to_share() -> None:
    answers = iter([RuntimeError("a fault of ours"), "why it is not ready"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    shared = Shared(ask, lasting=60)
    with pytest.raises(RuntimeError):
        shared()
    assert [shared(), shared()] == ["why it is not ready"] * 2


def test_usage_is_what_the_agent_answers_or_refuses(socket_path: Path) -> None:
    asked: list[dict[str, object]] = []

    def answer(message: bytes) -> bytes:
        asked.append(json.loads(message))
        refusal = b'{"error": "not a query: ..."}'
        return b'{"version": 1, "rows": []}' if asked[-1]["since"] else refusal

    path = "/usage?since=0&until=3600&by=hour,pod&query=snapshot"
    with serving(lambda: snapshot(1, 1), partial(ask_usage, socket_path)) as port:
        assert get(port, path)[0].status == 503
        with agent(socket_path, answer):
            response, body = get(port, path)
            assert (response.status, json.loads(body)) == (200, {"version": 1, "rows": []})
            assert get(port, "/usage")[0].status == 400
    question = {"version": 1, "query": "usage", "since": "0", "until": "3600", "by": "hour,pod"}
    assert asked[0] == question


def test_what_fails_in_the_agent_is_no_fault_of_the_reader_and_no_answer(
    socket_path: Path,
) -> None:
    def fail(question: bytes) -> bytes:
        if json.loads(question)["query"] == "problems":
            return b'{"version": 1, "problems": []}'
        return b'{"version": 1, "error": "list counters: refused", "fault": true}'

    with agent(socket_path, fail):
        for question in (partial(ask, socket_path, "usage"), partial(ask_report, socket_path)):
            with pytest.raises(QueryFailed, match="list counters") as failed:
                question()
            assert failed.value.exit_code is Exit.FAILURE
        with serving(lambda: snapshot(1, 1), partial(ask_usage, socket_path)) as port:
            assert get(port, "/usage")[0].status == 503


def test_the_first_page_and_other_paths_lead_to_what_there_is(port: int, socket_path: Path) -> None:
    response, body = get(port, "/")
    assert response.status == 200
    assert response.getheader("Content-Type") == "text/html; charset=utf-8"
    paths = re.findall(r'href="([^"]+)"', body.decode())
    assert paths == ["/metrics", "/report", "/healthz", "/readyz"]
    with agent(socket_path, canned(snapshot(1, 1))):
        assert {get(port, path)[0].status for path in paths} == {200}
    response, body = get(port, "/metric")
    assert (response.status, b"/metrics" in body) == (404, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((":9119", ("", 9119)), ("127.0.0.1:1", ("127.0.0.1", 1))),
        *(("[::1]:9119", ("::1", 9119)), ("localhost:65535", ("localhost", 65535))),
    ],
)
def test_listen_addresses_are_understood(text: str, expected: tuple[str, int]) -> None:
    assert split_address("--listen", text) == expected


@pytest.mark.parametrize(
    "text", ["", "9119", "127.0.0.1", "::1:9119", ":65536", ":http", "[::1]", ":-1", ":²"]
)
def test_listen_addresses_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        split_address("--listen", text)


def test_without_an_address_both_families_are_served(socket_path: Path) -> None:
    with Server(Settings(":0"), lambda: read_snapshot(socket_path)) as server:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, server.server_port), timeout=PATIENCE).close()


def test_an_address_that_is_taken_is_named(port: int, socket_path: Path) -> None:
    taken = f"cannot listen on 127.0.0.1:{port}: Address already in use"
    with pytest.raises(SetupError, match=taken):
        serve(socket_path, Settings(f"127.0.0.1:{port}"), lambda: None)


def test_the_command_has_the_settings_of_the_process() -> None:
    options = command.__kwdefaults__.keys() - {"socket", "log_level", "log_format"}
    assert options == {field.name for field in fields(Settings)}


def test_a_reader_waits_no_longer_than_it_was_told(socket_path: Path) -> None:
    held = threading.Event()

    def mute(_question: bytes) -> bytes:
        held.wait(PATIENCE)
        return b""

    with agent(socket_path, mute):
        with pytest.raises(TryAgainLater, match=r"within 0\.1 s"):
            ask(socket_path, "snapshot", timeout=0.1)
        held.set()


def test_a_reader_hands_over_its_arguments_and_the_agent_s_refusal(socket_path: Path) -> None:
    asked: list[bytes] = []

    def refuse(question: bytes) -> bytes:
        asked.append(question)
        return b'{"version": 1, "error": "999.0.0.1 is not an IP address"}'

    with agent(socket_path, refuse), pytest.raises(RequestError, match="999"):
        ask(socket_path, "explain", address="999.0.0.1")
    assert json.loads(asked[0]) == {"version": 1, "query": "explain", "address": "999.0.0.1"}


# Loads everything while the files can surely be read, then gives all privileges up.
UNPRIVILEGED = f"""
import os, sys
from exporter.__main__ import main
os.setgroups([int(group) for group in sys.argv[1].split()])
os.setgid({NOBODY})
os.setuid({NOBODY})
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("groups", "up"), [(str(READERS), 1), ("", 0)], ids=["in the readers' group", "in no group"]
)
def test_nobody_can_run_it_and_needs_the_group_alone(
    socket_path: Path, started, groups: str, up: int
) -> None:
    with agent(socket_path, canned(snapshot(2, 1))):
        socket_path.chmod(0o660)
        os.chown(socket_path, 0, READERS)
        process, port = started("-c", UNPRIVILEGED, groups)
        assert f"Uid:\t{NOBODY}\t{NOBODY}" in Path(f"/proc/{process.pid}/status").read_text()
        eventually(lambda: samples(port, "netmgr_up") == [up])
        if not up:
            assert b"reader_group" in get(port, "/readyz")[1]


@pytest.mark.programs
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_command_stops_cleanly_when_told_to(started, ending: signal.Signals) -> None:
    main = "from netmgr.cli.main import main; main()"
    process, port = started("-c", main, "exporter", "--log-level", "info")
    assert samples(port, "netmgr_up") == [0]
    process.send_signal(ending)
    assert process.wait(PATIENCE) == 0


@pytest.mark.slow
@pytest.mark.programs
def test_the_process_stays_within_its_memory(socket_path: Path, started) -> None:
    """With a full node, and 1,750 pods that ended lately."""
    document = snapshot(2000)
    for total in document["pods"][500:]:
        total["live"] = False
    with agent(socket_path, canned(document)):
        process, port = started("-m", "netmgr", "exporter")
        for _ in range(25):
            get(port)
            get(port, "/")
        status = Path(f"/proc/{process.pid}/status").read_text()
    bare = "import prometheus_client; print(open('/proc/self/status').read())"
    libraries = programs.run([sys.executable, "-c", bare]).stdout.decode()
    # 33 MiB in all with Python 3.11, of which its libraries are 22; with 3.14 it is 36, and 25.
    assert most_resident(status) - most_resident(libraries) < 13 * 1024


def most_resident(status: str) -> int:
    """The most memory a process ever had, in kB."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


@pytest.mark.programs
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--listen", "nowhere"], "--listen"),
        (["--listen", "203.0.113.1:9119"], "--listen"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "x"], "--tls-cert needs --tls-key"),
    ],
)
def test_a_mistake_ends_in_a_sentence_not_in_a_traceback(arguments: list[str], shown: str) -> None:
    command = [sys.executable, "-m", "netmgr", "exporter", *arguments]
    outcome = programs.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=PATIENCE)
    assert outcome.returncode in (1, 2)
    *_, last = outcome.stderr.decode().splitlines()
    assert last.startswith("netmgr: ")
    assert shown in last
    assert b"Traceback" not in outcome.stderr
