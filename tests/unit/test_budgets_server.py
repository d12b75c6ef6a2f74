"""The server of budgets over real TLS: who is answered, who leads, and what is refused."""

from __future__ import annotations

import dataclasses
import gc
import json
import socket
import ssl
import threading
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from exporter.reporting import ServerConnection
from netmgr.budgets import messages, server
from netmgr.budgets.keeping import BudgetsInForce, Keeper, ServerState
from netmgr.budgets.messages import BudgetReport, BudgetUse
from tests.fakes import budgets_server
from tests.fakes.authority import Authority
from tests.fakes.budgets_server import NESTED
from tests.waiting import PATIENCE, eventually

NODES = {"node-1": 100, "node-2": 100}
REFUSED = "(?i)alert|closed|reset|broken pipe|eof"
BOOT = "0d4f0d2e-0000-0000-0000-000000000000"


@dataclasses.dataclass
class Memory:
    """Where a leader keeps what the next one has to know; like a ConfigMap, it has versions."""

    text: str = ""
    version: int = 0


class Conflict(Exception):
    pass


class Stored:
    def __init__(self, memory: Memory) -> None:
        self._memory, self._version = memory, -1

    def read(self) -> ServerState | None:
        self._version = self._memory.version
        return messages.decode(self._memory.text, ServerState) if self._memory.text else None

    def write(self, state: ServerState) -> None:
        if self._version != self._memory.version:
            raise Conflict
        self._memory.text = messages.encode(state).decode()
        self._memory.version += 1
        self._version = self._memory.version


class Running:
    """A server with mutual TLS, and those who ask it."""

    def __init__(self, authority: Authority, memory: Memory) -> None:
        self.authority = authority
        self.own = authority.certify(messages.SERVER_NAME)
        self.server = budgets_server.start(self.own, NODES)
        self.lost = threading.Event()
        self.keeper = Keeper(self.server, Stored(memory), self.lost)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.server.port

    def lead(self) -> None:
        self.keeper.look(NESTED, NODES)
        eventually(lambda: self.server.leading is not None)
        eventually(lambda: self.server.ceilings)
        self.keeper.look(NESTED, NODES)

    def client(self, *names: str) -> Client:
        return Client(self.address, self.authority.client(self.authority.certify(*names)))


class Client:
    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        self.connection = ServerConnection(address, context)
        self.connection.timeout = PATIENCE

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
        self.connection.request(method, path, body)
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())

    def report(self, **changed: Any) -> tuple[int, dict[str, Any]]:
        return self.ask("POST", messages.PATH, messages.encode(report(**changed)))


def report(**changed: Any) -> BudgetReport:
    use = BudgetUse(held=10**6, rate=10**6, waiting=3, free=0, day=0, bytes=0, allowance=0)
    uses = {"everyone": use, "some": use}
    own = BudgetReport(epoch=0, boot=BOOT, sequence=1, version="", uses=uses)
    return dataclasses.replace(own, **changed)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def start(tmp_path: Path, memory: Memory) -> Iterator[Callable[[], Running]]:
    """Starts servers that lead, when told so, until the test ends."""
    authority, made = Authority(tmp_path), list[Running]()

    def start_one() -> Running:
        made.append(Running(authority, memory))
        return made[-1]

    yield start_one
    for each in made:
        each.lost.set()


@pytest.fixture
def running(start: Callable[[], Running]) -> Running:
    made = start()
    made.lead()
    return made


def test_each_node_is_answered_over_a_kept_connection(running: Running) -> None:
    for name in NODES:
        client = running.client(name, "and.another.example.com")
        status, first = client.report()
        assert status == HTTPStatus.OK
        answer = messages.decode(json.dumps(first).encode(), messages.BudgetAnswer)
        assert (answer.sequence, answer.version, answer.enforce) == (1, "v1", True)
        assert answer.budgets == NESTED.budgets
        assert answer.grants.keys() == {"everyone", "some"}
        local = client.connection.sock.getsockname()
        status, second = client.report(sequence=2, version="v1", epoch=answer.epoch)
        assert (status, second["budgets"]) == (HTTPStatus.OK, None)
        assert client.connection.sock.getsockname() == local
    leading = running.server.leading
    assert leading
    assert leading.allocator.shares("some").keys() == NODES.keys()
    assert running.server.counted == {"answered": 4}


def test_a_report_that_is_repeated_or_of_a_former_boot_is_refused(running: Running) -> None:
    client = running.client("node-1")
    assert client.report(sequence=5)[0] == HTTPStatus.OK
    for sequence in (5, 4):
        assert client.report(sequence=sequence)[0] == HTTPStatus.CONFLICT
    assert client.report(boot="another", sequence=1)[0] == HTTPStatus.OK
    assert client.report(sequence=5)[0] == HTTPStatus.CONFLICT
    assert client.report(sequence=6)[0] == HTTPStatus.OK
    # Another node is none the worse for it, whose numbers are its own.
    assert running.client("node-2").report(sequence=1)[0] == HTTPStatus.OK
    assert running.server.counted["old-sequence"] == 3


def test_a_certificate_of_no_node_is_refused_and_none_at_all_gets_no_connection(
    running: Running, tmp_path: Path
) -> None:
    status, answer = running.client("node-3").report()
    assert status == HTTPStatus.UNAUTHORIZED
    assert "names 0 nodes" in answer["error"]
    assert running.server.counted == {"node": 1}
    with pytest.raises(OSError, match=REFUSED):
        Client(running.address, running.authority.client()).report()
    folder = tmp_path / "foreign"
    folder.mkdir()
    foreign = Authority(folder).certify("node-1")
    with pytest.raises(OSError, match=REFUSED):
        Client(running.address, running.authority.client(foreign)).report()


