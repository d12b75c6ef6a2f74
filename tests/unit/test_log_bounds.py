"""The write-ahead logs of leases and ledger start over, however constantly they are written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from netmgr import sqlite_file
from netmgr.ipam.store import LeaseStore
from netmgr.model import Attachment, AttachmentKey
from tests.fakes.ledger_tools import ADDRESS, WEB, Clock, counter, opened, reading

FAR_TOO_LONG = 256 * sqlite_file.LOG_BYTES
"""A log that never starts over gets there within seconds; one that does stays below a tenth."""


@contextmanager
def constantly(act: Callable[[int], None]) -> Iterator[None]:
    """Do something over and over in another thread, without a pause."""
    ending = threading.Event()

    def repeat() -> None:
        for number in count():
            if ending.is_set():
                return
            act(number)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def wait_until_it_starts_over(path: Path, checkpoint: Callable[[], None], times: int) -> None:
    log = path.with_name(path.name + "-wal")
    former = 0
    while times:
        # Locks are not fair: on one processor, checkpoints alone would keep the writer out.
        time.sleep(0.001)
        checkpoint()
        size = log.stat().st_size
        assert size < FAR_TOO_LONG
        times -= size < former
        former = size


def test_of_leases(tmp_path: Path) -> None:
    store = LeaseStore(tmp_path / "ipam.sqlite")
    held = Attachment(AttachmentKey("container", "eth0"), WEB, (ADDRESS,), "nm0", "/run/netns/x")

    def churn(number: int) -> None:
        store.hold(held)
        store.release(held, float(number))

    with constantly(churn):
        wait_until_it_starts_over(store.path, store.checkpoint, times=3)
    store.close()


def test_of_the_ledger(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.sqlite", Clock())
    ledger.begin([counter()], WEB)
    with constantly(lambda number: ledger.post([reading(100 * number)])):
        wait_until_it_starts_over(ledger.path, ledger.checkpoint, times=3)
    ledger.close()
