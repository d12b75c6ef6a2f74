"""The kernels of the rules contract, and what an unkind neighbour can do to each."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from netmgr import programs
from netmgr.documents.accounting import NodeRules
from netmgr.documents.special_use import PRIVATE_USE, SPECIAL_USE
from netmgr.kernel import links, netns
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.xtables.variant import LEGACY, NFT, Variant
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.rules.engine import RuleBackend, Rules
from netmgr.rules.iptables import IptablesBackend
from netmgr.rules.iptables_chains import TABLES, builtin
from netmgr.rules.iptables_layout import chain_name
from netmgr.rules.links import LinksBackend
from netmgr.rules.model import Hook, Return, Rule, SetSpec
from netmgr.rules.nft_text import family_chain
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.policy import Policy
from netmgr.rules.sources import Sources
from netmgr.rules.transaction import Transaction
from tests.contracts.star import star
from tests.fakes.rules import FakeBackend
from tests.fakes.ruleset import HeldSet, Hits
from tests.lab import named_netns
from tests.lab.wiring import LOOPBACK_INDEX
from tests.waiting import eventually

OWN = tuple(map(Prefix.parse, ("127.0.0.0/8", "203.0.113.1", "2001:db8:ffff::1")))
"""Loopback and addresses of the node itself."""
RANGES = (Prefix.parse("10.1.0.0/24"), Prefix.parse("2001:db8:1::/64"))
POLICY = Policy(
    internal=tuple(merge((*SPECIAL_USE, *PRIVATE_USE, *RANGES))),
    ranges=RANGES,
    masquerade=True,
    node_rules=NodeRules.CORRECTED,
    rule_owner="openai",
    exact_prefix=Prefix.parse("10.0.0.0/8"),
    sources=Sources(own=(*RANGES, *OWN)),
)
_numbers = itertools.count()


def run(command: str, stdin: str = "") -> str:
    """A program's output; it must succeed."""
    name, *words = command.split(" ")
    if re.match(r"ip6?tables", name) and not name.endswith("-save"):
        # Another worker of `make test` may hold the machine's one lock of the legacy tables.
        words = ["-w", *words]
    done = programs.run(
        [programs.locate(name, "iptables ipset nftables iproute2"), *words], stdin=stdin.encode()
    )
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
    return done.stdout.decode()


def _destroy_sets(*names: str) -> None:
    """nf_tables lets go of a set a moment after the last rule that looked into it."""
    command = [programs.locate("ipset", "ipset"), "destroy", *names]
    eventually(lambda: programs.run(command).returncode == 0, f"{command} fails", every=0.005)


class Kernel(Protocol):
    """A backend, and the harm that other programs do to what it holds."""

    backend: RuleBackend

    def lose_rule(self, hook: Hook, rule: str) -> None: ...
    def lose_element(self, name: str, address: Address) -> None: ...
    def lose_everything(self) -> None: ...
    def add_element(self, name: str, address: Address) -> None: ...
    def add_rule(self, hook: Hook) -> None: ...
    def move_first_rule_to_the_end(self, hook: Hook) -> None: ...
    def set_counts(
        self, name: str, addresses: Sequence[Address], packets: int, octets: int
    ) -> None: ...
    def set_drops(self, origin: str, destination: str, *, packets: int, octets: int) -> None:
        """May leave chains to be put right."""

    def lose_set(self, spec: SetSpec) -> None: ...
    def remake_set_wrongly(self, spec: SetSpec) -> None: ...
    def settle_neighbours(self) -> None: ...
    def neighbours(self) -> str: ...


class FakeKernel:
    def __init__(self) -> None:
        self.backend = FakeBackend()

    def lose_rule(self, hook, rule):
        chains = self.backend.state.chains
        chains[hook] = [held for held in chains[hook] if held.id != rule]

    def lose_element(self, name, address):
        del self.backend.state.sets[name].elements[address]

    def lose_everything(self):
        self.backend.state = type(self.backend.state)()

    def add_element(self, name, address):
        self.backend.state.sets[name].elements[address] = Hits()

    def add_rule(self, hook):
        self.backend.state.chains[hook].append(
            Rule("(without a comment)", next(iter(RANGES)).family, (), Return())
        )

    def move_first_rule_to_the_end(self, hook):
        chain = self.backend.state.chains[hook]
        chain.append(chain.pop(0))

    def set_counts(self, name, addresses, packets, octets):
        elements = self.backend.state.sets[name].elements
        elements |= {address: Hits(packets, octets) for address in addresses}

    def set_drops(self, origin, destination, *, packets, octets):
        self.backend.state.counters[f"isolated_{origin}_{destination}_v4"] = Hits(packets, octets)

    def lose_set(self, spec):
        self.backend.state.chains.clear()
        del self.backend.state.sets[spec.name]

    def remake_set_wrongly(self, spec):
        self.backend.state.sets[spec.name] = HeldSet(replace(spec, counts=None))

    def settle_neighbours(self):
        pass

    def neighbours(self):
        return ""


