"""What probes learn: an agent that hangs gives no answer, one that has lost files says which; and
what is removed after it.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import ExitStack
from pathlib import Path

import pytest

from netmgr.agent import roles
from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.accounting.accounts import Accounts
from netmgr.agent.accounting.host_pods import HostPods
from netmgr.agent.cni.server import CniSocket
from netmgr.agent.core.components import Agent, Component, Query, Remnants
from netmgr.agent.core.files import FILES, Files
from netmgr.agent.queries import Readers
from netmgr.api.server import UnixServer
from netmgr.api.snapshot import Snapshot
from netmgr.documents.node import NodeDocument
from netmgr.errors import KernelError, TryAgainLater
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.model import Sample
from netmgr.rules.engine import Rules
from netmgr.rules.model import Ruleset
from netmgr.rules.policy import Policy
from tests.builders import NODE_KEYS
from tests.fakes.ledger_tools import Clock, opened
from tests.fakes.rules import FakeBackend
from tests.waiting import PATIENCE

QUESTION = b'{"version": 1, "query": "health"}\n'
HEAD = {**NODE_KEYS, "node": {"name": "one"}, "ranges": ["10.1.0.0/24"]}


class HangingBackend(FakeBackend):
    """A kernel that answers no reading until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.goes_on = threading.Event(), threading.Event()

    def read(self, desired: Ruleset) -> Sequence[Sample]:
        self.is_asked.set()
        self.goes_on.wait(PATIENCE)
        return super().read(desired)


class Probed:
    """As much of an agent as answers probes."""

    def __init__(self, state_dir: Path) -> None:
        document = NodeDocument.model_validate(HEAD)
        self.kernel = HangingBackend()
        rules = Rules(self.kernel, Policy.of(document))
        self.ledger = opened(state_dir / "ledger.sqlite", Clock())
        self.accounts = Accounts(rules, self.ledger, Clock(), 0)
        self.agent = agent = Agent(state_dir / "node.yaml", document, Clock(), (), ExitStack())
        self.health, self.readers = agent.health, Readers(agent)
        agent.components += [NodeAccounting(agent, self.accounts, rules, self.ledger), self.readers]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Probed]:
    made = Probed(tmp_path)
    yield made
    made.kernel.goes_on.set()
    made.ledger.close()


def test_no_answer_comes_while_a_reading_hangs(agent: Probed) -> None:
    with ThreadPoolExecutor(2) as workers:
        workers.submit(agent.accounts.read)
        try:
            assert agent.kernel.is_asked.wait(PATIENCE)
            answer = workers.submit(agent.readers.answer, QUESTION)
            with pytest.raises(StillWaiting):
                answer.result(0.3)
        finally:
            agent.kernel.goes_on.set()
        assert json.loads(answer.result(PATIENCE)) == {"version": 1, "files": ""}


def test_files_that_cannot_be_made_again_are_reported(agent: Probed) -> None:
    agent.health.failing[FILES] = fault = "/var/lib/netmgr: cannot be made or written"
    assert json.loads(agent.readers.answer(QUESTION))["files"] == fault
    assert not agent.kernel.is_asked.is_set(), "a probe reads no counters"


class Unreadable(Component):
    """A component of which nothing can be read just now."""

    def queries(self) -> Mapping[str, Query]:
        return {"quotas": self._fail}

    def snapshot(self, snapshot: Snapshot) -> None:
        snapshot["limits"] = []
        self._fail(snapshot)

    def _fail(self, _: object) -> Mapping[str, object]:
        raise TryAgainLater("nf_tables changes all the time")


@pytest.mark.parametrize(
    ("query", "words", "is_fault"),
    [
        ("quotas", "nf_tables changes all the time", True),
        ("nat", "this machine is no NAT host; its role is node", False),
        ("usage", "not a query: could not convert string to float: 'None'", False),
    ],
)
def test_a_fault_of_the_agent_is_no_fault_of_the_query(
    agent: Probed, query: str, words: str, *, is_fault: bool
) -> None:
    agent.agent.components.append(Unreadable(agent.agent))
    question = json.dumps({"version": 1, "query": query}).encode()
    answer = json.loads(agent.readers.answer(question))
    assert (answer["error"], answer["fault"]) == (words, is_fault)


def test_what_one_component_cannot_read_takes_nothing_else_out_of_the_snapshot(
    agent: Probed, caplog: pytest.LogCaptureFixture
) -> None:
    agent.kernel.goes_on.set()
    whole = agent.readers.snapshot_now()
    agent.agent.components.insert(0, Unreadable(agent.agent))
    answer = json.loads(agent.readers.answer(b'{"version": 1, "query": "snapshot"}'))
    assert answer.keys() == whole.keys() | {"limits"}
    (line,) = (each.getMessage() for each in caplog.records)
    assert line == "snapshot-incomplete part=Unreadable error=nf_tables changes all the time"


def test_a_socket_that_the_ending_agent_removed_is_not_made_again(tmp_path: Path) -> None:
    """Passes go on until all sockets are closed."""
    document = NodeDocument.model_validate(HEAD | {"state_dir": tmp_path})
    with ExitStack() as stack:
        files = Files(Agent(tmp_path / "node.yaml", document, Clock(), (), stack))
        server = UnixServer(tmp_path / "some.sock", lambda question: question)
        files.serve(server)
        server.path.unlink()
        assert files.restore() == [f"{server.path} was removed or replaced, and is made again"]
    assert (files.restore(), server.path.exists()) == ([], False)


class NotListening(CniSocket):
    """The CNI socket before `start`: no request was served, and none can be."""

    def __init__(self, agent: Agent) -> None:
        Component.__init__(self, agent)
        self._serves = False

    def snapshot(self, snapshot: Snapshot) -> None:
        """It has answered none."""


def test_an_agent_is_not_ready_before_its_cni_socket_listens(agent: Probed) -> None:
    def snapshot() -> Snapshot:
        agent.kernel.goes_on.set()
        return agent.readers.snapshot_now()

    assert snapshot()["ready"]
    agent.agent.components.append(NotListening(agent.agent))
    assert not snapshot()["ready"]
    assert "does not listen yet" in snapshot()["reason"]


def test_whoever_finds_the_cni_socket_finds_the_readers_socket() -> None:
    kinds = roles.wiring_node()
    assert kinds[-2:] == (Readers, CniSocket), "sockets are made in the order of this list"


def test_a_kernel_without_nf_tables_holds_up_no_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remnants = Remnants(tmp_path, tmp_path, "netmgr", with_pods=False, keep_state=True)
    faults = iter([KernelError("delete table", errno.EOPNOTSUPP), KernelError("x", errno.EPERM)])

    def refuse(*_: object) -> None:
        raise next(faults)

    monkeypatch.setattr(NftSocket, "commit", refuse)
    assert list(HostPods.remove(remnants)) == []
    with pytest.raises(KernelError):
        list(HostPods.remove(remnants))
