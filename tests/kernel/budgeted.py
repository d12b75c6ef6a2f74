"""A cluster with budgets, without Kubernetes: nodes, their exporters' reports, and a server."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import yaml

from netmgr import programs
from netmgr.prefixes import Family
from tests.builders import PLAN_KEYS
from tests.fakes.authority import Authority
from tests.kernel.flows import ON_THE_WIRE
from tests.kernel.namespaces import inside
from tests.lab.exchange import open_socket
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET, cluster
from tests.lab.unprivileged import NOBODY
from tests.lab.world import SETTINGS, World
from tests.waiting import PATIENCE, eventually

SERVER = "10.64.1.1:9122"
"""The fabric's address on the first node's network, which every node reaches."""

CHUNK = 1 << 18

STEPPED = """
import runpy, sys, time
now, ahead = time.time, int(sys.argv.pop(1))
time.time = lambda: now() + ahead
runpy.run_module("netmgr", run_name="__main__", alter_sys=True)
"""


class BudgetedCluster:
    """As a context manager it is up inside the block: nodes without pods, and a server."""

    def __init__(self, folder: Path, name: str, budgets: Sequence[dict[str, Any]], nodes: int):
        self.folder = folder
        self.world = World(cluster(nodes, pods=0), name=name, exporters=False)
        self._authority = Authority(folder)
        self._document = {
            "apiVersion": "netmgr.io/v1alpha1",
            "kind": "Budgets",
            "budgets": list(budgets),
        }
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._server:
            self.kill_server()
        self.world.down()

    @property
    def nodes(self) -> list[LabNode]:
        return self.world.nodes

    def _up(self) -> None:
        self.world.build()
        (self.folder / "budgets.yaml").write_text(yaml.safe_dump(self._document))
        write_plan(self.folder, len(self.nodes))
        self.start_server()
        for node in self.nodes:
            kept = node.directory / "budgets"
            kept.mkdir(parents=True)
            os.chown(kept, NOBODY, NOBODY)
            node.settings = {
                **SETTINGS,
                "accounting": {**SETTINGS["accounting"], "history_hours": 48},
                "budgets_file": str(kept / "budgets.json"),
            }
            node.write_document()
            node.install_plugin()
            node.start_agent()
        for node in self.nodes:
            node.wait_until_ready()
            self.start_exporter(node)
        eventually(lambda: all(map(self.is_granted, self.nodes)), "not every node has an answer")

    def start_server(self, ahead: int = 0) -> None:
        """With a clock that is so many seconds ahead of the machine's."""
        options = {
            "--file": self.folder / "budgets.yaml",
            "--plan": self.folder / "plan.yaml",
            "--tls": self._authority.certify("netmgr-budgets"),
            "--state": self.folder / "state",
            "--listen": SERVER,
        }
        arguments = [str(part) for option in options.items() for part in option]
        nsenter = programs.locate("nsenter", "util-linux")
        enter = [nsenter, f"--net={self.world.namespace('fabric')}"]
        with (self.folder / "server.log").open("ab") as output:
            program = ["-c", STEPPED, str(ahead)] if ahead else ["-m", "netmgr"]
            command = [*enter, sys.executable, *program, "budgets", "serve", *arguments]
            self._server = subprocess.Popen(command, stdout=output, stderr=output)

    def kill_server(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGKILL)
        self._server.wait(PATIENCE)
        self._server = None

    def start_exporter(self, node: LabNode) -> None:
        number = self.nodes.index(node)
        own = self._authority.certify(f"lab-cpu-{number}")
        for file in own.iterdir():
            # The exporter's user is nobody.
            os.chown(file, NOBODY, NOBODY)
        node.start_exporter(
            *("--budgets-server", SERVER, "--budgets-credentials", str(own)),
            *("--budgets-file", node.settings["budgets_file"]),
        )

    def is_granted(self, node: LabNode) -> bool:
        return node.snapshot().get("budgets", {}).get("epoch", 0) > 0

    @contextmanager
    def unreachable(self, nodes: Sequence[LabNode]) -> Iterator[None]:
        """A partition: what these nodes send to the server comes nowhere."""
        address = SERVER.partition(":")[0]
        for node in nodes:
            inside(node.namespace, "ip", "route", "add", "blackhole", address)
        try:
            yield
        finally:
            for node in nodes:
                inside(node.namespace, "ip", "route", "del", "blackhole", address)


