"""What a packet costs on its way through its node, from a pod and to one, as pods and classes grow.

Every node here masquerades, as nodes do. What accounting adds is measured against the same node
with its accounting taken away, and against one that only masquerades; internal packets of a
connection whose answers were seen, against a node without rules, which tracks no connections, and
one that does nothing but track them. What accounting adds is measured beside what a counter in
tc-BPF adds to the same node without it, and beside a rule for each pod. Of several
turns the fastest counts: whatever else the machine does only ever adds time (see flood.c). Every
packet that was sent must have arrived, and the counter must have seen it. What begins a connection
is measured at links beside rules.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from netmgr.api.snapshot import AttachmentView
from netmgr.documents.node import Backend, NodeDocument
from netmgr.kernel import flowtables, netlink
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.kernel.xtables.variant import LEGACY, Variant
from netmgr.model import Traffic
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.classifier import Classifier
from netmgr.rules.engine import RuleBackend, Rules
from netmgr.rules.iptables import IptablesBackend
from netmgr.rules.links import LinksBackend
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.policy import FLOWTABLE, Policy, desired
from tests.bench.plugins import QUIET, RANGE, Plugin, plugin_of
from tests.bench.report import Effort, Figure
from tests.bench.rule_per_pod import RESTORE, rules_per_pod
from tests.bench.tc_counter import TcCounter
from tests.lab import wiring
from tests.lab.nodes import LabNode
from tests.lab.topology import (
    EVERYTHING,
    INTERNET,
    Host,
    Interface,
    InterfaceAddress,
    Link,
    Node,
    Route,
    Topology,
)
from tests.lab.world import World

IP_BYTES = 64
SEGMENTED, SEGMENT = 1400, 100
"""Bytes of a packet that is segmented later, and of its parts."""
SENDER = "sender"
INTERNAL = {Family.V4: Address.parse("10.77.0.1"), Family.V6: Address.parse("fd00:77::1")}
"""Others of the internet's host's addresses: packets to either take the same way."""
UPLINK = {Family.V4: Address.parse("203.0.113.2"), Family.V6: Address.parse("2001:db8:ffff::2")}
RANGES = {Family.V4: Prefix.parse(RANGE), Family.V6: Prefix.parse("fd00:128::/112")}
Way = tuple[Family, str]
WAYS: tuple[Way, ...] = tuple(product(Family, ("out", "in")))
BEGINNINGS = {"first": "a connection's first packet", "exchange": "one datagram and its answer"}
OF_RULES = 1.05
"""The most that a beginning may take at links, as a multiple of the same by rules."""

OPENERS: dict[Backend, Callable[[], RuleBackend]] = {
    Backend.NFTABLES: NftablesBackend,
    Backend.LINKS: LinksBackend,
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


WITHOUT_FILTERS = r"""
    ip -o link | sed 's/^[0-9]*: \([^:@]*\).*/qdisc del dev \1 clsact/' |
    tc -force -batch - 2>/dev/null || true
"""
WITHOUT_ACCOUNTING = {
    Backend.LINKS: WITHOUT_FILTERS,
    Backend.NFTABLES: without_chains("before_srcnat"),
    Backend.IPTABLES_LEGACY: "for each in iptables-legacy ip6tables-legacy; do "
    "$each -w -t mangle -F FORWARD; $each -w -t mangle -F POSTROUTING; done",
}
_NO_RULES_BUT_MASQUERADE = (
    without_chains("prerouting", "input", "forward", "output", "before_srcnat")
    + "; nft delete flowtable inet netmgr established 2>/dev/null || true"
)
MASQUERADE_ALONE = {
    Backend.LINKS: _NO_RULES_BUT_MASQUERADE + WITHOUT_FILTERS,
    Backend.NFTABLES: _NO_RULES_BUT_MASQUERADE,
    Backend.IPTABLES_LEGACY: "for each in iptables-legacy ip6tables-legacy; do "
    "$each -w -t mangle -F; $each -w -t raw -F; done",
}

NO_ACCOUNTING, RULE_PER_POD = "no accounting", "a rule per pod"
INTERNAL_PACKET, MASQUERADING = "internal, established", "masquerade alone"
TC_COUNTER = "tc-BPF counter"
"""In place of accounting."""
NO_RULES, TRACKING = "no rules", "connection tracking alone"
NO_CLASS, MANY_CLASSES, NO_FLOWTABLE = "no class", "16 classes", "no flowtable"
CLASSES: dict[str, list[tuple[str, str]]] = {
    NO_CLASS: [],
    NO_FLOWTABLE: [],
    MANY_CLASSES: [(f"10.{number}.0.0/16", f"fd00:{number}::/32") for number in range(1, 17)],
}
"""A prefix of each family for each class. The packet is the internet's."""

