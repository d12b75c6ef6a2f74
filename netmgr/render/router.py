"""What a hub's router enforces, as a file for `nft -f`.

The file can be loaded again after every change of the plan: sets and chains are emptied and
filled in one transaction, while the named counters live on (nft(8), "add counter": an
object that is there stays as it is). It touches its own table alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from netmgr.config import SPECIAL_USE
from netmgr.plan.network import Network
from netmgr.prefixes import Family, Prefix, merge

TABLE = "inet netmgr_hub"
_BEFORE_FILTER = -10
_ADDRESS_TYPE = {Family.V4: ("ip", "ipv4_addr"), Family.V6: ("ip6", "ipv6_addr")}


def router(network: Network, internal: Iterable[Prefix]) -> str:
    """The rules of every router of the hub; `internal` is what is not internet."""
    hubs = [appliance for appliance in network.appliances if appliance.internet]
    spokes = merge(prefix for hub in hubs for sources, _ in hub.drops for prefix in sources)
    return "\n".join(_lines(spokes, merge((*SPECIAL_USE, *internal)), names=[hub.name for hub in hubs])) + "\n"


def _lines(spokes: list[Prefix], internal: list[Prefix], names: list[str]) -> Iterator[str]:
    yield f"# For {', '.join(names)}: packets from spoke to spoke are dropped and counted."
    yield f"add table {TABLE}"
    for family in Family:
        yield f"add counter {TABLE} spoke_to_spoke{family}"
        yield from _set(f"spokes{family}", family, spokes)
        yield from _set(f"internal{family}", family, internal)
    yield from _chain("forward", f"type filter hook forward priority {_BEFORE_FILTER}; policy accept;")
    yield from _chain("postrouting", "type nat hook postrouting priority srcnat; policy accept;")
    for family, (protocol, _) in _ADDRESS_TYPE.items():
        from_spoke = f"{protocol} saddr @spokes{family}"
        yield (
            f"add rule {TABLE} forward {from_spoke} {protocol} daddr @spokes{family}"
            f" counter name spoke_to_spoke{family} drop"
        )
        yield f"add rule {TABLE} postrouting {from_spoke} {protocol} daddr != @internal{family} masquerade"


def _set(name: str, family: Family, prefixes: Iterable[Prefix]) -> Iterator[str]:
    yield f"add set {TABLE} {name} {{ type {_ADDRESS_TYPE[family][1]}; flags interval; }}"
    yield f"flush set {TABLE} {name}"
    elements = [str(prefix) for prefix in prefixes if prefix.family is family]
    if elements:
        yield f"add element {TABLE} {name} {{ {', '.join(elements)} }}"


def _chain(name: str, hook: str) -> Iterator[str]:
    yield f"add chain {TABLE} {name} {{ {hook} }}"
    yield f"flush chain {TABLE} {name}"