def write_plan(folder: Path, nodes: int) -> None:
    """A plan.yaml with its lock, of nodes that are called lab-cpu-0, lab-cpu-1 and so on."""
    plan = {
        **PLAN_KEYS,
        "name": "budgeted",
        "pools": {"nodes": ["10.0.0.0/12"], "services": ["172.16.0.0/16"]},
        "clusters": {
            "lab": {
                "services": {"length": 20},
                "node_pools": {"cpu": {"nodes": nodes, "pods_per_node": 16}},
            }
        },
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    lock = ("plan", "lock", "--yes", "-f", str(folder / "plan.yaml"))
    subprocess.run([sys.executable, "-m", "netmgr", *lock], check=True, timeout=PATIENCE)


class Downloads:
    """Endless downloads from the internet, one a pod, and what each pod got second by second."""

    def __init__(self, internet: Path) -> None:
        """`internet` is the network namespace of who sends."""
        self._internet = internet
        self._stack = ExitStack()
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._received: dict[str, int] = {}
        self._seconds: deque[tuple[float, dict[str, int]]] = deque(maxlen=3600)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._stack.close()

    def start(self, pod: str, netns: Path) -> None:
        internet = INTERNET[Family.V4]
        with open_socket(self._internet, Family.V4, socket.SOCK_STREAM) as listener:
            listener.bind((str(internet), 0))
            listener.listen()
            near = self._stack.enter_context(open_socket(netns, Family.V4, socket.SOCK_STREAM))
            near.settimeout(PATIENCE)
            near.connect(listener.getsockname())
            far = self._stack.enter_context(listener.accept()[0])
        for end in (near, far):
            end.settimeout(0)
        with self._lock:
            self._received[pod] = 0
            self._selector.register(far, selectors.EVENT_WRITE, None)
            self._selector.register(near, selectors.EVENT_READ, pod)

    def total(self) -> int:
        """Bytes that all pods got so far; payload of TCP."""
        with self._lock:
            return sum(self._received.values())

    def rates(self, seconds: float) -> dict[str, float]:
        """Bits a second on the wire that each pod got, over the last so many seconds."""
        looks = self._looks()
        now, latest = looks[-1]
        began, then = next(look for look in looks if look[0] >= now - seconds)
        factor = 8 * ON_THE_WIRE / max(now - began, 0.001)
        return {pod: (size - then.get(pod, 0)) * factor for pod, size in latest.items()}

    def windows(self, since: float, seconds: float) -> list[float]:
        """What all pods got together, in each window of so many seconds since then."""
        totals = [(at, sum(sizes.values())) for at, sizes in self._looks() if at >= since]
        rates: list[float] = []
        for at, size in totals:
            end = next((other for other in totals if other[0] >= at + seconds), None)
            if end:
                rates.append((end[1] - size) * 8 * ON_THE_WIRE / (end[0] - at))
        return rates

    def _looks(self) -> list[tuple[float, dict[str, int]]]:
        with self._lock:
            return list(self._seconds)

    def _run(self) -> None:
        payload, due = bytes(1 << 16), 0.0
        while not self._ended.is_set():
            with self._lock:
                events = self._selector.select(0)
                for key, _ in events:
                    with suppress(BlockingIOError):
                        if key.data is None:
                            key.fileobj.send(payload)
                        else:
                            self._received[key.data] += len(key.fileobj.recv(CHUNK))
                now = time.monotonic()
                if now >= due:
                    self._seconds.append((now, dict(self._received)))
                    due = now + 1
            if not events:
                time.sleep(0.005)
