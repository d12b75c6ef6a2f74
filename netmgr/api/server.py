"""Unix sockets served by a bounded number of threads: a whole request in, a whole answer out.

Readers need not be trusted. A reader's request has one deadline, from the moment it was accepted,
however steadily it trickles. Where all workers are busy, the oldest reader that sends nothing is
aborted for the next, and no more are accepted than can be waited for. So idle readers delay
neither others nor the agent's end.
"""

from __future__ import annotations

import errno
import grp
import logging
import os
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from netmgr.api.peers import IDLE_SECONDS, NOTHING, OpenPeers, Peer
from netmgr.errors import ConfigError, SetupError, StateError
from netmgr.file_version import FileIdentity, identity_of
from netmgr.logs import caused_by

BACKLOG = 1024
READER_SECONDS = 2.0
"""How long a reader may take for its line, and again for taking the answer."""

_REQUEST_SECONDS = 10.0
# As in `cni/wire.py`: more than the launcher ever sends.
_LONGEST_REQUEST = 2 * 1024 * 1024
_LONGEST_LINE = 4096
_CHUNK = 1 << 16
_QUEUED_FOR_A_WORKER = 2
_QUICK_WORKERS = 8
# settimeout() refuses what is left of a deadline that is over, which is below 0.
_AT_ONCE_SECONDS = 0.001
# A restored socket takes the old one's number, but a poll under way still waits for the old one.
_RESTORED_SECONDS = 1.0

log = logging.getLogger(__name__)


