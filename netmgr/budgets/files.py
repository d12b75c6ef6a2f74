"""What a server without Kubernetes keeps in its directory."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from netmgr import durable
from netmgr.budgets import messages
from netmgr.budgets.keeping import ServerState
from netmgr.clock import DAY_SECONDS


class FileStore:
    """What the next leader has to know."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> ServerState | None:
        return durable.read(self._path, lambda text: messages.decode(text, ServerState))

    def write(self, state: ServerState) -> None:
        durable.write(self._path, messages.encode(state))


class HeardNodes:
    """Which of a plan's nodes reported today or yesterday: only these can have any of a budget.

    A plan names more than there are, and what is kept for those that are silent nobody else gets.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # By name, the day of the last report.
        self._days: dict[str, int] = durable.read(path, json.loads) or {}
        self._kept = dict(self._days)

    def heard(self, name: str) -> str:
        self._days[name] = int(time.time() // DAY_SECONDS)
        return name

    def among(self, planned: Mapping[str, int]) -> dict[str, int]:
        """The entries of these nodes alone, which are kept before any is answered."""
        yesterday = time.time() // DAY_SECONDS - 1
        days = {name: day for name, day in dict(self._days).items() if day >= yesterday}
        if days != self._kept:
            durable.write(self._path, json.dumps(days).encode())
            self._kept = days
        return {name: planned[name] for name in days if name in planned}
