"""Datagrams that spend a quota, and how many bytes of them pass."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress

from netmgr.prefixes import Family
from tests.lab.exchange import IP_HEADER, UDP_HEADER, open_socket
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World

MEGABYTE, PACKET = 1_000_000, 1000
SETTLED = 1.5
"""Seconds in which an agent that reconciles every half a second has done so at least twice."""


def pump(near: socket.socket, far: socket.socket, still_seconds: float, pause: float = 0) -> int:
    """Send all that TCP takes until nothing has arrived for so long; the bytes that arrived."""
    for end in (near, far):
        end.settimeout(0)
    size, arrived_at = 0, time.monotonic()
    while time.monotonic() < arrived_at + still_seconds:
        with suppress(BlockingIOError):
            near.send(bytes(16_384))
        with suppress(BlockingIOError):
            size += len(far.recv(1 << 20))
            arrived_at = time.monotonic()
        time.sleep(pause)
    return size


class Exchange:
    """Datagrams between a pod and the internet, and how many bytes of them arrived."""

    def __init__(self, world: World, pod: Sandbox, stack: ExitStack, family: Family) -> None:
        near, far = (
            stack.enter_context(open_socket(where, family, socket.SOCK_DGRAM))
            for where in (pod.netns, world.internet)
        )
        far.bind((str(INTERNET[family]), 0))
        near.connect(far.getsockname()[:2])
        for end in (near, far):
            end.settimeout(0)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._near, self._far = near, far
        self._payload = bytes(PACKET - IP_HEADER[family] - UDP_HEADER)
        self.arrived = self.returned = 0

    def send(self, size: int, seconds: float = 0.0) -> int:
        """Send so many bytes, evenly in so many seconds; returns the bytes that arrived."""
        before, many = self.arrived, size // PACKET
        for number in range(many):
            # What waits in a queue fills the socket's buffer.
            with suppress(BlockingIOError):
                self._near.send(self._payload)
            if number % 20 == 19:
                time.sleep(seconds * 20 / many)
                self._receive(self._far)
        time.sleep(0.05)
        self._receive(self._far)
        return self.arrived - before

    def exhaust(self, size: int = 2 * MEGABYTE) -> int:
        """Send twice so many bytes, more than a quota has; returns the bytes that arrived."""
        before = self.arrived
        self.send(size, seconds=size / 10 / MEGABYTE)
        # What was dropped is charged until the agent has looked.
        time.sleep(SETTLED)
        self.send(size, seconds=size / 10 / MEGABYTE)
        return self.arrived - before

    def answer(self, size: int) -> int:
        """Have the internet send so many bytes to the pod; returns the bytes that arrived."""
        self._near.send(self._payload)
        time.sleep(0.05)
        peer = self._receive(self._far)
        for number in range(size // PACKET):
            self._far.sendto(self._payload, peer)
            if number % 20 == 19:
                time.sleep(0.005)
                self._receive(self._near)
        time.sleep(0.05)
        self._receive(self._near)
        return self.returned

    def _receive(self, end: socket.socket) -> object:
        peer = None
        while True:
            try:
                _, peer = end.recvfrom(PACKET)
            except BlockingIOError:
                return peer
            if end is self._far:
                self.arrived += PACKET
            else:
                self.returned += PACKET
