"""What the rules add to a packet's way from a pod through its node, as the number of pods grows.

Every node here is wired alike; on one the rules are taken away, and that one is the measure.
Masquerading is off: it needs connection tracking, whose cost would hide that of accounting.
Of several turns the fastest counts: whatever else the machine does only ever adds time.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from netmgr.config import Backend
from netmgr.lab import wiring
from netmgr.lab.nodes import LabNode
from netmgr.lab.topology import Host, Interface, InterfaceAddress, Link, Node, Route, Topology
from netmgr.lab.world import World
from netmgr.prefixes import Address, Prefix
from tests.bench.plugins import QUIET, RANGE, Plugin, plugin_of
from tests.bench.report import Effort, Figure

IP_BYTES = 64
SENDER = "sender"
INTERNET = Address.parse("203.0.113.1")
UPLINK = Address.parse("203.0.113.2")

DROP_AT_ONCE = """
table netdev sink {
    chain arriving { type filter hook ingress device node-1 priority 0; drop; }
}
"""
"""What the packet costs its receiver is of no interest."""


def measure(effort: Effort) -> Iterator[Figure]:
    """Nanoseconds a packet takes, beside the same node without rules, at three numbers of pods."""
    with ExitStack() as stack:
        flood = stack.enter_context(compiled(Path(__file__).with_name("flood.c")))
        bare = stack.enter_context(_sending_node(Backend.NFTABLES))
        remove_rules(bare.node)
        ruled = {
            backend: stack.enter_context(_sending_node(backend)) for backend in (Backend.NFTABLES, Backend.IPTABLES)
        }
        present = 1
        for pods in sorted({1, effort.crowd, effort.big_crowd}):
            for sender in ruled.values():
                sender.add_pods(present, pods)
            present = pods
            yield from _turns(flood, bare, ruled, pods, effort)


class Sender:
    """A node with one pod that sends."""

    def __init__(self, world: World) -> None:
        self.node = world.nodes[0]
        self._plugin: Plugin = plugin_of(self.node)
        self._plugin.make_pods([SENDER])
        self._plugin.call("ADD", SENDER)

    def add_pods(self, present: int, wanted: int) -> None:
        """Have `wanted` pods on the node, of which there are `present`."""
        pods = [f"other-{number}" for number in range(present, wanted)]
        self._plugin.make_pods(pods)
        for first in range(0, len(pods), 100):
            self._plugin.call_at_once("ADD", pods[first : first + 100])

    def flood(self, program: Path, packets: int) -> float:
        """Nanoseconds a packet took."""
        pod = self._plugin.pods / SENDER
        command = ["nsenter", f"--net={pod}", program, str(INTERNET), str(packets), str(IP_BYTES)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return int(done.stdout) / packets


def remove_rules(node: LabNode) -> None:
    """End the agent and take its rules away, so that only the wiring remains."""
    node.stop_agent()
    with wiring.inside(node.namespace):
        subprocess.run(["nft", "delete", "table", "inet", "netmgr"], check=True)


@contextmanager
def compiled(source: Path) -> Iterator[Path]:
    """The program made from one C file, for the length of the block."""
    with TemporaryDirectory() as folder:
        program = Path(folder, source.stem)
        subprocess.run(["cc", "-O2", "-Wall", "-o", program, source], check=True)
        yield program


def _turns(flood: Path, bare: Sender, ruled: Mapping[Backend, Sender], pods: int, effort: Effort) -> Iterator[Figure]:
    best = dict.fromkeys((bare, *ruled.values()), float("inf"))
    for _ in range(effort.rounds):
        for sender in best:
            best[sender] = min(best[sender], sender.flood(flood, effort.packets))
    for backend, sender in ruled.items():
        what = f"forwarded {IP_BYTES}-byte packet, {pods} pods, {backend}"
        yield Figure(what, best[sender], "ns", best[bare], "no rules", 1.10)


@contextmanager
def _sending_node(backend: Backend) -> Iterator[Sender]:
    with World(_beside_the_internet(), backend=backend, settings={**QUIET, "masquerade": False}) as world:
        with wiring.inside(world.internet):
            subprocess.run(["nft", "-f", "-"], input=DROP_AT_ONCE.encode(), check=True)
        yield Sender(world)


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
