"""What a packet costs on its way from a pod through its node, as pods and traffic classes grow.

Every node here masquerades, as nodes do. What accounting adds is measured against the same node
with its accounting taken away, and against one that only masquerades; internal packets of a
connection whose answers were seen, against a node without rules, which tracks no connections, and
one that does nothing but track them. What accounting adds is measured beside what a counter in
tc-BPF adds to the same node without it, and beside a rule for each pod. Of several
turns the fastest counts: whatever else the machine does only ever adds time (see flood.c). Every
packet that was sent must have arrived, and the counter must have seen it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from netmgr.api.snapshot import AttachmentView
from netmgr.documents.node import Backend, NodeDocument
from netmgr.kernel import flowtables, netlink
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.kernel.xtables.variant import LEGACY, Variant
from netmgr.prefixes import Address, Prefix
from netmgr.rules.classifier import Classifier
from netmgr.rules.engine import RuleBackend, Rules
from netmgr.rules.iptables import IptablesBackend
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.policy import Policy, desired
from tests.bench.plugins import QUIET, RANGE, Plugin, plugin_of
from tests.bench.report import Effort, Figure
from tests.bench.tc_counter import TcCounter
from tests.lab import wiring
from tests.lab.nodes import LabNode
from tests.lab.topology import Host, Interface, InterfaceAddress, Link, Node, Route, Topology
from tests.lab.world import World

IP_BYTES = 64
SENDER = "sender"
INTERNET = Address.parse("203.0.113.1")
INTERNAL = Address.parse("10.77.0.1")
"""Another address of the internet's host: packets to either take the same way."""
PORT = 9
IP_PKTINFO = 8
"""Of <linux/in.h>; Python's socket has no name for it."""
UPLINK = Address.parse("203.0.113.2")

OPENERS: dict[Backend, Callable[[], RuleBackend]] = {
    Backend.NFTABLES: NftablesBackend,
    Backend.IPTABLES_LEGACY: lambda: IptablesBackend(Variant(LEGACY, lock_wait_seconds=60)),
}
WITHOUT_RULES = ("nft", "delete", "table", "inet", "netmgr")
TRACKING_ALONE = (
    "nft",
    "table inet tracking { chain forward { type filter hook forward priority 0; ct state new; }; }",
)
"""A rule that asks for a connection's state has the kernel track all of them."""


def without_chains(*hooks: str) -> str:
    """Deletes our chains of these hooks, as far as there are any: the one that leads first."""
    names = " ".join(f"{hook} {hook}6" for hook in hooks)
    return f"for chain in {names}; do nft delete chain inet netmgr $chain 2>/dev/null || true; done"


WITHOUT_ACCOUNTING = {
    Backend.NFTABLES: without_chains("before_srcnat"),
    Backend.IPTABLES_LEGACY: "iptables-legacy -w -t mangle -F FORWARD; "
    "iptables-legacy -w -t mangle -F POSTROUTING",
}
MASQUERADE_ALONE = {
    Backend.NFTABLES: without_chains("prerouting", "input", "forward", "output", "before_srcnat")
    + "; nft delete flowtable inet netmgr established 2>/dev/null || true",
    Backend.IPTABLES_LEGACY: "iptables-legacy -w -t mangle -F; iptables-legacy -w -t raw -F",
}

NO_ACCOUNTING, RULE_PER_POD = "no accounting", "a rule per pod"
INTERNAL_PACKET, MASQUERADING = "internal, established", "masquerade alone"
TC_COUNTER = "tc-BPF counter"
"""In place of accounting."""
NO_RULES, TRACKING = "no rules", "connection tracking alone"
NO_CLASS, MANY_CLASSES = "no class", "16 classes"
CLASSES: dict[str, list[str]] = {
    NO_CLASS: [],
    MANY_CLASSES: [f"10.{number}.0.0/16" for number in range(1, 17)],
}
"""One prefix for each class. The packet goes to the internet."""

