"""The plan in force: read again when its files change, and refused when it would move a Node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from netmgr.errors import ConfigError, NetmgrError
from netmgr.kube.claims import Claim, moved
from netmgr.kube.places import Places, Slot

log = logging.getLogger(__name__)

SHOWN = 5


class PlanWatch:
    """Places as the plan's files have them, as long as that moves nobody."""

    def __init__(self, read: Callable[[], Places], files: tuple[Path, ...]) -> None:
        """Read the plan.

        Raises:
            ConfigError: it cannot be read, or has no such cluster.
        """
        self._read = read
        self._files = files
        self._seen = self._look()
        self._wanted = read()
        self._accepted: Places | None = None
        self.refused = ""
        """Why the plan on disk is not in force; empty when it is."""

    def places(self, claims: Mapping[Slot, Claim]) -> Places:
        """The places in force.

        Raises:
            ConfigError: the very first plan would move Nodes, so that there is none to go on with.
        """
        self._read_changes()
        if self._accepted is not self._wanted:
            self._accept(claims)
        if self._accepted is None:
            raise ConfigError(self.refused)
        return self._accepted

    def _read_changes(self) -> None:
        now = self._look()
        if now == self._seen:
            return
        self._seen = now
        try:
            self._wanted = self._read()
        except NetmgrError as error:
            self._refuse(f"the plan on disk cannot be used: {error.message}")

    def _accept(self, claims: Mapping[Slot, Claim]) -> None:
        sentences = list(moved(self._wanted, claims))
        if not sentences:
            log.info("plan-in-force cluster=%s pools=%s", self._wanted.cluster, self._wanted.capacity)
            self._accepted, self.refused = self._wanted, ""
            return
        more = f" and {len(sentences) - SHOWN} more" if len(sentences) > SHOWN else ""
        self._refuse(
            f"the plan would move Nodes, which never happens: {'; '.join(sentences[:SHOWN])}{more}. "
            "Restore plan.lock.yaml from version control, or delete these Nodes first"
        )

    def _refuse(self, reason: str) -> None:
        if reason != self.refused:
            log.error("plan-refused reason=%s", reason)
        self.refused = reason

    def _look(self) -> tuple[object, ...]:
        """What tells that a file was replaced; a ConfigMap's volume swaps a link above it."""
        found = (path.stat() for path in self._files if path.exists())
        return tuple((state.st_ino, state.st_mtime_ns, state.st_size) for state in found)
