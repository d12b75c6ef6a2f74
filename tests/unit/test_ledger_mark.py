"""Books that are lost, older or another machine's are recognised by marks elsewhere; the true ones
always pass.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from netmgr.errors import StateError
from netmgr.ledger import mark
from netmgr.ledger.history import By, Period
from netmgr.ledger.ledger import MARK_FILE, Ledger
from netmgr.ledger.mark import BooksState, Mark, Own, Synced, compare
from netmgr.ledger.store import LedgerStore
from netmgr.ledger.tables import LARGEST, Gap, Lost
from netmgr.model import PodRef
from netmgr.prefixes import Address
from tests.fakes.ledger_tools import (
    ADDRESS6,
    OUT,
    WEB,
    Clock,
    counter,
    gap_seconds,
    gaps,
    hook,
    namespace_bytes,
    opened,
    pod_bytes,
    reading,
)

COPY = "copy.sqlite"


class Node:
    """Books in use, with a copy made of them in the middle.

    What outlives an agent is one counter, the mark beside it, and the disk.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.boot = path, Clock(), "boot-1"
        self.bytes = 0
        self.mark: Mark | None = None
        self.ledger = opened(path, self.clock)
        assert self.ledger.examine([], has_counters=False) is BooksState.NEW
        self.ledger.begin([counter()], WEB)
        self.take(100)
        self.ledger.checkpoint()
        shutil.copy(path, path.with_name(COPY))
        self.clock.time += 60
        self.take(200)

    def take(self, size: int) -> None:
        self.bytes += size
        self.ledger.post([reading(self.bytes)])
        other = counter(address=ADDRESS6)
        self.ledger.begin([other], PodRef("elsewhere", "brief"))
        self.ledger.post([reading(0, of=other)], closing=[other])
        self.mark = self.ledger.mark
        self.ledger.end([other])

    def reboot(self) -> None:
        self.bytes, self.mark, self.boot = 0, None, "boot-2"

    def remove_books(self) -> None:
        for name in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + name).unlink(missing_ok=True)

    def lose_books(self, found: BooksState) -> None:
        """For good, or but for the copy."""
        self.ledger.close()
        self.remove_books()
        if found is BooksState.OLDER:
            shutil.copy(self.path.with_name(COPY), self.path)

    @contextmanager
    def again(self, found: BooksState) -> Iterator[Ledger]:
        """The next agent's books."""
        self.clock.time += 10
        with closing(opened(self.path, self.clock, self.boot)) as ledger:
            marks = [self.mark] if self.mark else []
            assert ledger.examine(marks, has_counters=bool(self.bytes)) is found
            assert (ledger.mark or Mark(0, 0)) >= (self.mark or Mark(0, 0))
            ledger.begin([counter()], WEB)
            ledger.post([reading(self.bytes)] if self.bytes else [])
            yield ledger


@pytest.fixture
def node(path: Path) -> Node:
    return Node(path)


def test_the_true_books_are_known_after_every_kind_of_end(node: Node) -> None:
    node.ledger._store.close()
    with node.again(BooksState.CURRENT) as after:
        node.mark = after.mark
    with closing(opened(node.path, node.clock)) as books:
        own = books.mark
        assert own
        assert books.examine([Mark(7, 1 << 60), own], has_counters=True) is BooksState.CURRENT
        assert books.mark == own, "somebody put a mark of no books beside ours"
    with node.again(BooksState.CURRENT):
        pass
    node.reboot()
    with node.again(BooksState.CURRENT) as after:
        assert (namespace_bytes(after), gaps(after)) == (300, {"reboot": 1})


@pytest.mark.parametrize(
    "left",
    [
        {"mark file", "kernel mark", "counters"},
        {"empty file", "kernel mark", "counters"},
        {"counters"},
        {"mark file"},
    ],
    ids=lambda left: " and ".join(sorted(left)),
)
def test_lost_books_begin_at_zero_and_are_a_gap(node: Node, left: set[str]) -> None:
    node.lose_books(BooksState.LOST)
    former = node.mark
    if "empty file" in left:
        node.path.touch()
    if "mark file" not in left:
        node.path.with_name(MARK_FILE).unlink()
    if "kernel mark" not in left:
        node.mark = None
    if "counters" not in left:
        node.reboot()
    with node.again(BooksState.LOST) as after:
        assert (pod_bytes(after), namespace_bytes(after)) == (0, 0)
        assert gaps(after) == {"ledger-lost": 1}
        after.post([reading(node.bytes + 7)])
        assert (pod_bytes(after), namespace_bytes(after)) == (7, 7)
        assert after.mark
        assert former
        assert (after.mark.books == former.books) is (left != {"counters"})
    node.bytes += 30
    with node.again(BooksState.CURRENT) as after:
        assert pod_bytes(after) == 30, "what came between two agents counts"


