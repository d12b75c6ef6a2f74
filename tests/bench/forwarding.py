"""What accounting adds to a packet's way from a pod through its node, as the number of pods grows.

Every node here masquerades, as nodes do. The measure is the same node with its accounting
taken away; a node with `ptp`, and one with no rules at all, are shown beside it. Of several
turns the fastest counts: whatever else the machine does only ever adds time (see flood.c).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from netmgr.config import Backend
from netmgr.lab import wiring
from netmgr.lab.nodes import LabNode
from netmgr.lab.topology import Host, Interface, InterfaceAddress, Link, Node, Route, Topology
from netmgr.lab.world import World
from netmgr.prefixes import Address, Prefix
from tests.bench.plugins import QUIET, RANGE, Plugin, plugin_of, ptp
from tests.bench.report import Effort, Figure

IP_BYTES = 64
SENDER = "sender"
INTERNET = Address.parse("203.0.113.1")
UPLINK = Address.parse("203.0.113.2")

PEERS = ("ptp", "no rules")
WITHOUT_RULES = ("nft", "delete", "table", "inet", "netmgr")
WITHOUT_ACCOUNTING = {
    Backend.NFTABLES: ("nft", "flush", "chain", "inet", "netmgr", "forward"),
    Backend.IPTABLES: ("iptables-legacy", "-t", "mangle", "-F", "FORWARD"),
}

DROP_AT_ONCE = """
table netdev sink {
    chain arriving { type filter hook ingress device node-1 priority 0; drop; }
}
"""
"""What the packet costs its receiver is of no interest."""


def measure(effort: Effort) -> Iterator[Figure]:
    """Nanoseconds a packet takes at three numbers of pods, all nodes in turns."""
    with ExitStack() as stack:
        flood = stack.enter_context(compiled(Path(__file__).with_name("flood.c")))
        counting = {backend: stack.enter_context(_node_of_ours(backend)) for backend in effort.backends}
        others = {
            f"no accounting, {backend}": stack.enter_context(_node_of_ours(backend)) for backend in effort.backends
        }
        for sender in others.values():
            sender.run_in_node(*WITHOUT_ACCOUNTING[sender.backend])
        others["no rules"] = stack.enter_context(_node_of_ours(Backend.NFTABLES))
        others["no rules"].run_in_node(*WITHOUT_RULES)
        others["ptp"] = stack.enter_context(_node_of_ptp())
        for pods in sorted({1, effort.crowd, effort.big_crowd}):
            for sender in counting.values():
                sender.fill(pods)
            best = _turns(flood, [*counting.values(), *others.values()], effort)
            for backend, sender in counting.items():
                packet = f"forwarded {IP_BYTES}-byte packet, {pods} pod{'s' * (pods > 1)}, {backend}"
                reference = best[others[f"no accounting, {backend}"]]
                yield Figure(packet, best[sender], "ns", reference, "no accounting", 1.10)
                if pods == effort.big_crowd:
                    yield from (Figure(packet, best[sender], "ns", best[others[name]], name) for name in PEERS)


class Sender:
    """A node with one pod that sends. The agent of ours is stopped when rules are altered."""

    def __init__(self, plugin: Plugin, node: LabNode, backend: Backend | None = None) -> None:
        self.node = node
        self.backend = backend
        self._plugin = plugin
        self._pods = 1
        plugin.make_pods([SENDER])
        plugin.call("ADD", SENDER)

    def fill(self, wanted: int) -> None:
        """Have `wanted` pods on the node, the sender included."""
        pods = [f"other-{number}" for number in range(self._pods, wanted)]
        self._pods = wanted
        self._plugin.make_pods(pods)
        for first in range(0, len(pods), 100):
            self._plugin.call_at_once("ADD", pods[first : first + 100])

    def run_in_node(self, *command: str) -> None:
        """End the agent, so that it repairs nothing, and run a program in the node's namespace."""
        self.node.stop_agent()
        run_in(self.node, *command)

    def flood(self, program: Path, packets: int) -> float:
        """Nanoseconds a packet took."""
        pod = self._plugin.pods / SENDER
        command = ["nsenter", f"--net={pod}", program, str(INTERNET), str(packets), str(IP_BYTES)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return float(done.stdout)


def run_in(node: LabNode, *command: str) -> None:
    """Run a program in the node's namespace."""
    with wiring.inside(node.namespace):
        subprocess.run(command, check=True)


@contextmanager
def compiled(source: Path) -> Iterator[Path]:
    """The program made from one C file, for the length of the block."""
    with TemporaryDirectory() as folder:
        program = Path(folder, source.stem)
        subprocess.run(["cc", "-O2", "-Wall", "-o", program, source], check=True)
        yield program


def _turns(flood: Path, senders: Sequence[Sender], effort: Effort) -> dict[Sender, float]:
    """The fastest turn of each."""
    best = dict.fromkeys(senders, float("inf"))
    for _ in range(effort.rounds):
        for sender in senders:
            best[sender] = min(best[sender], sender.flood(flood, effort.packets))
    return best


@contextmanager
def _node_of_ours(backend: Backend) -> Iterator[Sender]:
    with World(_beside_the_internet(), backend=backend, settings=QUIET) as world:
        _sink(world.internet)
        yield Sender(plugin_of(world.nodes[0]), world.nodes[0], backend)


@contextmanager
def _node_of_ptp() -> Iterator[Sender]:
    with ptp(_beside_the_internet()) as (plugin, world):
        _sink(world.internet)
        yield Sender(plugin, world.nodes[0])


def _sink(internet: Path) -> None:
    with wiring.inside(internet):
        subprocess.run(["nft", "-f", "-"], input=DROP_AT_ONCE.encode(), check=True)


def _beside_the_internet() -> Topology:
    """One node linked to the internet host directly: no other router's time is measured."""
    ends = (
        Interface("internet", "node-1", (InterfaceAddress(INTERNET, 24),)),
        Interface("node-1", "eth0", (InterfaceAddress(UPLINK, 24),)),
    )
    return Topology(
        internet="internet",
        hosts=(Host("internet"), Host("node-1", routes=(Route(Prefix.parse("0.0.0.0/0"), INTERNET),))),
        links=(Link(ends),),
        nodes=(Node("node-1", "eth0", (UPLINK,), (Prefix.parse(RANGE),)),),
    )
