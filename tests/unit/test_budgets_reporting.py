"""The exporter's reports: to a real server, for an agent behind a socket, kept as a file."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exporter.reporting import BudgetsClient, Reporter
from exporter.settings import Settings
from netmgr.api.client import ask
from netmgr.budgets import held, messages
from netmgr.budgets.held import HeldGrants
from netmgr.budgets.server import BudgetServer
from netmgr.errors import ConfigError, NetmgrError, RequestError
from tests.fakes import budgets_server
from tests.fakes.agent_socket import agent, canned
from tests.fakes.authority import Authority
from tests.fakes.budgets_server import SAID
from tests.waiting import eventually

BOOT = "boot-1"
USE = {"held": 0, "rate": 0, "waiting": 0, "free": 0, "day": 0, "bytes": 0, "allowance": 0}
STATE: dict[str, Any] = {"version": 1, "boot": BOOT, "uses": {"all": USE}}


class World:
    """Servers, and a node with an exporter's reporter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.own = self.authority.certify(messages.SERVER_NAME)
        self.credentials = folder / "credentials"
        self.credentials.mkdir()
        (self.credentials / "ca.crt").write_bytes(self.authority.file.read_bytes())
        self.file, self.token = folder / "budgets.json", self.credentials / "token"
        self.token.write_text("node-1\n")
        self.now = 1000.0
        self.asked: list[float] = []
        self.lost = threading.Event()

    def server(self, *, leads: bool = True, folder: Path | None = None) -> BudgetServer:
        made = budgets_server.start(folder or self.own)
        if leads:
            budgets_server.lead(made, self.lost)
        return made

    def reporter(
        self, server: BudgetServer, state: Callable[[], dict[str, Any]] = lambda: STATE
    ) -> Reporter:
        def ask_agent() -> dict[str, Any]:
            self.asked.append(self.now)
            self.now += 1
            return state()

        client = BudgetsClient(address_of(server), self.credentials)
        return Reporter(client, self.file, ask_agent, lambda: self.now)

    @property
    def kept(self) -> HeldGrants:
        return held.decode(self.file.read_bytes())


