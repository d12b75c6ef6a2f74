"""Unix sockets served by a bounded number of threads: a whole request in, a whole answer out."""

from __future__ import annotations

import grp
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from netmgr.errors import ConfigError

BACKLOG = 1024
_IO_SECONDS = 10.0
_MAX_REQUEST = 2 * 1024 * 1024

log = logging.getLogger(__name__)


class UnixServer(socketserver.UnixStreamServer):
    """Serves one socket file until it is stopped.

    Args:
        path: where the socket is made; a stale one is replaced.
        mode: its file mode, from the moment it exists.
        group: who else may connect, by name or number.
        answer: request bytes to answer bytes; must not raise.
        line: whether a request ends with its first line instead of the peer's half-close.
        workers: how many requests are served at a time.
    """

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
    ) -> None:
        self._path = path
        self._answer = answer
        self._line = line
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix=path.stem)
        path.unlink(missing_ok=True)
        # The umask closes the moment between bind and chmod.
        former = os.umask(0o777 & ~mode)
        try:
            super().__init__(str(path), socketserver.BaseRequestHandler)
        finally:
            os.umask(former)
        if group is not None:
            os.chown(path, -1, _group_id(group))
        self._thread = threading.Thread(target=self.serve_forever, name=f"serve {path.name}", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting, answer what was accepted, and remove the socket."""
        # Wakes the accepting thread at once instead of at its next look at the clock.
        self.socket.shutdown(socket.SHUT_RDWR)
        self.shutdown()
        self.server_close()
        self._path.unlink(missing_ok=True)
        self._workers.shutdown()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Hand an accepted connection to a worker."""
        del client_address
        if isinstance(request, socket.socket):
            self._workers.submit(self._serve, request).add_done_callback(_tell_of_a_fault)

    def _serve(self, connection: socket.socket) -> None:
        """Serve one connection; a peer that goes away or dawdles harms only itself."""
        with connection:
            try:
                connection.settimeout(_IO_SECONDS)
                connection.sendall(self._answer(self._receive(connection)))
            except OSError as error:
                log.debug("connection ended early socket=%s error=%s", self._path.name, error)

    def _receive(self, connection: socket.socket) -> bytes:
        parts: list[bytes] = []
        size = 0
        while size <= _MAX_REQUEST:
            part = connection.recv(1 << 16)
            parts.append(part)
            size += len(part)
            if not part or (self._line and b"\n" in part):
                break
        return b"".join(parts)


def _tell_of_a_fault(served: Future[None]) -> None:
    """A fault of ours ends one request, not the worker; the peer sees the connection closed."""
    if fault := served.exception():
        log.error("request ended by a fault of the agent's own", exc_info=fault)


def _group_id(group: str | int) -> int:
    if isinstance(group, int):
        return group
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"reader_group: this node has no group {group!r}; create it or give a number") from None
