"""Three sites around one machine that joins them, whose agent the tests start as hub router or NAT
host.

    researcher (hub) ──┐
    a (spoke) ─────────┼── machine
    b (spoke) ─────────┘

Spoke `a` has a Service range: `a` itself holds one address of it, and the machine knows the way
there.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.documents.sites import Role
from netmgr.kernel.netlink import NLM_F_ACK, Netlink, Operation
from netmgr.prefixes import Address, Family, Prefix
from tests.builders import NODE_KEYS
from tests.kernel.common import repairs
from tests.kernel.namespaces import inside
from tests.lab import wiring
from tests.lab.exchange import open_socket
from tests.lab.nodes import LabNode
from tests.lab.topology import (
    EVERYTHING,
    Host,
    Interface,
    InterfaceAddress,
    Link,
    Node,
    Route,
    Topology,
)
from tests.lab.world import World
from tests.waiting import eventually

MACHINE = "machine"
HOSTS = ("researcher", "a", "b")
NETWORKS = {
    Family.V4: tuple(map(Prefix.parse, ("10.0.0.0/24", "10.1.0.0/24", "10.2.0.0/24"))),
    Family.V6: tuple(map(Prefix.parse, ("fd00:1000::/64", "fd00:1001::/64", "fd00:1002::/64"))),
}
LENGTH = {Family.V4: 24, Family.V6: 64}
VIP_RANGE = {Family.V4: Prefix.parse("10.100.0.0/28"), Family.V6: Prefix.parse("fd00:100::/124")}
SERVICE_CIDR = {Family.V4: Prefix.parse("10.96.0.0/28"), Family.V6: Prefix.parse("fd00:96::/124")}
SERVICE = 10
"""Place of the Service's address in its range."""

NETLINK_NETFILTER = 12
FORGET_CONNECTIONS = Operation("forget connections", (1 << 8) | 2, NLM_F_ACK, bytes(4))
"""IPCTNL_MSG_CT_DELETE of every connection (linux/netfilter/nfnetlink_conntrack.h)."""

PORT = 4000


def own(host: str, family: Family) -> Address:
    """A host's own address."""
    return _at(NETWORKS[family][HOSTS.index(host)], 10)


def gateway(host: str, family: Family) -> Address:
    """The machine's address on the link to a host."""
    return _at(NETWORKS[family][HOSTS.index(host)], 2)


def vip(family: Family) -> Address:
    """The Service's address as the hub sees it."""
    return _at(VIP_RANGE[family], SERVICE)


def cluster_ip(family: Family) -> Address:
    """The Service's address inside its spoke."""
    return _at(SERVICE_CIDR[family], SERVICE)


def _at(prefix: Prefix, place: int) -> Address:
    return Address(prefix.family, prefix.value + place)


def topology() -> Topology:
    """The hosts and links above."""
    services = tuple(Route(SERVICE_CIDR[family], own("a", family)) for family in Family)
    hosts = [Host(MACHINE, services)]
    links = []
    for host in HOSTS:
        hosts.append(
            Host(host, tuple(Route(every, gateway(host, every.family)) for every in EVERYTHING))
        )
        here = tuple(InterfaceAddress(own(host, family), LENGTH[family]) for family in Family)
        if host == "a":
            here += tuple(InterfaceAddress(cluster_ip(family), family.width) for family in Family)
        there = tuple(InterfaceAddress(gateway(host, family), LENGTH[family]) for family in Family)
        links.append(Link((Interface(host, "eth0", here), Interface(MACHINE, host, there))))
    return Topology("researcher", tuple(hosts), tuple(links))


SITES: list[dict[str, Any]] = [
    {"name": name, "prefixes": [str(NETWORKS[family][place]) for family in Family]}
    for place, name in enumerate(("hub", "a", "b"))
]
SITES[1]["services"] = [str(VIP_RANGE[family]) for family in Family]
HUB_ROUTER: dict[str, Any] = {"role": "hub-router", "site": "hub", "sites": SITES}


def nat_host(**keys: Any) -> dict[str, Any]:
    """Keys of the document of spoke a's NAT host."""
    services = [
        {"vip_range": str(VIP_RANGE[family]), "service_cidr": str(SERVICE_CIDR[family])}
        for family in Family
    ]
    addresses = [str(gateway("a", family)) for family in Family]
    nat = {"services": services, "addresses": addresses} | keys
    return {"role": "nat-host", "site": "a", "sites": SITES, "nat": nat}


