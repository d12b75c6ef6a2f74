"""What clients may take of the exporter before they have shown a secret: connections, bytes of a head, time.

Whoever reaches the port can connect, so nothing here waits for a client's good will. The number of connections, and
with it of threads, is bounded; when all are taken, the one that has longest sent no complete request makes room, so
that silent clients do not lock a Prometheus out, whose request is complete within milliseconds. Clients that take
nothing of their answer make room after `TAKING_SECONDS`, when there are no silent ones.
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
from typing import Any, Protocol

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 32
HEAD_BYTES = 16 * 1024
"""Request line and header fields together, as other servers bound them; http.server alone takes 6.5 MB."""

HEAD_SECONDS = 5.0
"""Until a request is complete, the TLS handshake included."""

TAKING_SECONDS = 10.0
"""How long a client that takes its answer is safe from making room: Prometheus' own default for a whole scrape."""

ANSWER_SECONDS = 30.0
"""Until a client has taken the whole answer: longer than any scrape_timeout that makes sense."""

REPORT_SECONDS = 60.0


class Readable(Protocol):
    """What the head of a request is read from."""

    def readline(self, limit: int = -1, /) -> bytes:
        """One line, its end included, of `limit` bytes at most."""
        ...


class Head:
    """The first `HEAD_BYTES` of a request, line by line.

    Raises:
        LineTooLong: the head is longer; `http.server` answers that with 431.
    """

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._left = HEAD_BYTES

    def readline(self, limit: int = -1, /) -> bytes:
        """One line of the head."""
        del limit  # http.server's own bound is larger
        line = self._file.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("head of the request")
        return line

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  the rest is the file's
        return getattr(self._file, name)


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    began: float
    complete: bool = False
    """Whether the request's head is there."""

    def close(self) -> None:
        """End it from another thread: its own sees the end of the stream, and closes the descriptor."""
        with suppress(OSError):
            # Not SSLSocket's method, which takes the TLS state away from under the other thread.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class Connections:
    """The connections of one port, by the client's address and port."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[Any, _Connection] = {}
        self._turned_away = 0
        self._reported = clock()

    def admit(self, client: Any, connection: socket.socket) -> bool:  # noqa: ANN401  as socket has addresses
        """Count a connection; False if there is no room, and none that could make some."""
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                self._turned_away += 1
                overdue = self._clock() - TAKING_SECONDS
                waiting = [
                    (each.complete, each.began, key)
                    for key, each in self._open.items()
                    if not each.complete or each.began < overdue
                ]
                if not waiting:
                    return False
                self._open.pop(min(waiting, key=lambda one: one[:2])[2]).close()
            self._open[client] = _Connection(connection, self._clock())
            return True

    def secured(self, client: Any, connection: socket.socket) -> None:  # noqa: ANN401  as socket has addresses
        """The connection has a TLS socket from now on, which took over the descriptor."""
        with self._lock:
            if client in self._open:
                self._open[client].socket = connection
            else:
                # It made room meanwhile, when there was no socket to end: TLS had taken the descriptor over.
                _Connection(connection, self._clock()).close()

    def complete(self, client: Any) -> None:  # noqa: ANN401  as socket has addresses
        """The client has sent its request."""
        with self._lock:
            if client in self._open:
                self._open[client].complete = True

    def leave(self, client: Any) -> None:  # noqa: ANN401  as socket has addresses
        """The connection ends; called before its descriptor is closed, which another connection may get."""
        with self._lock:
            self._open.pop(client, None)

    def expire(self) -> None:
        """End the connections whose time is over; called now and then."""
        now = self._clock()
        with self._lock:
            for each in self._open.values():
                if now - each.began > (ANSWER_SECONDS if each.complete else HEAD_SECONDS):
                    each.close()
            if self._turned_away and now - self._reported >= REPORT_SECONDS:
                log.warning("connections-turned-away count=%d most=%d", self._turned_away, MOST_CONNECTIONS)
                self._turned_away, self._reported = 0, now
