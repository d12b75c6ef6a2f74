"""The composition root: builds an agent from its document, runs it, and stops it cleanly."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from netmgr import documents
from netmgr.agent import preflight, recovery
from netmgr.agent.cni import CniService
from netmgr.agent.housekeeping import Housekeeping
from netmgr.agent.locks import AttachmentLocks
from netmgr.agent.node import Node
from netmgr.agent.observing import Observer
from netmgr.agent.opening import open_accounts
from netmgr.agent.queries import Queries, WiredPods
from netmgr.agent.reaper import Reaper
from netmgr.agent.server import UnixServer
from netmgr.agent.telemetry import Telemetry
from netmgr.config import NodeDocument
from netmgr.dataplane import conntrack, forwarding
from netmgr.dataplane.wiring import Dataplane
from netmgr.errors import StateError
from netmgr.ipam.leases import Leases
from netmgr.ipam.pool import Timing
from netmgr.ipam.store import Store

FAULT_EXIT = 70
"""Exit status after a fault of our own: EX_SOFTWARE in sysexits.h."""

DRAIN_SECONDS = 10.0
"""How long a stop waits for requests under way."""

_M_ARENA_MAX = -8
_ENDINGS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger(__name__)


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
        StateError: another agent runs on this state, or it cannot be written.
    """
    document = documents.load(config, NodeDocument)
    preflight.check(config, document)
    logging.basicConfig(level=document.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Blocked before any thread exists, so that the signals wait for sigwait and interrupt nobody.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    threading.excepthook = _end_with_the_thread
    _share_heaps()
    with ExitStack() as stack:
        stack.enter_context(_only_one(document))
        agent = (Agent if document.cni else Observer)(document, SystemClock(), stack)
        agent.start(stack)
        log.info("ready node=%s backend=%s network=%s", document.node.name, agent.backend, document.network)
        log.info("stopping signal=%s", signal.Signals(signal.sigwait(_ENDINGS)).name)


def _end_with_the_thread(ended: threading.ExceptHookArgs) -> None:
    """End the process when one of its threads dies of a fault: a restarted agent is whole, this one is not."""
    name = ended.thread.name if ended.thread else "unknown"
    log.critical("a thread died, ending thread=%s", name, exc_info=ended.exc_value)
    os._exit(FAULT_EXIT)


def _share_heaps() -> None:
    """Have glibc's threads share two heaps (mallopt(3)): with one each, a burst would cost 20 MB for good."""
    with suppress(AttributeError):  # other C libraries have no such setting, and no such heaps
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


class Agent:
    """The parts of one agent, put together. Nothing runs before `start`."""

    def __init__(self, document: NodeDocument, clock: SystemClock, stack: ExitStack) -> None:
        self._document = document
        self._telemetry = Telemetry()
        dataplane = Dataplane(uplink=document.node.uplink, mtu=document.mtu)
        stack.callback(dataplane.close)
        # Before the accounts: a backend that changes must not be retired by an agent that cannot go on.
        leases = self._open_leases(clock)
        stack.callback(leases.close)
        accounts, self.backend = open_accounts(document, clock, self._telemetry, stack)
        reaper = Reaper(dataplane, self._telemetry)
        self._node = Node(document.network, leases, dataplane, accounts, AttachmentLocks(), reaper)
        self._cni = CniService(self._node, self._telemetry)
        self._queries = Queries(
            document, accounts, self._telemetry, self.backend, clock, WiredPods(self._node, self._telemetry)
        )
        self._housekeeping = Housekeeping(
            self._node,
            self._telemetry,
            reading_seconds=document.accounting.reading_seconds,
            reconcile_seconds=document.reconcile_seconds,
            spool_dir=document.state_dir / "spool",
            serve=lambda message: self._cni.serve(message)[0],
        )

    def start(self, stack: ExitStack) -> None:
        """Take over from a predecessor, then begin to serve."""
        node, document = self._node, self._document
        forwarding.enable(document.families)
        recovery.take_over(node, document.families, recovery.boot_id())
        for name in node.dataplane.detach_strays(a.host_link for a in node.leases.all()):
            log.info("stray link taken down link=%s", name)
        for sentence in node.accounts.start(node.leases.all()):
            log.info("rules %s", sentence)
        node.reaper.start()
        stack.callback(node.reaper.stop)
        self._housekeeping.reconcile()
        readers = UnixServer(
            document.run_dir / "ledger.sock",
            self._queries.answer,
            mode=0o660,
            group=document.reader_group,
            line=True,
        )
        server = UnixServer(document.run_dir / "cni.sock", self._cni.answer)
        self._housekeeping.start()
        stack.callback(self._housekeeping.stop)
        stack.callback(self._drain)
        for each in (readers, server):
            each.start()
            stack.callback(each.stop)
        # A launcher that found no socket a moment ago has spooled its DEL after the pass above.
        self._housekeeping.replay_spool()

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline and not self._telemetry.idle_for(0):
            time.sleep(0.01)

    def _open_leases(self, clock: SystemClock) -> Leases:
        pool = self._document.pool
        timing = Timing(pool.cooldown_seconds, pool.conntrack_wait_seconds)
        leases, rebuilt = recovery.open_or_set_aside(
            self._document.state_dir / "ipam.sqlite",
            lambda path: Leases(Store.open(path), self._document.ranges, timing, clock, conntrack.named),
        )
        self._telemetry.state_rebuilds += rebuilt
        return leases


@contextmanager
def _only_one(document: NodeDocument) -> Iterator[None]:
    """Hold the state directory for one agent."""
    for directory, mode in ((document.state_dir, 0o700), (document.run_dir, 0o755)):
        directory.mkdir(parents=True, exist_ok=True, mode=mode)
    descriptor = os.open(document.state_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(f"{document.state_dir}: another agent runs on this state; stop it first") from None
        yield
    finally:
        os.close(descriptor)
