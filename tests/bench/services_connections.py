"""New connections through a NAT host: to one Service and to many, beside kube-proxy.

Each variant is a host of its own between a client and a sink. netmgr's has all the rules of its
role. kube-proxy's has what its nftables mode writes for the same Services, in the form of its
release 1.37. Both give connections their own address. Variants take turns, and the median of each
one's turns counts: the fastest turns of two equal hosts differ by more than their medians.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from netmgr.documents.node import NodeDocument
from netmgr.kernel import netns
from netmgr.kernel.netlink import NETLINK_NETFILTER, NFGENMSG, NLM_F_ACK, Netlink, Operation
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.engine import Rules
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.policy import Policy
from netmgr.services.model import Endpoint, Frontend, Protocol, ServicePort
from netmgr.services.nftables import NftablesServices
from tests.bench.forwarding import compiled
from tests.bench.report import Effort, Figure
from tests.bench.services_shapes import ENDPOINTS, SPOKE, endpoint_address, kube_proxy_nftables
from tests.builders import NODE_KEYS
from tests.lab import wiring
from tests.lab.topology import Host, Interface, InterfaceAddress, Link, Route, Topology

FIRST_VIP = Address.parse("100.64.0.0")
VIPS = Prefix.parse("100.64.0.0/16")
CLIENT, NEAR, FAR, SERVER = map(Address.parse, ("10.0.0.2", "10.0.0.1", "10.127.0.1", "10.127.0.2"))
PORT, TARGET_PORT = 80, 8080
CONNECTIONS, TRAIN = 60_000, 256
"""Of one turn, each from a port of its own; connect.c sends so many at a time."""

CT_DELETE = 1 << 8 | 2
"""<linux/netfilter/nfnetlink_conntrack.h>: of all connections, if none is named."""

OURS, THEIRS = "netmgr", "kube-proxy"

SINK = """
table netdev sink {
    counter arrived {}
    chain arriving {
        type filter hook ingress device host priority 0;
        meta protocol ip counter name arrived drop
    }
}
"""
"""What a connection costs its server is of no interest."""


def measure(effort: Effort) -> Iterator[Figure]:
    """netmgr with many Services beside netmgr with one, and beside kube-proxy with as many."""
    many = effort.services
    with ExitStack() as stack:
        program = stack.enter_context(compiled(Path(__file__).with_name("connect.c")))
        hosts = {
            (who, count): stack.enter_context(_nat_host(write, count))
            for who, write in WRITERS.items()
            for count in (1, many)
        }
        ways = {(who, count, to): hosts[who, count] for who, count, to in _variants(many)}
        took: dict[Variant, list[float]] = {variant: [] for variant in ways}
        for _ in range(effort.rounds):
            for variant, host in ways.items():
                took[variant].append(host.connect(program, variant[2], effort.packets))
    yield from _figures(many, {variant: 1e9 / median(each) for variant, each in took.items()})


Variant = tuple[str, int, int]
"""Whose host, how many Services it has, and to how many of them connections go."""


def _variants(many: int) -> Iterator[Variant]:
    for who in WRITERS:
        yield from ((who, 1, 1), (who, many, 1), (who, many, many))


def _figures(many: int, per_second: dict[Variant, float]) -> Iterator[Figure]:
    ours = {(count, to): value for (who, count, to), value in per_second.items() if who == OURS}
    theirs = {(count, to): value for (who, count, to), value in per_second.items() if who != OURS}
    to_one, to_all = f"new connections to one of {many:,} Services", f"to each of {many:,} in turn"
    one, all_of_them = (many, 1), (many, many)
    for what, value, reference, against, budget in (
        (to_one, ours[one], ours[1, 1], "the only Service", 0.95),
        (to_one, ours[one], theirs[one], THEIRS, 1.0),
        (to_all, ours[all_of_them], theirs[all_of_them], THEIRS, 1.0),
        # What many Services cost beyond this is the processor's caches, in which theirs are not.
        (to_all, ours[all_of_them], ours[1, 1], "the only Service", None),
        (f"{to_all}, {THEIRS}", theirs[all_of_them], theirs[1, 1], "the only Service", None),
    ):
        yield Figure(what, value, "per s", reference, against, budget, more_is_better=True)


@dataclass(frozen=True)
class NatHost:
    """A NAT host between a client and a sink; `folder` has the namespaces of all three."""

    folder: Path

    def connect(self, program: Path, services: int, most: int) -> float:
        """Nanoseconds that a connection to one of so many Services took; all of them arrived."""
        before, count = self._arrived(), min(most, CONNECTIONS) // TRAIN * TRAIN
        words = (str(CLIENT), str(FIRST_VIP), str(services), str(count))
        command = ["nsenter", f"--net={self.folder / 'client'}", program, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        assert self._arrived() == before + count
        # All namespaces share one hash table: what is left makes the next host's look-ups longer.
        self._forget_connections()
        return float(done.stdout)

    def _arrived(self) -> int:
        with wiring.inside(self.folder / "server"):
            command = ["nft", "list", "counter", "netdev", "sink", "arrived"]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        found = re.search(rb"packets (\d+)", done.stdout)
        assert found
        return int(found[1])

    def _forget_connections(self) -> None:
        body = NFGENMSG.pack(Family.V4.af, 0, 0)
        with wiring.inside(self.folder / "host"), Netlink(NETLINK_NETFILTER) as channel:
            channel.transact([Operation("forget all connections", CT_DELETE, NLM_F_ACK, body)])


@contextmanager
def _nat_host(write: Callable[[int], None], services: int) -> Iterator[NatHost]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        topology = _topology()
        for host in topology.hosts:
            stack.callback(netns.delete, folder / host.name)
        wiring.build(topology, folder)
        wiring.wait_until_up(topology, folder)
        with wiring.inside(folder / "server"):
            subprocess.run(["nft", "-f", "-"], input=SINK.encode(), check=True)
        with wiring.inside(folder / "host"):
            write(services)
        yield NatHost(folder)


def _topology() -> Topology:
    ends = (
        (
            Interface("client", "host", (InterfaceAddress(CLIENT, 24),)),
            Interface("host", "client", (InterfaceAddress(NEAR, 24),)),
        ),
        (
            Interface("server", "host", (InterfaceAddress(SERVER, 24),)),
            Interface("host", "server", (InterfaceAddress(FAR, 24),)),
        ),
    )
    return Topology(
        internet="client",
        hosts=(
            Host("client", routes=(Route(Prefix.parse("0.0.0.0/0"), NEAR),)),
            Host("host", routes=(Route(Prefix.parse(SPOKE), SERVER),), forwards=True),
            Host("server"),
        ),
        links=tuple(map(Link, ends)),
        nodes=(),
    )


def _write_ours(count: int) -> None:
    rules = Rules(NftablesBackend(), Policy.of(_document()))
    rules.apply(rules.plan([]))
    rules.close()
    services = NftablesServices([VIPS])
    services.reconcile(
        {
            ServicePort(Address(Family.V4, FIRST_VIP.value + number), Protocol.TCP, PORT): Frontend(
                frozenset(
                    Endpoint(Address.parse(endpoint_address(number, one)), TARGET_PORT)
                    for one in range(ENDPOINTS)
                )
            )
            for number in range(count)
        }
    )
    services.close()


def _document() -> NodeDocument:
    keys = {
        "node": {"name": "host", "addresses": [str(FAR)]},
        "role": "nat-host",
        "site": "spoke",
        "sites": [
            {"name": "hub", "prefixes": ["10.0.0.0/16"]},
            {"name": "spoke", "prefixes": [SPOKE], "services": [str(VIPS)]},
            {"name": "other", "prefixes": ["10.128.0.0/16"]},
        ],
        "nat": {
            "translation": "endpoints",
            "services": [{"vip_range": str(VIPS), "service_cidr": "172.20.0.0/16"}],
        },
    }
    return NodeDocument.model_validate({**NODE_KEYS, **keys})


def _write_theirs(count: int) -> None:
    text = kube_proxy_nftables(VIPS, count)
    subprocess.run(["nft", "-f", "-"], input=text.encode(), check=True)


WRITERS: dict[str, Callable[[int], None]] = {OURS: _write_ours, THEIRS: _write_theirs}
