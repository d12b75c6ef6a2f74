"""Readers that say nothing, dribble, or take nothing harm only themselves."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from cni.wire import encode_request, only_looks
from netmgr.api.server import READER_SECONDS, UnixServer
from netmgr.documents.node import Backend
from tests.kernel.conftest import one_of
from tests.lab.nodes import LabNode
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

SOON = 1.0
STOPPED_SECONDS = 3.0
LONG_ANSWER = b"x" * (4 << 20)
WORKERS = 4


WORLD = {"nodes": 1, "exporters": False}


backend = one_of([Backend.NFTABLES])


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    connection.connect(str(path))
    return connection


@contextmanager
def dribbling(path: Path) -> Iterator[None]:
    """A reader whose query never ends: a byte every 0.2 s."""
    ended = threading.Event()

    def dribble(connection: socket.socket) -> None:
        with suppress(OSError):
            while not ended.wait(0.2):
                connection.sendall(b" ")

    with connected(path) as connection:
        thread = threading.Thread(target=dribble, args=(connection,))
        thread.start()
        yield
        ended.set()
        thread.join()


@pytest.mark.alone
def test_idle_readers_keep_the_agent_neither_from_answering_nor_from_stopping(
    node: LabNode,
) -> None:
    ledger = node.ledger_socket
    with connected(ledger), dribbling(ledger), connected(node.run_dir / "cni.sock"):
        time.sleep(0.5)
        begin = time.monotonic()
        assert node.ask("snapshot")["node"] == "node-1"
        assert time.monotonic() - begin < SOON
        begin = time.monotonic()
        node.stop_agent()
        assert time.monotonic() - begin < STOPPED_SECONDS
    node.start_until_ready()


@pytest.mark.alone
def test_a_crowd_of_idle_readers_keeps_nobody_waiting(node: LabNode) -> None:
    with ExitStack() as crowd:
        for _ in range(300):
            crowd.enter_context(connected(node.ledger_socket))
        begin = time.monotonic()
        assert node.ask("snapshot")["node"] == "node-1"
        assert time.monotonic() - begin < READER_SECONDS
        assert not node.runtime.status()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UnixServer]:
    """Answers a reader's `long` with 4 MiB, `slow` after a while, and else with what was asked."""

    def answer(request: bytes) -> bytes:
        if request == b"slow\n":
            time.sleep(0.5)
        return LONG_ANSWER if request == b"long\n" else request

    made = UnixServer(tmp_path / "s", answer, line=True, workers=WORKERS)
    made.start()
    yield made
    with suppress(OSError):
        made.stop()


def asked(path: Path, question: bytes, *, ends: bool = False) -> socket.socket:
    connection = connected(path)
    connection.sendall(question)
    if ends:
        connection.shutdown(socket.SHUT_WR)
    return connection


def received(connection: socket.socket) -> bytes:
    with connection:
        answer = b""
        with suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                answer += part
        return answer


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.usefixtures("server")
def test_a_deadline_is_for_the_whole_line(tmp_path: Path) -> None:
    begin = time.monotonic()
    connection = connected(tmp_path / "s")
    with suppress(OSError):
        while time.monotonic() - begin < READER_SECONDS + SOON:
            connection.sendall(b".")
            time.sleep(0.05)
    assert READER_SECONDS - 0.1 < time.monotonic() - begin < READER_SECONDS + SOON / 2
    connection.close()


@pytest.mark.alone
@pytest.mark.usefixtures("server")
def test_readers_who_take_nothing_keep_nobody_waiting(tmp_path: Path) -> None:
    with ExitStack() as crowd:
        for _ in range(2 * WORKERS):
            crowd.enter_context(asked(tmp_path / "s", b"long\n"))
        time.sleep(0.2)
        begin = time.monotonic()
        assert received(asked(tmp_path / "s", b"hello\n")) == b"hello\n"
        assert time.monotonic() - begin < READER_SECONDS


@pytest.mark.alone
def test_what_was_asked_is_answered_when_the_server_stops(
    server: UnixServer, tmp_path: Path
) -> None:
    idle = [connected(tmp_path / "s") for _ in range(WORKERS - 1)]
    crowd = [asked(tmp_path / "s", b"slow\n") for _ in range(WORKERS)]
    time.sleep(0.2)
    begin = time.monotonic()
    server.stop()
    assert time.monotonic() - begin < STOPPED_SECONDS
    assert [received(connection) for connection in crowd] == [b"slow\n"] * len(crowd)
    assert [received(connection) for connection in idle] == [b""] * len(idle)


def test_whoever_only_looks_does_not_wait_behind_hundreds_that_change(tmp_path: Path) -> None:
    done = threading.Event()

    def answer(request: bytes) -> bytes:
        assert only_looks(request) or done.wait(PATIENCE)
        return b"0\n"

    server = UnixServer(tmp_path / "s", answer, workers=WORKERS, is_quick=only_looks)
    server.start()
    add, status = (encode_request({"CNI_COMMAND": verb}, b"{}") for verb in ("ADD", "STATUS"))
    try:
        crowd = [asked(tmp_path / "s", add, ends=True) for _ in range(100)]
        assert received(asked(tmp_path / "s", status, ends=True)) == b"0\n"
        done.set()
        assert {received(connection) for connection in crowd} == {b"0\n"}
    finally:
        done.set()
        server.stop()


def test_files_that_others_make_while_sockets_are_made_have_their_own_modes(tmp_path: Path) -> None:
    ended = threading.Event()
    modes: set[int] = set()

    def make_folders() -> None:
        while not ended.is_set():
            folder = tmp_path / "folder"
            folder.mkdir(mode=0o700)
            modes.add(folder.stat().st_mode & 0o777)
            folder.rmdir()

    thread = threading.Thread(target=make_folders)
    thread.start()
    try:
        for number, mode in enumerate((0o600, 0o660) * 200):
            server = UnixServer(tmp_path / str(number), lambda question: question, mode=mode)
            assert server.path.stat().st_mode & 0o777 == mode
            server.socket.close()
    finally:
        ended.set()
        thread.join()
    assert modes == {0o700}
