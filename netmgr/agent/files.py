"""Keeps the agent's files where they belong while it runs.

Somebody may remove or replace the state or the run directory under a running agent, whole or in
part. Nothing is lost by that as long as the agent lives: an open file outlives its name, and the
rest is in memory. But its successor would find nothing, and nobody could reach its sockets. So
every reconcile looks whether each file is the one that was opened, and makes again what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

STEP = "files"
"""Name in `Telemetry.failing`, and area of the repairs."""


class Kept(Protocol):
    """A file or directory that is there while the agent runs."""

    @property
    def path(self) -> Path:
        """Where it stands."""
        ...

    def is_lost(self) -> bool:
        """Whether something else stands there now, or nothing."""
        ...

    def restore(self) -> None:
        """Make it again.

        Raises:
            NetmgrError: it cannot be made now.
        """
        ...


@dataclass(frozen=True)
class Made:
    """A file or directory that needs no more than to be written again."""

    path: Path
    make: Callable[[], None]
    is_wanted: Callable[[], bool] = lambda: True

    def is_lost(self) -> bool:
        """Whether nothing stands there that should."""
        return self.is_wanted() and not self.path.exists()

    def restore(self) -> None:
        """Write it."""
        self.make()


class Files:
    """All files of one agent, in the order in which they are made again: directories first."""

    def __init__(self, directories: Iterable[Kept]) -> None:
        self._kept = list(directories)

    def keep(self, *kept: Kept) -> None:
        """Look after these as well."""
        self._kept += kept

    def restore(self) -> list[str]:
        """Make again what was removed or replaced; a sentence for each.

        Raises:
            NetmgrError: one cannot be made; those after it wait for the next time.
        """
        lost = [each for each in self._kept if each.is_lost()]
        for each in lost:
            each.restore()
        return [f"{each.path} was removed or replaced, and is made again" for each in lost]