@dataclass
class Joined:
    """The world, and the machine's agent."""

    world: World
    agent: LabNode

    def namespace(self, host: str) -> Path:
        """Where a host's namespace is pinned."""
        return self.world.namespace(host)

    def run(self, *command: str, host: str = MACHINE) -> str:
        """Run a program on a host; what it said."""
        return inside(self.namespace(host), *command)

    def start(self, settings: dict[str, Any]) -> None:
        """Start the agent with these keys of node.yaml, and wait until it is ready."""
        self.write_document(settings)
        self.agent.start_until_ready()

    def write_document(self, settings: dict[str, Any]) -> None:
        """Write the agent's node.yaml with these keys."""
        self.agent.directory.mkdir(parents=True, exist_ok=True)
        self.agent.run_dir.mkdir(exist_ok=True)
        document = {
            **NODE_KEYS,
            "node": {
                "name": MACHINE,
                "addresses": [str(gateway("a", family)) for family in Family],
                "uplink": "a",
            },
            "state_dir": str(self.agent.directory / "state"),
            "run_dir": str(self.agent.run_dir),
            "reconcile_seconds": 0.3,
            "accounting": {"reading_seconds": 0.5, "min_reading_seconds": 0},
            "backend": self.world.backend.value,
        }
        self.agent.document.write_text(yaml.safe_dump(document | settings, sort_keys=False))

    def stop(self) -> None:
        """End the agent; what it made in the kernel goes, too."""
        self.agent.stop_agent()
        if self.world.backend is not Backend.IPTABLES_LEGACY:
            self.attempt("nft", "flush ruleset")
        else:
            for family, table in product(("", "6"), ("mangle", "nat", "filter")):
                self.attempt(f"ip{family}tables-legacy-restore", stdin=f"*{table}\nCOMMIT\n")
        self.attempt("ipset", "destroy")
        self.attempt("rm", "-rf", str(self.agent.directory))
        with wiring.inside(self.namespace(MACHINE)), Netlink(NETLINK_NETFILTER) as channel:
            channel.transact([FORGET_CONNECTIONS])

    def restart(self, settings: dict[str, Any]) -> None:
        """Have another agent take over."""
        self.agent.stop_agent()
        self.start(settings)

    def rules(self) -> str:
        """Every rule in the machine's kernel, with its handle where it has one: a rule that is made
        anew differs.
        """
        if self.world.backend is not Backend.IPTABLES_LEGACY:
            return self.run("nft", "--stateless", "--handle", "list", "ruleset")
        tables = (f"ip{family}tables-legacy-save" for family in ("", "6"))
        # Not the tables' names: one that comes into being has no rule yet.
        return "".join(
            line
            for table in tables
            for line in self.run(table).splitlines()
            if line.startswith("-A")
        )

    def drops(self) -> dict[tuple[str, str], int]:
        """Packets dropped from site to site, as the agent tells."""
        told = self.agent.snapshot()["isolation"]
        return {(item["origin"], item["destination"]): item["packets"] for item in told}

    def attempt(self, *command: str, stdin: str = "") -> None:
        """Run a program on the machine, whatever comes of it."""
        programs.run(
            ["nsenter", f"--net={self.namespace(MACHINE)}", *command], stdin=stdin.encode()
        )

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait until something is so."""
        eventually(true, lambda: f"never became so: {true}; {self.log()}", every=0.01)

    def log(self) -> str:
        """The end of the agent's log."""
        return "\n".join((self.agent.directory / "agent.log").read_text().splitlines()[-15:])

    def repaired(self, reason: str) -> int:
        """How often the agent put something of this kind right."""
        return repairs(self.agent, reason)

    def send(
        self,
        source: str,
        target: str,
        family: Family,
        *,
        to: Address | None = None,
        seconds: float = 0.4,
    ) -> str:
        """Send one datagram from host to host, to another address of its if given; whom the target
        saw within these seconds, or nobody.
        """
        kind = socket.SOCK_DGRAM
        with ExitStack() as closing:
            far = closing.enter_context(open_socket(self.namespace(target), family, kind))
            near = closing.enter_context(open_socket(self.namespace(source), family, kind))
            far.bind(("", PORT))
            far.settimeout(seconds)
            near.sendto(b"hello", (str(to or own(target, family)), PORT))
            try:
                return str(far.recvfrom(100)[1][0])
            except TimeoutError:
                return ""


@contextmanager
def joined(backend: Backend, name: str) -> Iterator[Joined]:
    """The world, without an agent yet."""
    with World(topology(), backend=backend, name=name) as world:
        node = Node(
            host=MACHINE,
            uplink="a",
            addresses=tuple(gateway("a", family) for family in Family),
            role=Role.HUB_ROUTER,  # any that runs no pods
        )
        agent = LabNode(
            node,
            world.namespace(MACHINE),
            world.directory / "nodes" / MACHINE,
            world.directory / "pods",
        )
        yield Joined(world, agent)
        agent.stop_agent()
