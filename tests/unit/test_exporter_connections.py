"""What a client may take of the exporter before it has shown a secret: connections, bytes and time
are bounded.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import LineTooLong
from pathlib import Path

import pytest

from exporter import connections, server
from exporter.connections import HEAD_BYTES, HEAD_SECONDS, MOST_CONNECTIONS
from tests.fakes.agent_socket import agent, canned, snapshot
from tests.fakes.exporter_port import get, serving
from tests.waiting import PATIENCE, eventually

FIELD = b"X-Filler: " + b"x" * 8000 + b"\r\n"
SILENT = 3 * MOST_CONNECTIONS


@contextmanager
def connected(
    port: int, number: int, sent: bytes = b"GET /metrics HTTP/1.1\r\n"
) -> Iterator[list[socket.socket]]:
    """So many clients that send this and no more: by default, a request that never ends."""
    with ExitStack() as stack:
        made = []
        for _ in range(number):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            )
            client.sendall(sent)
            made.append(client)
        yield made


def is_open(client: socket.socket) -> bool:
    client.settimeout(0.01)
    try:
        return client.recv(1, socket.MSG_PEEK) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def handlers() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.fixture
def port() -> Iterator[int]:
    with serving(snapshot) as made:
        yield made


def test_silent_clients_do_not_lock_others_out(port: int) -> None:
    with connected(port, SILENT) as silent:
        for _ in range(5):
            assert get(port)[0].status == 200
        assert sum(map(is_open, silent)) <= MOST_CONNECTIONS
        # Those that made room end a moment later.
        eventually(lambda: handlers() <= MOST_CONNECTIONS + 1)


def test_clients_of_a_slow_history_keep_neither_prometheus_away_nor_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So that each client makes room for the next one at once.
    monkeypatch.setattr(connections, "TAKING_SECONDS", 0.0)
    monkeypatch.setattr(server, "TURN_SECONDS", 0.1)
    summed_up = threading.Event()

    def usage(_: object) -> object:
        assert summed_up.wait(PATIENCE)
        return {}

    with (
        serving(snapshot, usage) as port,
        connected(port, 2 * MOST_CONNECTIONS, b"GET /usage HTTP/1.1\r\n\r\n"),
    ):
        try:
            assert get(port)[0].status == 200
            eventually(lambda: handlers() == 1, "all but the one whose turn it is end")
            assert get(port, "/usage")[0].status == 503
        finally:
            summed_up.set()
        assert get(port, "/usage")[0].status == 200


def test_a_request_that_trickles_in_is_ended(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    with monkeypatch.context() as patched, connected(port, 1) as (client,):
        patched.setattr(connections, "HEAD_SECONDS", 1.0)
        while is_open(client):
            with suppress(OSError):
                client.sendall(b"X")
            time.sleep(0.05)
    assert time.monotonic() - began > 1


@pytest.mark.parametrize(
    ("head", "code"),
    [
        pytest.param(b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\n\r\n", b"431", id="path"),
        pytest.param(b"GET / HTTP/1.1\r\n" + 3 * FIELD + b"\r\n", b"431", id="fields"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES, b"431", id="without an end"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n" + FIELD + b"\r\n", b"200", id="usual"),
    ],
)
def test_a_head_that_is_too_long_is_refused(port: int, head: bytes, code: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(head)
        assert client.makefile("rb").readline().split()[1] == code


def test_a_client_that_goes_within_its_head_costs_no_page() -> None:
    asked: list[object] = []

    def read():
        asked.append(None)
        return snapshot()

    with serving(read) as port:
        for ended in (b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nAccept: text"):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
                client.sendall(ended)
                client.shutdown(socket.SHUT_WR)
                assert client.recv(1) == b""
        assert asked == []
        get(port)
    assert len(asked) == 1


def test_a_fault_of_ours_is_answered_and_told_with_its_kind_as_cause(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def read():
        raise OSError("no room")

    with serving(read) as port:
        assert get(port)[0].status == 500
    (told,) = (each for each in caplog.records if each.levelno >= logging.INFO)
    assert told.getMessage() == "request-failed client=127.0.0.1"
    assert told.exc_info is not None
    assert vars(told)["caused_by"] == "OSError"
    assert capfd.readouterr().err == ""


def test_answers_are_shared_by_those_who_ask_at_the_same_time() -> None:
    """One question to the agent at a time, and no answer that is older than its question."""
    under_way, most, asked = 0, 0, 0

    def read():
        nonlocal under_way, most, asked
        under_way, asked = under_way + 1, asked + 1
        most = max(most, under_way)
        if asked == 1:
            eventually(lambda: handlers() >= 12, "they did not all come")
        time.sleep(0.1)
        under_way -= 1
        return snapshot(pods=asked)

    with serving(read) as port:
        with ThreadPoolExecutor(12) as clients:
            bodies = [body for _, body in clients.map(get, [port] * 12)]
        # Nor are any two mixed.
        assert all(body.count(b"\nnetmgr_up 1.0\n") == 1 for body in bodies)
        before = asked
        get(port)
    assert most == 1
    assert before < 12
    assert asked == before + 1


@pytest.mark.programs
def test_a_flood_of_probes_costs_the_agent_one_question_a_second_and_no_snapshot(
    socket_path: Path, started: Callable[..., tuple[object, int]]
) -> None:
    queries: list[bytes] = []

    def answer(message: bytes) -> bytes:
        queries.append(message)
        return b'{"version": 1}'

    with agent(socket_path, answer):
        _, port = started("-m", "exporter")
        began = time.monotonic()
        for _ in range(200):
            # On a busy machine the agent may not answer in time.
            eventually(lambda: get(port, "/readyz")[0].status == 200)
        seconds = time.monotonic() - began
    assert all(b'"health"' in query for query in queries)
    assert len(queries) <= 1 + seconds


@pytest.mark.programs
def test_readiness_is_refused_with_what_the_agent_says_of_its_files(
    socket_path: Path, started: Callable[..., tuple[object, int]]
) -> None:
    answer = {"version": 1, "files": "/var/lib/netmgr: cannot be made or written"}
    with agent(socket_path, canned(answer)):
        _, port = started("-m", "exporter")
        told = b"files: /var/lib/netmgr: cannot be made or written\n"
        eventually(lambda: get(port, "/readyz")[1] == told)
        assert get(port, "/readyz")[0].status == 503


class Ports:
    """Connections by a clock that a test sets, and which of them are open."""

    def __init__(self, stack: ExitStack) -> None:
        self.now = 0.0
        self.counted = connections.OpenConnections(lambda: self.now)
        self._stack = stack
        self._far: dict[object, socket.socket] = {}

    def admit(self, *clients: object) -> bool:
        """Whether all of them are let in."""
        admitted = []
        for client in clients:
            near, self._far[client] = map(self._stack.enter_context, socket.socketpair())
            admitted.append(self.counted.admit(client, near))
        return all(admitted)

    def fill(self) -> None:
        """With slow readers alone."""
        self.admit(*range(MOST_CONNECTIONS))
        for client in range(MOST_CONNECTIONS):
            self.counted.complete(client)

    def are_open(self, *clients: object) -> list[bool]:
        return [is_open(self._far[client]) for client in clients]


@pytest.fixture
def ports() -> Iterator[Ports]:
    with ExitStack() as stack:
        yield Ports(stack)


def test_a_client_has_its_time_for_the_head_and_more_for_the_answer(ports: Ports) -> None:
    ports.admit("silent", "complete")
    for client in ("complete", "never seen"):
        ports.counted.complete(client)
    for now, are_open in (
        (HEAD_SECONDS, [True, True]),
        (HEAD_SECONDS + 0.1, [False, True]),
        (connections.ANSWER_SECONDS, [False, True]),
        (connections.ANSWER_SECONDS + 0.1, [False, False]),
    ):
        ports.now = now
        ports.counted.expire()
        assert ports.are_open("silent", "complete") == are_open


def test_the_oldest_makes_room_and_silent_ones_before_slow_readers(ports: Ports) -> None:
    # Keys of any kind: of two that came at one instant, keys are not compared.
    slow, *rest = "slow", 1, b"two"
    assert ports.admit(slow)
    ports.counted.complete(slow)
    ports.now = 1.0
    assert ports.admit(*rest)
    ports.now = connections.TAKING_SECONDS
    assert ports.admit(*(("c", number) for number in range(MOST_CONNECTIONS - 3)))
    assert ports.admit("new")
    assert ports.are_open(slow, *rest) == [True, False, True]
    for client in (*rest, "new", *(("c", number) for number in range(MOST_CONNECTIONS - 3))):
        ports.counted.complete(client)
    # It has had just its time.
    assert not ports.admit("too early")
    ports.now += 0.1
    assert ports.admit("later")
    assert ports.are_open(slow, b"two") == [False, True]


def test_who_leaves_makes_room_and_may_leave_again(ports: Ports) -> None:
    ports.fill()
    assert not ports.admit("one more")
    ports.counted.leave(3)
    ports.counted.leave(3)
    assert ports.admit("one more")


@pytest.mark.parametrize("is_known", [True, False])
def test_a_connection_that_tls_took_over_is_ended_by_its_new_socket(
    ports: Ports, *, is_known: bool
) -> None:
    near, far = socket.socketpair()
    with near, far:
        ports.counted.admit("client", near)
        # As ssl does it: the descriptor has another owner before the connections know of it.
        with socket.socket(fileno=near.detach()) as taken_over:
            if is_known:
                ports.counted.secured("client", taken_over)
                ports.now = HEAD_SECONDS + 1
                ports.counted.expire()
            else:
                assert ports.admit(*range(MOST_CONNECTIONS))
                ports.counted.secured("client", taken_over)
            assert not is_open(far)


def test_each_that_is_turned_away_or_makes_room_is_told_with_the_crowd_as_cause(
    ports: Ports, caplog: pytest.LogCaptureFixture
) -> None:
    ports.fill()
    assert not caplog.records
    assert not ports.admit("one more")
    ports.now = connections.TAKING_SECONDS + 1
    assert ports.admit("late"), "one that takes nothing of its answer makes room by now"
    lines = [(each.getMessage(), vars(each)["caused_by"]) for each in caplog.records]
    assert lines == [(f"connections-turned-away most={MOST_CONNECTIONS}", "clients")] * 2


def test_a_head_ends_with_its_last_byte_and_the_rest_is_the_files() -> None:
    file = io.BytesIO(b"x" * (HEAD_BYTES - 1) + b"\n" + b"yy")
    head = connections.Head(file)
    assert len(head.readline()) == HEAD_BYTES
    assert not head.closed
    with pytest.raises(LineTooLong, match="reading head of the request"):
        head.readline()
    # No more than a byte is read of what is too long.
    assert file.tell() == HEAD_BYTES + 1


def test_a_stream_that_ends_within_the_head_is_a_client_that_went_away() -> None:
    words = "^the client went away before its request was complete$"
    with pytest.raises(ConnectionResetError, match=words):
        connections.Head(io.BytesIO()).readline()
