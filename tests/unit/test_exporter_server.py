"""Real scrapes over TCP of an exporter that asks a real Unix socket."""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from exporter.server import Server, Shared, serve
from exporter.settings import DEFAULT_LISTEN, DEFAULT_MAX_SERIES, Settings, parse_listen
from netmgr import programs
from netmgr.api.client import DEFAULT_SOCKET, ask, read_snapshot
from netmgr.cli import asking
from netmgr.cli.exporter import exporter as command
from netmgr.errors import ConfigError, RequestError, SetupError, TryAgainLater
from tests.fakes.agent_socket import agent, canned, snapshot
from tests.fakes.exporter_port import get, serving

ROOT = Path(__file__).parent.parent.parent
NOBODY, READERS = 65534, 61234
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def port(socket_path: Path) -> Iterator[int]:
    with serving(lambda: read_snapshot(socket_path)) as port:
        yield port


def value(port: int, name: str) -> float | None:
    """The metric's only sample, None without one."""
    _, body = get(port)
    families = text_string_to_metric_families(body.decode())
    values = [
        sample.value for family in families for sample in family.samples if sample.name == name
    ]
    return values[0] if values else None


def test_a_scrape_gives_text_that_a_parser_takes(port: int, socket_path: Path) -> None:
    with agent(socket_path, canned(snapshot())):
        response, body = get(port)
    assert (response.status, response.getheader("Content-Encoding")) == (200, None)
    assert response.getheader("Content-Type", "").startswith("text/plain; version=0.0.4")
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


def test_an_agent_that_goes_and_comes_back_is_followed(port: int, socket_path: Path) -> None:
    assert value(port, "netmgr_up") == 0
    for _ in range(2):
        with agent(socket_path, canned(snapshot(3, 1))):
            assert value(port, "netmgr_up") == 1
            assert value(port, "netmgr_agent_ready") == 1
        assert value(port, "netmgr_up") == 0
        assert value(port, "netmgr_agent_ready") is None
    assert value(port, "netmgr_build_info") == 1


def test_a_fault_is_logged_once_not_at_every_scrape(port: int, socket_path: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        get(port)
    with agent(socket_path, canned(snapshot(1, 1))):
        get(port)
    messages = [
        record.getMessage() for record in caplog.records if record.name == "exporter.collector"
    ]
    assert [message.split()[0] for message in messages] == ["agent-unread", "agent-read-again"]


def _without(key: str) -> dict:
    return {name: entry for name, entry in snapshot(2, 1).items() if name != key}


def _pod(**changes: object) -> dict:
    document = dict(snapshot(1, 1))
    document["pods"] = [document["pods"][0] | changes]
    return document


WHOLE = json.dumps(snapshot(2, 1)).encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no JSON",
        b"[]",
        b"null",
        b"\xff\xfe",
        WHOLE[: len(WHOLE) // 2],
        json.dumps({"version": 2}).encode(),
        json.dumps({"version": 1}).encode(),
        json.dumps({"version": 1, "error": "not today"}).encode(),
        json.dumps(_without("pods")).encode(),
        json.dumps(_without("ready")).encode(),
        json.dumps(snapshot(1, 1) | {"pods": 7}).encode(),
        json.dumps(snapshot(1, 1) | {"backend": None}).encode(),
        json.dumps(
            snapshot(1, 1) | {"cni_latency": [{"command": "ADD", "buckets": [], "sum": 1}]}
        ).encode(),
        json.dumps(_pod(pod=None)).encode(),
        json.dumps(_pod(pod="\udcff")).encode(),
        json.dumps(_pod(bytes="many")).encode(),
        json.dumps(_pod(bytes=10**400)).encode(),
    ],
    ids=range(18),
)
def test_an_answer_that_makes_no_sense_is_an_agent_that_is_not_up(
    port: int, socket_path: Path, answer: bytes
) -> None:
    with agent(socket_path, lambda _question: answer):
        response, _ = get(port)
        assert response.status == 200
        assert value(port, "netmgr_up") == 0
        assert value(port, "netmgr_build_info") == 1
        assert value(port, "netmgr_pod_traffic_bytes_total") is None


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


def test_the_first_page_leads_to_the_others(port: int, socket_path: Path) -> None:
    response, body = get(port, "/")
    assert response.status == 200
    assert response.getheader("Content-Type") == "text/html; charset=utf-8"
    paths = re.findall(r'href="([^"]+)"', body.decode())
    assert paths == ["/metrics", "/report", "/healthz", "/readyz"]
    with agent(socket_path, canned(snapshot(1, 1))):
        assert {get(port, path)[0].status for path in paths} == {200}


def test_other_paths_are_told_what_there_is(port: int) -> None:
    response, body = get(port, "/metric")
    assert response.status == 404
    assert b"/metrics" in body


