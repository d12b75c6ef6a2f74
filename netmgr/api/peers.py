"""The open connections of one socket, and which of them are idle: they send or take nothing."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

# Between connecting and its first byte a peer may have to wait for a processor.
IDLE_SECONDS = 0.1

NOTHING = 0


@dataclass(eq=False)
class Peer:
    """One accepted connection, while it is open."""

    connection: socket.socket
    awaited: int = select.POLLIN
    """POLLIN for its request, POLLOUT for it to take the answer, NOTHING while it waits for us."""
    is_aborted: bool = False
    """An end of its data is then no end of its request."""
    accepted_at: float = field(default_factory=time.monotonic)

    @property
    def is_idle(self) -> bool:
        """Whether we wait for it, and it has neither sent nor taken anything."""
        if self.awaited == NOTHING:
            return False
        # poll(2) and not select(2), which fails beyond descriptor 1023.
        waiting = select.poll()
        waiting.register(self.connection, self.awaited)
        return not waiting.poll(0)

    def abort(self) -> None:
        """Wake the worker that waits for it. What it has sent can still be read."""
        self.is_aborted = True
        direction = socket.SHUT_RD if self.awaited == select.POLLIN else socket.SHUT_RDWR
        with suppress(OSError):  # it has just hung up
            # It wakes the worker that waits in recv() or send(); closing would free the number
            # while that worker still uses it.
            self.connection.shutdown(direction)


class OpenPeers:
    """Every open connection, oldest first. Thread-safe."""

    def __init__(self) -> None:
        # Held while a connection is closed, so that none is aborted that took its number.
        self._lock = threading.Lock()
        self._open: dict[Peer, None] = {}

    def add(self, connection: socket.socket) -> Peer:
        peer = Peer(connection)
        with self._lock:
            self._open[peer] = None
        return peer

    def expect(self, peer: Peer, event: int) -> None:
        """Note what is awaited of it now."""
        # Locked, so that it is not aborted for having idled before.
        with self._lock:
            peer.awaited = event

    def close(self, peer: Peer) -> None:
        with self._lock:
            del self._open[peer]
            peer.connection.close()

    def abort_idle(self, most: int) -> bool:
        """Abort those idle for a while beyond `most`, oldest first; whether there were more."""
        with self._lock:
            remaining = [peer for peer in self._open if not peer.is_aborted]
            since = time.monotonic() - IDLE_SECONDS
            idle = (peer for peer in remaining if peer.accepted_at <= since and peer.is_idle)
            # Lazily: peers are asked only until enough are idle.
            for peer in islice(idle, max(0, len(remaining) - most)):
                peer.abort()
            return len(remaining) > most

    def abort_silent(self) -> None:
        """Abort every connection whose request is not on its way."""
        with self._lock:
            for peer in self._open:
                if peer.awaited == select.POLLIN and peer.is_idle:
                    peer.abort()
