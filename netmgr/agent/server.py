"""Unix sockets: one thread for each connection, a whole request in, a whole answer out."""

from __future__ import annotations

import grp
import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path

from netmgr.errors import ConfigError

BACKLOG = 1024
_IO_SECONDS = 10.0
_MAX_REQUEST = 2 * 1024 * 1024

log = logging.getLogger(__name__)


class UnixServer(socketserver.ThreadingUnixStreamServer):
    """Serves one socket file until it is stopped.

    Args:
        path: where the socket is made; a stale one is replaced.
        mode: its file mode, from the moment it exists.
        group: who else may connect, by name or number.
        answer: request bytes to answer bytes; must not raise.
        line: whether a request ends with its first line instead of the peer's half-close.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def __init__(
        self,
        path: Path,
        answer: Callable[[bytes], bytes],
        *,
        mode: int = 0o600,
        group: str | int | None = None,
        line: bool = False,
    ) -> None:
        self._path = path
        self._answer = answer
        self._line = line
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
        """Stop accepting and remove the socket; requests under way go on."""
        self.shutdown()
        self.server_close()
        self._path.unlink(missing_ok=True)

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Serve one connection; a peer that goes away or dawdles harms only itself."""
        del client_address
        assert isinstance(request, socket.socket)  # noqa: S101  a stream server's request is its connection
        try:
            request.settimeout(_IO_SECONDS)
            message = self._receive(request)
            request.settimeout(None)
            answer = self._answer(message)
            request.settimeout(_IO_SECONDS)
            request.sendall(answer)
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


def _group_id(group: str | int) -> int:
    if isinstance(group, int):
        return group
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"reader_group: this node has no group {group!r}; create it or give a number") from None
