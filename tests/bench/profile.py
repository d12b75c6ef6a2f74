"""What each hook and each rule of a node costs a packet: all of them beside all but one, in turns.

On nftables, where a rule can be left out by itself. A rule whose absence has packets dropped has no
figure. Differences smaller than those between two runs say nothing: see `tests/bench/rulesets.sh`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from netmgr.documents.node import Backend
from tests.bench.forwarding import (
    INTERNAL,
    INTERNET,
    IP_BYTES,
    PacketsLostError,
    Sender,
    compiled,
    node_of_ours,
    run_in,
)
from tests.bench.report import Effort, Figure
from tests.lab import wiring

ALL = "all"
FAMILY = "v4"
"""That of the packets."""
DESTINATIONS = {"internet": INTERNET, "internal": INTERNAL}
_RULE = re.compile(r'^\t\t.* comment "(?P<name>.*) [0-9a-f]{12}"$', re.MULTILINE)
_CHAIN = re.compile(r"^\tchain (?P<name>\w+) \{\n\t\ttype .*?^\t\}\n", re.MULTILINE | re.DOTALL)


def measure(effort: Effort) -> Iterator[Figure]:
    """Nanoseconds of a packet with all rules, beside those without one of them."""
    source = Path(__file__).with_name("flood.c")
    with compiled(source) as flood, node_of_ours(Backend.NFTABLES) as sender:
        sender.fill(effort.crowd)
        sender.stop_repairs()
        variants = _variants(_table(sender))
        for destination, address in DESTINATIONS.items():
            times: dict[str, list[float]] = {name: [] for name in variants}
            for _ in range(effort.rounds):
                for name in list(times):
                    run_in(sender.node, "nft", "-f", "-", stdin=variants[name])
                    try:
                        times[name].append(sender.flood(flood, effort.packets, address))
                    except PacketsLostError:
                        if name == ALL:
                            raise
                        del times[name]
            everything = times.pop(ALL)
            for name, without in times.items():
                what = f"{IP_BYTES}-byte packet, {destination}, with {name}"
                yield Figure.of(what, everything, "ns", min, ("without", without))


def _table(sender: Sender) -> str:
    with wiring.inside(sender.node.namespace):
        command = ["nft", "list", "table", "inet", "netmgr"]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _variants(table: str) -> dict[str, str]:
    """Input for nft that replaces the table: with everything, and without each chain and rule."""
    variants = {ALL: table}
    for chain in _CHAIN.finditer(table):
        variants[f"hook {chain['name']}"] = table.replace(chain[0], "")
        for rule in _RULE.finditer(chain[0]):
            if FAMILY in rule["name"]:
                name = f"{chain['name']}: {rule['name']}"
                variants[name] = table.replace(f"{rule[0]}\n", "")
    return {name: f"delete table inet netmgr\n{text}" for name, text in variants.items()}
