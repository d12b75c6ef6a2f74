"""A hub with its router, and spokes with a NAT host and a node each, under faults.

One machine at a time is broken. Every machine drops on its own what one spoke sends to another, so
not one such packet may arrive, whatever is done to any one of them (invariant 10). After each step
the whole matrix has to be as the design says again, every drop counted (`tests/lab/verify.py`),
and what the spokes' pods exchanged with the internet counted, or in a gap (`books.py`).
"""

from __future__ import annotations

import random
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.chaos.books import Blind, Books, Faults
from tests.chaos.kernel import Kernel
from tests.chaos.node import INTERVAL, REPAIR_SECONDS
from tests.chaos.node import SETTINGS as OF_A_NODE
from tests.chaos.traffic import Conversation
from tests.failpoints.order import FailPoints, Order, When
from tests.kernel.spending import run
from tests.lab import matrix, services, verify
from tests.lab.exchange import open_socket
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.world import World

SETTINGS = {
    **{key: value for key, value in OF_A_NODE.items() if key != "limits"},
    "pool": {"cooldown_seconds": 0, "conntrack_wait_seconds": 0},
}
PORT = 9999
PAUSE_SECONDS = 0.02
MOST_STEPS_OF_A_START = 40
KILLED_BEFORE_A_DEL = 0.5


class Intruder(threading.Thread):
    """Sends from every spoke to the others' machines and pods; keeps what arrived."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self._over, self._may_send = threading.Event(), threading.Event()
        self._round = threading.Lock()
        self._sending: list[tuple[socket.socket, list[tuple[str, int]]]] = []
        self._listening: list[socket.socket] = []
        self.arrived: list[str] = []
        self.sent = 0
        ends = {origin.name: origin for origin in matrix.origins(world) if origin.site != "hub"}
        for family in Family:
            for origin in ends.values():
                end = origin.end(family)
                listener = open_socket(end.namespace, family, socket.SOCK_DGRAM)
                listener.bind((str(end.address), PORT))
                listener.settimeout(0)
                self._listening.append(listener)
                targets = [o.end(family) for o in ends.values() if o.site != origin.site]
                near = open_socket(end.namespace, family, socket.SOCK_DGRAM)
                self._sending.append((near, [(str(one.address), PORT) for one in targets]))
            for spoke in world.topology.spokes:
                targets = [o.end(family) for o in ends.values() if o.site != spoke.name]
                for rogue in spoke.rogues:
                    near = open_socket(world.namespace(rogue), family, socket.SOCK_DGRAM)
                    self._sending.append((near, [(str(one.address), PORT) for one in targets]))
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            if not self._may_send.wait(0.1):
                continue
            with self._round:
                for near, targets in self._sending:
                    for target in targets:
                        # No route, or dropped at once.
                        with suppress(OSError):
                            near.sendto(b"from another spoke", target)
                            self.sent += 1
                self._look()
            time.sleep(PAUSE_SECONDS)

    def _look(self) -> None:
        for listener in self._listening:
            with suppress(BlockingIOError):
                _, peer = listener.recvfrom(100)
                self.arrived.append(f"{peer} to {listener.getsockname()}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is sent in this block, and everything has arrived that was."""
        self._may_send.clear()
        with self._round:
            time.sleep(2 * PAUSE_SECONDS)
            yield
        self._may_send.set()

    def close(self) -> None:
        self._over.set()
        self.join()
        for one in (*self._listening, *(near for near, _ in self._sending)):
            one.close()


@dataclass
class Hub:
    """All machines of a planned world."""

    world: World
    chance: random.Random
    faults: Faults = field(default_factory=Faults)
    done: Counter[str] = field(default_factory=Counter)
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machines = matrix.machines(self.world)
        self.broken = self.machines[0]
        self.kernels = {
            node.name: Kernel(node, Backend(node.snapshot()["backend"])) for node in self.machines
        }
        self.rules = {name: kernel.rules().skeleton for name, kernel in self.kernels.items()}
        self.conversation = Conversation(self.world, random.Random(self.chance.random()))  # noqa: S311  a seed has to replay it
        self.books = {
            node.name: Books(node, self.conversation, INTERVAL)
            for node in self.machines
            if node.node.runs_pods
        }
        for sandbox in self.world.pods():
            self.books[sandbox.pod.node].begin(sandbox.pod.name)
            self.conversation.begin(sandbox.pod.name, sandbox)
        self.intruder = Intruder(self.world)
        self.conversation.resume()
        with self.intruder.held():
            pass

    @property
    def log(self) -> Path:
        """Of the agent that was broken last."""
        return self.broken.directory / "agent.log"

    def close(self) -> None:
        self.intruder.close()
        self.conversation.close()

    def step(self, act: Callable[[Hub, LabNode], None]) -> None:
        machine = self.chance.choice(self.machines)
        self.history.append(f"{act.__name__}:{machine.name}")
        self.done[act.__name__] += 1
        self.faults = Faults()
        self.broken = machine
        act(self, machine)
        self.hold()

    @contextmanager
    def blinding(self, machine: LabNode) -> Iterator[None]:
        began = time.monotonic()
        machine.snapshot()  # of its own accord it may read late
        yield
        deadline = time.monotonic() + REPAIR_SECONDS
        while self._wrong_rules(machine):
            assert time.monotonic() < deadline, f"{machine.name} does not repair its rules"
            time.sleep(0.01)
        self.faults.blinds.append(Blind(began, time.monotonic()))

    def kill(self, machine: LabNode) -> None:
        machine.kill_agent()
        self.done["kills"] += 1

    def pause(self, longest: float = INTERVAL) -> None:
        time.sleep(self.chance.uniform(0, longest))

    def add(self, node: LabNode) -> Sandbox:
        self.done["ADD"] += 1
        sandbox = node.add(f"passing-{self.done['ADD']}")
        self.books[node.name].begin(sandbox.pod.name)
        self.conversation.begin(sandbox.pod.name, sandbox)
        return sandbox

    def hold(self) -> None:
        for machine in self.machines:
            machine.wait_until_ready(REPAIR_SECONDS)
            deadline = time.monotonic() + REPAIR_SECONDS
            while wrong := self._wrong_rules(machine):
                assert time.monotonic() < deadline, f"{machine.name}: {wrong}"
                time.sleep(0.05)
        with self.intruder.held():
            self.conversation.pause()
            for name, books in self.books.items():
                is_broken = name == self.broken.name
                books.settle(self.faults if is_broken else Faults())
            deadline = time.monotonic() + REPAIR_SECONDS
            while not (found := verify.verify(self.world)).agrees:
                wrong = [row for row in found.rows if not row.agrees]
                assert time.monotonic() < deadline, (wrong, found.half_open)
                time.sleep(0.1)
            for books in self.books.values():
                # The probes were pods', too.
                books.leave_out()
            self.conversation.resume()
        assert not self.intruder.arrived, f"between spokes: {self.intruder.arrived[:3]}"

    def _wrong_rules(self, machine: LabNode) -> str:
        found, wanted = self.kernels[machine.name].rules().skeleton, self.rules[machine.name]
        if found == wanted:
            return ""
        return f"rules: {[one for one in wanted if one not in found]} are missing"

    def figures(self, seconds: float) -> str:
        acts = Counter(one.partition(":")[0] for one in self.history)
        return (
            f"hub, {self.world.backend}: {len(self.history)} steps of {len(acts)} kinds on "
            f"{len(self.machines)} machines in {seconds:.0f} s, {self.done['kills']} kills, "
            f"{self.done['fail points']} at a step, {self.done['ADD']} pods, "
            f"{self.intruder.sent:,} packets between spokes sent, none arrived, "
            f"{sum(one.bytes for one in self.books.values()):,} bytes, "
            f"{sum(one.lost for one in self.books.values()):,} in gaps\n{dict(acts)}"
        )


