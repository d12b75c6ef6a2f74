"""What a node's kernel holds, as other programs show it: nft, iptables-save, ipset, ip, sysctl, tc.

Nothing here is the product's. So a mistake in what it reads cannot hide one in what it writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from netmgr.documents.node import Backend
from tests.kernel.namespaces import inside
from tests.kernel.spending import run
from tests.lab.nodes import LabNode

TABLE = "inet netmgr"
IFBS = ("out", "in")
"""Directions, as the links that limit them are named by."""
_TRIES = 5
_VARYING = ("pod_", "senders", "ledger_mark", "isolated")
"""Sets whose elements follow from the pods, the ledger, and what was dropped."""
_SAVED = re.compile(r"\[(\d+):(\d+)\] (-A (\S+) .*)")
_OUR_RULE = re.compile(r"NETMGR-|iptables-exporter netmgr ")
_IPSET = re.compile(r"(create|add) netmgr-(\S+) (.*)")
_OURS = re.compile(r"nm[0-9a-f]{12}")
_SETTINGS = (
    "net.ipv4.conf.{}.accept_redirects",
    "net.ipv4.conf.{}.accept_source_route",
    "net.ipv6.conf.{}.accept_ra",
    "net.ipv6.conf.{}.accept_redirects",
    "net.ipv6.conf.{}.autoconf",
)


@dataclass
class Rules:
    """Our rules and sets.

    Attributes:
        skeleton: everything but counts and the elements that vary, in the order in which it counts.
        members: the elements that vary, by set.
        counts: bytes of every counter.
        handles: what nf_tables calls the rules; empty for iptables.
    """

    skeleton: list[str] = field(default_factory=list)
    members: dict[str, set[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    handles: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Kernel:
    """Of one node."""

    node: LabNode
    backend: Backend

    @property
    def has_counting_sets(self) -> bool:
        """Whether sets count pods' packets, and no programs at links."""
        return self.backend is not Backend.LINKS

    @property
    def is_nftables(self) -> bool:
        """Whether all that is in rules is in one table of nf_tables'."""
        return self.backend in (Backend.NFTABLES, Backend.LINKS)

    def run(self, *command: str) -> str:
        return inside(self.node.namespace, *command)

    def rules(self) -> Rules:
        for _ in range(_TRIES):
            # The agent may be changing them: a set that goes makes iptables-save fail.
            with suppress(AssertionError):
                return self._rules()
        return self._rules()

    def _rules(self) -> Rules:
        found = Rules()
        if self.is_nftables:
            listed = run(self.node, "nft", "-j", "list", "table", *TABLE.split()).stdout
            for one in json.loads(listed or '{"nftables": []}')["nftables"]:
                ((kind, body),) = one.items()
                _READERS.get(kind, _ignore)(found, body)
            found.skeleton += self.filters("eth0")
            found.skeleton.sort()
            return found
        for program in self.save_programs:
            self._read_saved(found, program)
        self._read_ipsets(found)
        return found

    def filters(self, link: str) -> list[str]:
        """Which way each program of ours at a link looks at packets, and its name."""
        filters = []
        for way in ("ingress", "egress"):
            shown = run(self.node, "tc", "filter", "show", "dev", link, way).stdout
            filters += [f"{link} {way}: {name}" for name in re.findall(r"netmgr [a-z]+", shown)]
        return filters

    @property
    def save_programs(self) -> tuple[str, str]:
        variant = "nft" if self.backend is Backend.IPTABLES_NFT else "legacy"
        return f"iptables-{variant}-save", f"ip6tables-{variant}-save"

    def _read_saved(self, found: Rules, program: str) -> None:
        table = ""
        for line in self.run(program, "-c").splitlines():
            if line.startswith("*"):
                table = f"{program} {line}"
            elif (saved := _SAVED.match(line)) and _OUR_RULE.search(saved[3]):
                found.skeleton.append(f"{table} {saved[3]}")
                found.counts[f"{table} {saved[3]}"] = int(saved[2])

    def _read_ipsets(self, found: Rules) -> None:
        kinds, fixed = [], []
        for line in self.run("ipset", "save").splitlines():
            if not (saved := _IPSET.match(line)):
                continue
            what, name, rest = saved[1], saved[2].replace("-", "_"), saved[3]
            if what == "create":
                # hashsize grows with the elements, and initval is chosen at random.
                kinds.append(f"{name} {re.sub('(hashsize|initval) [^ ]*', '', rest)}")
                found.members.setdefault(name, set())
            elif name.startswith(_VARYING):
                element, *numbers = rest.split()
                found.members[name].add(element)
                if numbers:
                    found.counts[f"{name} {element}"] = int(numbers[-1])
            else:
                fixed.append(f"{name} {rest}")
        found.members = {k: v for k, v in found.members.items() if k.startswith(_VARYING)}
        found.skeleton += [*sorted(kinds), *sorted(fixed)]

    @contextmanager
    def uplink_restored(self) -> Iterator[None]:
        """What the uplink loses in this block, addresses and routes, is made again at its end."""
        before = [(family, *self._uplink(family)) for family in ("-4", "-6")]
        yield
        for family, addresses, routes in before:
            for address in addresses:
                run(self.node, "ip", family, "address", "replace", *address.split(), "dev", "eth0")
            for route in routes:
                run(self.node, "ip", family, "route", "replace", *route.split(), "dev", "eth0")

    def _uplink(self, family: str) -> tuple[list[str], list[str]]:
        (link,) = json.loads(self.run("ip", family, "-j", "address", "show", "dev", "eth0"))
        addresses = [
            f"{one['local']}/{one['prefixlen']}" + (" nodad" if family == "-6" else "")
            for one in link["addr_info"]
            if one["scope"] == "global"
        ]
        listed = self.run("ip", family, "route", "show", "dev", "eth0").splitlines()
        routes = [line for line in listed if "proto static" in line]
        # On-link prefixes before the gateways that are reached by them.
        return addresses, sorted(routes, key=lambda line: "via" in line)

    def links(self) -> dict[str, dict[str, Any]]:
        """Our links, as `ip -d -j link` shows them."""
        listed = json.loads(self.run("ip", "-d", "-j", "link"))
        return {one["ifname"]: one for one in listed if _OURS.fullmatch(one["ifname"])}

    def addresses(self) -> set[tuple[str, str]]:
        """Address and link of each on our links, where the kernel's own are link-local."""
        return {
            (held["local"], one["ifname"])
            for one in json.loads(self.run("ip", "-j", "address"))
            if _OURS.fullmatch(one["ifname"])
            for held in one["addr_info"]
            if held["scope"] != "link"
        }

    def routes(self) -> dict[str, str]:
        """Links by the single address that a route of ours leads to."""
        found = {}
        for family in ("-4", "-6"):
            for one in json.loads(self.run("ip", family, "-j", "route", "show", "protocol", "110")):
                if one.get("type") != "blackhole" and "/" not in one["dst"]:
                    found[one["dst"]] = one["dev"]
        return found

    def blackholes(self) -> list[str]:
        found = []
        for family in ("-4", "-6"):
            listed = self.run("ip", family, "-j", "route", "show", "type", "blackhole")
            found += [one["dst"] for one in json.loads(listed or "[]")]
        return sorted(found)

    def neighbours(self) -> set[tuple[str, str]]:
        """Address and link of each permanent entry."""
        found = set()
        for family in ("-4", "-6"):
            listed = self.run("ip", family, "-j", "neighbour", "show", "nud", "permanent")
            found |= {(one["dst"], one["dev"]) for one in json.loads(listed or "[]")}
        return found

    def settings(self, links: Iterable[str]) -> dict[str, str]:
        """What of pods' links has to be 0."""
        names = [name.format(link) for link in links for name in _SETTINGS]
        values = self.run("sysctl", "-n", *names).split() if names else []
        return dict(zip(names, values, strict=True))

    def unlimited(self, links: Iterable[str]) -> list[str]:
        """Those whose chains are not there, or lead to a class that is not."""
        leading, astray = self._led()
        return [
            link
            for link in links
            for way in IFBS
            if (chain := f"internet_{way}_{link}") in astray or chain not in leading
        ]

    def astray(self) -> set[str]:
        """Chains that send packets to a class that is not there."""
        return self._led()[1]

    def _led(self) -> tuple[set[str], set[str]]:
        """Chains that lead to classes, and those of them that lead to one that is not there."""
        listed = run(self.node, "nft", "list", "table", "netdev", "netmgr").stdout
        leading, astray = set(), set()
        for way in IFBS:
            shown = run(self.node, "tc", "class", "show", "dev", f"netmgr-{way}").stdout
            classes = set(re.findall(r"class htb (\S+)", shown))
            for name, rules in re.findall(rf"(?ms)chain (\w*_{way}_\w+) {{(.*?)^\t}}", listed):
                if named := set(re.findall(r"priority set (1:[0-9a-f]+)", rules)):
                    leading.add(name)
                    if not named <= classes:
                        astray.add(name)
        return leading, astray


