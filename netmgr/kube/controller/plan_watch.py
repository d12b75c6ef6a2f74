"""The plan in force: read again when its files change, and refused when it would move a Node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from netmgr.errors import ConfigError, NetmgrError
from netmgr.file_version import versions
from netmgr.kube.controller.allocations import Claim, NodeAllocations, NodeIndex
from netmgr.printable import shortened

log = logging.getLogger(__name__)

SHOWN = 5


class PlanWatch:
    """The newest allocations of the plan's files that move no Node."""

    def __init__(self, read: Callable[[], NodeAllocations], files: tuple[Path, ...]) -> None:
        """Read the plan; ConfigError if it cannot be read, or has no such cluster."""
        self._read = read
        self._files = files
        self._seen = versions(self._files)
        self._wanted = read()
        self.cluster = self._wanted.cluster
        self._accepted: NodeAllocations | None = None
        self.refused = ""
        """Why the plan on disk is not in force; empty when it is."""

    def allocations(self, claims: Mapping[NodeIndex, Claim]) -> NodeAllocations:
        """Those in force; ConfigError if there are none, since the first plan would move Nodes."""
        self._read_changes()
        if self._accepted is not self._wanted:
            self._accept(claims)
        if self._accepted is None:
            raise ConfigError(self.refused)
        return self._accepted

    def _read_changes(self) -> None:
        # Before reading: a change meanwhile starts another reading. A plan that cannot be read
        # is reported once, not every round.
        now = versions(self._files)
        if now == self._seen:
            return
        self._seen = now
        try:
            self._wanted = self._read()
        except NetmgrError as error:
            self._refuse(f"the plan on disk cannot be used: {error.message}")

    def _accept(self, claims: Mapping[NodeIndex, Claim]) -> None:
        moves = list(moved(self._wanted, claims))
        if not moves:
            log.info(
                "plan-in-force cluster=%s pools=%s", self._wanted.cluster, self._wanted.capacity
            )
            self._accepted, self.refused = self._wanted, ""
            return
        self._refuse(
            f"the plan would move Nodes, which never happens: {shortened(moves, SHOWN, '; ')}. "
            "Restore plan.lock.yaml from version control, or drain and delete these Nodes first"
        )

    def _refuse(self, reason: str) -> None:
        if reason != self.refused:
            log.error("plan-refused reason=%s", reason)
        self.refused = reason


class AwaitedPlan:
    """A plan whose files may not exist yet: a ConfigMap that nobody has applied so far."""

    def __init__(self, open_watch: Callable[[], PlanWatch], files: tuple[Path, ...]) -> None:
        """Look for the files; raise a ConfigError if they are there and cannot be used."""
        self._open_watch = open_watch
        self._files = files
        self._watch: PlanWatch | None = None
        if self.watch() is None:
            log.warning("no-plan action=assign-nothing files=%s", ", ".join(map(str, files)))

    def watch(self) -> PlanWatch | None:
        """The plan; None until the files exist. ConfigError if the first one cannot be used."""
        if self._watch is None and versions(self._files):
            self._watch = self._open_watch()
        return self._watch


def moved(allocations: NodeAllocations, claims: Mapping[NodeIndex, Claim]) -> Iterator[str]:
    """Describe each claim that the plan would move or forget. None: the plan may be taken."""
    # Claims in cooldown count, too: pods of a machine that comes back still have these addresses.
    for index, claim in sorted(claims.items()):
        planned = allocations.at(index)
        if planned is not None and planned.ranges == claim.allocation.ranges:
            continue
        before = ", ".join(map(str, claim.allocation.ranges))
        now = ", ".join(map(str, planned.ranges)) if planned else "nothing"
        holder = f"Node {claim.node}"
        if claim.released is not None:
            holder = f"an allocation in cooldown after Node {claim.node}"
        yield f"{holder} ({index}) has {before}, and the plan says {now}"