def test_scrapes_at_the_same_time_do_not_mix(port: int, socket_path: Path) -> None:
    bodies: list[bytes] = []
    with agent(socket_path, canned(snapshot())):
        threads = [threading.Thread(target=lambda: bodies.append(get(port)[1])) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {
        len(re.findall(rb"^netmgr_pod_traffic_bytes_total", body, re.MULTILINE)) for body in bodies
    } == {500}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":9119", ("", 9119)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:9119", ("::1", 9119)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_listen_addresses_are_understood(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize(
    "text", ["", "9119", "127.0.0.1", "::1:9119", ":65536", ":http", "[::1]", ":-1", ":²"]
)
def test_listen_addresses_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        parse_listen(text)


def test_without_an_address_both_families_are_served(socket_path: Path) -> None:
    with Server(Settings(":0"), lambda: read_snapshot(socket_path)) as server:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, server.server_port), timeout=2).close()


def test_an_address_that_is_taken_is_named(port: int, socket_path: Path) -> None:
    with pytest.raises(
        SetupError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"
    ):
        serve(socket_path, Settings(f"127.0.0.1:{port}"), lambda: None)


def test_the_command_s_defaults_are_the_process_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "NODE_DOCUMENT", tmp_path / "none.yaml")
    assert asking.find(command.__kwdefaults__["socket"]).path == DEFAULT_SOCKET
    assert command.__kwdefaults__["listen"] == DEFAULT_LISTEN
    assert command.__kwdefaults__["max_series"] == DEFAULT_MAX_SERIES
    assert command.__kwdefaults__.keys() - {"socket", "log_level", "log_format"} == {
        field.name for field in fields(Settings)
    }


def test_a_reader_waits_no_longer_than_it_was_told(socket_path: Path) -> None:
    held = threading.Event()

    def mute(_question: bytes) -> bytes:
        held.wait(5)
        return b""

    began = time.monotonic()
    with agent(socket_path, mute):
        with pytest.raises(TryAgainLater, match=r"within 0\.1 s"):
            ask(socket_path, "snapshot", timeout=0.1)
        assert time.monotonic() - began < 2
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
        arguments = ("--socket", str(socket_path), "--listen", "127.0.0.1:0")
        process, port = started("-c", UNPRIVILEGED, groups, *arguments)
        assert f"Uid:\t{NOBODY}\t{NOBODY}" in Path(f"/proc/{process.pid}/status").read_text()
        assert value(port, "netmgr_up") == up
        if not up:
            assert b"reader_group" in get(port, "/readyz")[1]


@pytest.mark.programs
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_command_stops_cleanly_when_told_to(
    socket_path: Path, started, ending: signal.Signals
) -> None:
    main = "from netmgr.cli.main import main; main()"
    process, port = started(
        "-c",
        main,
        "exporter",
        "--socket",
        str(socket_path),
        "--listen",
        "127.0.0.1:0",
        "--log-level",
        "info",
    )
    assert value(port, "netmgr_up") == 0
    process.send_signal(ending)
    assert process.wait(10) == 0


@pytest.mark.programs
@pytest.mark.parametrize(
    "pods", [250, 2000], ids=["a full node", "and 1,750 pods that ended lately"]
)
def test_the_process_stays_within_its_memory(socket_path: Path, started, pods: int) -> None:
    document = snapshot(pods)
    for total in document["pods"][500:]:
        total["live"] = False
    with agent(socket_path, canned(document)):
        process, port = started(
            "-m", "netmgr", "exporter", "--socket", str(socket_path), "--listen", "127.0.0.1:0"
        )
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
@pytest.mark.parametrize("arguments", [["--listen", "nowhere"], ["--listen", "203.0.113.1:9119"]])
def test_a_mistake_ends_in_a_sentence_not_in_a_traceback(arguments: list[str]) -> None:
    outcome = programs.run(
        [sys.executable, "-m", "exporter", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=20,
    )
    assert outcome.returncode in (1, 2)
    last = outcome.stderr.decode().splitlines()[-1]
    assert last.startswith("netmgr: ")
    assert "--listen" in last
    assert b"Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain;version=latest",
        "application/openmetrics-text;version=1..0",
        "text/plain;version=",
    ],
)
def test_an_accept_header_that_makes_no_sense_gets_the_usual_text(
    port: int, socket_path: Path, accept: str
) -> None:
    with agent(socket_path, canned(snapshot())):
        response, _ = get(port, Accept=accept)
    assert response.status == 200
    assert response.getheader("Content-Type", "").startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize("bound", [True, None, 5, "\udcff"])
def test_a_bucket_whose_bound_is_no_text_leaves_a_page_that_says_so(
    port: int, socket_path: Path, bound: object
) -> None:
    """The library would fail only while it writes the page."""
    odd = [{"command": "ADD", "buckets": [[bound, 1], ["+Inf", 1]], "sum": 1.0}]
    with agent(socket_path, canned(snapshot() | {"cni_latency": odd})):
        assert value(port, "netmgr_up") == 0
