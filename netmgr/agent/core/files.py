"""Keeps the agent's files where they belong while it runs.

State or run directory may be removed or replaced under a running agent, which loses nothing by
that: an open file outlives its name. But its successor would find nothing, and its sockets could
not be reached. So every reconcile restores each file that is not the one that the agent opened.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from netmgr import durable
from netmgr.agent.core.components import Agent, Component, Remnants
from netmgr.agent.core.instance import STATE_MODE
from netmgr.agent.core.scheduler import Task
from netmgr.api.server import UnixServer
from netmgr.descriptors import closing
from netmgr.errors import NotReady
from netmgr.kernel.capabilities import Capability

FILES = "files"
"""Name of the attempt, and area of the repairs."""

# For two logs, their indexes, and what is replaced. As many files as a start may make, since a disk
# may lack inodes as well as blocks.
RESERVE_FILES, RESERVE_BYTES = 8, 32 << 10


class Kept(Protocol):
    """A file or directory that has to exist while the agent runs."""

    @property
    def path(self) -> Path: ...

    def is_lost(self) -> bool:
        """Whether it was removed or replaced."""

    def restore(self) -> None:
        """Make it again; raises a NetmgrError if that cannot be done now."""


@dataclass(frozen=True)
class Made:
    """A file or directory that is restored by writing it again."""

    path: Path
    restore: Callable[[], None]
    is_wanted: Callable[[], bool] = lambda: True

    def is_lost(self) -> bool:
        return self.is_wanted() and not self.path.exists()


class Reserve:
    """Room that a start on a full disk uses."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "reserve"

    def release(self) -> None:
        """Give it to whoever comes first: called just before it is used."""
        with suppress(OSError):
            shutil.rmtree(self._folder)

    def take(self) -> None:
        """Take as much of it again as there is room for."""
        for number in range(RESERVE_FILES):
            path = self._folder / str(number)
            with suppress(OSError):
                self._folder.mkdir(mode=0o700, exist_ok=True)
                if not path.exists() or path.stat().st_size < RESERVE_BYTES:
                    # Random, since some file systems keep no room for zeros.
                    with closing(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)) as descriptor:
                        os.write(descriptor, os.urandom(RESERVE_BYTES))


class Files(Component):
    """All files of one agent, in the order in which they are made again: directories first."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._kept: list[Kept] = list(agent.directories)
        self._restoring = threading.Lock()
        self._reserve = Reserve(agent.document.state_dir)
        # Until everything else has been opened, or closed again.
        self._reserve.release()
        agent.stack.callback(self._reserve.take)

    def tasks(self) -> Iterable[Task]:
        # Again: there may have been no room at the end of the start.
        return (Task(self._reserve.take, self._agent.document.reconcile_seconds),)

    def keep(self, *kept: Kept) -> None:
        self._kept += kept

    def serve(self, server: UnixServer) -> None:
        """Serve a socket until the agent stops, and restore its file."""
        # Whoever finds the agent ready finds its reserve complete, if there is room.
        self._reserve.take()
        self.keep(server)
        server.start()
        self._agent.stack.callback(self._stop, server)

    def _stop(self, server: UnixServer) -> None:
        # A pass that is under way, or still comes, would make the removed socket again.
        with self._restoring:
            self._kept.remove(server)
        server.stop()

    def capabilities(self) -> Iterable[Capability]:
        # To give a restored socket to its readers.
        if self._agent.document.reader_group is not None:
            yield Capability.CHOWN
        for directory in self._agent.directories:
            path = directory.path.resolve()
            # Without it, root passes no directory of another user that is closed to others.
            if any(folder.stat().st_uid != os.geteuid() for folder in (path, *path.parents)):
                yield Capability.DAC_OVERRIDE

    def reconcile(self) -> None:
        self._agent.health.repair(FILES, self.restore)

    def health(self, failing: Mapping[str, str]) -> None:
        # Not LimitedConnectivity: pods that run need none of the files.
        if FILES in failing:
            raise NotReady(f"{FILES}: {failing[FILES]}")

    def restore(self) -> list[str]:
        """Restore what was removed or replaced, and close what was opened; describes each repair.

        If one cannot be made (NetmgrError), those after it wait for the next time.
        """
        with self._restoring:
            lost = [kept for kept in self._kept if kept.is_lost()]
            for kept in lost:
                kept.restore()
        restored = [f"{kept.path} was removed or replaced, and is made again" for kept in lost]
        # All that is there: `cni install` or a person may have made it, or opened it since.
        modes = dict.fromkeys(self._agent.document.state_dir.iterdir(), STATE_MODE)
        modes |= {directory.path: directory.mode for directory in self._agent.directories}
        opened = [path for path, mode in modes.items() if durable.close_to_others(path, mode)]
        return [*restored, *(f"{path} was open to others, and is closed" for path in opened)]

    @classmethod
    def remove(cls, remnants: Remnants) -> Iterator[str]:
        yield from _remove(remnants.run_dir)
        if not remnants.keep_state:
            yield from _remove(remnants.state_dir)


def _remove(directory: Path) -> Iterator[str]:
    if not directory.is_dir():
        return
    for entry in sorted(directory.iterdir()):
        # A link to a directory is unlinked: what it leads to is not ours.
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    try:
        directory.rmdir()
    # A mount point (EBUSY), as in a container; the directory below belongs to the host.
    except OSError:
        yield f"{directory} is empty and stays: it is a mount point here"
    else:
        yield f"{directory} was removed"
