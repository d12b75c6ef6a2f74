"""Every older copy of the ledger put back at every later moment: what it lacks is reported, nothing
counts twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from netmgr.ledger.totals import Totals
from netmgr.model import Attachment
from tests.chaos.test_accounts_crashes import DB, NEXT, WEB, room
from tests.fakes import accounts_node
from tests.fakes.ledger_tools import counts

__all__ = ["room"]


class Node(accounts_node.Node):
    """A kernel, a disk, and an agent that can be started on any state of the disk."""

    def __init__(self, disk: Path) -> None:
        disk.mkdir()
        super().__init__(disk / "ledger.sqlite")
        self.disk = disk
        self.held: list[Attachment] = []
        self.sent: dict[str, int] = {}
        self.start()

    def restart(self) -> None:
        self.start(*self.held)
        self.accounts.read()

    def kill(self) -> None:
        if self.accounts._syncing is not None:
            self.accounts._syncing.join()
        self.ledger._store._connection.close()

    def remove(self, what: str) -> None:
        """The ledger's files go, or all."""
        for path in self.disk.glob("*" if what == "everything" else f"{what}*"):
            path.unlink()

    def add(self, pod: Attachment) -> None:
        self.held.append(pod)
        self.accounts.begin(pod)

    def delete(self, pod: Attachment) -> None:
        self.accounts.end(pod)
        self.held.remove(pod)

    def send(self, pod: Attachment, size: int) -> None:
        super().send(pod, size)
        self.sent[pod.pod.name] = self.sent.get(pod.pod.name, 0) + size

    def flush(self) -> None:
        self.accounts.read()
        super().flush()
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


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ledger.sqlite", "everything"])
def test_an_older_copy_that_lacks_anything_is_reported_and_never_counts_twice(
    room: Path, what: str
) -> None:
    for copied in range(len(DAY)):
        for restored in range(copied, len(DAY)):
            disk, copy = room / f"{copied}-{restored}", room / f"copy-{copied}-{restored}"
            node = Node(disk)
            for number, step in enumerate(DAY[: restored + 1]):
                step(node)
                if number == copied:
                    node.kill()
                    shutil.copytree(disk, copy)
                    node.start(*node.held)
            node.accounts.read()
            before = node.ledger.totals()
            node.kill()
            node.remove(what)
            for path in copy.glob("*" if what == "everything" else f"{what}*"):
                shutil.copy(path, disk)
            node.restart()
            check(node, before, f"copied after step {copied}, put back after step {restored}")
            node.kill()
            shutil.rmtree(disk)
            shutil.rmtree(copy)


def check(node: Node, before: Totals, when: str) -> None:
    after = node.ledger.totals()
    truth = {(total["pod"], total["traffic"]): total["bytes"] for total in before.pods}
    shown = {(total["pod"], total["traffic"]): total["bytes"] for total in after.pods}
    assert all(size <= node.sent.get(pod, 0) for (pod, _), size in shown.items()), when
    lost = [str(key) for key, size in truth.items() if shown.get(key, 0) < size]
    for now, was in (
        *zip(after.namespaces, before.namespaces, strict=False),
        *zip(after.node, before.node, strict=True),
    ):
        if now["bytes"] < was["bytes"]:
            lost.append(str(now))
    seen, seen_before = counts(after), counts(before)
    if lost or len(after.namespaces) < len(before.namespaces):
        assert seen.get("ledger-older") == 1, f"{when}: {lost} fell in silence"
    for gap, times in seen_before.items():
        assert seen.get(gap, 0) >= times or "ledger-older" in seen, when
    assert "ledger-lost" not in seen, when


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ledger.sqlite", "everything"])
def test_a_ledger_lost_at_any_moment_is_reported_and_begins_at_zero(room: Path, what: str) -> None:
    for lost in range(len(DAY)):
        node, when = Node(room / str(lost)), f"lost after step {lost}"
        for step in DAY[: lost + 1]:
            step(node)
        node.accounts.read()
        live = node.ledger.readings()
        node.kill()
        node.remove(what)
        node.restart()
        assert node.ledger.readings() == live, when
        after = node.ledger.totals()
        assert not any(total["bytes"] for total in (*after.pods, *after.node)), when
        assert counts(after)["ledger-lost"] == 1, when
        node.kill()