@pytest.mark.parametrize("is_rebooted", [False, True])
def test_an_older_copy_begins_at_zero_and_is_a_gap_since_it_was_made(
    node: Node, *, is_rebooted: bool
) -> None:
    node.lose_books(BooksState.OLDER)
    if is_rebooted:
        node.reboot()
    with node.again(BooksState.OLDER) as after:
        if is_rebooted:
            assert gaps(after) == {"ledger-older": 1, "reboot": 1}
        else:
            assert (pod_bytes(after), gaps(after)) == (0, {"ledger-older": 1})
            assert gap_seconds(after, "ledger-older") == 70
        after.post([reading(node.bytes + 7)])
        assert (pod_bytes(after), namespace_bytes(after)) == (7, 7)
        hours = after.usage(Period(0, 1_000_000), [By.POD])
        assert [(row["pod"], row["bytes"]) for row in hours if row["bytes"]] == [("web-0", 107)]
    node.bytes += 30
    with node.again(BooksState.CURRENT) as after:
        assert pod_bytes(after) == 30, "what came between two agents counts"


@pytest.mark.parametrize("found", [BooksState.LOST, BooksState.OLDER])
def test_killed_before_its_first_reading_an_agent_leaves_the_beginning_to_the_next(
    node: Node, found: BooksState
) -> None:
    node.lose_books(found)
    with closing(opened(node.path, node.clock)) as killed:
        assert killed.examine([node.mark or A], has_counters=True) is found
        node.mark = killed.mark
    with node.again(BooksState.CURRENT) as after:
        assert (pod_bytes(after), namespace_bytes(after)) == (0, 0)


@pytest.mark.parametrize("found", [BooksState.LOST, BooksState.OLDER])
def test_a_loss_is_one_gap_although_the_small_file_of_before_is_there_still(
    node: Node, monkeypatch: pytest.MonkeyPatch, found: BooksState
) -> None:
    node.lose_books(found)
    before = node.path.with_name(MARK_FILE).read_text()
    with monkeypatch.context() as failing:
        failing.setattr(mark, "write", Mock(side_effect=StateError("no space")))
        with node.again(found):
            pass
        with node.again(BooksState.CURRENT) as after:
            after.post([reading(node.bytes + 7)])
    assert node.path.with_name(MARK_FILE).read_text() == before
    node.bytes += 30
    with node.again(BooksState.CURRENT) as after:
        assert (pod_bytes(after), sum(gaps(after).values())) == (30, 1)
    with sqlite3.connect(node.path) as connection:
        connection.execute("UPDATE total SET bytes = 7 WHERE scope = 'namespace'")
    with node.again(BooksState.OLDER):
        pass


def test_gaps_are_counted_on_whatever_is_lost(node: Node) -> None:
    for _ in range(3):
        node.ledger.note(Gap.REMOVED, node.ledger.moment().steady - 0.5)
    node.ledger.checkpoint()
    for times in (1, 2, 3):
        node.ledger._store.close()
        node.remove_books()
        with node.again(BooksState.LOST) as node.ledger:
            assert gaps(node.ledger) == {"removed": 3, "ledger-lost": times}
            assert gap_seconds(node.ledger, "removed") == 1.5
            assert gap_seconds(node.ledger, "ledger-lost") > 1_000_000 * times


@pytest.mark.parametrize("is_behind_the_mark", [True, False])
def test_a_copy_of_the_whole_disk_is_older_if_live_counters_do_not_show_what_it_lacks(
    node: Node, *, is_behind_the_mark: bool
) -> None:
    folder, whole = node.path.parent, node.path.parent.parent / "whole"
    shutil.copytree(folder, whole)
    if is_behind_the_mark:
        node.take(50)
    else:
        node.bytes += 50
        node.ledger.post([reading(node.bytes)])
    node.ledger.close()
    shutil.rmtree(folder)
    shutil.move(whole, folder)
    with node.again(BooksState.OLDER if is_behind_the_mark else BooksState.CURRENT) as after:
        assert pod_bytes(after) == (0 if is_behind_the_mark else 350)
        assert gaps(after) == ({"ledger-older": 1} if is_behind_the_mark else {})


