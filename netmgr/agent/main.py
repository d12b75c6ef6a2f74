"""The agent as a process: runs the components of its machine's role until a signal ends it."""

from __future__ import annotations

import ctypes
import logging
import signal
import sqlite3
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from netmgr import faults, logs
from netmgr.agent import roles
from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.core import instance
from netmgr.agent.core.checking import DocumentCheck
from netmgr.agent.core.components import Agent
from netmgr.agent.core.instance import RUN_MODE, STATE_MODE, HeldDirectory
from netmgr.agent.health import doctor, machine_check
from netmgr.errors import StateError
from netmgr.logs import LogFormat

# malloc.h; Python does not have it.
_M_ARENA_MAX = -8
_ENDINGS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger(__name__)


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


def run(config: Path, check: DocumentCheck, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Run the agent of a node document until SIGTERM or SIGINT.

    Args:
        config: where the document is.
        check: its check, which has begun.
        log_format: how events are written.

    Raises:
        ConfigError: the document is wrong, or not about this machine; nothing was changed then.
        SetupError: the machine lacks something; says what.
        StateError: another agent runs in this namespace or on this state, or it cannot be written.
    """
    document = check.document()
    # Before anything of the machine is touched, the agent's own directories included.
    machine_check.check(config, document)
    logs.begin(document.log_level, log_format)
    # Blocked before any thread exists, so that the signals wait for sigwait and interrupt no
    # thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    # Half an agent would be worse than none: whoever supervises it starts a whole one.
    faults.end_with_any_thread()
    # Before the first thread too: an arena that exists already is not merged with others. glibc's
    # threads share two heaps (mallopt(3)): with one each, a burst keeps 20 MB.
    with suppress(AttributeError):  # other C libraries have no such setting, and no such heaps
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    with ExitStack() as stack:
        # One where both are the same.
        modes = {document.run_dir: RUN_MODE, document.state_dir: STATE_MODE}
        directories = tuple(HeldDirectory(path, mode) for path, mode in modes.items())
        try:
            # Before any state is opened: two agents would take each other's pods for remnants.
            stack.enter_context(instance.only_one(directories, _ENDINGS))
        except instance.Ended:
            return
        try:
            agent = Agent(config, document, SystemClock(), directories, stack)
            agent.open(roles.of(document))
            agent.start()
        except sqlite3.Error as error:
            raise StateError(
                f"{document.state_dir}: {error}; see to its disk's space and the files' modes"
            ) from error
        backend = agent.get(NodeAccounting).rules.backend.name
        doctor.report(document)
        log.info("ready node=%s role=%s backend=%s", document.node.name, document.role, backend)
        log.info("stopping signal=%s", signal.Signals(signal.sigwait(_ENDINGS)).name)
