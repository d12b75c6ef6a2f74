"""The open connections of one socket, and which of them are idle: they send or take nothing."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from itertools import islice

PATIENCE_SECONDS = 0.1
"""Between connecting and its first byte a peer may have to wait for a processor."""

NOTHING = 0


class Peer:
    """One accepted connection, while it is open.

    Attributes:
        since: when it was accepted, by the monotonic clock.
        cut: whether it was given up, so that an end of its data is no end of its request.
        awaited: what we wait for: POLLIN for its request, POLLOUT for it to take the answer, or
            NOTHING while it waits for us.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.since = time.monotonic()
        self.cut = False
        self.awaited = select.POLLIN

    @property
    def sends(self) -> bool:
        """Whether its request is still to come, or the rest of it."""
        return self.awaited == select.POLLIN

    @property
    def dawdles(self) -> bool:
        """Whether we wait for it, and it has neither sent nor taken anything."""
        if self.awaited == NOTHING:
            return False
        # poll(2) and not select(2), which fails beyond descriptor 1023.
        waiting = select.poll()
        waiting.register(self.connection, self.awaited)
        return not waiting.poll(0)

    def give_up(self) -> None:
        """Wake the worker that waits for it. What it has sent can still be read."""
        self.cut = True
        with suppress(OSError):  # it has just hung up
            # It wakes the worker that waits in recv() or send(); closing would free the number
            # while that worker still uses it.
            self.connection.shutdown(socket.SHUT_RD if self.sends else socket.SHUT_RDWR)


class OpenPeers:
    """Every open connection, oldest first. Thread-safe."""

    def __init__(self) -> None:
        # Held while a connection is closed, so that none is given up that took its number.
        self._lock = threading.Lock()
        self._open: dict[Peer, None] = {}

    def welcome(self, connection: socket.socket) -> Peer:
        peer = Peer(connection)
        with self._lock:
            self._open[peer] = None
        return peer

    def expect(self, peer: Peer, event: int) -> None:
        """Note what is awaited of it now. Locked: it must not be given up for idling before."""
        with self._lock:
            peer.awaited = event

    def part(self, peer: Peer) -> None:
        with self._lock:
            del self._open[peer]
            peer.connection.close()

    def make_room(self, most: int) -> bool:
        """Give up those idle for a while beyond `most`, oldest first; whether there were more."""
        with self._lock:
            remaining = [peer for peer in self._open if not peer.cut]
            patience_ends = time.monotonic() - PATIENCE_SECONDS
            idle = (peer for peer in remaining if peer.since <= patience_ends and peer.dawdles)
            # Lazily: peers are asked only until enough are found.
            for peer in islice(idle, max(0, len(remaining) - most)):
                peer.give_up()
            return len(remaining) > most

    def dismiss(self) -> None:
        """Give up every connection whose request is not on its way."""
        with self._lock:
            for peer in self._open:
                if peer.sends and peer.dawdles:
                    peer.give_up()