BAD: Mapping[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "nested": b"[" * 100_000,
    "a list": b"[]",
    "a key too few": b'{"epoch": 1}',
    "a negative rate": messages.encode(report()).replace(b'"held":1000000', b'"held":-1', 1),
    "a text for a number": messages.encode(report()).replace(b'"epoch":0', b'"epoch":"0"'),
    "an endless number": messages.encode(report()).replace(b'"epoch":0', b'"epoch":1e400'),
    "too many bytes": b" " * (messages.LONGEST + 1),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_report_is_refused_with_a_reason_and_the_connection_goes_on(
    running: Running, name: str
) -> None:
    client = running.client("node-1")
    status, answer = client.ask("POST", messages.PATH, BAD[name])
    assert status == HTTPStatus.BAD_REQUEST
    assert answer["error"]
    assert client.report()[0] == HTTPStatus.OK
    assert running.server.counted == {"malformed": 1, "answered": 1}


def test_a_body_without_end_is_not_read(running: Running) -> None:
    client = running.client("node-1")
    client.connection.putrequest("POST", messages.PATH)
    client.connection.putheader("Content-Length", str(1 << 40))
    client.connection.endheaders()

    def send() -> None:
        for _ in range(10_000):
            client.connection.send(b" " * 65536)

    with pytest.raises(OSError, match=REFUSED):
        send()
    assert running.client("node-2").report()[0] == HTTPStatus.OK


def test_other_paths_say_what_there_is(running: Running) -> None:
    for method, path in (("GET", "/"), ("GET", messages.PATH), ("POST", messages.SHOWN)):
        status, answer = running.client("node-1").ask(method, path)
        assert status == HTTPStatus.NOT_FOUND
        assert messages.PATH in answer["error"]


def test_whoever_does_not_report_is_hung_up_on(
    start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FIRST_SECONDS", 0.5)
    running = start()
    running.lead()
    node = running.client("node-1")
    assert node.report()[0] == HTTPStatus.OK
    silent = socket.create_connection(running.address)
    silent.settimeout(PATIENCE)
    stranger = running.client("node-3")
    assert stranger.report()[0] == HTTPStatus.UNAUTHORIZED
    stranger.connection.sock.settimeout(PATIENCE)
    assert silent.recv(1) == stranger.connection.sock.recv(1) == b""
    assert node.report(sequence=2)[0] == HTTPStatus.OK


def test_a_follower_names_the_leader_and_shows_nothing(start: Callable[[], Running]) -> None:
    follower = start()
    follower.server.leader = lambda: "192.0.2.1:9122"
    for method, path in (("POST", messages.PATH), ("GET", messages.SHOWN)):
        status, answer = follower.client("node-1").ask(method, path)
        assert status == HTTPStatus.MISDIRECTED_REQUEST
        assert answer["leader"] == "192.0.2.1:9122"


def test_a_leader_that_lost_its_lease_answers_no_more_and_the_next_has_a_greater_epoch(
    start: Callable[[], Running],
) -> None:
    first, second = start(), start()
    first.lead()
    client = first.client("node-1")
    before = client.report()[1]["epoch"]
    first.lost.set()
    assert client.report(sequence=2)[0] == HTTPStatus.MISDIRECTED_REQUEST
    second.lead()
    status, answer = second.client("node-1").report(sequence=3, epoch=before)
    assert status == HTTPStatus.OK
    assert answer["epoch"] > before


def test_a_leader_that_does_not_know_of_its_replacement_lends_no_more_bytes(
    start: Callable[[], Running], memory: Memory
) -> None:
    first, second = start(), start()
    first.lead()
    second.lead()
    kept = memory.text
    # What it would have to keep has changed.
    first.server.ceilings = {"some": {1: 1}}
    with pytest.raises(Conflict):
        first.keeper.look(NESTED, NODES)
    assert memory.text == kept
    assert first.client("node-1").report()[0] == HTTPStatus.MISDIRECTED_REQUEST


def test_a_deleted_state_makes_no_former_epoch(
    start: Callable[[], Running], memory: Memory
) -> None:
    first = start()
    first.lead()
    before = messages.decode(memory.text, ServerState).epoch
    first.lost.set()
    memory.text = ""
    second = start()
    second.lead()
    assert messages.decode(memory.text, ServerState).epoch >= before


def test_a_changed_document_reaches_nodes_with_their_next_report(running: Running) -> None:
    client = running.client("node-1")
    assert client.report()[0] == HTTPStatus.OK
    less = BudgetsInForce(NESTED.budgets[:1], "v2", enforce=False)
    running.keeper.look(less, NODES)
    _, answer = client.report(sequence=2, version="v1")
    assert (answer["version"], answer["enforce"]) == ("v2", False)
    assert [budget["name"] for budget in answer["budgets"]] == ["everyone"]


def test_a_renewed_certificate_is_shown_from_the_next_connection_on(running: Running) -> None:
    def serial() -> int:
        client = running.client("node-1")
        client.connection.connect()
        return client.connection.sock.getpeercert()["serialNumber"]

    before = serial()
    assert serial() == before
    running.authority.certify(messages.SERVER_NAME, folder=running.own.name)
    assert serial() != before


def test_a_connection_takes_no_buffer_of_asyncios_size(running: Running) -> None:
    client = running.client("node-1")
    assert client.report()[0] == HTTPStatus.OK
    protocols = [each for each in gc.get_objects() if isinstance(each, SSLProtocol)]
    assert protocols
    assert all(len(each._ssl_buffer) <= 16 * 1024 for each in protocols)
