"""Every older copy of the ledger put back at every later moment: what it lacks is reported, nothing
counts twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netmgr.agent.accounting import examine
from netmgr.agent.accounts import Accounts
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.store import Store
from netmgr.model import Attachment
from netmgr.rules.engine import Rules
from tests.chaos.test_accounts_crashes import DB, INTERNET, NEXT, POLICY, WEB, room
from tests.fakes.ledger_tools import LINGER, Clock, counts
from tests.fakes.rules import FakeBackend, Packet

__all__ = ["room"]


class Node:
    """A kernel, a disk, and an agent that can be started on any state of the disk."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self.kernel = FakeBackend()
        self.held: list[Attachment] = []
        self.sent: dict[str, int] = {}
        self.boot = 1
        disk.mkdir()
        self.start()

    def start(self) -> None:
        self.ledger = Ledger(
            Store(self.disk / "ledger.sqlite"),
            clock=Clock(),
            linger_seconds=LINGER,
            boot_id=f"boot-{self.boot}",
        )
        rules = Rules(self.kernel, POLICY)
        examine(self.ledger, rules)
        self.accounts = Accounts(rules, self.ledger, Clock(), 0)
        self.accounts.start(self.held)

    def kill(self) -> None:
        if self.accounts._syncing is not None:
            self.accounts._syncing.join()
        self.ledger._store._connection.close()

    def add(self, pod: Attachment) -> None:
        self.held.append(pod)
        self.accounts.begin(pod)

    def delete(self, pod: Attachment) -> None:
        self.accounts.end(pod)
        self.held.remove(pod)

    def send(self, pod: Attachment, size: int) -> None:
        packet = Packet(
            pod.addresses[0], INTERNET, iif="nm0", way_back="nm0", oif="eth0", length=size
        )
        self.kernel.send(packet)
        self.sent[pod.pod.name] = self.sent.get(pod.pod.name, 0) + size

    def flush(self) -> None:
        self.accounts.read()
        self.kernel.state = type(self.kernel.state)()
        self.accounts.reconcile()


DAY: list[Callable[[Node], None]] = [
    lambda node: node.add(WEB),
    lambda node: node.send(WEB, 1000),
    lambda node: node.accounts.read(),
    lambda node: node.accounts.tidy(),
    lambda node: node.add(DB),
    lambda node: node.send(DB, 300),
    lambda node: node.delete(DB),
    lambda node: node.accounts.reconcile(),
    lambda node: node.send(WEB, 70),
    lambda node: node.flush(),
    lambda node: node.send(WEB, 2000),
    lambda node: node.delete(WEB),
    lambda node: node.add(NEXT),
    lambda node: node.send(NEXT, 5),
    lambda node: node.accounts.reconcile(),
]


@pytest.fixture
def folder(room: Path) -> Iterator[Path]:
    return room


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ledger.sqlite", "everything"])
def test_an_older_copy_that_lacks_anything_is_reported_and_never_counts_twice(
    folder: Path, what: str
) -> None:
    for copied in range(len(DAY)):
        for restored in range(copied, len(DAY)):
            disk, copy = folder / f"{copied}-{restored}", folder / f"copy-{copied}-{restored}"
            node = Node(disk)
            for number, step in enumerate(DAY[: restored + 1]):
                step(node)
                if number == copied:
                    node.kill()
                    shutil.copytree(disk, copy)
                    node.start()
            node.accounts.read()
            before = node.ledger.totals()
            node.kill()
            for path in list(disk.iterdir()):
                if what == "everything" or path.name.startswith(what):
                    path.unlink()
            for path in copy.iterdir():
                if what == "everything" or path.name.startswith(what):
                    shutil.copy(path, disk)
            node.start()
            node.accounts.read()
            when = f"copied after step {copied}, put back after step {restored}"
            check(node, before, when)
            node.kill()
            shutil.rmtree(disk)
            shutil.rmtree(copy)


def check(node: Node, before, when: str) -> None:
    after = node.ledger.totals()
    truth = {(one["pod"], one["traffic"]): one["bytes"] for one in before.pods}
    shown = {(one["pod"], one["traffic"]): one["bytes"] for one in after.pods}
    assert all(size <= node.sent.get(pod, 0) for (pod, _), size in shown.items()), when
    lost = [key for key, size in truth.items() if shown.get(key, 0) < size]
    lost += [
        one["namespace"]
        for one, was in zip(after.namespaces, before.namespaces, strict=False)
        if one["bytes"] < was["bytes"]
    ]
    lost += [
        one["traffic"]
        for one, was in zip(after.node, before.node, strict=True)
        if one["bytes"] < was["bytes"]
    ]
    seen, seen_before = counts(after), counts(before)
    if lost or len(after.namespaces) < len(before.namespaces):
        assert seen.get("ledger-older") == 1, f"{when}: {lost} fell in silence"
    for gap, times in seen_before.items():
        assert seen.get(gap, 0) >= times or "ledger-older" in seen, when
    assert "ledger-lost" not in seen, when


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ledger.sqlite", "everything"])
def test_a_ledger_lost_at_any_moment_is_reported_and_rebuilt_to_what_counters_show(
    folder: Path, what: str
) -> None:
    for lost in range(len(DAY)):
        node = Node(folder / str(lost))
        for step in DAY[: lost + 1]:
            step(node)
        node.accounts.read()
        live = node.ledger.readings()
        node.kill()
        for path in list(node.disk.iterdir()):
            if what == "everything" or path.name.startswith(what):
                path.unlink()
        node.start()
        node.accounts.read()
        when = f"lost after step {lost}"
        assert node.ledger.readings() == live, when
        after = node.ledger.totals()
        shown = sum(one["bytes"] for one in after.pods)
        assert shown == sum(size.bytes for one, size in live.items() if one.is_pod), when
        assert counts(after) == {"ledger-lost": 1}, when
        node.kill()
