"""Has a server of budgets lead, and keeps durably what the next leader has to know.

That is the epoch, of which every leader has a greater one, and the bytes that may have been lent.
Both are written before they are in force, and only over what this leader has read or written: so a
former leader that does not know of its replacement lends no more bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from netmgr.budgets.allocator import BudgetAllocator, Ceilings
from netmgr.budgets.messages import Budget
from netmgr.budgets.server import BudgetServer, Leading
from netmgr.clock import DAY_SECONDS


@dataclass(frozen=True, slots=True)
class ServerState:
    """Read and written as messages are."""

    epoch: int
    ceilings: Ceilings


class StateStore(Protocol):
    def read(self) -> ServerState | None:
        """What was kept last."""

    def write(self, state: ServerState) -> None:
        """Keep it; an error if somebody else wrote since the last `read` or `write` of this one."""


class BudgetsInForce(NamedTuple):
    budgets: tuple[Budget, ...]
    version: str
    enforce: bool


class Keeper:
    """Of one leadership, which ends with `lost`."""

    def __init__(self, server: BudgetServer, store: StateStore, lost: threading.Event) -> None:
        self._server, self._store, self._lost = server, store, lost
        self._allocator: BudgetAllocator | None = None
        self._state = ServerState(0, {})
        self._given: tuple[BudgetsInForce, Mapping[str, int]] | None = None

    def look(self, said: BudgetsInForce, nodes: Mapping[str, int]) -> None:
        """Take over at first; later, follow the document and the nodes, and keep what is new.

        `nodes` are all of the cluster by name, each with the pods that it can have. Raises what the
        store does; when it does, what was kept is read again the next time, and led anew.
        """
        allocator = self._allocator or self._begin()
        given = said, dict(nodes)
        if given != self._given:
            self._given = given
            self._server.run(partial(self._set, allocator, *given))
        wanted = self._server.ceilings
        if any(wanted[name] != self._state.ceilings.get(name) for name in wanted):
            # Those of a budget that was removed, too: it may come back on the same day.
            self._write(ServerState(allocator.epoch, {**self._state.ceilings, **wanted}))
            self._server.run(partial(allocator.keep, self._state.ceilings))

    def _begin(self) -> BudgetAllocator:
        day = int(time.time() // DAY_SECONDS)
        kept = self._store.read()
        former = kept or self._state
        recent = {name: of for name, of in former.ceilings.items() if max(of, default=0) >= day}
        # By the clock, too: what was kept may have been deleted, and nodes refuse a former epoch.
        self._write(ServerState(max(former.epoch + 1, int(time.time())), recent))
        # Of a first leader no node can have anything.
        ceilings = recent if kept else None
        self._allocator = BudgetAllocator(self._state.epoch, time.monotonic(), day, ceilings)
        self._given = None
        return self._allocator

    def _set(
        self, allocator: BudgetAllocator, said: BudgetsInForce, nodes: Mapping[str, int]
    ) -> None:
        now = time.monotonic()
        allocator.set_budgets(said.budgets, said.version, now, enforce=said.enforce)
        allocator.set_nodes(nodes, now)
        self._server.leading = Leading(allocator, said.budgets, self._lost)
        self._server.look()

    def _write(self, state: ServerState) -> None:
        try:
            self._store.write(state)
        except Exception:
            self._allocator = self._server.leading = None
            raise
        self._state = state
