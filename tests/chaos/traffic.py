"""Pods that talk with the internet all the time, and bounds of what each of them exchanged.

A packet capture at the internet host sees what passed there (`tests/lab/capture.py`). While all is
well, that is what the node has to count. While something is broken, a packet may be lost on one
side of what counts it. So there are two bounds for each direction: what reached its destination was
counted at least, and what was sent at most. Both are equal unless packets were lost on their way.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from netmgr.model import Traffic
from netmgr.prefixes import Family
from tests.lab.capture import Capture
from tests.lab.exchange import datagram_bytes, open_socket, stream
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World
from tests.waiting import PATIENCE

FIRST_PORT = 10_000
PAUSE_SECONDS = 0.01
"""Between two rounds, in each of which every pod sends a packet of each family."""
KEPT_PAUSES = 2000
QUIET_SECONDS = 0.05
SIZES = (1, 1400)
"""Payloads in bytes."""
STREAM_BYTES = 3000
WAYS = (Traffic.INTERNET_OUT, Traffic.INTERNET_IN)


class Bounds(NamedTuple):
    """Bytes that were counted at least and at most, since the pod began to talk."""

    least: int
    most: int


class Sending(NamedTuple):
    """A packet as its sender knows it: when, by the clock that never steps, and its bytes."""

    at: float
    bytes: int


@dataclass
class Talker:
    """One pod. What it exchanges is known by the port at the internet host, whatever NAT does."""

    sandbox: Sandbox
    port: int
    near: dict[Family, socket.socket]
    far: dict[Family, socket.socket]
    sent: dict[Traffic, list[Sending]] = field(default_factory=lambda: {way: [] for way in WAYS})
    received: int = 0
    streamed: dict[Traffic, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))

    def say(self, chance: random.Random) -> None:
        for family, near in self.near.items():
            size = chance.randint(*SIZES)
            # What cannot be sent has not been sent: a route or the address may be gone.
            with suppress(OSError):
                near.sendto(bytes(size), (str(INTERNET[family]), self.port))
                self._note(Traffic.INTERNET_OUT, family, size)

    def answer(self, chance: random.Random) -> bool:
        """Answer what has arrived, and take answers; whether there was anything."""
        is_busy = False
        for family, far in self.far.items():
            with suppress(OSError):
                while True:
                    _, peer = far.recvfrom(2000)
                    is_busy, size = True, chance.randint(*SIZES)
                    far.sendto(bytes(size), peer)
                    self._note(Traffic.INTERNET_IN, family, size)
        for family, near in self.near.items():
            with suppress(OSError):
                while True:
                    self.received += datagram_bytes(family, len(near.recv(2000)))
                    is_busy = True
        return is_busy

    def _note(self, way: Traffic, family: Family, size: int) -> None:
        self.sent[way].append(Sending(time.monotonic(), datagram_bytes(family, size)))

    def close(self) -> None:
        # A socket keeps its namespace, and with it the pod's link.
        for near in self.near.values():
            near.close()
        self.near.clear()


class Conversation(threading.Thread):
    """All pods of a world. Nobody talks until `resume`, nor after `pause`."""

    def __init__(self, world: World, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._chance = chance
        self._lock = threading.Lock()
        self._may_talk, self._over = threading.Event(), threading.Event()
        self._talkers: dict[str, Talker] = {}
        self._pauses: deque[tuple[float, float]] = deque(maxlen=KEPT_PAUSES)
        interface = next(
            end.name for end in world.topology.interfaces() if end.host == world.topology.internet
        )
        self._capture = Capture(world.internet, interface)
        self.start()

    def close(self) -> None:
        self._over.set()
        self.join()
        for talker in self._talkers.values():
            talker.close()
            for far in talker.far.values():
                far.close()
        self._capture.__exit__()

    def begin(self, name: str, sandbox: Sandbox) -> None:
        """Have a pod take part. Its ports stay open when it is gone: nobody answers with ICMP."""
        port = FIRST_PORT + len(self._talkers)
        near, far = {}, {}
        for family in sorted({address.family for address in sandbox.addresses}):
            near[family] = open_socket(sandbox.netns, family, socket.SOCK_DGRAM)
            far[family] = open_socket(self._world.internet, family, socket.SOCK_DGRAM)
            far[family].bind((str(INTERNET[family]), port))
            for one in (near[family], far[family]):
                one.settimeout(0)
        with self._lock:
            self._talkers[name] = Talker(sandbox, port, near, far)

    def end(self, name: str) -> None:
        """A pod is about to go; the others go on."""
        self.pause()
        self._talkers[name].close()
        self.resume()

    def resume(self) -> None:
        self._may_talk.set()

    def pause(self) -> None:
        """Wait until everybody is quiet and everything on its way has arrived."""
        self._may_talk.clear()
        deadline = time.monotonic() + PATIENCE
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < QUIET_SECONDS:
            if self._listen():
                quiet_since = time.monotonic()
            assert time.monotonic() < deadline, "the pods do not become quiet"
            time.sleep(0.005)

    def stream(self, name: str) -> None:
        """A connection of TCP in each family, while nobody else talks."""
        with self._lock:
            talker = self._talkers[name]
            before = self._seen(talker, "TCP")
            for family in talker.near:
                ends = talker.sandbox.end(family), self._world.outside(family)
                stream(*ends, STREAM_BYTES, 2 * STREAM_BYTES, port=talker.port)
            self._capture.settle(QUIET_SECONDS)
            for way, size in self._seen(talker, "TCP").items():
                talker.streamed[way] += size - before[way]

    def bounds(self, name: str) -> dict[Traffic, Bounds]:
        """What a pod exchanged in each direction; only while it is quiet."""
        with self._lock:
            talker = self._talkers[name]
            seen = self._seen(talker, "UDP")
            sent = sum(one.bytes for one in talker.sent[Traffic.INTERNET_OUT])
            found = {
                Traffic.INTERNET_OUT: Bounds(seen[Traffic.INTERNET_OUT], sent),
                Traffic.INTERNET_IN: Bounds(talker.received, seen[Traffic.INTERNET_IN]),
            }
            streamed = talker.streamed
            return {
                way: Bounds(one.least + streamed[way], one.most + streamed[way])
                for way, one in found.items()
            }

    def sent(self, name: str, way: Traffic) -> list[Sending]:
        """What a pod sent, or was sent."""
        with self._lock:
            return list(self._talkers[name].sent[way])

    @property
    def bytes(self) -> int:
        """All that passed the internet host."""
        return sum(tally.bytes for tally in self._capture.flows().values())

    def _seen(self, talker: Talker, protocol: str) -> dict[Traffic, int]:
        found = dict.fromkeys(WAYS, 0)
        for flow, tally in self._capture.flows().items():
            if (flow.protocol, flow.own_port) == (protocol, talker.port):
                found[flow.traffic] += tally.bytes
        return found

    def late(self, since: float) -> float:
        """By how many seconds a pause was longest too long since then: how busy the machine was."""
        with self._lock:
            return max((late for at, late in self._pauses if at >= since), default=0.0)

    def run(self) -> None:
        while not self._over.is_set():
            if self._may_talk.wait(0.1):
                with self._lock:
                    for talker in self._talkers.values():
                        talker.say(self._chance)
                self._listen()
                began = time.monotonic()
                time.sleep(PAUSE_SECONDS)
                now = time.monotonic()
                with self._lock:
                    self._pauses.append((now, now - began - PAUSE_SECONDS))

    def _listen(self) -> bool:
        with self._lock:
            is_busy = [talker.answer(self._chance) for talker in self._talkers.values()]
            return bool(self._capture.drain()) or any(is_busy)
