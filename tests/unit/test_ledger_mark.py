"""Books that are lost, older or another machine's are recognised by marks elsewhere; the true ones
always pass.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from netmgr.ledger import mark
from netmgr.ledger.ledger import MARK_FILE, Ledger
from netmgr.ledger.mark import Found, Mark, Own, Synced, compare
from netmgr.model import PodRef
from netmgr.prefixes import Address
from tests.fakes.ledger_tools import (
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


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.time = 5000.0
    return clock


class Kernel:
    """What outlives the agent: one counter, and the mark beside it."""

    def __init__(self) -> None:
        self.bytes = 0
        self.mark: Mark | None = None

    def take(self, ledger: Ledger, size: int) -> None:
        self.bytes += size
        ledger.post([reading(self.bytes)])
        other = counter(address=Address.parse("10.1.0.99"))
        ledger.begin([other], PodRef("elsewhere", "brief"))
        ledger.post([reading(0, of=other)], closing=[other])
        self.mark = ledger.mark
        ledger.end([other])

    def marks(self) -> list[Mark]:
        return [self.mark] if self.mark else []


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def ledger(path: Path, clock: Clock, kernel: Kernel) -> Iterator[Ledger]:
    """Books in use, with a copy made of them in the middle."""
    ledger = opened(path, clock)
    assert ledger.examine([], has_counters=False) is Found.NEW
    ledger.begin([counter()], WEB)
    kernel.take(ledger, 100)
    ledger.checkpoint()
    shutil.copy(path, path.with_name(COPY))
    clock.time += 60
    kernel.take(ledger, 200)
    return ledger


def again(path: Path, clock: Clock, kernel: Kernel, found: Found, boot: str = "boot-1") -> Ledger:
    clock.time += 10
    ledger = opened(path, clock, boot)
    assert ledger.examine(kernel.marks(), has_counters=bool(kernel.bytes)) is found
    assert (ledger.mark or Mark(0, 0)) >= (kernel.mark or Mark(0, 0))
    ledger.begin([counter()], WEB)
    if kernel.bytes:
        ledger.post([reading(kernel.bytes)])
    return ledger


def test_the_true_books_are_known_after_every_kind_of_end(
    path: Path, clock: Clock, kernel: Kernel, ledger: Ledger
) -> None:
    ledger._store.close()
    after = again(path, clock, kernel, Found.CURRENT)
    kernel.mark = after.mark
    after.close()
    books = opened(path, clock)
    own = books.mark
    assert own
    assert books.examine([Mark(7, 1 << 60), own], has_counters=True) is Found.CURRENT
    assert books.mark == own, "somebody put a mark of no books beside ours"
    books.close()
    after = again(path, clock, kernel, Found.CURRENT)
    after.close()
    kernel.mark, kernel.bytes = None, 0
    after = again(path, clock, kernel, Found.CURRENT, "boot-2")
    assert namespace_bytes(after) == 300
    assert gaps(after) == {"reboot": 1}
    after.close()


def remove(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)


def truncate(path: Path) -> None:
    remove(path)
    path.touch()


@pytest.mark.parametrize(
    ("lose", "left"),
    [
        (remove, {"mark file", "kernel mark", "counters"}),
        (truncate, {"kernel mark", "counters"}),
        (remove, {"counters"}),
        (remove, {"mark file"}),
    ],
    ids=["removed", "truncated", "only counters are left", "only the mark file is left"],
)
def test_lost_books_are_rebuilt_from_live_counters_and_are_a_gap(
    path: Path,
    clock: Clock,
    kernel: Kernel,
    ledger: Ledger,
    lose: Callable[[Path], None],
    left: set[str],
) -> None:
    ledger.close()
    lose(path)
    former = kernel.mark
    if "mark file" not in left:
        path.with_name(MARK_FILE).unlink()
    if "kernel mark" not in left:
        kernel.mark = None
    boot = "boot-1" if "counters" in left else "boot-2"
    if boot == "boot-2":
        kernel.bytes = 0
    after = again(path, clock, kernel, Found.LOST, boot)
    assert gaps(after) == {"ledger-lost": 1}
    assert pod_bytes(after) == kernel.bytes
    assert after.mark
    assert former
    assert (after.mark.books == former.books) is (left != {"counters"})
    after.close()
    again(path, clock, kernel, Found.CURRENT, boot).close()


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_an_older_copy_is_brought_up_by_live_counters_and_is_a_gap_since_it_was_made(
    path: Path, clock: Clock, kernel: Kernel, ledger: Ledger, boot: str
) -> None:
    ledger.close()
    remove(path)
    shutil.copy(path.with_name(COPY), path)
    if boot == "boot-2":
        kernel.mark, kernel.bytes = None, 0
    after = again(path, clock, kernel, Found.OLDER, boot)
    if boot == "boot-1":
        assert (pod_bytes(after), gaps(after)) == (300, {"ledger-older": 1})
        assert gap_seconds(after, "ledger-older") == 70
    else:
        assert gaps(after) == {"ledger-older": 1, "reboot": 1}
    after.close()
    again(path, clock, kernel, Found.CURRENT, boot).close()


@pytest.mark.parametrize("is_behind_the_mark", [True, False])
def test_a_copy_of_everything_on_the_disk_is_known_by_the_kernel_if_it_lacks_what_is_gone(
    path: Path, clock: Clock, kernel: Kernel, ledger: Ledger, *, is_behind_the_mark: bool
) -> None:
    """What live counters still show is lost by no copy."""
    shutil.copytree(path.parent, path.parent.parent / "whole")
    if is_behind_the_mark:
        kernel.take(ledger, 50)
    else:
        kernel.bytes += 50
        ledger.post([reading(kernel.bytes)])
    ledger.close()
    shutil.rmtree(path.parent)
    shutil.move(path.parent.parent / "whole", path.parent)
    after = again(path, clock, kernel, Found.OLDER if is_behind_the_mark else Found.CURRENT)
    assert pod_bytes(after) == 350
    assert gaps(after) == ({"ledger-older": 1} if is_behind_the_mark else {})
    after.close()


def test_another_machines_books_are_set_aside(
    path: Path, clock: Clock, kernel: Kernel, ledger: Ledger
) -> None:
    ledger.close()
    other_path = path.parent / "other" / path.name
    other_path.parent.mkdir()
    other = opened(other_path, clock)
    other.examine([], has_counters=False)
    other.begin([counter()], WEB)
    other.post([reading(9_999_999)])
    other.close()
    shutil.copy(other_path, path)
    after = again(path, clock, kernel, Found.FOREIGN)
    assert (pod_bytes(after), gaps(after)) == (300, {"ledger-lost": 1})
    after.close()
    (kept,) = path.parent.glob(f"{path.name}.foreign-*")
    assert sqlite3.connect(kept).execute("SELECT max(bytes) FROM total").fetchone() == (9_999_999,)


def test_what_could_not_be_written_before_a_crash_is_missed(
    path: Path, clock: Clock, kernel: Kernel, ledger: Ledger
) -> None:
    with sqlite3.connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger._store._connection.execute("PRAGMA busy_timeout = 10")
        kernel.take(ledger, 50)
        assert not ledger.durable
        ledger._store.close()
        other.rollback()
    after = again(path, clock, kernel, Found.OLDER)
    assert (pod_bytes(after), gaps(after)) == (350, {"ledger-older": 1})
    after.close()


def test_totals_that_fell_within_the_true_books_are_noticed(
    path: Path, clock: Clock, kernel: Kernel, ledger: Ledger
) -> None:
    ledger.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE total SET bytes = 7 WHERE scope = 'namespace'")
    again(path, clock, kernel, Found.OLDER).close()


def test_the_books_of_a_version_without_marks_are_taken_as_they_are(
    path: Path, clock: Clock
) -> None:
    ledger = opened(path, clock)
    ledger.begin([hook("FORWARD", OUT)], None)
    ledger.post([reading(5, of=hook("FORWARD", OUT))])
    ledger.close()
    after = opened(path, clock)
    assert after.examine([], has_counters=True) is Found.CURRENT
    assert (after.mark is not None, gaps(after)) == (True, {})
    after.close()


A, B = Mark(1, 5), Mark(2, 900)


@pytest.mark.parametrize(
    ("own", "kernel", "synced", "found"),
    [
        (A, [A], Synced(A, 10), Found.CURRENT),
        (A, [], None, Found.CURRENT),
        (A, [Mark(1, 4)], Synced(Mark(1, 3), 9), Found.CURRENT),
        (A, [A], Synced(B, 99), Found.CURRENT),
        (A, [Mark(1, 4), Mark(1, 6)], None, Found.OLDER),
        (A, [], Synced(Mark(1, 6), 0), Found.OLDER),
        (A, [B], Synced(A, 10), Found.FOREIGN),
        (A, [A, B], None, Found.CURRENT),
        (A, [], Synced(B, 0), Found.FOREIGN),
        (None, [A], None, Found.OLDER),
    ],
)
def test_the_kernel_is_believed_before_the_disk(
    own: Mark | None, kernel: list[Mark], synced: Synced | None, found: Found
) -> None:
    assert compare(Own(own, is_new=False, bytes=10), kernel, synced, has_counters=True) is found


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
    path: Path, clock: Clock, kernel: Kernel, ledger: Ledger, harm: str
) -> None:
    ledger.checkpoint()
    assert not ledger.is_lost()
    HARMED[harm](path)
    kernel.take(ledger, 5)
    assert ledger.is_lost()
    path.parent.mkdir(exist_ok=True)
    ledger.restore()
    assert not ledger.is_lost()
    ledger.checkpoint()
    kernel.take(ledger, 7)
    assert ledger.durable
    ledger._store.close()
    after = again(path, clock, kernel, Found.CURRENT)
    assert (pod_bytes(after), namespace_bytes(after)) == (312, 312)
    assert set(gaps(after)) <= {"not-durable"}
    hours = sqlite3.connect(path).execute("SELECT sum(bytes) FROM hour").fetchone()[0]
    assert hours == 312 if harm in DISPLACED else hours <= 312
    after.close()


def test_killed_while_the_file_is_written_again_an_agent_leaves_the_former_one(
    path: Path, clock: Clock, kernel: Kernel, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.take(ledger, 5)
    os.utime(path, (1, 1))
    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            ledger.restore()
    after = again(path, clock, kernel, Found.CURRENT)
    assert (pod_bytes(after), namespace_bytes(after)) == (305, 305)
    assert gaps(after) == {}
    after.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fd00000000000001 5\n",
        "-d00000000000001 5 1\n",
        "fd000000000000001 5 1\n",
        f"fd00000000000001 {1 << 64} 1\n",
        "fd00000000000001 -5 1\n",
        "fd00000000000001 5 1_0\n",
        "fd00000000000001 5 1\n2",
    ],
)
def test_a_small_file_that_no_set_of_the_kernel_could_hold_is_none(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "mark"
    path.write_text(text)
    assert mark.read(path) is None
    latest = Synced(Mark(0xFDFFFFFFFFFFFFFF, (1 << 64) - 1), 1 << 100)
    mark.write(path, latest)
    assert mark.read(path) == latest
    assert path.stat().st_mode & 0o777 == 0o600
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


def test_new_books_have_a_number_of_64_random_bits_but_for_the_first_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "urandom", lambda number: bytes(range(1, number + 1)))
    assert Mark.new() == (0xFD01020304050607, 0)


def test_books_go_on_from_the_latest_mark_of_their_number() -> None:
    assert mark.successor(A, [Mark(1, 4)], Synced(Mark(1, 7), 0)) == Mark(1, 7)
    assert mark.successor(A, [B], Synced(B, 0)) == Mark(1, 0)
    assert mark.successor(None, [], Synced(B, 0)) == B
    assert mark.successor(None, [A], Synced(B, 0)) == A
    assert mark.successor(None, [], None).sequence == 0
