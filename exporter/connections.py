"""What clients may use before they have shown a secret: connections, bytes of a head, time.

Anybody who reaches the port can connect, so nothing here waits for a client. The number of
connections, and so of threads, is bounded. When all are taken, the one that has gone longest
without a complete request makes room: silent clients do not lock out a Prometheus, whose request is
complete within milliseconds. Without silent ones, clients that do not read their answer make room
after `TAKING_SECONDS`.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import LineTooLong
from io import BufferedIOBase
from typing import Any

from netmgr.logs import caused_by

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 32
# Request line and header fields together; http.server alone accepts 6.5 MB.
HEAD_BYTES = 16 * 1024

HEAD_SECONDS = 5.0
"""Until a request is complete, the TLS handshake included."""

# A client that reads its answer is safe for this long: Prometheus' default for a scrape.
TAKING_SECONDS = 10.0

# Until a client has taken the whole answer: longer than any scrape_timeout that makes sense.
ANSWER_SECONDS = 30.0

# However many clients come, they have one line a minute.
_CROWD = caused_by("clients")


class Head:
    """The first `HEAD_BYTES` of a request, line by line.

    Raises:
        LineTooLong: the head is longer; `http.server` answers that with 431.
        ConnectionResetError: the stream ends within the head. `http.server` would take that for the
            head's end, and make a page for a client that is gone or was ended.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._left = HEAD_BYTES

    def readline(self, limit: int = -1, /) -> bytes:
        del limit  # http.server's own bound is larger
        line = self._file.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("head of the request")
        if not line:
            raise ConnectionResetError("the client went away before its request was complete")
        return line

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  the rest is the file's
        return getattr(self._file, name)


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    began: float
    complete: bool = False
    """Whether the request's head is there."""


def _end(connection: socket.socket) -> None:
    """End it from another thread: its own sees the end of the stream and closes it."""
    with suppress(OSError):
        # Not SSLSocket's method, which takes the TLS state away from under the other thread.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class OpenConnections:
    """The connections of one port, by the client's address and port."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[Any, _Connection] = {}

    def admit(self, client: Any, connection: socket.socket) -> bool:  # noqa: ANN401  as in socket
        """Count a connection; False if there is no room, and no other makes room."""
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                log.warning("connections-turned-away most=%d", MOST_CONNECTIONS, extra=_CROWD)
                overdue = self._clock() - TAKING_SECONDS
                waiting = []
                for key, admitted in self._open.items():
                    if not admitted.complete or admitted.began < overdue:
                        waiting.append((admitted.complete, admitted.began, key))
                if not waiting:
                    return False
                # Silent clients (False) sort before those that read slowly, and then the oldest
                # goes.
                _end(self._open.pop(min(waiting, key=lambda candidate: candidate[:2])[2]).socket)
            self._open[client] = _Connection(connection, self._clock())
            return True

    def secured(self, client: Any, connection: socket.socket) -> None:  # noqa: ANN401  as in socket
        """Replace a connection's socket by the TLS socket that took over its descriptor."""
        with self._lock:
            if client in self._open:
                self._open[client].socket = connection
            else:
                # It made room meanwhile, when there was no socket to end: TLS had taken the
                # descriptor over.
                _end(connection)

    def complete(self, client: Any) -> None:  # noqa: ANN401  as in socket
        with self._lock:
            if client in self._open:
                self._open[client].complete = True

    def leave(self, client: Any) -> None:  # noqa: ANN401  as in socket
        """Forget a connection, before its descriptor is closed and reused by another."""
        with self._lock:
            self._open.pop(client, None)

    def expire(self) -> None:
        """End the connections whose time is over. The server calls this twice a second."""
        now = self._clock()
        with self._lock:
            for connection in self._open.values():
                if now - connection.began > (
                    ANSWER_SECONDS if connection.complete else HEAD_SECONDS
                ):
                    _end(connection.socket)
