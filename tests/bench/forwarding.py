"""What accounting adds to a packet's way from a pod through its node, as pods and traffic classes
grow.

Every node here masquerades, as nodes do. The measure is the same node with its accounting
taken away; a node with a rule for each pod, one with `ptp`, and one with no rules at all, are
shown beside it. With classes, packets of the internet and of the class that stands last are
sent. Of several turns the fastest counts: whatever else the machine does only ever adds time
(see flood.c).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from netmgr.documents.node import Backend, NodeDocument
from netmgr.kernel.xtables.legacy import LegacyTables
from netmgr.lab import wiring
from netmgr.lab.nodes import LabNode
from netmgr.lab.topology import Host, Interface, InterfaceAddress, Link, Node, Route, Topology
from netmgr.lab.world import World
from netmgr.prefixes import Address, Prefix
from netmgr.rules.classifier import Classifier
from netmgr.rules.engine import RuleBackend, Rules
from netmgr.rules.iptables import IptablesBackend
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.policy import Policy, desired
from tests.bench.plugins import QUIET, RANGE, Plugin, plugin_of, ptp
from tests.bench.report import Effort, Figure

IP_BYTES = 64
SENDER = "sender"
INTERNET = Address.parse("203.0.113.1")
UPLINK = Address.parse("203.0.113.2")

OPENERS: dict[Backend, Callable[[], RuleBackend]] = {
    Backend.NFTABLES: NftablesBackend,
    Backend.IPTABLES_LEGACY: lambda: IptablesBackend(LegacyTables(lock_wait_seconds=60)),
}
WITHOUT_RULES = ("nft", "delete", "table", "inet", "netmgr")
WITHOUT_ACCOUNTING = {
    Backend.NFTABLES: ("nft", "flush", "chain", "inet", "netmgr", "forward"),
    Backend.IPTABLES_LEGACY: ("iptables-legacy", "-w", "-t", "mangle", "-F", "FORWARD"),
}
WITHOUT_PODS = {
    Backend.NFTABLES: ("nft", "flush", "set", "inet", "netmgr", "pod_out4"),
    Backend.IPTABLES_LEGACY: ("ipset", "flush", "netmgr-pod-out4"),
}

NO_ACCOUNTING, RULE_PER_POD = "no accounting", "a rule per pod"
FAR = [f"10.{number}.0.0/16" for number in range(1, 5)]
CLASSES: dict[str, list[str]] = {
    "no class": [],
    "1 class": FAR[:1],
    "1 class, to it": [f"{INTERNET}/32"],
    "5 classes": [*FAR, "10.5.0.0/16"],
    "5 classes, to the last": [*FAR, f"{INTERNET}/32"],
}
"""One prefix for each class. The packet goes to the internet, or to what a class makes of it."""

WITHIN_BUDGET = ("no class", "1 class", "1 class, to it")

DROP_AT_ONCE = """
table netdev sink {
    chain arriving { type filter hook ingress device node-1 priority 0; drop; }
}
"""
"""What the packet costs its receiver is of no interest."""


def measure(effort: Effort) -> Iterator[Figure]:
    """Nanoseconds a packet takes at several numbers of pods, with everything in turns."""
    with ExitStack() as stack:
        flood = stack.enter_context(compiled(Path(__file__).with_name("flood.c")))
        senders = {
            backend: stack.enter_context(_node_of_ours(backend)) for backend in effort.backends
        }
        bare = stack.enter_context(_node_of_ours(Backend.NFTABLES))
        bare.run_in_node(*WITHOUT_RULES)
        others = {"no rules": bare, "ptp": stack.enter_context(_node_of_ptp())}
        # Without a pod comes last: the sets are emptied for it.
        levels = [*sorted({1, min(30, effort.crowd), effort.crowd, effort.big_crowd}), 0]
        for pods in levels:
            beside = {name: float("inf") for name in others}
            for backend, sender in senders.items():
                sender.fill(pods)
                best = dict.fromkeys((*CLASSES, NO_ACCOUNTING, RULE_PER_POD), float("inf"))
                for _ in range(effort.rounds):
                    for name in best:
                        sender.become(name)
                        best[name] = min(best[name], sender.flood(flood, effort.packets))
                    for name, other in others.items():
                        beside[name] = min(beside[name], other.flood(flood, effort.packets))
                yield from _figures(f"{pods} pod{'s' * (pods != 1)}, {backend}", best, beside)


def _figures(where: str, best: dict[str, float], beside: dict[str, float]) -> Iterator[Figure]:
    reference = best[NO_ACCOUNTING]
    for name in (*CLASSES, RULE_PER_POD):
        budget = 1.10 if name in WITHIN_BUDGET else None
        yield Figure(
            f"forwarded {IP_BYTES}-byte packet, {where}, {name}",
            best[name],
            "ns",
            reference,
            NO_ACCOUNTING,
            budget,
        )
    for name, value in beside.items():
        yield Figure(
            f"forwarded {IP_BYTES}-byte packet, {where}, no class",
            best["no class"],
            "ns",
            value,
            name,
        )


class Sender:
    """A node with one pod that sends. Its rules are altered beside its agent, which does not look
    for an hour.
    """

    def __init__(self, plugin: Plugin, node: LabNode, backend: Backend | None = None) -> None:
        self.node = node
        self.backend = backend
        self._plugin = plugin
        self._pods = 1
        self._opened: RuleBackend | None = None
        plugin.make_pods([SENDER])
        plugin.call("ADD", SENDER)

    def fill(self, wanted: int) -> None:
        """Have `wanted` pods on the node, the sender included."""
        pods = [f"other-{number}" for number in range(self._pods, wanted)]
        self._pods = wanted
        if self.backend is not None and wanted == 0:
            run_in(self.node, *WITHOUT_PODS[self.backend])
        self._plugin.make_pods(pods)
        for first in range(0, len(pods), 100):
            self._plugin.call_at_once("ADD", pods[first : first + 100])

    def become(self, variant: str) -> None:
        """Have the node's rules count with these classes, with a rule for each pod,
        or not at all."""
        assert self.backend is not None
        if variant in CLASSES:
            self._apply(CLASSES[variant])
            return
        run_in(self.node, *WITHOUT_ACCOUNTING[self.backend])
        if variant == RULE_PER_POD:
            run_in(
                self.node,
                *RESTORE[self.backend],
                stdin=rules_per_pod(self.backend, sorted(self._counted())),
            )

    def _apply(self, prefixes: list[str]) -> None:
        document = NodeDocument.model_validate(yaml.safe_load(self.node.document.read_text()))
        pieces = tuple(
            (f"class-{number}", (Prefix.parse(text),)) for number, text in enumerate(prefixes)
        )
        policy = replace(Policy.of(document), classifier=Classifier(pieces) if pieces else None)
        with wiring.inside(self.node.namespace):
            rules = Rules(self._rules(), policy)
            rules.apply(rules.plan(self._counted()))

    def _counted(self) -> list[Address]:
        """The pods that are counted."""
        with wiring.inside(self.node.namespace):
            document = NodeDocument.model_validate(yaml.safe_load(self.node.document.read_text()))
            backend = self._rules()
            observed = backend.observe(desired(Policy.of(document), (), backend.abilities))
        return [one for one in observed.members["pod_out4"] if isinstance(one, Address)]

    def _rules(self) -> RuleBackend:
        assert self.backend is not None
        if self._opened is None:
            self._opened = OPENERS[self.backend]()
        return self._opened

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


def run_in(node: LabNode, *command: str, stdin: str = "") -> None:
    """Run a program in the node's namespace."""
    with wiring.inside(node.namespace):
        subprocess.run(command, input=stdin.encode(), check=True)