def test_another_machines_books_are_set_aside(node: Node) -> None:
    node.ledger.close()
    foreign = node.path.parent / "other" / node.path.name
    foreign.parent.mkdir()
    with closing(opened(foreign, node.clock)) as other:
        other.examine([], has_counters=False)
        other.begin([counter()], WEB)
        other.post([reading(9_999_999)])
    shutil.copy(foreign, node.path)
    with node.again(BooksState.FOREIGN) as after:
        assert (pod_bytes(after), gaps(after)) == (0, {"ledger-lost": 1})
    (kept,) = node.path.parent.glob(f"{node.path.name}.foreign-*")
    assert sqlite3.connect(kept).execute("SELECT max(bytes) FROM total").fetchone() == (9_999_999,)


def test_what_could_not_be_written_before_a_crash_is_missed(node: Node) -> None:
    with sqlite3.connect(node.path) as other:
        other.execute("BEGIN IMMEDIATE")
        node.ledger._store._connection.execute("PRAGMA busy_timeout = 10")
        node.take(50)
        assert not node.ledger.durable
        node.ledger._store.close()
        other.rollback()
    with node.again(BooksState.OLDER) as after:
        assert (pod_bytes(after), gaps(after)) == (0, {"ledger-older": 1})


@pytest.mark.parametrize("is_rebooted", [False, True])
def test_a_file_that_could_not_be_written_lacks_nothing_while_no_pod_ended(
    node: Node, monkeypatch: pytest.MonkeyPatch, *, is_rebooted: bool
) -> None:
    with monkeypatch.context() as full:
        full.setattr(LedgerStore, "write", Mock(side_effect=StateError("no space")))
        if is_rebooted:
            node.ledger._store.close()
            node.reboot()
            node.ledger = opened(node.path, node.clock, node.boot)
            node.ledger.examine([], has_counters=False)
            node.ledger.begin([counter()], WEB)
        for _ in range(2):
            node.clock.time += 5
            node.bytes += 50
            node.ledger.post([reading(node.bytes)])
        assert gaps(node.ledger)["not-durable"] == 1
        node.mark = node.ledger.mark
        node.ledger._store.close()
    with node.again(BooksState.CURRENT) as after:
        assert (pod_bytes(after), namespace_bytes(after)) == (400, 400)
        assert gaps(after) == ({"reboot": 1} if is_rebooted else {})


def test_books_that_never_had_a_mark_are_taken_as_they_are(path: Path, clock: Clock) -> None:
    with closing(opened(path, clock)) as ledger:
        ledger.begin([hook("FORWARD", OUT)], None)
        ledger.post([reading(5, of=hook("FORWARD", OUT))])
    with closing(opened(path, clock)) as after:
        assert after.examine([], has_counters=True) is BooksState.CURRENT
        assert (after.mark is not None, gaps(after)) == (True, {})


A, B = Mark(1, 5), Mark(2, 900)


@pytest.mark.parametrize(
    ("own", "kernel", "synced", "found"),
    [
        (A, [A], Synced(A, 10), BooksState.CURRENT),
        (A, [], None, BooksState.CURRENT),
        (A, [Mark(1, 4)], Synced(Mark(1, 3), 9), BooksState.CURRENT),
        (A, [A], Synced(B, 99), BooksState.CURRENT),
        (A, [Mark(1, 4), Mark(1, 6)], None, BooksState.OLDER),
        (A, [], Synced(Mark(1, 6), 0), BooksState.OLDER),
        (A, [B], Synced(A, 10), BooksState.FOREIGN),
        (A, [A, B], None, BooksState.CURRENT),
        (A, [], Synced(B, 0), BooksState.FOREIGN),
        (None, [A], None, BooksState.OLDER),
    ],
)
def test_the_kernel_is_believed_before_the_disk(
    own: Mark | None, kernel: list[Mark], synced: Synced | None, found: BooksState
) -> None:
    assert compare(Own(own, is_new=False, bytes=10), kernel, synced, has_counters=True) is found