class NftKernel:
    def __init__(self) -> None:
        self.backend = NftablesBackend()

    def _rules(self, chain: str) -> list[tuple[str, str, str]]:
        lines = run(f"nft -a list chain inet netmgr {chain}").splitlines()
        found = (
            re.fullmatch(r"\s*(.*?(?: comment \"(.*) \w+\")?) # handle (\d+)", line)
            for line in lines
        )
        return [
            (match[1], match[2] or "", match[3])
            for match in found
            if match and "chain" not in match[1]
        ]

    def lose_rule(self, hook, rule):
        chain = family_chain(hook) if rule.endswith("v6") else str(hook)
        (handle,) = [
            handle for _, name, handle in self._rules(chain) if rule in (name or "").split(" + ")
        ]
        run(f"nft delete rule inet netmgr {chain} handle {handle}")

    def lose_element(self, name, address):
        run("nft -f -", f"delete element inet netmgr {name} {{ {address} }}\n")

    def lose_everything(self):
        run("nft delete table inet netmgr")

    def add_element(self, name, address):
        run("nft -f -", f"add element inet netmgr {name} {{ {address} }}\n")

    def add_rule(self, hook):
        run("nft -f -", f"add rule inet netmgr {hook} ip saddr 203.0.113.1 accept\n")

    def move_first_rule_to_the_end(self, hook):
        # The very first is none of the ruleset's: it leads to those of IPv6.
        text, _, handle = self._rules(hook)[1]
        run(
            "nft -f -",
            f"delete rule inet netmgr {hook} handle {handle}\nadd rule inet netmgr {hook} {text}\n",
        )

    def set_counts(self, name, addresses, packets, octets):
        element = f"element inet netmgr {name}"
        counted = ", ".join(f"{one} counter packets {packets} bytes {octets}" for one in addresses)
        gone = ", ".join(map(str, addresses))
        run("nft -f -", f"delete {element} {{ {gone} }}\nadd {element} {{ {counted} }}\n")

    def set_drops(self, origin, destination, *, packets, octets):
        counter = f"counter inet netmgr isolated_{origin}_{destination}_v4"
        emptied = f"flush table inet netmgr\ndelete {counter}\n"
        run("nft -f -", f"{emptied}add {counter} {{ packets {packets} bytes {octets} }}\n")

    def lose_set(self, spec):
        run("nft -f -", f"flush table inet netmgr\ndelete set inet netmgr {spec.name}\n")

    def remake_set_wrongly(self, spec):
        self.lose_set(spec)
        run("nft -f -", f"add set inet netmgr {spec.name} {{ type inet_service; }}\n")

    def settle_neighbours(self):
        run(
            "nft -f -",
            """
            add table inet other
            add set inet other netmgr { type ipv4_addr; counter; }
            add element inet other netmgr { 10.1.0.1 counter packets 3 bytes 300 }
            add chain inet other forward { type filter hook forward priority mangle; policy \
              accept; }
            add rule inet other forward ip saddr @netmgr counter packets 7 bytes 700 accept \
              comment "theirs"
            add table ip netmgr
            add chain ip netmgr postrouting { type nat hook postrouting priority srcnat; \
              policy accept; }
            add rule ip netmgr postrouting ip daddr 203.0.113.7 masquerade
            """,
        )

    def neighbours(self):
        return run("nft -a list table inet other") + run("nft -a list table ip netmgr")


class LinksKernel(NftKernel):
    """Counts at links what is forwarded."""

    def __init__(self) -> None:
        self.backend = LinksBackend()


def _is_own(chain: str, hook: Hook) -> bool:
    return re.fullmatch(rf"{chain_name(hook)}(-\d+)?", chain) is not None