RESTORE = {
    Backend.NFTABLES: ("nft", "-f", "-"),
    Backend.IPTABLES_LEGACY: ("iptables-legacy-restore", "-w", "--noflush"),
}


def rules_per_pod(backend: Backend, pods: list[Address]) -> str:
    """What counts each pod by rules of its own, one for each direction, as input of `RESTORE`'s
    programs.
    """
    if backend is Backend.NFTABLES:
        rule = "add rule inet netmgr forward ip"
        lines = [
            f"{rule} {side} {pod} ip {peer} != 10.0.0.0/8 counter"
            for pod in pods
            for side, peer in _SIDES
        ]
        return "\n".join(lines) + "\n"
    lines = [
        f"-A FORWARD -{side[0]} {pod} ! -{peer[0]} 10.0.0.0/8"
        for pod in pods
        for side, peer in _SIDES
    ]
    return "\n".join(["*mangle", *lines, "COMMIT", ""])


_SIDES = (("saddr", "daddr"), ("daddr", "saddr"))


@contextmanager
def compiled(source: Path) -> Iterator[Path]:
    """The program made from one C file, for the length of the block."""
    with TemporaryDirectory() as folder:
        program = Path(folder, source.stem)
        subprocess.run(["cc", "-O2", "-Wall", "-o", program, source], check=True)
        yield program


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
        hosts=(
            Host("internet"),
            Host("node-1", routes=(Route(Prefix.parse("0.0.0.0/0"), INTERNET),)),
        ),
        links=(Link(ends),),
        nodes=(Node("node-1", "eth0", (UPLINK,), (Prefix.parse(RANGE),)),),
    )