OF_MASQUERADE = {Backend.NFTABLES: 1.05, Backend.IPTABLES_LEGACY: 1.08}
"""Budgets of a packet to the internet that is counted and masqueraded."""

VARIANTS = (*CLASSES, INTERNAL_PACKET, NO_ACCOUNTING, TC_COUNTER, MASQUERADING, RULE_PER_POD)
"""What a node of ours is made into, in turns."""

SINK = f"""
table netdev sink {{
    counter arrived {{ }}
    chain arriving {{
        type filter hook ingress device node-1 priority 0;
        ip length {IP_BYTES} counter name arrived drop;
    }}
}}
"""
"""What the packet costs its receiver is of no interest. Everything else passes, ARP for one."""


class PacketsLostError(Exception):
    """Fewer packets arrived than were sent, so that the time is not that of their whole way."""


def measure(effort: Effort) -> Iterator[Figure]:
    """Nanoseconds a packet takes at several numbers of pods, with everything in turns."""
    with ExitStack() as stack:
        flood = stack.enter_context(compiled())
        senders = {
            backend: stack.enter_context(node_of_ours(backend)) for backend in effort.backends
        }
        bare = stack.enter_context(node_of_ours(Backend.NFTABLES))
        bare.stop_repairs()
        run_in(bare.node, *WITHOUT_RULES)
        tracking = stack.enter_context(node_of_ours(Backend.NFTABLES))
        tracking.stop_repairs()
        run_in(tracking.node, *WITHOUT_RULES)
        run_in(tracking.node, *TRACKING_ALONE)
        others = {NO_RULES: bare, TRACKING: tracking}
        variants = [name for name in VARIANTS if name != TC_COUNTER or _can_count_in_tc(bare)]
        for pods in (1, effort.crowd, effort.big_crowd):
            for backend, sender in senders.items():
                sender.fill(pods)
                times: dict[str, list[float]] = {name: [] for name in (*variants, *others)}
                for _ in range(effort.rounds):
                    for name in variants:
                        to = INTERNAL if name == INTERNAL_PACKET else INTERNET
                        with sender.as_variant(name):
                            times[name].append(sender.flood(flood, effort.packets, to))
                    for name, other in others.items():
                        times[name].append(other.flood(flood, effort.packets))
                yield from _figures(pods, backend, times)


def _figures(pods: int, backend: Backend, times: dict[str, list[float]]) -> Iterator[Figure]:
    where = f"{pods} pod{'s' * (pods != 1)}, {backend}"
    compared = [
        (NO_CLASS, NO_ACCOUNTING, 1.10),
        (RULE_PER_POD, NO_ACCOUNTING, None),
        *((name, MASQUERADING, OF_MASQUERADE[backend]) for name in CLASSES),
        (INTERNAL_PACKET, NO_RULES, 1.0),
        (INTERNAL_PACKET, TRACKING, None),
    ]
    for name, against, budget in compared:
        what = f"forwarded {IP_BYTES}-byte packet, {where}, {name}"
        yield Figure.of(what, times[name], "ns", min, (against, times[against]), budget)
    if TC_COUNTER in times:
        without = min(times[NO_ACCOUNTING])
        # Less than a nanosecond cannot be told from nothing, nor divided by.
        own, other = (max(min(times[name]) - without, 1.0) for name in (NO_CLASS, TC_COUNTER))
        yield Figure(f"accounting alone, {where}", own, "ns", other, f"{TC_COUNTER} alone", 1)


def _can_count_in_tc(sender: Sender) -> bool:
    try:
        with wiring.inside(sender.node.namespace):
            TcCounter(netlink.index_of("lo"), (), ()).close()
    except OSError as error:
        sys.stderr.write(f"forwarding: measured without a {TC_COUNTER}: {error}\n")
        return False
    return True


