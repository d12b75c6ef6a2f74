"""Deletes unwired links in groups, in the background, when no request is under way.

Deleting links holds the kernel's routing lock for some 20 ms, during which nothing can be
wired; so a group waits for a quiet moment, though not for ever.
"""

from __future__ import annotations

import logging
import threading
import time

from netmgr.agent.telemetry import Telemetry
from netmgr.dataplane.wiring import Dataplane
from netmgr.errors import NetmgrError

_QUIET_SECONDS = 0.05
_PATIENCE_SECONDS = 1.0

log = logging.getLogger(__name__)


class Reaper:
    """One thread that reaps after it was woken."""

    def __init__(self, dataplane: Dataplane, telemetry: Telemetry) -> None:
        self._dataplane = dataplane
        self._telemetry = telemetry
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)

    def start(self) -> None:
        """Begin, with whatever a predecessor left."""
        self._wanted.set()
        self._thread.start()

    def wake(self) -> None:
        """Say that something was unwired."""
        self._wanted.set()

    def stop(self) -> None:
        """Reap what is left and end."""
        self._stopping.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait()
            self._wait_for_quiet()
            self._wanted.clear()
            try:
                self._dataplane.reap()
            except NetmgrError as error:
                log.warning("links-not-deleted error=%s", error)
                self._stopping.wait(_PATIENCE_SECONDS)
                self._wanted.set()

    def _wait_for_quiet(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and not self._stopping.wait(_QUIET_SECONDS):
            if self._telemetry.idle_for(_QUIET_SECONDS):
                return