@pytest.mark.parametrize(("zeroed_at", "found"), [(5, BooksState.OLDER), (6, BooksState.CURRENT)])
def test_totals_of_before_a_loss_are_not_compared(zeroed_at: int, found: BooksState) -> None:
    own = Own(A, is_new=False, bytes=10, zeroed_at=zeroed_at)
    assert compare(own, [], Synced(Mark(1, 5), 11), has_counters=True) is found


DISPLACED: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "gone with all": lambda path: shutil.rmtree(path.parent),
    "log gone": lambda path: path.with_name(f"{path.name}-wal").unlink(),
    "moved over": lambda path: path.with_name(COPY).replace(path),
}
HARMED = DISPLACED | {
    "cut": lambda path: os.truncate(path, 0),
    "cut in half": lambda path: os.truncate(path, 9000),
    "copied over": lambda path: path.write_bytes(path.with_name(COPY).read_bytes()),
}


@pytest.mark.parametrize("harm", HARMED)
def test_a_file_that_is_harmed_while_it_is_open_is_written_again_and_loses_nothing(
    node: Node, harm: str
) -> None:
    ledger, path = node.ledger, node.path
    ledger.checkpoint()
    assert not ledger.is_lost()
    HARMED[harm](path)
    node.take(5)
    assert ledger.is_lost()
    path.parent.mkdir(exist_ok=True)
    ledger.restore()
    assert not ledger.is_lost()
    ledger.checkpoint()
    node.take(7)
    assert ledger.durable
    ledger._store.close()
    with node.again(BooksState.CURRENT) as after:
        assert (pod_bytes(after), namespace_bytes(after)) == (312, 312)
        assert set(gaps(after)) <= {"not-durable"}
        hours = sqlite3.connect(path).execute("SELECT sum(bytes) FROM hour").fetchone()[0]
        assert hours == 312 if harm in DISPLACED else hours <= 312


def test_killed_while_the_file_is_written_again_an_agent_leaves_the_former_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.take(5)
    os.utime(node.path, (1, 1))
    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            node.ledger.restore()
    with node.again(BooksState.CURRENT) as after:
        assert (pod_bytes(after), namespace_bytes(after)) == (305, 305)
        assert gaps(after) == {}


@pytest.mark.parametrize(
    "text",
    [
        *("", "fd00000000000001 5\n", "-d00000000000001 5 1\n", "fd000000000000001 5 1\n"),
        *(f"fd00000000000001 {rest}" for rest in (f"{1 << 64} 1\n", "-5 1\n", "5 1_0\n", "5 1\n2")),
        *(
            f"fd00000000000001 5 1\nreset {rest}\n"
            for rest in ("1", "-1 2.000 3", "1 nan 3", "1 2 3")
        ),
    ],
)
def test_a_small_file_that_no_kernels_set_could_hold_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mark"
    path.write_text(text)
    assert mark.read(path) is None
    lost = ((Gap.LATE, Lost(2, 0.125, LARGEST)), (Gap.RESET, Lost(10**17, 10.0**12 - 0.001, 1)))
    latest = Synced(Mark(0xFDFFFFFFFFFFFFFF, (1 << 64) - 1), 1 << 100, lost)
    mark.write(path, latest)
    assert mark.read(path) == latest
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text() + "of-a-later-release 1 2.000 3\n")
    assert mark.read(path) == latest
    assert Mark.of(Address.unpack(latest.mark.address.packed)) == latest.mark


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no mark " + "x" * 52 + "|cut", r"'no mark x{52}' is no mark"),
        (f"fd00000000000001 {1 << 64} 1\n", f"its sequence is {1 << 64}"),
    ],
)
def test_what_is_wrong_with_a_small_file_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, words: str
) -> None:
    path = tmp_path / "mark"
    path.write_text(text)
    assert mark.read(path) is None
    assert re.search(words, caplog.text)


def test_new_books_have_a_random_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda number: bytes(range(1, number + 1)))
    assert mark.successor(None, [], None) == (0xFD01020304050607, 0)


def test_books_go_on_from_the_latest_mark_of_their_number() -> None:
    assert mark.successor(A, [Mark(1, 4)], Synced(Mark(1, 7), 0)) == Mark(1, 7)
    assert mark.successor(A, [B], Synced(B, 0)) == Mark(1, 0)
    assert mark.successor(None, [], Synced(B, 0)) == B
    assert mark.successor(None, [A], Synced(B, 0)) == A
    assert mark.successor(None, [], None).sequence == 0