class IptablesKernel:
    def __init__(self, tables: Variant) -> None:
        self.backend = IptablesBackend(tables)
        self._variant = tables.name.removeprefix("iptables-")

    def _programs(self) -> tuple[str, str]:
        return f"iptables-{self._variant}", f"ip6tables-{self._variant}"

    def _listed(self, hook: Hook) -> Iterator[tuple[str, str, int, str]]:
        """Program, chain, number and text of each rule of ours at a hook."""
        for program in self._programs():
            numbers: Counter[str] = Counter()
            for line in run(f"{program} -t {TABLES[hook]} -S").splitlines():
                chain = line.split()[1]
                if line.startswith("-A") and (chain == builtin(hook) or _is_own(chain, hook)):
                    numbers[chain] += 1
                    yield program, chain, numbers[chain], line

    def lose_rule(self, hook, rule):
        family = self._programs()[rule.endswith("v6")]
        words = f"traffic={rule.split()[2]}" if rule.startswith("node") else f"netmgr {rule}"
        ((chain, number),) = [
            (chain, number)
            for of, chain, number, line in self._listed(hook)
            if of == family and words in line
        ]
        run(f"{family} -t {TABLES[hook]} -D {chain} {number}")

    def lose_element(self, name, address):
        run(f"ipset del netmgr-{name.replace('_', '-')} {address}")

    def lose_everything(self):
        for program in self._programs():
            for table in ("raw", "mangle", "nat"):
                run(f"{program} -t {table} -F")
                run(f"{program} -t {table} -X")
        _destroy_sets()

    def add_element(self, name, address):
        run(f"ipset add netmgr-{name.replace('_', '-')} {address}")

    def add_rule(self, hook):
        run(f"iptables-{self._variant} -t {TABLES[hook]} -A {chain_name(hook)} -s 203.0.113.1")

    def move_first_rule_to_the_end(self, hook):
        program, _ = self._programs()
        rules = [
            (chain, number, line)
            for of, chain, number, line in self._listed(hook)
            if of == program and _is_own(chain, hook)
        ]
        # The first of a chain that has several beside those which lead packets past them.
        own = [one for one in rules if "NETMGR-" not in one[2].split(maxsplit=2)[2]]
        chains = Counter(chain for chain, _, _ in own)
        chain, number, line = next(one for one in own if chains[one[0]] > 1)
        run(f"iptables-{self._variant} -t {TABLES[hook]} -D {chain} {number}")
        run(f"iptables-{self._variant}-restore --noflush", f"*{TABLES[hook]}\n{line}\nCOMMIT\n")

    def set_counts(self, name, addresses, packets, octets):
        add, counts = f"-exist add netmgr-{name.replace('_', '-')}", f"{packets} bytes {octets}"
        run("ipset restore", "".join(f"{add} {one} packets {counts}\n" for one in addresses))

    def set_drops(self, origin, destination, *, packets, octets):
        name = f"isolation forward {origin} {destination} v4"
        program, _ = self._programs()
        rules = [(at, line) for of, at, _, line in self._listed(Hook.FORWARD) if of == program]
        (chain,) = (at for at, line in rules if name in line)
        counted = [
            f"[{packets}:{octets}] {line}" if name in line else f"[0:0] {line}"
            for at, line in rules
            if at == chain
        ]
        lines = "\n".join([f"-F {chain}", *counted])
        run(f"iptables-{self._variant}-restore --noflush --counters", f"*mangle\n{lines}\nCOMMIT\n")

    def lose_set(self, spec):
        for program in self._programs():
            for table in sorted(set(TABLES.values())):
                run(f"{program} -t {table} -F")
        _destroy_sets(f"netmgr-{spec.name.replace('_', '-')}")

    def remake_set_wrongly(self, spec):
        self.lose_set(spec)
        run(f"ipset create netmgr-{spec.name.replace('_', '-')} hash:net counters")

    def settle_neighbours(self):
        run("ipset create other hash:ip counters")
        run("ipset add other 10.1.0.1 packets 3 bytes 300")
        rules = {
            "raw": "-A PREROUTING -s 203.0.113.1 -j ACCEPT",
            "mangle": "-A FORWARD -m comment --comment theirs -j OTHER\n"
            "-A FORWARD ! -s 10.0.0.0/8 -m comment --comment iptables-exporter_sombody_else\n"
            "-A OTHER -m mark --mark 0x5/0xff -j MARK --set-xmark 0x1/0xff\n"
            "-A INPUT -p tcp -m multiport --dports 80,443 -m limit --limit 3/sec",
            "nat": "-A POSTROUTING -s 10.7.0.0/16 ! -d 10.0.0.0/8 -j SNAT --to-source 198.51.100.3",
        }
        for table, lines in rules.items():
            chains = ":OTHER - [0:0]\n" if "OTHER" in lines else ""
            counted = "\n".join(f"[7:700] {line}" for line in lines.splitlines())
            run(
                f"iptables-{self._variant}-restore --noflush --counters",
                f"*{table}\n{chains}{counted}\nCOMMIT\n",
            )
        run(f"ip6tables-{self._variant} -t mangle -A FORWARD -c 5 500 -s 2001:db8::7 -j ACCEPT")

    def neighbours(self):
        tables = ("raw", "mangle", "nat")
        saved = "".join(
            run(f"{tool}-save -c -t {table}") for tool in self._programs() for table in tables
        )
        ours = ("NETMGR-", "netmgr-", "iptables-exporter openai", "#")
        lines = [line for line in saved.splitlines() if not any(word in line for word in ours)]
        return "\n".join(lines) + run("ipset save other")


