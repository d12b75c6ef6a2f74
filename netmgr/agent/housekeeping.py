"""The agent's recurring work: readings, reconciliation, and what keeps state small."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from netmgr.agent import spool
from netmgr.agent.node import Node
from netmgr.agent.telemetry import Telemetry
from netmgr.errors import NetmgrError

TOMBSTONE_SECONDS = 600.0
"""Longer than any launcher lives, so no ADD older than its DEL can still be under way."""

log = logging.getLogger(__name__)


class Housekeeping:
    """One thread with two rhythms.

    Args:
        serve: carries out a spooled request; returns its CNI error code.
    """

    def __init__(
        self,
        node: Node,
        telemetry: Telemetry,
        *,
        reading_seconds: float,
        reconcile_seconds: float,
        spool_dir: Path,
        serve: Callable[[bytes], int],
    ) -> None:
        self._node = node
        self._telemetry = telemetry
        self._reading_seconds = reading_seconds
        self._reconcile_seconds = reconcile_seconds
        self._spool_dir = spool_dir
        self._serve = serve
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the work under way."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        next_reading = next_reconcile = time.monotonic()
        while not self._stopping.wait(max(0.0, min(next_reading, next_reconcile) - time.monotonic())):
            now = time.monotonic()
            if now >= next_reading:
                next_reading = now + self._reading_seconds
                self._attempt("reading", self._node.accounts.read)
            if now >= next_reconcile:
                next_reconcile = now + self._reconcile_seconds
                self.reconcile()

    def reconcile(self) -> None:
        """One pass: what failed is logged and tried again with the next."""
        steps: tuple[tuple[str, Callable[[], None]], ...] = (
            ("spool", self.replay_spool),
            ("links", self._node.collect_vanished),
            ("wiring", self._repair_wiring),
            ("rules", self._repair_rules),
            ("addresses", self._node.leases.settle),
            ("mtu", self._node.dataplane.refresh_mtu),
            ("ledger", self._node.accounts.tidy),
            ("state", self._tidy_state),
        )
        for name, step in steps:
            self._attempt(name, step)

    def replay_spool(self) -> None:
        """Carry out DELs that came while no agent answered."""
        spool.replay(self._spool_dir, self._serve)

    def _attempt(self, name: str, step: Callable[[], None]) -> None:
        try:
            step()
        except (NetmgrError, OSError, sqlite3.Error) as error:
            log.error("housekeeping step failed step=%s error=%s", name, error)  # noqa: TRY400  expected kinds only
            self._telemetry.failing[name] = str(error)
        else:
            self._telemetry.failing.pop(name, None)

    def _repair_wiring(self) -> None:
        self._report("wiring", self._node.repair_wiring())

    def _repair_rules(self) -> None:
        self._report("rules", self._node.accounts.reconcile())

    def _report(self, area: str, repairs: list[str]) -> None:
        self._telemetry.repaired(area, repairs)
        for sentence in repairs:
            log.warning("repaired area=%s what=%r", area, sentence)

    def _tidy_state(self) -> None:
        self._node.leases.forget_tombstones(time.clock_gettime(time.CLOCK_BOOTTIME) - TOMBSTONE_SECONDS)
        self._node.leases.checkpoint()
