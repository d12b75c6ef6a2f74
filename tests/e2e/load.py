"""What goes on in a cluster while something is done to it: traffic, and pods that come and go."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Self

from tests.e2e import pods
from tests.e2e.cluster import Cluster
from tests.e2e.pods import Pod
from tests.lab import exchange
from tests.lab.capture import Capture, Tally
from tests.lab.comparison import Counts
from tests.lab.exchange import End
from tests.lab.traffic import Column

FIRST_PORT = 7000
PAUSE_SECONDS = 0.05


class Background:
    """Calls `step` twenty times a second at most, in a thread of its own for each of `names`."""

    def __init__(self, step: Callable[[str], None], names: Iterable[str]) -> None:
        self._step = step
        self._names = list(names)
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(len(self._names))

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(self._run, name) for name in self._names]
        return self

    def __exit__(self, *_: object) -> None:
        """End all after their present step; raises what the first of them that failed raised."""
        self._over.set()
        self._pool.shutdown()
        for each in self._running:
            each.result()

    def _run(self, name: str) -> None:
        while not self._over.wait(PAUSE_SECONDS):
            self._step(name)


@dataclass
class Churn:
    """Pods that are created and deleted, one after the other on each node.

    `seconds` is how long each took to be Ready.
    """

    cluster: Cluster
    seconds: list[float] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    def step(self, node: str) -> None:
        """One pod's life on this node."""
        name = f"churn-{next(self._numbers)}"
        begin = time.monotonic()
        pods.create(self.cluster, name, node)
        pods.started(self.cluster, name)
        self.seconds.append(time.monotonic() - begin)
        pods.delete(self.cluster, [name])


@dataclass
class Conversation:
    """Pods that talk to the internet, each to a port of its own, by which a capture knows them."""

    speakers: Mapping[str, Pod]
    internet: End

    def step(self, name: str) -> None:
        """One stream and some datagrams of this pod.

        Raises:
            LabError: something was lost.
        """
        own = self.speakers[name].end(self.internet.address.family)
        port = self._ports[name]
        exchange.stream(own, self.internet, 200_000, 70_000, port=port)
        exchange.datagrams(own, self.internet, [1, 1400, 700], [0, 900, 4], port=port)

    def seen(self, capture: Capture) -> Counts:
        """Bytes and packets of each pod, by the capture alone."""
        capture.settle()
        names = {port: name for name, port in self._ports.items()}
        seen: defaultdict[Column, Tally] = defaultdict(Tally)
        for flow, tally in capture.flows().items():
            seen[Column("default", names[flow.own_port], flow.traffic)] += tally
        return dict(seen)

    @property
    def _ports(self) -> dict[str, int]:
        return {name: FIRST_PORT + number for number, name in enumerate(self.speakers)}