def _ignore(found: Rules, body: Any) -> None:
    """What is neither a rule nor anything that rules refer to."""


def _read_counter(found: Rules, body: dict[str, Any]) -> None:
    found.skeleton.append(f"counter {body['name']}")
    found.counts[body["name"]] = body["bytes"]


def _read_table(found: Rules, body: dict[str, Any]) -> None:
    # A dormant one has all its rules, and none is in effect.
    found.skeleton.append(f"table {body['name']} {body.get('flags', '')}")


def _read_chain(found: Rules, body: dict[str, Any]) -> None:
    kept = {key: value for key, value in body.items() if key != "handle"}
    found.skeleton.append(f"chain {json.dumps(kept, sort_keys=True)}")


def _read_rule(found: Rules, body: dict[str, Any]) -> None:
    found.handles.add(body["handle"])
    # Numbered, so that the order counts.
    number = sum(one.startswith(f"rule {body['chain']} ") for one in found.skeleton)
    text = re.sub(r'"(packets|bytes)": \d+', r'"\1": 0', json.dumps(body["expr"], sort_keys=True))
    found.skeleton.append(f"rule {body['chain']} {number:03} {text} {body.get('comment')}")


def _read_set(found: Rules, body: dict[str, Any]) -> None:
    name, elements = body["name"], dict(_elements(body.get("elem", ())))
    kept = {key: value for key, value in body.items() if key not in ("handle", "elem")}
    if name.startswith(_VARYING):
        found.members[name] = set(elements)
        found.counts.update((f"{name} {one}", size) for one, size in elements.items())
    else:
        kept["elem"] = sorted(elements)
    found.skeleton.append(f"set {json.dumps(kept, sort_keys=True)}")


def _elements(listed: Any) -> Iterator[tuple[str, int]]:
    for one in listed:
        value, size = one, 0
        if isinstance(one, dict) and "elem" in one:
            value = one["elem"]["val"]
            size = one["elem"].get("counter", {}).get("bytes", 0)
        if isinstance(value, dict) and "concat" in value:
            value = " ".join(map(str, value["concat"]))
        yield value if isinstance(value, str) else json.dumps(value, sort_keys=True), size


_READERS = {
    "table": _read_table,
    "counter": _read_counter,
    "chain": _read_chain,
    "rule": _read_rule,
    "set": _read_set,
}
