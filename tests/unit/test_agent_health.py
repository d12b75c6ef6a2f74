"""What probes learn: an agent that hangs gives no answer, one that has lost files says which."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from pathlib import Path

import pytest

from netmgr.agent import files
from netmgr.agent.accounts import Accounts
from netmgr.agent.gateway import NoPods
from netmgr.agent.opening import Books
from netmgr.agent.queries import Queries
from netmgr.agent.tagged_rules import TaggedRules
from netmgr.agent.telemetry import Telemetry
from netmgr.config import NodeDocument
from netmgr.ledger.ledger import Ledger
from netmgr.model import Sample
from netmgr.rules.engine import Rules
from netmgr.rules.model import Ruleset
from netmgr.rules.policy import Policy
from tests.fakes.ledger_tools import LINGER, Clock
from tests.fakes.rules import FakeBackend

QUESTION = b'{"version": 1, "query": "health"}\n'
HEAD = {"apiVersion": "netmgr.io/v1alpha1", "kind": "Node", "node": {"name": "one"}, "ranges": ["10.1.0.0/24"]}


class HangingBackend(FakeBackend):
    """A kernel that answers no reading until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.goes_on = threading.Event(), threading.Event()

    def read(self, desired: Ruleset) -> Sequence[Sample]:
        self.is_asked.set()
        self.goes_on.wait(30)
        return super().read(desired)


class Agent:
    """As much of one as answers probes."""

    def __init__(self, state_dir: Path) -> None:
        document = NodeDocument.model_validate(HEAD)
        self.kernel, self.telemetry = HangingBackend(), Telemetry()
        rules = Rules(self.kernel, Policy.of(document))
        self.ledger = Ledger.open(state_dir / "ledger.sqlite", clock=Clock(), linger_seconds=LINGER, boot_id="boot-1")
        self.accounts = Accounts(rules, self.ledger, Clock(), 0)
        books = Books(self.accounts, rules, TaggedRules(rules, 60))
        pods = NoPods(self.telemetry.failing)
        self.queries = Queries(state_dir / "node.yaml", document, books, self.telemetry, Clock(), pods)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.kernel.goes_on.set()
    made.ledger.close()


def test_no_answer_comes_while_a_reading_hangs(agent: Agent) -> None:
    with ThreadPoolExecutor(2) as workers:
        workers.submit(agent.accounts.read)
        try:
            assert agent.kernel.is_asked.wait(10)
            answer = workers.submit(agent.queries.answer, QUESTION)
            with pytest.raises(StillWaiting):
                answer.result(0.3)
        finally:
            agent.kernel.goes_on.set()
        assert json.loads(answer.result(10)) == {"version": 1, "files": ""}


def test_files_that_cannot_be_made_again_are_reported(agent: Agent) -> None:
    agent.telemetry.failing[files.STEP] = "/var/lib/netmgr: cannot be made or written"
    assert json.loads(agent.queries.answer(QUESTION))["files"] == "/var/lib/netmgr: cannot be made or written"
    assert not agent.kernel.is_asked.is_set(), "a probe reads no counters"