class Sender:
    """A node with one pod that sends. Its rules are altered beside its agent, which does not look
    for an hour.
    """

    def __init__(self, plugin: Plugin, node: LabNode, internet: Path, backend: Backend) -> None:
        self.node = node
        self.internet = internet
        self.backend = backend
        self._plugin = plugin
        self._pods = 1
        self._opened: RuleBackend | None = None
        self._counter: TcCounter | None = None
        self._attached: list[AttachmentView] = []
        plugin.make_pods([SENDER])
        plugin.call("ADD", SENDER)

    def fill(self, wanted: int) -> None:
        """Have `wanted` pods on the node, the sender included."""
        pods = [f"other-{number}" for number in range(self._pods, wanted)]
        self._pods = wanted
        self._plugin.fill(pods)
        self._attached = self.node.ask("pods")["attachments"]

    @contextmanager
    def as_variant(self, variant: str) -> Iterator[None]:
        """Have the node's rules count with these classes, with a rule for each pod,
        or not at all."""
        self._apply(CLASSES.get(variant, []))
        if variant not in (*CLASSES, INTERNAL_PACKET):
            taken = MASQUERADE_ALONE if variant == MASQUERADING else WITHOUT_ACCOUNTING
            run_in(self.node, "sh", "-ec", taken[self.backend])
        if variant == RULE_PER_POD:
            run_in(
                self.node,
                *RESTORE[self.backend],
                stdin=rules_per_pod(self.backend, sorted(self._counted())),
            )
        with self.tc_counter() if variant == TC_COUNTER else nullcontext() as self._counter:
            yield

    def _await_flowtable(self) -> None:
        """Wait until the agent has put the pod's link into it again."""
        with wiring.inside(self.node.namespace), closing(NftSocket()) as channel:
            while not any(
                self._own["host_link"] in one.devices for one in flowtables.read_flowtables(channel)
            ):
                time.sleep(0.05)

    def tc_counter(self) -> TcCounter:
        """On the sender's link, and knowing every pod."""
        pods = [Address.parse(text) for one in self._attached for text in one["addresses"]]
        internal = Policy.of(self._document()).known
        with wiring.inside(self.node.namespace):
            return TcCounter(netlink.index_of(self._own["host_link"]), pods, internal)

    @property
    def netns(self) -> Path:
        """That of the pod that sends."""
        return self._plugin.pods / SENDER

    @property
    def address(self) -> Address:
        """That of the pod that sends."""
        return Address.parse(self._own["addresses"][0])

    @property
    def _own(self) -> AttachmentView:
        return next(one for one in self._attached if one["pod"] == SENDER)

    def _document(self) -> NodeDocument:
        return NodeDocument.model_validate(yaml.safe_load(self.node.document.read_text()))

    def _apply(self, prefixes: list[str]) -> None:
        pieces = tuple(
            (f"class-{number}", (Prefix.parse(text),)) for number, text in enumerate(prefixes)
        )
        classifier = Classifier(pieces) if pieces else None
        policy = Policy.of(self._document())
        policy = replace(policy, classifier=classifier, offloads=policy.offloads and not pieces)
        with wiring.inside(self.node.namespace):
            rules = Rules(self._rules(), policy)
            # Of a pod whose link is unknown every packet takes the longer way.
            for one in self._attached:
                addresses = [Address.parse(text) for text in one["addresses"]]
                rules.know(addresses, one["namespace"], one["host_link"])
            rules.apply(rules.plan(self._counted()))
        if self._rules().abilities.flowtables and policy.offloads:
            # It was emptied, and every packet pays for a look-up in it.
            self._await_flowtable()

    def _counted(self) -> list[Address]:
        """The pods that are counted."""
        with wiring.inside(self.node.namespace):
            backend = self._rules()
            observed = backend.observe(desired(Policy.of(self._document()), (), backend.abilities))
        return [one for one in observed.members["pod_out4"] if isinstance(one, Address)]

    def _rules(self) -> RuleBackend:
        if self._opened is None:
            self._opened = OPENERS[self.backend]()
        return self._opened

    def stop_repairs(self) -> None:
        """End the agent: rules stay as they are, or as they are made by others."""
        self.node.stop_agent()

    def flood(self, program: Path, packets: int, to: Address = INTERNET) -> float:
        """Nanoseconds a packet took.

        Raises:
            PacketsLostError: not all of them arrived.
        """
        before = self._arrived()
        command = ["nsenter", f"--net={self.netns}", program, str(to), str(packets), str(IP_BYTES)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        took, sent = done.stdout.split()
        if (arrived := self._arrived() - before) != int(sent):
            raise PacketsLostError(f"{arrived} of {int(sent)} packets to {to} arrived")
        if self._counter is not None:
            counted = self._counter.read(self.address)
            if counted.packets_out < int(sent):
                raise PacketsLostError(f"{counted} of {int(sent)} packets were counted")
        return float(took)

    def _arrived(self) -> int:
        command = ["nft", "--json", "list", "counter", "netdev", "sink", "arrived"]
        with wiring.inside(self.internet):
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        (counter,) = (one["counter"] for one in json.loads(done.stdout)["nftables"][1:])
        return int(counter["packets"])


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
        base = "{ type filter hook forward priority -150; }"
        rule = "add rule inet netmgr forward ip"
        lines = [f"add chain inet netmgr forward {base}"]
        lines += [
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
def compiled() -> Iterator[Path]:
    """The program that sends (flood.c), for the length of the block."""
    source = Path(__file__).with_name("flood.c")
    with TemporaryDirectory() as folder:
        program = Path(folder, source.stem)
        subprocess.run(["cc", "-O2", "-Wall", "-o", program, source], check=True)
        yield program


@contextmanager
def node_of_ours(backend: Backend, **settings: object) -> Iterator[Sender]:
    """A node with one pod that sends, beside the internet; with more keys of node.yaml."""
    made = World(_beside_the_internet(), backend=backend, settings=QUIET | settings)
    with made as world, _sink(world.internet):
        yield Sender(plugin_of(world.nodes[0]), world.nodes[0], world.internet, backend)


@contextmanager
def _sink(internet: Path) -> Iterator[None]:
    """Drop the measured packets on arrival, and answer the others."""
    with wiring.inside(internet):
        subprocess.run(["nft", "-f", "-"], input=SINK.encode(), check=True)
        answering = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # The answer has to come from the address that was asked.
        answering.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        answering.bind(("", PORT))
    thread = threading.Thread(target=_answer, args=(answering,))
    thread.start()
    try:
        yield
    finally:
        # Wakes whoever waits for a datagram; closing alone does not.
        with suppress(OSError):  # it is not connected, and awake all the same
            answering.shutdown(socket.SHUT_RDWR)
        thread.join()
        answering.close()


def _answer(answering: socket.socket) -> None:
    while True:
        data, asked, _, sender = answering.recvmsg(64, 64)
        if not data:
            return
        with suppress(OSError):
            answering.sendmsg([data], asked, 0, sender)


def _beside_the_internet() -> Topology:
    """One node linked to the internet host directly: no other router's time is measured."""
    ends = (
        Interface(
            "internet", "node-1", (InterfaceAddress(INTERNET, 24), InterfaceAddress(INTERNAL, 32))
        ),
        Interface("node-1", "eth0", (InterfaceAddress(UPLINK, 24),)),
    )
    return Topology(
        internet="internet",
        hosts=(
            Host("internet", routes=(Route(Prefix.parse(RANGE), UPLINK),)),
            Host("node-1", routes=(Route(Prefix.parse("0.0.0.0/0"), INTERNET),)),
        ),
        links=(Link(ends),),
        nodes=(Node("node-1", "eth0", (UPLINK,), (Prefix.parse(RANGE),)),),
    )