class UnixServer(socketserver.UnixStreamServer):
    """Serves one socket file until it is stopped.

    A socket without a listener is replaced; one with a listener is a StateError.

    Args:
        path: where the socket is made.
        mode: its file mode, in force as soon as the file exists.
        group: who else may connect, by name or number.
        answer: request bytes to answer bytes; must not raise.
        line: whether a request ends with its first line, as readers' do, not with the half-close.
        workers: how many requests are served at a time.
        is_quick: which requests are answered besides those, by the few threads that then read every
            request, so that they do not wait behind hundreds of others.
    """

    # The kernel uses net.core.somaxconn if that is less.
    request_queue_size = BACKLOG

    def __init__(
        self,
        path: Path,
        answer: Callable[[bytes], bytes],
        *,
        mode: int = 0o600,
        group: str | int | None = None,
        line: bool = False,
        workers: int = 32,
        is_quick: Callable[[bytes], bool] | None = None,
    ) -> None:
        self.path = path
        self._answer = answer
        self._line = line
        self._most = workers
        self._peers = OpenPeers()
        self._room = threading.BoundedSemaphore(_QUEUED_FOR_A_WORKER * workers)
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix=path.stem)
        self._is_quick = is_quick
        self._quick = ThreadPoolExecutor(_QUICK_WORKERS, thread_name_prefix=f"{path.stem} quick")
        self._mode, self._group = mode, group
        self._bound: FileIdentity | None = None
        # It binds at once, by `server_bind`, which needs all of the above.
        super().__init__(str(path), socketserver.BaseRequestHandler)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._accept, name=f"serve {path.name}", daemon=True)

    def server_bind(self) -> None:
        self._bind(self.socket)

    def _bind(self, to: socket.socket) -> None:
        group = -1 if self._group is None else group_number(self._group)
        # `agent/health/machine_check.py` saw it at the start, but files may be restored much later.
        if group is None:
            raise ConfigError(
                f"reader_group: this node has no group {self._group!r} any more; create it or give "
                "a number"
            )
        try:
            _remove_stale(self.path)
            # The file gets the socket's mode, less the umask (unix_bind_bsd): never more than this.
            # The umask is left alone, since other threads make files meanwhile.
            os.fchmod(to.fileno(), self._mode)
            to.bind(str(self.path))
            self.path.chmod(self._mode)
            os.chown(self.path, -1, group)
        except OSError as error:
            raise SetupError(f"{self.path}: the socket cannot be made: {error.strerror}") from None
        self._bound = identity_of(self.path)

    def is_lost(self) -> bool:
        return identity_of(self.path) != self._bound

    def restore(self) -> None:
        """Make the socket's file again; requests under way go on."""
        with socket.socket(socket.AF_UNIX) as fresh:
            self._bind(fresh)
            fresh.listen(BACKLOG)
            # In place, so that the accepting thread goes on with the new one.
            os.dup2(fresh.fileno(), self.socket.fileno(), inheritable=False)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting, answer what was asked, abort idle peers, and remove the socket."""
        self._stopping.set()
        # Wakes the accepting thread at once instead of at its next look at the clock.
        self.socket.shutdown(socket.SHUT_RDWR)
        self._peers.abort_silent()
        self._thread.join()
        self.server_close()
        # The name may be another server's socket by now.
        if not self.is_lost():
            self.path.unlink(missing_ok=True)
        # Once more, for what was accepted before the accepting thread ended.
        self._peers.abort_silent()
        # Readers of requests first: they hand them on.
        self._quick.shutdown()
        self._workers.shutdown()

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        del client_address
        if not isinstance(request, socket.socket):
            return
        if self._line:
            # One fewer than there are workers, so that one is left for this connection.
            self._peers.abort_idle(self._most - 1)
            # Until then further connections wait in the kernel's backlog, at no cost for us.
            while not self._room.acquire(timeout=IDLE_SECONDS):
                self._peers.abort_idle(self._most - 1)
        first = self._quick if self._is_quick else self._workers
        first.submit(self._serve, self._peers.add(request)).add_done_callback(_log_fault)

    def _accept(self) -> None:
        """Accept until stopped; meanwhile abort idle readers that keep workers from others."""
        # Not `serve_forever`, which looks at the clock just as often while there is nothing to do.
        while not self._stopping.is_set():
            is_crowded = self._line and self._peers.abort_idle(self._most)
            self.timeout = IDLE_SECONDS if is_crowded else _RESTORED_SECONDS
            self.handle_request()

    def _serve(self, peer: Peer) -> None:
        """Serve one connection; a peer that goes away or idles harms only itself."""
        try:
            request = self._receive(peer)
        except OSError as error:
            log.debug("connection-ended-early socket=%s error=%s", self.path.name, error)
            self._close(peer)
            return
        self._peers.expect(peer, NOTHING)
        if self._is_quick and not self._is_quick(request):
            self._workers.submit(self._reply, peer, request).add_done_callback(_log_fault)
        else:
            self._reply(peer, request)

    def _reply(self, peer: Peer, request: bytes) -> None:
        try:
            answer = self._answer(request)
            peer.connection.settimeout(READER_SECONDS if self._line else _REQUEST_SECONDS)
            self._peers.expect(peer, select.POLLOUT)
            peer.connection.sendall(answer)
        except OSError as error:
            log.debug("connection-ended-early socket=%s error=%s", self.path.name, error)
        finally:
            self._close(peer)

    def _close(self, peer: Peer) -> None:
        self._peers.close(peer)
        if self._line:
            self._room.release()

    def _receive(self, peer: Peer) -> bytes:
        """The whole request, or the beginning of one that is too long; OSError if it is late."""
        deadline, longest = time.monotonic() + _REQUEST_SECONDS, _LONGEST_REQUEST
        if self._line:
            deadline, longest = peer.accepted_at + READER_SECONDS, _LONGEST_LINE
        request = bytearray()
        while len(request) <= longest:
            left = deadline - time.monotonic()
            if left <= 0 and request:
                raise TimeoutError("its request took too long")
            # What came while all workers were busy is read, however late.
            peer.connection.settimeout(max(left, _AT_ONCE_SECONDS))
            part = peer.connection.recv(_CHUNK)
            # `abort` ends its data as well, which must not pass for the end of a whole request.
            if not part and peer.is_aborted:
                raise ConnectionAbortedError("given up before its request was whole")
            request += part
            if not part or (self._line and b"\n" in part):
                break
        return bytes(request)


def _log_fault(served: Future[None]) -> None:
    """A fault of ours ends one request, not the worker; the peer sees the connection closed."""
    if fault := served.exception():
        log.error("request-fault", exc_info=fault, extra=caused_by(type(fault).__name__))


def _remove_stale(path: Path) -> None:
    """Remove a socket without a listener; StateError if another process listens there."""
    with socket.socket(socket.AF_UNIX) as caller:
        # A full queue (EAGAIN) is a listener's, too.
        caller.settimeout(0)
        refusal = caller.connect_ex(str(path))
    if refusal in (0, errno.EAGAIN):
        raise StateError(f"{path}: another process answers here; stop it first")
    path.unlink(missing_ok=True)


def group_number(group: str | int) -> int | None:
    """Number of a group given by name or number; None for a name this machine does not know."""
    if isinstance(group, int):
        return group
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None
