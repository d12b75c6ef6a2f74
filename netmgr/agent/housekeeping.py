"""What a node's agent does again and again: readings, reconciliation, and what keeps state small."""

from __future__ import annotations

import time
from collections.abc import Callable

from netmgr.agent import files, spool
from netmgr.agent.files import Files, Made
from netmgr.agent.node import Node
from netmgr.agent.rhythm import Rhythm, Steps
from netmgr.agent.router import Router
from netmgr.agent.telemetry import Telemetry
from netmgr.config import NodeDocument
from netmgr.errors import StateError

TOMBSTONE_SECONDS = 600.0
"""Longer than any launcher lives, so no ADD older than its DEL can still be under way."""


class Housekeeping:
    """The recurring steps of a node whose pods this agent wires.

    Args:
        serve: carries out a spooled request; returns its CNI error code.
    """

    def __init__(
        self,
        document: NodeDocument,
        node: Node,
        router: Router,
        telemetry: Telemetry,
        serve: Callable[[bytes], int],
        kept: Files,
    ) -> None:
        self._node = node
        self._router = router
        self._steps = Steps(telemetry)
        self._spool_dir = document.state_dir / "spool"
        self._serve = serve
        self._files = kept
        if not self._spool_dir.exists():
            self._make_spool()
        kept.keep(Made(self._spool_dir, self._make_spool))
        self._rhythm = Rhythm(
            "housekeeping",
            ((document.accounting.reading_seconds, self._read), (document.reconcile_seconds, self.reconcile)),
        )

    def start(self) -> None:
        """Begin."""
        self._rhythm.start()

    def stop(self) -> None:
        """End after the work under way."""
        self._rhythm.stop()

    def _read(self) -> None:
        self._steps.attempt("reading", self._node.accounts.read)

    def reconcile(self) -> None:
        """One pass: what failed is logged and tried again with the next."""
        node, attempt, repair = self._node, self._steps.attempt, self._steps.repair
        repair(files.STEP, self._files.restore)
        self.replay_spool()
        attempt("links", node.collect_vanished)
        repair("wiring", node.repair_wiring)
        repair("rules", node.accounts.reconcile)
        self._router.reconcile(self._steps)
        attempt("addresses", node.leases.settle)
        attempt("mtu", node.dataplane.refresh_mtu)
        attempt("ledger", node.accounts.tidy)
        attempt("state", self._tidy_state)

    def replay_spool(self) -> None:
        """Carry out DELs that came while no agent answered."""
        self._steps.attempt("spool", lambda: spool.replay(self._spool_dir, self._serve))

    def _make_spool(self) -> None:
        try:
            self._spool_dir.mkdir(mode=0o700)
        except OSError as error:
            raise StateError(f"{self._spool_dir}: cannot be made: {error.strerror}") from None

    def _tidy_state(self) -> None:
        self._node.leases.forget_tombstones(time.clock_gettime(time.CLOCK_BOOTTIME) - TOMBSTONE_SECONDS)
        self._node.leases.checkpoint()