# --- acts ---------------------------------------------------------------------------------------


def kill(hub: Hub, machine: LabNode) -> None:
    hub.kill(machine)
    hub.pause()
    machine.start_agent()


def kill_at_a_step_of_a_start(hub: Hub, machine: LabNode) -> None:
    points = FailPoints(machine.directory / "failpoints")
    hub.kill(machine)
    number, when = hub.chance.randint(1, MOST_STEPS_OF_A_START), hub.chance.choice(list(When))
    points.give(Order(number=number, when=when))
    machine.start_agent("tests.failpoints", points.environment)
    deadline = time.monotonic() + 10
    while points.killed_at() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    hub.done["fail points"] += points.killed_at() is not None
    hub.kill(machine)
    machine.start_agent()


def come_and_go(hub: Hub, machine: LabNode) -> None:
    """A pod comes and ends, on any node, whose agent may be killed before it hears of the end."""
    del machine
    hub.broken = node = hub.chance.choice([one for one in hub.machines if one.node.runs_pods])
    sandbox = hub.add(node)
    hub.pause()
    is_killed = hub.chance.random() < KILLED_BEFORE_A_DEL
    if is_killed:
        hub.kill(node)
    hub.conversation.end(sandbox.pod.name)
    node.runtime.delete(sandbox)
    if is_killed:
        node.start_agent()


def restart(hub: Hub, machine: LabNode) -> None:
    machine.stop_agent()
    hub.pause()
    machine.start_agent()


def flush_rules(hub: Hub, machine: LabNode) -> None:
    """Every other machine still drops."""
    with hub.blinding(machine):
        _flush(hub, machine)
        hub.pause()


def flush_rules_while_away(hub: Hub, machine: LabNode) -> None:
    with hub.blinding(machine):
        hub.kill(machine)
        _flush(hub, machine)
        hub.pause()
        machine.start_agent()


def _flush(hub: Hub, machine: LabNode) -> None:
    run(machine, "nft", "flush", "ruleset")
    if hub.kernels[machine.name].backend is not Backend.NFTABLES:
        for program in ("iptables-legacy", "ip6tables-legacy"):
            for table in ("mangle", "nat", "raw"):
                run(machine, program, "-t", table, "-F")
    # What plays kube-proxy puts its own rules back, too.
    services.publish(hub.world.topology.spokes, hub.world.nodes, hub.world.backend)


def lose_routes(hub: Hub, machine: LabNode) -> None:
    """Of those to pods and to clients whose address is preserved."""
    del hub
    for family in ("-4", "-6"):
        run(machine, "ip", family, "route", "flush", "protocol", "110", "type", "unicast")


def stop_forwarding(hub: Hub, machine: LabNode) -> None:
    name = hub.chance.choice(("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"))
    run(machine, "sysctl", "-qw", f"{name}=0")


def flap_uplink(hub: Hub, machine: LabNode) -> None:
    with hub.kernels[machine.name].uplink_restored():
        run(machine, "ip", "link", "set", "eth0", "down")
        hub.pause()
        run(machine, "ip", "link", "set", "eth0", "up")


def remove_files(hub: Hub, machine: LabNode) -> None:
    folder = hub.chance.choice((machine.directory / "state", machine.run_dir))
    with suppress(OSError):
        shutil.rmtree(folder)


def lose_state(hub: Hub, machine: LabNode) -> None:
    hub.faults.books_since = 0.0
    hub.kill(machine)
    shutil.rmtree(machine.directory / "state")
    machine.start_agent()
