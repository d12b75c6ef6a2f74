"""The accounting of a node on a kernel of the tests' own: what begins, what is read, and how often.

Every step of it is killed in `tests/chaos/test_accounts_crashes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr.agent.accounting import examine
from netmgr.agent.accounts import Accounts
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.store import Store
from netmgr.model import Attachment
from netmgr.prefixes import Address
from netmgr.rules.engine import Rules
from tests.chaos.test_accounts_crashes import DB, INTERNET, POLICY, WEB
from tests.fakes.ledger_tools import LINGER, Clock, counts
from tests.fakes.rules import FakeBackend, Packet

Totals = dict[str, int]


class Node:
    """A kernel and a ledger, and an agent's accounting that can be started again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kernel, self.clock = FakeBackend(), Clock()

    def start(self, *pods: Attachment, boot: str = "boot-1", min_seconds: float = 0) -> None:
        store = Store(self.path)
        self.ledger = Ledger(store, clock=self.clock, linger_seconds=LINGER, boot_id=boot)
        rules = Rules(self.kernel, POLICY)
        examine(self.ledger, rules)
        self.accounts = Accounts(rules, self.ledger, self.clock, min_seconds)
        self.accounts.start(pods)

    def send(self, pod: Attachment, size: int) -> None:
        self.kernel.send(
            Packet(pod.addresses[0], INTERNET, iif="nm0", way_back="nm0", oif="eth0", length=size)
        )

    def own(self, size: int) -> None:
        """A packet of the node itself."""
        self.kernel.send(Packet(NODE, INTERNET, oif="eth0", length=size))

    @property
    def totals(self) -> Totals:
        """Internet traffic out: of the node's hooks together, and of each pod."""
        found = self.ledger.totals()
        of_node = {one["traffic"]: one["bytes"] for one in found.node}
        of_pods = {one["pod"]: one["bytes"] for one in found.pods if one["traffic"] == OUT}
        return {"node": of_node[OUT], **of_pods}


OUT = "internet-out"
NODE = Address.parse("10.64.0.10")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "ledger.sqlite")
    yield made
    made.ledger.close()


def test_every_hook_counts_from_the_first_start_on(node: Node) -> None:
    node.start(WEB)
    assert node.totals == {"node": 0, "web": 0}
    node.send(WEB, 1000)
    node.own(70)
    node.accounts.read()
    assert node.totals == {"node": 1070, "web": 1000}
    assert counts(node.ledger.totals()) == {}


def test_a_ledger_that_lacks_a_hook_begins_it_with_what_it_shows(node: Node) -> None:
    """As one of an earlier version does, or one that was lost."""
    node.start(WEB)
    node.send(WEB, 1000)
    node.own(70)
    node.ledger.close()
    node.path.unlink()
    node.start(WEB)
    assert node.totals == {"node": 1070, "web": 1000}
    assert counts(node.ledger.totals()) == {"ledger-lost": 1}


def test_the_kernel_is_read_no_more_often_than_that_however_often_it_is_asked(node: Node) -> None:
    node.start(WEB, min_seconds=0.5)
    node.accounts.read()
    node.send(WEB, 100)
    for later, is_read in ((0.0, False), (0.25, False), (0.25, True)):
        node.clock.time += later
        node.accounts.read()
        assert node.totals["web"] == 100 * is_read
    node.send(WEB, 10)
    node.accounts.read()
    assert node.totals["web"] == 100
    node.accounts.read(at_once=True)
    assert node.totals["web"] == 110
    node.send(WEB, 1)
    node.accounts.close()
    node.start(WEB)
    assert node.totals["web"] == 111


def test_a_reboot_without_live_counters_keeps_the_totals_and_is_no_gap(node: Node) -> None:
    node.start(WEB, DB)
    node.send(WEB, 1000)
    node.accounts.close()
    node.kernel = FakeBackend()
    node.start(WEB, boot="boot-2")
    node.send(WEB, 5)
    node.accounts.read()
    assert node.totals == {"node": 1005, "web": 1005, "db": 0}


def test_what_is_read_after_the_last_packet_is_the_pods_though_another_has_the_address(
    node: Node,
) -> None:
    node.start()
    node.accounts.begin(WEB)
    node.send(WEB, 30)
    node.accounts.end(WEB)
    node.send(WEB, 7)
    node.accounts.read()
    assert node.totals == {"node": 37, "web": 30}
    assert not any(counter.is_pod for counter in node.ledger.counters())


def test_a_pod_that_no_reading_saw_is_there_with_zero(node: Node) -> None:
    node.start()
    node.accounts.begin(DB)
    assert node.totals == {"node": 0, "db": 0}
    node.accounts.reconcile()
    assert node.totals == {"node": 0, "db": 0}
