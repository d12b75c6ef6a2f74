"""One agent for a network namespace, and one for a state or run directory.

Two agents in one namespace would each take the other's pods for remains of a predecessor and
take their links down. So whoever changes a namespace first takes a lock on it: the nf_tables
table `inet netmgr-agent`, which the kernel keeps for the socket that made it (`flags owner`).
Making it needs CAP_NET_ADMIN, which a pod in the host's network does not have, it is gone with
the process however that ends, and no `nft flush ruleset` removes it. Where the kernel has no
such tables (none before Linux 5.12, or no nf_tables at all) the namespace's own file is locked
instead (flock(2)): any process in that network could take that, but two agents are still told
apart.

The directories are locked beside, since agents of two namespaces may be given the same ones.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from netmgr.dataplane import nft_messages
from netmgr.dataplane.nft_socket import NftSocket
from netmgr.errors import KernelError, SetupError, StateError
from netmgr.sqlite_file import identity_of

TABLE = "netmgr-agent"
LOCK_FILE = "agent.lock"
HANDOVER_SECONDS = 12.0
"""How long a starting agent waits for one that ends: longer than that one's last requests may take."""

_LOOK_SECONDS = 0.1
_NAMESPACE = Path("/proc/thread-self/ns/net")
_UNSUPPORTED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT})
_COMMENT_BYTES = 200

log = logging.getLogger(__name__)


class Held(StateError):
    """Another process holds the lock."""


class Ended(Exception):
    """A signal that ends the process came while it waited."""


class HeldDirectory:
    """A directory with a lock file in it, which this process holds while it runs.

    Args:
        path: the directory; made with its parents when it is taken.
        mode: of a directory that is made.
    """

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path
        self._mode = mode
        self._lock: int | None = None

    def take(self) -> None:
        """Make the directory and lock it.

        Raises:
            Held: another process has it.
            SetupError: it cannot be made or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=self._mode)
            descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno == errno.ENOENT and self.path.is_dir():
                raise SetupError(
                    f"{self.path}: was removed under the mount that leads there; restart the agent"
                ) from None
            raise SetupError(
                f"{self.path}: cannot be made or written: {error.strerror}; "
                "run the agent as root and give it a directory on a disk that can be written"
            ) from None
        self._lock = _locked(descriptor, f"{self.path}: another agent runs on this state; stop it first")

    def is_lost(self) -> bool:
        """Whether the lock file is not the one that is locked: the directory was removed or replaced, or the file."""
        if self._lock is None:
            return True
        status = os.fstat(self._lock)
        return identity_of(self.path / LOCK_FILE) != (status.st_dev, status.st_ino)

    def restore(self) -> None:
        """Make and lock it again.

        Raises: as `take`.
        """
        former = self._lock
        self.take()
        if former is not None:
            os.close(former)

    def close(self) -> None:
        """Let go of it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def only_one(directories: Sequence[HeldDirectory], endings: Collection[signal.Signals]) -> Iterator[None]:
    """Hold the network namespace of the calling thread, and the directories.

    A predecessor that is ending is waited for, `HANDOVER_SECONDS` at most. `endings` are blocked
    signals that end the wait.

    Raises:
        Held: another agent has the namespace or a directory. Nothing of the network was changed.
        Ended: one of `endings` came first.
        SetupError: the process may not change the network, or not write the directories.
    """
    with ExitStack() as stack:
        comment = str(directories[-1].path)
        _wait(lambda: stack.enter_context(namespace(comment)), endings)
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
                log.warning("waiting-for-predecessor seconds=%d reason=%s", HANDOVER_SECONDS, error.message)
                is_announced = True
        else:
            return
        if signal.sigtimedwait(endings, _LOOK_SECONDS) is not None:
            raise Ended


@contextmanager
def namespace(comment: str) -> Iterator[None]:
    """Hold the network namespace of the calling thread; `comment` tells others who does.

    Raises:
        Held: another process has it.
        SetupError: the process may not change the network.
    """
    with ExitStack() as stack:
        try:
            _own_table(stack.enter_context(NftSocket()), comment)
        except KernelError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            log.warning("no-owned-tables lock=%s error=%s", _NAMESPACE, error.message)
            descriptor = os.open(_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, _locked(descriptor, "another agent runs in this network namespace; stop it first"))
        yield


def _own_table(socket: NftSocket, comment: str) -> None:
    try:
        socket.commit([nft_messages.new_owned_table(TABLE, comment.encode()[:_COMMENT_BYTES].decode(errors="ignore"))])
    except KernelError as error:
        if error.errno == errno.EPERM:
            raise _refusal(socket) from None
        if error.errno == errno.EEXIST:
            raise SetupError(
                f"somebody made an nf_tables table {TABLE}: remove it with nft delete table inet {TABLE}"
            ) from None
        raise


def _refusal(socket: NftSocket) -> Exception:
    """Why the table could not be made: not by this user, or not beside its owner."""
    listing = nft_messages.list_all(nft_messages.GET_TABLE, TABLE)
    try:
        owners = socket.list_of(listing, lambda body: nft_messages.owner_of(body, TABLE))
    except KernelError:
        return SetupError("the network cannot be changed by this user: run it as root (CAP_NET_ADMIN is needed)")
    who = "".join(f" (process {port}, {comment})" for port, comment in owners)
    return Held(f"another agent runs in this network namespace{who}; stop it first")


def _locked(descriptor: int, otherwise: str) -> int:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Held(otherwise) from None
    return descriptor
