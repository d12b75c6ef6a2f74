"""Many pods of a moment, what each sent, and a reader that polls the connection table beside."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from netmgr.prefixes import Family
from tests.lab import wiring
from tests.lab.exchange import open_socket
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World
from tests.waiting import PATIENCE

HEADERS = 20 + 8
PACKETS = 3
PAUSE_SECONDS = 0.01
"""Between a pod's packets; the first goes out at once."""
POLL_SECONDS = 5.0
_NUMBER = struct.Struct("=I")
_ORIGINAL = re.compile(r"src=(\S+) dst=(\S+) sport=(\d+) dport=(\d+) packets=\d+ bytes=(\d+)")


def packet_bytes(number: int) -> int:
    """Size of each packet of a pod, IP header included; not the same for any two neighbours."""
    return HEADERS + 100 + number % 1000


class Sink:
    """A server on the internet that tells how many packets of each pod have arrived."""

    def __init__(self, world: World) -> None:
        self._socket = open_socket(world.internet, Family.V4, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.settimeout(0.2)
        self._socket.bind((str(INTERNET[Family.V4]), 0))
        self.address = self._socket.getsockname()
        self._arrived: Counter[int] = Counter()
        self._news = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                payload = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            with self._news:
                self._arrived[_NUMBER.unpack_from(payload)[0]] += 1
                self._news.notify_all()

    def wait_for(self, number: int) -> None:
        """Wait until everything of a pod has arrived."""
        with self._news:
            assert self._news.wait_for(lambda: self._arrived[number] >= PACKETS, PATIENCE), (
                f"packets of {number} were lost"
            )

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._socket.close()


class PollingReader:
    """Reads the connection table every five seconds, as conntrack-polling exporters do.

    What grew since the last poll belongs to the pod that has the address now; nobody has it any
    more where the pod is gone.
    """

    def __init__(self, node: Path, owners: Callable[[], dict[str, str]]) -> None:
        self._node = node
        self._owners = owners
        self._seen: dict[tuple[str, ...], int] = {}
        self._ending = threading.Event()
        self.attributed: Counter[str] = Counter()
        with wiring.inside(node):
            Path("/proc/sys/net/netfilter/nf_conntrack_acct").write_text("1")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.wait(POLL_SECONDS):
            self.poll()
        self.poll()

    def poll(self) -> None:
        with wiring.inside(self._node):
            table = Path("/proc/thread-self/net/nf_conntrack").read_text()
        owners = self._owners()
        for *flow, size in _ORIGINAL.findall(table):
            grown = int(size) - self._seen.get(tuple(flow), 0)
            self._seen[tuple(flow)] = int(size)
            if grown and (owner := owners.get(flow[0])):
                self.attributed[owner] += grown

    def close(self) -> None:
        self._ending.set()
        self._thread.join()


@dataclass
class Churn:
    """Runs pods, several at a time: each is attached, sends, and is detached when all of it has
    arrived.

    `starting_seconds` is what a runtime takes from the end of ADD until the pod's program can send.
    """

    world: World
    node: Path
    add: Callable[[str], Sandbox]
    delete: Callable[[Sandbox], None]
    at_once: int = 4
    starting_seconds: float = 0.0
    sent: dict[str, int] = field(default_factory=dict)
    lives: list[float] = field(default_factory=list)
    _running: dict[str, str] = field(default_factory=dict)

    def run(self, pods: int) -> PollingReader:
        """Have so many pods live and die; what the polling reader saw."""
        sink = Sink(self.world)
        reader = PollingReader(self.node, lambda: dict(self._running))
        try:
            with ThreadPoolExecutor(self.at_once) as workers:
                for _ in workers.map(lambda number: self._live(number, sink), range(pods)):
                    pass
        finally:
            reader.close()
            sink.close()
        return reader

    def _live(self, number: int, sink: Sink) -> None:
        name, size = f"short-{number}", packet_bytes(number)
        pod = self.add(name)
        began, address = time.monotonic(), str(pod.address(Family.V4))
        self._running[address] = name
        time.sleep(self.starting_seconds)
        with open_socket(pod.netns, Family.V4, socket.SOCK_DGRAM) as near:
            for _ in range(PACKETS):
                near.sendto(_NUMBER.pack(number).ljust(size - HEADERS, b"."), sink.address)
                time.sleep(PAUSE_SECONDS)
        sink.wait_for(number)
        self.sent[name] = PACKETS * size
        self.lives.append(time.monotonic() - began)
        del self._running[address]
        self.delete(pod)

    def verdict(self, mode: str, counted: dict[str, int], reader: PollingReader) -> str:
        """What was counted, beside what polling the connection table would have."""
        sent = sum(self.sent.values())

        def loss(got: int) -> str:
            return f"{sent - got:,} bytes lost ({1 - got / sent:.2%})"

        average = sum(self.lives) / len(self.lives)
        return (
            f"{mode}: {len(self.sent)} pods lived {average * 1000:.0f} ms and sent {sent:,} bytes\n"
            f"  netmgr: {loss(sum(counted.values()))}\n"
            f"  polling every {POLL_SECONDS:g} s: {loss(reader.attributed.total())}"
        )