def address_of(server: BudgetServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.lost.set()


def test_what_the_machine_trusts_is_not_read_for_a_report(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        raise AssertionError("each connection would load a hundred certificates")

    reporter = world.reporter(world.server())
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)
    reporter.report()


def test_an_answer_is_kept_with_the_time_before_anything_was_measured(world: World) -> None:
    server = world.server()
    reporter = world.reporter(server)
    reporter.report()
    kept = world.kept
    assert (kept.boot, kept.asked) == (BOOT, 1000.0)
    assert world.asked == [1000.0]
    assert kept.budgets == SAID.budgets
    assert kept.answer.grants.keys() == {"all"}
    world.now = 1005.0
    reporter.report()
    # The second answer has no budgets; those of the first are kept.
    assert (world.kept.asked, world.kept.budgets) == (1005.0, SAID.budgets)
    assert server.counted == {"answered": 2}


def test_a_reporter_that_was_restarted_goes_on_with_greater_numbers(world: World) -> None:
    server = world.server()
    for _ in range(3):
        world.reporter(server).report()
        world.now += 0.01
    assert server.counted == {"answered": 3}
    # A machine that boots again begins anew.
    world.now = 7.0
    world.reporter(server, lambda: STATE | {"boot": "boot-2"}).report()
    assert server.counted == {"answered": 4}


def test_reports_go_to_the_leader_that_a_follower_names_and_stay_there(world: World) -> None:
    leader, follower = world.server(), world.server(leads=False)
    follower.leader = lambda: address_of(leader)
    reporter = world.reporter(follower)
    for _ in range(3):
        reporter.report()
    assert leader.counted == {"answered": 3}
    assert follower.counted == {"follower": 1}


def test_who_no_longer_leads_is_left_for_whom_the_server_names(world: World) -> None:
    first, second, follower = world.server(), world.server(), world.server(leads=False)
    follower.leader = lambda: address_of(first)
    reporter = world.reporter(follower)
    reporter.report()
    first.leading = None
    follower.leader = first.leader = lambda: address_of(second)
    reporter.report()
    assert second.counted == {"answered": 1}


@pytest.mark.parametrize(
    ("leader", "why"),
    [
        ("", "no server of budgets leads"),
        ("no address", "ADDRESS:PORT"),
        ("127.0.0.1:1", "refused"),
    ],
)
def test_without_a_leader_the_last_answer_stays(world: World, leader: str, why: str) -> None:
    world.reporter(world.server()).report()
    before = world.file.read_bytes()
    follower = world.server(leads=False)
    follower.leader = lambda: leader
    with pytest.raises((NetmgrError, OSError), match=why):
        world.reporter(follower).report()
    assert world.file.read_bytes() == before


def test_a_connection_that_was_lost_is_made_anew_with_the_next_report(world: World) -> None:
    server = world.server()
    reporter = world.reporter(server)
    reporter.report()
    connection = reporter._client._connection
    assert connection
    connection.sock.close()
    with pytest.raises((OSError, http.client.HTTPException)):
        reporter.report()
    reporter.report()
    assert server.counted == {"answered": 2}


def test_a_server_of_another_name_or_authority_gets_no_token(world: World) -> None:
    named = world.server(folder=world.authority.certify("another.example.com"))
    folder = world.folder / "foreign"
    folder.mkdir()
    foreign = world.server(folder=Authority(folder).certify(messages.SERVER_NAME))
    for server in (named, foreign):
        with pytest.raises(OSError, match="certificate verify failed"):
            world.reporter(server).report()
        assert server.counted == {}
    assert not world.file.exists()


def test_a_renewed_token_is_shown_from_the_next_report_on(world: World) -> None:
    server = world.server()
    reporter = world.reporter(server)
    world.token.write_text("expired")
    with pytest.raises(RequestError, match="refused with 401"):
        reporter.report()
    world.token.write_text("node-2")
    reporter.report()
    leading = server.leading
    assert leading
    assert set(leading.allocator.shares("all")) == {"node-2"}


def test_a_damaged_file_is_replaced_by_the_next_answer(world: World) -> None:
    server = world.server()
    for text in ("", "{", "[]", '{"answer": {"epoch": "x"}}', "\0" * 100):
        world.file.write_text(text)
        world.reporter(server).report()
        assert world.kept.budgets == SAID.budgets


def test_an_answer_of_a_former_leader_is_refused(world: World) -> None:
    server = world.server()
    world.reporter(server).report()
    kept = world.kept
    newer = replace(kept, answer=replace(kept.answer, epoch=kept.answer.epoch + 1))
    world.file.write_bytes(messages.encode(newer))
    with pytest.raises(RequestError, match="newer-epoch"):
        world.reporter(server).report()
    assert world.kept == newer


def test_a_reporter_asks_an_agents_socket_and_goes_on_after_failures(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    server, path = world.server(), world.folder / "ledger.sock"
    client = BudgetsClient(address_of(server), world.credentials)
    reporter = Reporter(client, world.file, partial(ask, path, "budgets"))
    ended = threading.Event()
    with ExitStack() as stack:
        thread = threading.Thread(target=reporter.run, args=[ended])
        thread.start()
        stack.callback(thread.join)
        stack.callback(ended.set)
        eventually(lambda: "budgets-not-reported" in caplog.text)
        assert server.counted == {}, "nothing is reported while the agent is away"
        stack.enter_context(agent(path, canned(STATE)))
        eventually(lambda: server.counted["answered"])
        eventually(lambda: world.file.exists() and world.kept.budgets)


BUDGETS = {
    "budgets_server": "10.0.0.1:9122",
    "budgets_credentials": Path("credentials"),
    "budgets_file": Path("file"),
}


@pytest.mark.parametrize("missing", BUDGETS)
def test_settings_that_name_a_part_of_a_server_are_refused(missing: str) -> None:
    Settings(**BUDGETS).check()
    given = {name: value for name, value in BUDGETS.items() if name != missing}
    with pytest.raises(ConfigError, match="go together"):
        Settings(**given).check()


@pytest.mark.parametrize("text", ["10.0.0.1", "https://10.0.0.1:9122/", "fd00::1:9122", ":x"])
def test_an_address_that_is_none_is_refused_with_its_option(world: World, text: str) -> None:
    with pytest.raises(ConfigError, match="--budgets-server"):
        BudgetsClient(text, world.credentials)


def test_a_services_address_is_taken_as_kubernetes_tells_it(world: World) -> None:
    server = world.server()
    for scheme in ("tcp", "https"):
        address = f"{scheme}://{address_of(server)}"
        client = BudgetsClient(address, world.credentials)
        Reporter(client, world.file, lambda: STATE).report()
    assert server.counted == {"answered": 2}


def test_files_that_are_no_certificates_are_named(world: World) -> None:
    (world.credentials / "ca.crt").write_text("nothing")
    with pytest.raises(ConfigError, match=r"credentials: ca\.crt, tls\.crt and tls\.key have to"):
        BudgetsClient("127.0.0.1:1", world.credentials)