OF_MASQUERADE = {
    Backend.NFTABLES: (1.05, 1.05),
    Backend.IPTABLES_LEGACY: (1.08, 1.08),
    Backend.LINKS: (0.85, 0.87),
}
"""Budgets of a packet of the internet that is counted and masqueraded: without classes, with."""

VARIANTS = (*CLASSES, INTERNAL_PACKET, NO_ACCOUNTING, TC_COUNTER, MASQUERADING, RULE_PER_POD)
"""What a node of ours is made into, in turns."""
IPV4_ALONE = (TC_COUNTER, RULE_PER_POD)

SINK = """
table netdev sink {
    counter arrived { }
    chain arriving {
        type filter hook ingress device %s priority 0;
        meta l4proto udp meta length { %d, %d } counter name arrived drop;
    }
}
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
        in_tc = _can_count_in_tc(bare)
        for pods in (1, effort.crowd, effort.big_crowd):
            for backend, sender in senders.items():
                sender.fill(pods)
                variants = [name for name in sender.variants() if in_tc or name != TC_COUNTER]
                times: dict[tuple[str, Way], list[float]] = defaultdict(list)
                for _ in range(effort.rounds):
                    for name in variants:
                        peers = INTERNAL if name == INTERNAL_PACKET else INTERNET
                        with sender.as_variant(name):
                            for way in WAYS:
                                if way[0] is Family.V4 or name not in IPV4_ALONE:
                                    took = sender.flood(flood, effort.packets, way, peers)
                                    times[name, way].append(took)
                    for name, way in product(others, WAYS):
                        times[name, way].append(others[name].flood(flood, effort.packets, way))
                for way in WAYS:
                    of_way = {name: took for (name, its), took in times.items() if its == way}
                    yield from _figures(pods, backend, way, of_way)
            if {Backend.NFTABLES, Backend.LINKS} <= senders.keys():
                yield from _beginnings(effort, flood, pods, senders)
                yield from _segmented(effort, flood, pods, senders[Backend.LINKS])


def _beginnings(
    effort: Effort, flood: Path, pods: int, senders: Mapping[Backend, Sender]
) -> Iterator[Figure]:
    for way in product(Family, BEGINNINGS):
        times: dict[Backend, list[float]] = defaultdict(list)
        for _ in range(effort.rounds):
            for backend in (Backend.NFTABLES, Backend.LINKS):
                with senders[backend].as_variant(NO_CLASS):
                    times[backend].append(senders[backend].flood(flood, effort.packets, way))
        what = f"{BEGINNINGS[way[1]]}, {pods} pods, {Backend.LINKS}, IPv{way[0]}"
        reference = "rules", times[Backend.NFTABLES]
        yield Figure.of(what, times[Backend.LINKS], "ns", min, reference, OF_RULES)


def _segmented(effort: Effort, flood: Path, pods: int, sender: Sender) -> Iterator[Figure]:
    """What wire bytes cost: only of such a packet its segments are looked for."""
    for way in WAYS:
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(effort.rounds):
            for name in (NO_CLASS, NO_ACCOUNTING):
                with sender.as_variant(name):
                    took = sender.flood(flood, effort.packets, way, segment=SEGMENT)
                    times[name].append(took)
        what = f"forwarded {SEGMENTED}-byte packet of UDP in segments of {SEGMENT}"
        what += f", {pods} pods, {sender.backend}, IPv{way[0]} {way[1]}"
        reference = NO_ACCOUNTING, times[NO_ACCOUNTING]
        yield Figure.of(what, times[NO_CLASS], "ns", min, reference, 1.10)


def _figures(
    pods: int, backend: Backend, way: Way, times: dict[str, list[float]]
) -> Iterator[Figure]:
    where = f"{pods} pod{'s' * (pods != 1)}, {backend}, IPv{way[0]} {way[1]}"
    of_masquerade, with_classes = OF_MASQUERADE[backend]
    compared = [
        (NO_CLASS, NO_ACCOUNTING, 1.10),
        (RULE_PER_POD, NO_ACCOUNTING, None),
        (NO_CLASS, MASQUERADING, of_masquerade),
        (MANY_CLASSES, MASQUERADING, with_classes),
        (NO_FLOWTABLE, MASQUERADING, None),
        (INTERNAL_PACKET, NO_RULES, 1.0),
        (INTERNAL_PACKET, TRACKING, None),
    ]
    for name, against, budget in compared:
        if name in times:
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
        self._counting: Rules | None = None
        self._attached: list[AttachmentView] = []
        plugin.make_pods([SENDER])
        plugin.call("ADD", SENDER)
        with wiring.inside(self.netns):
            _make_sink("eth0")

    def variants(self) -> Iterator[str]:
        """What this node can be made into."""
        with wiring.inside(self.node.namespace):
            offloads = self._rules().abilities.flowtables
        at_links = self.backend is Backend.LINKS
        for name in VARIANTS:
            if (offloads or name != NO_FLOWTABLE) and not (at_links and name == RULE_PER_POD):
                yield name

    def fill(self, wanted: int) -> None:
        """Have `wanted` pods on the node, the sender included."""
        pods = [f"other-{number}" for number in range(self._pods, wanted)]
        self._pods = wanted
        self._plugin.fill(pods)
        self._attached = self.node.ask("pods")["attachments"]

    @contextmanager
    def as_variant(self, variant: str) -> Iterator[None]:
        """Have the node count with classes, without flowtable, with a rule for each pod, or not
        at all.
        """
        rules = self._apply(variant)
        self._counting = rules if variant in CLASSES else None
        if variant not in (*CLASSES, INTERNAL_PACKET):
            taken = MASQUERADE_ALONE if variant == MASQUERADING else WITHOUT_ACCOUNTING
            run_in(self.node, "sh", "-ec", taken[self.backend])
        if variant == RULE_PER_POD:
            run_in(
                self.node,
                *RESTORE[self.backend],
                stdin=rules_per_pod(self.backend, sorted(self._addresses(Family.V4))),
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
        pods, internal = self._addresses(Family.V4), Policy.of(self._document()).known
        with wiring.inside(self.node.namespace):
            return TcCounter(netlink.index_of(self._own["host_link"]), pods, internal)

    @property
    def netns(self) -> Path:
        """That of the pod that sends."""
        return self._plugin.pods / SENDER

    def address(self, family: Family) -> Address:
        """That of the pod that sends, or is sent to."""
        return next(one for one in self._addresses(family, self._own))

    def _addresses(self, family: Family, *pods: AttachmentView) -> Iterator[Address]:
        """These pods', or all."""
        for pod in pods or self._attached:
            parsed = map(Address.parse, pod["addresses"])
            yield from (one for one in parsed if one.family is family)

    @property
    def _own(self) -> AttachmentView:
        return next(one for one in self._attached if one["pod"] == SENDER)

    def _document(self) -> NodeDocument:
        return NodeDocument.model_validate(yaml.safe_load(self.node.document.read_text()))

    def _apply(self, variant: str) -> Rules:
        pieces = tuple(
            (f"class-{number}", tuple(map(Prefix.parse, texts)))
            for number, texts in enumerate(CLASSES.get(variant, []))
        )
        policy = Policy.of(self._document())
        offloads = policy.offloads and variant != NO_FLOWTABLE
        policy = replace(
            policy, classifier=Classifier(pieces) if pieces else None, offloads=offloads
        )
        with wiring.inside(self.node.namespace):
            rules = Rules(self._rules(), policy)
            # Of a pod whose link is unknown every packet takes the longer way.
            for one in self._attached:
                addresses = [Address.parse(text) for text in one["addresses"]]
                rules.know(addresses, one["namespace"], one["host_link"])
            rules.apply(rules.plan([*self._addresses(Family.V4), *self._addresses(Family.V6)]))
            wanted = desired(policy, (), rules.backend.abilities)
        if FLOWTABLE in wanted.sets:
            # It was emptied, and every packet pays for a look-up in it.
            self._await_flowtable()
        return rules

    def _rules(self) -> RuleBackend:
        if self._opened is None:
            self._opened = OPENERS[self.backend]()
        return self._opened

    def stop_repairs(self) -> None:
        """End the agent: rules stay as they are, or as they are made by others."""
        self.node.stop_agent()

    def flood(
        self,
        program: Path,
        packets: int,
        way: Way = WAYS[0],
        peers: Mapping[Family, Address] = INTERNET,
        segment: int = 0,
    ) -> float:
        """Nanoseconds a packet took, perhaps one to be segmented into parts of so many bytes.

        Raises:
            PacketsLostError: not all of them arrived.
        """
        family, direction = way
        receiver = self.netns if direction == "in" else self.internet
        arrived, counted = _arrived(receiver), self._counted(way)
        command = ["nsenter", f"--net={self.netns}", program, str(peers[family]), str(packets)]
        size = SEGMENTED if segment else IP_BYTES
        command += [str(size), self.internet, direction, str(segment)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        took, sent = done.stdout.split()
        if (arrived := _arrived(receiver) - arrived) != int(sent):
            raise PacketsLostError(f"{arrived} of {int(sent)} packets {direction} arrived")
        # The greeting, too.
        if (counted := self._counted(way) - counted) <= int(sent) and (
            self._counter or self._counting
        ):
            raise PacketsLostError(f"{counted} of {int(sent)} packets {direction} were counted")
        return float(took)

    def _counted(self, way: Way) -> int:
        """Packets that whoever counts has counted for the pod."""
        family, direction = way
        traffic = Traffic.INTERNET_IN if direction == "in" else Traffic.INTERNET_OUT
        if self._counter:
            counted = self._counter.read(self.address(family))
            return counted.packets_in if traffic.is_inward else counted.packets_out
        if self._counting:
            shown = self._counting.read_pods([self.address(family)])
            return sum(one.packets for one in shown if one.counter.traffic is traffic)
        return 0


def _arrived(receiver: Path) -> int:
    command = ["nft", "--json", "list", "counter", "netdev", "sink", "arrived"]
    with wiring.inside(receiver):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    (counter,) = (one["counter"] for one in json.loads(done.stdout)["nftables"][1:])
    return int(counter["packets"])


def run_in(node: LabNode, *command: str, stdin: str = "") -> None:
    """Run a program in the node's namespace."""
    with wiring.inside(node.namespace):
        subprocess.run(command, input=stdin.encode(), check=True)


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
    both = {"ranges": [str(each) for each in RANGES.values()]}
    made = World(_beside_the_internet(), backend=backend, settings=QUIET | both | settings)
    with made as world:
        with wiring.inside(world.internet):
            _make_sink("node-1")
        yield Sender(plugin_of(world.nodes[0]), world.nodes[0], world.internet, backend)


def _make_sink(link: str) -> None:
    """Drop the measured packets on arrival."""
    subprocess.run(
        ["nft", "-f", "-"], input=(SINK % (link, IP_BYTES, SEGMENTED)).encode(), check=True
    )


def _beside_the_internet() -> Topology:
    """One node linked to the internet host directly: no other router's time is measured."""
    far = [InterfaceAddress(INTERNET[family], 24) for family in Family]
    far += [InterfaceAddress(own, own.family.width) for own in INTERNAL.values()]
    near = [InterfaceAddress(UPLINK[family], 24) for family in Family]
    back = tuple(Route(RANGES[family], UPLINK[family]) for family in Family)
    out = tuple(Route(every, INTERNET[every.family]) for every in EVERYTHING)
    return Topology(
        internet="internet",
        hosts=(Host("internet", routes=back), Host("node-1", routes=out)),
        links=(
            Link(
                (
                    Interface("internet", "node-1", tuple(far)),
                    Interface("node-1", "eth0", tuple(near)),
                )
            ),
        ),
        nodes=(Node("node-1", "eth0", tuple(UPLINK.values()), tuple(RANGES.values())),),
    )
