"""What the node knows of the cluster's budgets: a file that a process without privileges writes.

The last good content is in force, by its age. A copy outlasts this process, so that neither a bad
file nor a lost one opens a budget.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from netmgr import durable
from netmgr.budgets import held, messages
from netmgr.budgets.held import HeldGrants
from netmgr.clock import DAY_SECONDS, Clock
from netmgr.descriptors import closing
from netmgr.errors import StateError, reason
from netmgr.limits import budgets
from netmgr.limits.budgets import NodeBudget

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class BudgetsFile:
    """The budgets by the file's last good content. `read` is for one thread, the others for any."""

    def __init__(self, path: Path, copy: Path, clock: Clock) -> None:
        self.path, self._copy, self._clock = path, copy, clock
        self.boot = _BOOT_ID.read_text("ascii").strip()
        self.fault = ""
        """What is wrong with the file; empty if nothing is."""
        self.held = self._copied() or HeldGrants.before_an_answer()

    def _copied(self) -> HeldGrants | None:
        try:
            return durable.read(self._copy, _sound)
        except StateError as error:
            self.fault = error.message
            return None

    def read(self) -> None:
        """Read the file; StateError if the copy cannot be written."""
        try:
            held_now = _read(self.path)
        except FileNotFoundError:
            # Not written yet, or lost.
            return
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            self.fault = f"{self.path}: {why}; netmgr exporter writes it, see its log"
            return
        self.fault = ""
        is_new = held_now.answer.version != self.held.answer.version
        self.held = held_now
        if is_new or not self._copy.exists():
            durable.write(self._copy, messages.encode(held_now), 0o600)

    @property
    def age(self) -> float:
        """Seconds since the report that was answered."""
        return self.held.age(self.boot, boot_time())

    @property
    def next_change(self) -> float:
        """Seconds until the rates in force change, if no answer comes."""
        now = boot_time()
        change = self.held.changes(self.boot, now)
        # At its end a rate is in force yet.
        return max(0.001, change - now + 0.001) if change is not None else float("inf")

    def known(self) -> tuple[NodeBudget, ...]:
        """The budgets as they are now, whether they are enforced or not."""
        today = int(self._clock.now()) // DAY_SECONDS
        return budgets.on_node(self.held, self.boot, boot_time(), today)

    def in_force(self) -> tuple[NodeBudget, ...]:
        return self.known() if self.held.answer.enforce else ()


def _read(path: Path) -> HeldGrants:
    # Whoever writes it could lead to another file, or to one that nobody ever writes.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with closing(os.open(path, flags)) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        text = b""
        while len(text) <= messages.LONGEST and (more := os.read(descriptor, messages.LONGEST + 1)):
            text += more
    return _sound(text)


def _sound(text: bytes | str) -> HeldGrants:
    content = held.decode(text)
    budgets.require_sound(content)
    return content