KERNELS: dict[str, Callable[[], Kernel]] = {
    "nftables": NftKernel,
    "links": LinksKernel,
    "iptables-legacy": lambda: IptablesKernel(Variant(LEGACY, lock_wait_seconds=1)),
    "iptables-nft": lambda: IptablesKernel(Variant(NFT)),
}


def settled(backend: RuleBackend, policy: Policy, pods: Collection[Address] = ()) -> Rules:
    """Rules that are in force, for these pods."""
    rules = Rules(backend, policy)
    rules.apply(rules.plan(pods))
    return rules


def put_right(rules: Rules, pods: Iterable[Address] = ()) -> Transaction:
    """Carry out a plan that leaves nothing to plan; returns it."""
    pods = list(pods)
    plan = rules.plan(pods)
    rules.apply(plan)
    assert not rules.plan(pods)
    return plan


def tables_of(variant: str) -> Variant:
    """The tables of `legacy` or `nft`."""
    return Variant(f"iptables-{variant}", lock_wait_seconds=1)


@dataclass
class Namespace:
    name: str
    descriptor: int


@pytest.fixture
def namespaces() -> Iterator[Callable[[str], Namespace]]:
    """Makes network namespaces that live as long as the test."""
    made: list[tuple[Namespace, Path]] = []

    def make(role: str) -> Namespace:
        name = f"netmgr-rules-{os.getpid()}-{next(_numbers)}-{role}"
        path = Path("/run/netns") / name
        named_netns.create(path)
        made.append((Namespace(name, os.open(path, os.O_RDONLY | os.O_CLOEXEC)), path))
        return made[-1][0]

    yield make
    for namespace, path in made:
        os.close(namespace.descriptor)
        named_netns.delete(path)


REAL = [
    pytest.param("nftables", marks=pytest.mark.root),
    pytest.param("iptables-legacy", marks=pytest.mark.root),
    # The same text goes to a program of the same name.
    pytest.param("iptables-nft", marks=[pytest.mark.root, pytest.mark.slow]),
]


AND_AT_LINKS = [*REAL, pytest.param("links", marks=pytest.mark.root)]
"""Every way of counting."""


@pytest.fixture(params=["fake", *REAL])
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """One of them; the test runs inside the real ones' namespace."""
    if request.param == "fake":
        yield FakeKernel()
        return
    yield from inside_its_namespace(request)


@pytest.fixture(params=REAL)
def real_kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """One of those that exist."""
    yield from inside_its_namespace(request)


def inside_its_namespace(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    node = request.getfixturevalue("namespaces")("node")
    with netns.entered(node.descriptor):
        with Netlink() as channel:
            channel.transact([links.raise_index(LOOPBACK_INDEX)])
        kernel = KERNELS[request.param]()
        try:
            yield kernel
        finally:
            kernel.backend.close()


@pytest.fixture
def policy() -> Policy:
    return POLICY


@pytest.fixture
def rules(kernel: Kernel, policy: Policy) -> Rules:
    return Rules(kernel.backend, policy)


@pytest.fixture(name="program")
def _program() -> Callable[..., str]:
    """Runs a program that must succeed, and gives its output."""
    return run


@pytest.fixture
def variant_program(variant) -> Callable[..., str]:
    """Runs a program, iptables of the variant at hand, that must succeed, and gives its output."""
    return lambda command, stdin="": run(re.sub(r"^(ip6?tables)", rf"\1-{variant}", command), stdin)


@pytest.fixture
def many_internal(policy) -> Policy:
    """A policy with more internal prefixes of either family than are compared."""
    more = [
        *(Prefix(Family.V4, 0xC6336400 + 8 * one, 30) for one in range(20)),
        *(Prefix(Family.V6, (0x2001_0DB8_00FF << 80) + 8 * one, 126) for one in range(20)),
    ]
    return replace(policy, internal=tuple(merge((*policy.internal, *more))))


@pytest.fixture(params=["legacy", "nft"])
def variant(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def backend(namespaces, variant) -> Iterator[IptablesBackend]:
    with netns.entered(namespaces("node").descriptor):
        made = IptablesBackend(tables_of(variant))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def world(request, real_kernel, namespaces, program) -> Iterator[Any]:
    """What the module's `SURROUNDINGS` makes: else a machine and hosts, none of them a pod."""
    del real_kernel
    with getattr(request.module, "SURROUNDINGS", star)(namespaces, program) as made:
        yield made
