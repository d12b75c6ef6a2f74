"""The agent as a process: reads its document, runs the composition that its role asks for, stops it cleanly."""

from __future__ import annotations

import ctypes
import logging
import signal
import sqlite3
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from netmgr import documents, faults, logs
from netmgr.agent import instance, preflight
from netmgr.agent.files import Files
from netmgr.agent.instance import HeldDirectory
from netmgr.clock import Clock
from netmgr.config import NodeDocument
from netmgr.errors import StateError
from netmgr.sites import Role

_M_ARENA_MAX = -8
_ENDINGS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger(__name__)


class Agent(Protocol):
    """One composition of parts. Nothing runs before `start`."""

    @property
    def backend(self) -> str:
        """What holds the rules."""
        ...

    def start(self, stack: ExitStack) -> None:
        """Take over from a predecessor, then begin to serve; `stack` ends it in order."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never step back."""
        return time.monotonic()


def run(config: Path) -> None:
    """Run the agent of the node document at `config` until SIGTERM or SIGINT.

    Raises:
        ConfigError: the document is wrong, or not about this machine; nothing was changed then.
        SetupError: the machine lacks something; says what.
        StateError: another agent runs in this network namespace or on this state, or it cannot be written.
    """
    document = documents.load(config, NodeDocument)
    preflight.check(config, document)
    logs.begin(document.log_level)
    # Blocked before any thread exists, so that the signals wait for sigwait and interrupt nobody.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    faults.end_with_any_thread()
    _share_heaps()
    with ExitStack() as stack:
        directories = _directories(document)
        try:
            stack.enter_context(instance.only_one(directories, _ENDINGS))
        except instance.Ended:
            return
        try:
            agent = _agent(config, document, SystemClock(), Files(directories), stack)
            agent.start(stack)
        except sqlite3.Error as error:
            raise StateError(f"{document.state_dir}: {error}; see to its disk's space and the files' modes") from error
        log.info("ready node=%s role=%s backend=%s", document.node.name, document.role, agent.backend)
        log.info("stopping signal=%s", signal.Signals(signal.sigwait(_ENDINGS)).name)


def _directories(document: NodeDocument) -> tuple[HeldDirectory, ...]:
    """The two directories of an agent, one where they are the same."""
    found = {document.run_dir: HeldDirectory(document.run_dir, 0o755)}
    found |= {document.state_dir: HeldDirectory(document.state_dir, 0o700)}
    return tuple(found.values())


def _agent(config: Path, document: NodeDocument, clock: Clock, files: Files, stack: ExitStack) -> Agent:
    """The agent for what this machine does; what the others need is not loaded."""
    if document.role is not Role.NODE:
        from netmgr.agent.gateway import Gateway  # noqa: PLC0415  see above

        return Gateway(config, document, clock, files, stack)
    if not document.cni:
        from netmgr.agent.observing import Observer  # noqa: PLC0415  see above

        return Observer(config, document, clock, files, stack)
    from netmgr.agent.wired import PodAgent  # noqa: PLC0415  see above

    return PodAgent(config, document, clock, files, stack)


def _share_heaps() -> None:
    """Have glibc's threads share two heaps (mallopt(3)): with one each, a burst would cost 20 MB for good."""
    with suppress(AttributeError):  # other C libraries have no such setting, and no such heaps
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
