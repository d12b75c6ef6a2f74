"""What a node has of a cluster's budgets, as `netmgr exporter` would write it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from netmgr import durable
from netmgr.agent.accounting.budgets_file import boot_time
from netmgr.budgets import messages
from netmgr.budgets.held import HeldGrants
from netmgr.budgets.messages import Budget, BudgetAnswer, Grant
from netmgr.model import Traffic
from tests.kernel.flows import MEGABIT

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
DAY = 86_400
PLENTY = 10**15


def budget(name: str, *namespaces: str, within: str = "", **more: int) -> Budget:
    """One of 1 Gbit/s to the internet."""
    given = Budget(name, within, namespaces or (name,), Traffic.INTERNET_OUT, 1000 * MEGABIT)
    return replace(given, **more)  # type: ignore[arg-type]  its whole numbers alone


@dataclass
class GrantFile:
    """The node's file."""

    path: Path
    budgets: tuple[Budget, ...] = ()
    enforce: bool = True
    day: int = 0
    boot: str = BOOT
    allowances: dict[str, int] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    epoch: int = 1

    def grant(self, rates: Mapping[str, float], *, age: float = 0, firm: float = 1.0) -> None:
        """Grant rates in Mbit/s; after the hold `firm` times as much, and a tenth as safe rate."""
        # A file from before the machine's boot would be none.
        time.sleep(max(0.0, age - boot_time()))
        day = self.day or int(time.time()) // DAY
        grants = {
            name: Grant(
                int(rate * MEGABIT),
                int(rate * MEGABIT * firm),
                int(rate * MEGABIT / 10),
                self.levels.get(name, 0),
                day,
                self.allowances.get(name, PLENTY),
            )
            for name, rate in rates.items()
        }
        version = str(hash(self.budgets))
        answer = BudgetAnswer(self.epoch, 1, version, self.enforce, self.budgets, grants)
        self.write(messages.encode(HeldGrants(self.boot, boot_time() - age, answer)))

    def write(self, text: bytes) -> None:
        durable.write(self.path, text, 0o644)
