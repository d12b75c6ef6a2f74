"""One agent for a network namespace, and one for a state or run directory.

Two agents in one namespace would each take the other's pods for remains of a predecessor and
take their links down. So whoever changes a namespace first takes a lock on it: the nf_tables
table `inet netmgr-agent`, which the kernel keeps for the socket that made it (`flags owner`).
Making it needs CAP_NET_ADMIN, which a pod in the host's network does not have, it is gone with
the process however that ends, and no `nft flush ruleset` removes it. Where the kernel has no
such tables (none before Linux 5.12, or no nf_tables at all) the namespace's own file is locked
instead (flock(2)): any process in that network could take that, but two agents still exclude
each other.

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

from netmgr.errors import KernelError, SetupError, StateError
from netmgr.file_version import FileIdentity, identity_of
from netmgr.kernel import nf_tables
from netmgr.kernel.nf_tables_socket import NO_NF_TABLES, NftSocket

TABLE = "netmgr-agent"
LOCK_FILE = "agent.lock"
HANDOVER_SECONDS = 12.0
"""How long a starting agent waits for one that ends: longer than its last requests may take."""

_LOOK_SECONDS = 0.1
_NAMESPACE = Path("/proc/thread-self/ns/net")
# EINVAL: a kernel that has nf_tables, but knows no tables with an owner.
_UNSUPPORTED = NO_NF_TABLES | {errno.EINVAL}
_COMMENT_BYTES = 200

log = logging.getLogger(__name__)


class Held(StateError):
    """Another process holds the lock.

    Attributes:
        holder: what the holder of a namespace says of itself, where that is known: an agent's state
            directory, or a command.
    """

    def __init__(self, message: str, holder: str = "") -> None:
        super().__init__(message)
        self.holder = holder


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
            if not self.path.is_dir():
                self.path.mkdir(parents=True, exist_ok=True)
                # Whatever the umask: readers pass through the run directory.
                self.path.chmod(self._mode)
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
        """Make and lock it again.

        Raises: as `take`.
        """
        # The former lock is held until the new one is: no other agent gets in between.
        former = self._lock
        self.take()
        if former is not None:
            os.close(former)

    def close(self) -> None:
        """Release the lock."""
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
        # The last one is the state directory, which names this agent best to people.
        comment = str(directories[-1].path)
        # The namespace first: until it is held, not even a directory is made.
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
def namespace(comment: str) -> Iterator[None]:
    """Hold the calling thread's network namespace; `comment` shows other programs who holds it.

    Raises:
        Held: another process has it.
        SetupError: the process may not change the network.
    """
    with ExitStack() as stack:
        try:
            _own_table(stack.enter_context(NftSocket()), comment)
        except KernelError as error:
            # Only where the kernel has no such tables: no other error may weaken the lock.
            if error.errno not in _UNSUPPORTED:
                raise
            log.warning("no-owned-tables lock=%s error=%s", _NAMESPACE, error.message)
            descriptor = os.open(_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(
                os.close,
                _locked(descriptor, "another agent runs in this network namespace; stop it first"),
            )
        yield


def _own_table(socket: NftSocket, comment: str) -> None:
    try:
        socket.commit(
            [
                nf_tables.new_owned_table(
                    # The kernel takes 256 bytes of user data. Cut in bytes, a letter may be cut in
                    # two.
                    TABLE,
                    comment.encode()[:_COMMENT_BYTES].decode(errors="ignore"),
                )
            ]
        )
    except KernelError as error:
        # The kernel answers EPERM both to a process without CAP_NET_ADMIN and for a table that
        # another socket owns.
        if error.errno == errno.EPERM:
            raise _refusal(socket) from None
        # An owned table goes with its socket, so one without an owner is not an agent's.
        if error.errno == errno.EEXIST:
            raise SetupError(
                f"an nf_tables table {TABLE} is there that no agent made: "
                f"remove it with nft delete table inet {TABLE}"
            ) from None
        raise


def _refusal(socket: NftSocket) -> Exception:
    """Why the kernel refused the table: a missing capability, or another owner."""
    listing = nf_tables.list_all(nf_tables.GET_TABLE, TABLE)
    try:
        owners = socket.list_of(listing, lambda body: nf_tables.owner_of(body, TABLE))
    except KernelError:
        # Listing takes the same capability: if it is refused as well, that is what is missing.
        return SetupError(
            "the network cannot be changed by this user: run it as root (CAP_NET_ADMIN is needed)"
        )
    who = "".join(f" (process {port}, {comment})" for port, comment in owners)
    holder = next((comment for _, comment in owners), "")
    return Held(f"another agent runs in this network namespace{who}; stop it first", holder)


def _locked(descriptor: int, otherwise: str) -> int:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Held(otherwise) from None
    return descriptor
