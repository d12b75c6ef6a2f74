"""One agent per network namespace, and one per state or run directory.

Two agents in one namespace would take each other's pods for remains of a predecessor. So whoever
changes a namespace first binds a queue for packets, to which no packet is ever led. Where the
kernel has no queues (CONFIG_NETFILTER_NETLINK_QUEUE) the namespace's own file is locked instead.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from netmgr import durable
from netmgr.errors import KernelError, SetupError, StateError
from netmgr.file_version import FileIdentity, identity_of
from netmgr.kernel import nf_tables, packet_queue
from netmgr.kernel.netlink import NETLINK_NETFILTER, Netlink
from netmgr.kernel.nf_tables_socket import NO_NF_TABLES

# Far from those that programs count up from 0.
QUEUE = int.from_bytes(b"nm", "big")
LOCK_FILE = "agent.lock"
# Of the directories. Readers pass through the run directory.
RUN_MODE, STATE_MODE = 0o755, 0o700
# How long a starting agent waits for one that ends: longer than its last requests may take.
HANDOVER_SECONDS = 12.0

_LOOK_SECONDS = 0.1
_NAMESPACE = Path("/proc/thread-self/ns/net")
# EINVAL: a kernel that has nfnetlink, but no queues.
_UNSUPPORTED = NO_NF_TABLES | {errno.EINVAL}

log = logging.getLogger(__name__)


class Holder(StrEnum):
    """Who holds a namespace."""

    AGENT = "another agent"
    DOCTOR = "netmgr doctor"
    PREFLIGHT = "netmgr preflight"
    CLEAN = "netmgr host clean"

    @property
    def note(self) -> int:
        """What the kernel keeps with the lock."""
        return list(Holder).index(self) + 1


class Held(StateError):
    """Another process holds the lock: of a namespace, this `holder`."""

    def __init__(self, message: str, holder: Holder = Holder.AGENT) -> None:
        super().__init__(message)
        self.holder = holder


class Ended(Exception):
    """A signal that ends the process came while it waited."""


@dataclass(eq=False)
class HeldDirectory:
    """A directory with a lock file in it, which this process holds while it runs."""

    path: Path
    """Made with its parents when it is taken."""
    mode: int
    """Of a directory that is made; one that is there gets no more open than this."""
    _lock: int | None = field(default=None, init=False)

    def take(self) -> None:
        """Make the directory and lock it; Held if another process has it."""
        try:
            if not self.path.is_dir():
                self.path.mkdir(parents=True, exist_ok=True)
                # Whatever the umask.
                self.path.chmod(self.mode)
            # `cni install` or a kubelet may have made it, for everybody.
            durable.close_to_others(self.path.resolve(), self.mode)
            descriptor = os.open(
                self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            # The directory is there and takes no file: it was deleted behind a bind mount.
            if error.errno == errno.ENOENT and self.path.is_dir():
                raise SetupError(
                    f"{self.path}: was removed under the mount that leads there; restart the agent"
                ) from None
            raise SetupError(
                f"{self.path}: cannot be made or written: {error.strerror}; "
                "run the agent as root and give it a directory on a disk that can be written"
            ) from None
        self._lock = _locked(
            descriptor, f"{self.path}: another agent runs on this state; stop it first"
        )

    def is_lost(self) -> bool:
        """Whether the directory or its lock file was removed or replaced."""
        if self._lock is None:
            return True
        # Compared by inode: a lock on a file that lost its name keeps no other agent out.
        return identity_of(self.path / LOCK_FILE) != FileIdentity.of(os.fstat(self._lock))

    def restore(self) -> None:
        # The former lock is held until the new one is: no other agent gets in between.
        former = self._lock
        self.take()
        if former is not None:
            os.close(former)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def only_one(
    directories: Sequence[HeldDirectory], endings: Collection[signal.Signals]
) -> Iterator[None]:
    """Hold the network namespace of the calling thread, and the directories.

    A predecessor that is ending is waited for, `HANDOVER_SECONDS` at most. `endings` are blocked
    signals that end the wait.

    Raises:
        Held: another agent has the namespace or a directory. Nothing of the network was changed.
        Ended: one of `endings` came first.
        SetupError: the process may not change the network, or not write the directories.
    """
    with ExitStack() as stack:
        # The namespace first: until it is held, not even a directory is made.
        _wait(lambda: stack.enter_context(namespace(Holder.AGENT)), endings)
        # Agents of two namespaces may be given the same ones.
        for directory in directories:
            stack.callback(directory.close)
            _wait(directory.take, endings)
        yield


def _wait(take: Callable[[], object], endings: Collection[signal.Signals]) -> None:
    deadline = time.monotonic() + HANDOVER_SECONDS
    is_announced = False
    while True:
        try:
            take()
        except Held as error:
            if time.monotonic() > deadline:
                raise
            if not is_announced:
                log.warning(
                    "waiting-for-predecessor seconds=%d reason=%s", HANDOVER_SECONDS, error.message
                )
                is_announced = True
        else:
            return
        # They are blocked (`agent/main.py`) and interrupt no sleep, so the wait itself takes them.
        if signal.sigtimedwait(endings, _LOOK_SECONDS) is not None:
            raise Ended


@contextmanager
def namespace(holder: Holder) -> Iterator[None]:
    """Hold the calling thread's network namespace.

    Raises Held if another process has it, SetupError if this one may not change the network.
    """
    with ExitStack() as stack:
        try:
            _bind(stack.enter_context(Netlink(NETLINK_NETFILTER)), holder)
        except KernelError as error:
            # Only where the kernel has no queues: no other error may weaken the lock.
            if error.errno not in _UNSUPPORTED:
                raise
            log.warning("no-packet-queues lock=%s error=%s", _NAMESPACE, error.message)
            # Any process in that network could hold this lock (flock(2)) as well, but two agents
            # still exclude each other.
            descriptor = os.open(_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(
                os.close,
                _locked(descriptor, "another agent runs in this network namespace; stop it first"),
            )
        yield


def _bind(channel: Netlink, holder: Holder) -> None:
    # Not a table with an owner, which nft 1.0.6 prints and cannot read back: a saved ruleset would
    # not load at boot. No ruleset has a queue, `nft flush ruleset` leaves it alone, and the kernel
    # frees it with the process, however that ends. It needs CAP_NET_ADMIN, which no pod in the
    # host's network has by default.
    try:
        channel.transact([packet_queue.bind(QUEUE, holder.note)])
    except KernelError as error:
        # To a process without CAP_NET_ADMIN, and for a queue that another socket has.
        if error.errno == errno.EPERM:
            raise _refusal(channel) from None
        raise


def _refusal(channel: Netlink) -> Exception:
    """Why the kernel refused the queue: a missing capability, or another holder."""
    try:
        channel.query(nf_tables.get_generation(), nf_tables.generation_of)
    except KernelError as error:
        # This takes the same capability, on any kernel.
        if error.errno == errno.EPERM:
            return SetupError(
                "the network cannot be changed by this user: run it as root "
                "(CAP_NET_ADMIN is needed)"
            )
    holder, process = Holder.AGENT, ""
    # It may have gone meanwhile, or not be shown.
    with suppress(OSError):
        if owner := packet_queue.owner_of(QUEUE):
            process, note = f" (process {owner[0]})", owner[1]
            holder = next((candidate for candidate in Holder if candidate.note == note), holder)
    return Held(f"{holder} runs in this network namespace{process}; stop it first", holder)


def _locked(descriptor: int, otherwise: str) -> int:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Held(otherwise) from None
    return descriptor
