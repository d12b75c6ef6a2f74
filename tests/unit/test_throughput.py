"""The exporter's stream and whoever measures by it: one at a time, bounded on both sides."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from random import Random

import pytest

import exporter.connections
import exporter.server
import exporter.throughput
from exporter.throughput import Stream
from netmgr.api.throughput import PATH
from netmgr.documents.preflight import Endpoint
from netmgr.prefixes import Address
from netmgr.preflight import throughput
from netmgr.preflight.throughput import LEAST_BYTES, MOST_MEASURED, measure
from tests.fakes.agent_socket import snapshot
from tests.fakes.exporter_port import get, serving
from tests.waiting import PATIENCE, eventually

LOOPBACK = Address.parse("127.0.0.1")
REQUEST = f"GET {PATH} HTTP/1.0\r\n\r\n".encode()
CHANCE = Random(1)  # noqa: S311  no secret
OK = b"HTTP/1.0 200 OK\r\n\r\n"


def peer(port: int) -> Endpoint:
    return Endpoint(LOOPBACK, port)


def measured(port: int, floor: float = 1.0, patience: float = 0.0) -> throughput.Throughput:
    return measure([peer(port)], floor, patience, CHANCE)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that end by their bytes alone, however long either end is stopped meanwhile."""
    monkeypatch.setattr(exporter.throughput, "STREAM_BYTES", 4 * LEAST_BYTES)
    for owner, names in (
        (exporter.throughput, ("STREAM_SECONDS", "TAKING_SECONDS")),
        (throughput, ("_CONNECT_SECONDS", "_MOST_SECONDS")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, PATIENCE)


def test_without_the_option_there_is_no_stream():
    with serving(snapshot) as port:
        assert get(port, PATH)[0].status == 404
        found = measured(port)
    assert found.rates == {}
    assert "answers 404; it needs --throughput-test" in found.faults[peer(port)]


@pytest.mark.usefixtures("patient")
def test_a_stream_ends_by_itself_and_its_rate_is_measured():
    with serving(snapshot, throughput_test=True) as port:
        assert len(get(port, PATH)[1]) == 4 * LEAST_BYTES
        began = time.monotonic()
        # The exporter may still be busy with the stream before.
        found = measured(port, patience=PATIENCE)
    assert found.rates[peer(port)] >= 8 * 4 * LEAST_BYTES / (time.monotonic() - began)
    assert found.faults == {}


def test_a_stream_without_end_of_bytes_ends_by_time(monkeypatch):
    monkeypatch.setattr(exporter.throughput, "STREAM_BYTES", 1 << 60)
    monkeypatch.setattr(exporter.throughput, "STREAM_SECONDS", 0.2)
    with serving(snapshot, throughput_test=True) as port:
        began = time.monotonic()
        get(port, PATH)
    assert time.monotonic() - began < PATIENCE


def test_whoever_takes_nothing_is_hung_up_on_and_the_next_one_is_served(monkeypatch, caplog):
    monkeypatch.setattr(exporter.throughput, "STREAM_SECONDS", 3600)
    caplog.set_level(logging.DEBUG, "exporter.throughput")
    with serving(snapshot, throughput_test=True) as port, ExitStack() as stack:

        def is_refused_beside_a_silent_one() -> bool:
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            silent.sendall(REQUEST)
            silent.recv(1)
            answer = get(port, PATH)[0]
            return answer.status == 503 and answer.getheader("Retry-After") == "2"

        # On a busy machine it may be hung up on before anybody else has asked.
        eventually(is_refused_beside_a_silent_one)
        # Another bound of the exporter ends the connection, too, but later.
        eventually(lambda: "error=timed out" in caplog.text)
        monkeypatch.setattr(exporter.throughput, "STREAM_SECONDS", 0.02)
        eventually(lambda: get(port, PATH)[0].status == 200)


PEERS, NODES = 3, 100


class Counted(Stream):
    """Notes how many streams there are at a time, in all exporters together; the first of each
    waits for those of the others.
    """

    lock = threading.Lock()
    first = threading.Barrier(PEERS)
    now = most = served = 0

    def __call__(self, environ, start_response):
        def begin(status: str, headers: list[tuple[str, str]]) -> Callable[[bytes], object]:
            if status.startswith("200"):
                with Counted.lock:
                    Counted.now += 1
                    Counted.served += 1
                    Counted.most = max(Counted.most, Counted.now)
                    is_first = Counted.served <= PEERS
                environ["counted"] = True
                if is_first:
                    Counted.first.wait(PATIENCE)
            return start_response(status, headers)

        try:
            return super().__call__(environ, begin)
        finally:
            if "counted" in environ:
                with Counted.lock:
                    Counted.now -= 1


@pytest.mark.usefixtures("patient")
def test_a_hundred_nodes_at_once_measure_as_many_at_a_time_as_there_are_peers(monkeypatch):
    monkeypatch.setattr(exporter.server, "Stream", Counted)
    monkeypatch.setattr(exporter.throughput, "STREAM_BYTES", LEAST_BYTES)
    monkeypatch.setattr(exporter.connections, "MOST_CONNECTIONS", NODES)
    monkeypatch.setattr(throughput, "RETRY_SECONDS", 0.1)
    with ExitStack() as stack:
        ports = [stack.enter_context(serving(snapshot, throughput_test=True)) for _ in range(PEERS)]
        pool = stack.enter_context(ThreadPoolExecutor(NODES))
        ready = threading.Barrier(NODES)

        def start(seed: int) -> throughput.Throughput:
            ready.wait()
            # Every other node asks each peer once, and then does without.
            patience = PATIENCE * (seed % 2)
            return measure(map(peer, ports), 1.0, patience, Random(seed))  # noqa: S311  no secret

        found = list(pool.map(start, range(NODES)))
    assert Counted.most == PEERS
    have, lack = [each for each in found if each.rates], [each for each in found if not each.rates]
    assert len(have) == Counted.served
    assert all(each.rates for each in found[1::2])
    assert all(set(each.faults) == set(map(peer, ports)) for each in lack)


@contextmanager
def answering(*pieces: bytes, apart: float = 0.0, times: int = 1) -> Iterator[int]:
    """A peer that sends these pieces over and over, whatever it is asked, and hangs up."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            with client:
                client.recv(1000)
                try:
                    for piece in pieces[:1] + pieces[1:] * times:
                        client.sendall(piece)
                        if ended.wait(apart):
                            return
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        worker = threading.Thread(target=serve)
        worker.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            worker.join()


@pytest.mark.parametrize(
    ("pieces", "fault"),
    [
        ((b"SSH-2.0-OpenSSH\r\n\r\n",), "does not answer as one"),
        ((b"HTTP/1.0 401 Unauthorized\r\n\r\n",), "answers 401; it needs --throughput-test"),
        ((b"HTTP/1.0 2000 OK\r\n\r\n",), "does not answer as one"),
        ((OK + b"too little",), "its stream ended after 10 bytes"),
        ((b"x" * (1 << 20),), "does not answer as one"),
        ((), "does not answer as one"),
    ],
    ids=["ssh", "secret", "status", "short", "endless-head", "nothing"],
)
def test_what_is_no_stream_is_not_measured(pieces, fault):
    with answering(*pieces) as port:
        found = measured(port)
    assert found.rates == {}
    assert fault in found.faults[peer(port)]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_CONNECT_SECONDS", PATIENCE)
    monkeypatch.setattr(throughput, "_MOST_SECONDS", 0.5)


def rate_in_time(port: int, **options: float) -> float:
    """The rate of a peer that never ends; 0 of one that this process, stopped, has not heard."""
    began = time.monotonic()
    found = measured(port, **options)
    assert time.monotonic() - began < PATIENCE
    return found.rates.get(peer(port), 0)


@pytest.mark.usefixtures("hasty")
def test_a_peer_that_drips_is_slow_and_takes_no_longer_than_a_stream():
    with answering(OK, b"x" * 100, apart=0.05, times=1000) as port:
        eventually(lambda: 0 < rate_in_time(port, floor=1e9) < 1e6)


@pytest.mark.usefixtures("hasty")
def test_a_peer_that_drips_a_head_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(throughput, "_CONNECT_SECONDS", 0.3)
    with answering(b"H", apart=0.05, times=1000) as port:
        began = time.monotonic()
        found = measured(port)
        assert time.monotonic() - began < PATIENCE
    assert found.rates == {}


@pytest.mark.usefixtures("hasty")
def test_a_peer_that_sends_without_end_is_heard_for_a_while():
    with answering(OK, b"x" * (1 << 20), times=1_000_000) as port:
        eventually(lambda: rate_in_time(port) > 1e6)


@pytest.mark.usefixtures("patient")
def test_a_slow_peer_is_no_slow_node_as_long_as_another_one_is_fast(monkeypatch):
    monkeypatch.setattr(throughput, "LEAST_BYTES", 1)
    slow = answering(OK, b"x" * 100, apart=0.1, times=5)
    with serving(snapshot, throughput_test=True) as fast, slow as port:
        for _ in range(4):
            # The exporter may still be busy with the stream before.
            found = measure([peer(port), peer(fast)], 1e6, PATIENCE, CHANCE)
            assert found.rates[peer(fast)] > 1e6


@pytest.mark.usefixtures("hasty")
def test_after_a_few_slow_peers_no_other_one_is_asked():
    with ExitStack() as stack:
        slow = [
            stack.enter_context(answering(OK, b"x" * 100, apart=0.1, times=1000))
            for _ in range(MOST_MEASURED + 1)
        ]
        eventually(lambda: len(measure(map(peer, slow), 1e9, 0, CHANCE).rates) == MOST_MEASURED)


def test_a_peer_that_is_not_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "is not reached: Connection refused" in measured(port).faults[peer(port)]
