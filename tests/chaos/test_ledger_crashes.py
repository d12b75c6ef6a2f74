"""The ledger where a test of one process cannot reach: killed by the kernel, and with the disk
full.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.errors import SetupError
from netmgr.ledger.ledger import Ledger
from tests.fakes import ledger_writer
from tests.fakes.ledger_tools import counts
from tests.fakes.ledger_writer import PODS, begin_pods, counters, opened, round_of
from tests.kernel.common import use_up_blocks

KILLS = 25
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.programs
def test_a_ledger_killed_at_any_moment_resumes_exactly(tmp_path: Path) -> None:
    path, chance = tmp_path / "ledger.db", random.Random(7)  # noqa: S311  no secret
    with_pods = opened(path)
    begin_pods(with_pods)
    with_pods.close()
    done = 0
    for kill in range(KILLS):
        reached = _killed_while_posting(path, done, chance.uniform(0, 0.03))
        ledger = opened(path)
        totals = ledger.totals()
        sizes = {total["bytes"] for total in totals.pods}
        assert len(sizes) == 1, f"kill {kill}: half a posting is there"
        done = sizes.pop() // 1000
        assert done in (reached, reached + 1), f"kill {kill}: told {reached}, kept {done}"
        assert {total["packets"] for total in totals.pods} == {2 * done}
        assert sum(total["bytes"] for total in totals.namespaces) == 2 * PODS * 1000 * done
        ledger.post(round_of(done))
        assert ledger.totals() == totals
        assert not counts(totals)
        ledger.close()
    assert done > KILLS


def _killed_while_posting(path: Path, done: int, seconds: float) -> int:
    """Rounds that a writer said it had posted when SIGKILL took it, some time after two."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, ledger_writer.__file__, path, str(done)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        lines = [told.readline(), told.readline()]
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        lines += told
    assert lines[0], "the writer never wrote"
    return max(int(line) for line in lines if line.endswith(b"\n"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "netmgr-test", str(folder)]
    assert programs.run(mount).returncode == 0
    try:
        yield folder
    finally:
        assert programs.run(["umount", "--lazy", str(folder)]).returncode == 0


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    filler.mkdir()
    use_up_blocks(filler)
    return filler / "room"


@pytest.mark.root
def test_totals_go_on_while_the_disk_is_full_and_are_durable_again_after(small_disk: Path) -> None:
    path = small_disk / "ledger.db"
    ledger = opened(path)
    begin_pods(ledger)
    ledger.post(round_of(1))
    filler = fill(small_disk)
    number = next(number for number in range(2, 500) if not _durable_after(ledger, number))
    ledger.end(counters(0))
    ledger.post(round_of(number + 1, range(1, PODS)))
    assert sum(total["bytes"] for total in ledger.totals().namespaces) == 1000 * (
        2 * PODS * (number + 1) - 2
    )
    assert not ledger.totals().durable
    filler.unlink()
    ledger.post(round_of(number + 2, range(1, PODS)))
    assert ledger.durable
    before = ledger.totals()
    assert counts(before) == {"not-durable": 1}
    again = opened(path)  # as after a crash: the other was never closed
    assert again.totals() == before
    again.close()
    ledger.close()


def _durable_after(ledger: Ledger, number: int) -> bool:
    ledger.post(round_of(number))
    return ledger.durable


@pytest.mark.root
def test_a_crash_with_a_full_disk_loses_nothing_that_the_kernel_still_counts(
    small_disk: Path,
) -> None:
    path = small_disk / "ledger.db"
    ledger = opened(path)
    begin_pods(ledger)
    filler = fill(small_disk)
    number = next(number for number in range(1, 500) if not _durable_after(ledger, number))
    filler.unlink()
    again = opened(path)  # as after a crash: the other was never closed, nor did it write again
    again.post(round_of(number + 5))
    assert {total["bytes"] for total in again.totals().pods} == {1000 * (number + 5)}
    again.close()
    ledger._store.close()


@pytest.mark.root
def test_a_full_disk_at_the_start_is_not_taken_for_damage(small_disk: Path) -> None:
    filler = fill(small_disk)
    with pytest.raises(SetupError, match="check the disk's space"):
        opened(small_disk / "ledger.db")
    filler.unlink()
    opened(small_disk / "ledger.db").close()
