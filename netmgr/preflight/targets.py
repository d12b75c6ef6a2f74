"""What a preflight probes: which machines, from which addresses (pure).

Machines are in groups. What is wrong with one of them is not this node's fault, and what is wrong
with this node shows toward all of them: so a check passes if it passes toward one of each group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from netmgr.documents.node import NodeDocument
from netmgr.prefixes import Address, Family, Prefix, PrefixTable, merge
from netmgr.preflight.tcp import Attempt

MOST_DRAWN = 3
"""Machines of a group and family that are probed."""

# Ranges of a family that are probed: as many as an interface of Azure has addresses, and more.
MOST_RANGES = 64


class GroupKind(StrEnum):
    """What the machines of a group are."""

    PEERS = "peers"
    NODES = "nodes"
    """The other nodes of a flat network, as its list names them."""
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class Group:
    """Machines of one kind, by their addresses of one family."""

    kind: GroupKind
    family: Family
    machines: tuple[Address, ...]

    @property
    def knows_ranges(self) -> bool:
        """Whether they have to reach this node's ranges."""
        # Other nodes of a flat network do once their agents run: fresh ones would wait for each
        # other for ever.
        return self.kind is not GroupKind.NODES

    def __str__(self) -> str:
        return f"{self.kind} ({', '.join(map(str, self.machines))})"


def groups(
    document: NodeDocument, nodes: Iterable[Address], own: Collection[Address], random: Random
) -> list[Group]:
    """The groups that are probed; a few machines of each are drawn, and never this one.

    Args:
        document: names peers and the hub.
        nodes: addresses of the other nodes of a flat network.
        own: addresses of this machine.
        random: draws, so that many nodes at once probe different machines.
    """
    named = document.preflight
    # A hub may have a family that this node lacks.
    stated = {*document.families, *(address.family for address in document.node.addresses)}
    families = sorted(stated) or list(Family)
    drawn_groups: list[Group] = []
    for kind, addresses in (
        (GroupKind.PEERS, named.peers),
        (GroupKind.NODES, nodes),
        (GroupKind.HUB, named.hub),
    ):
        others = sorted(set(addresses) - set(own))
        for family in families:
            known = [address for address in others if address.family is family]
            drawn = random.sample(known, min(MOST_DRAWN, len(known)))
            if drawn:
                drawn_groups.append(Group(kind, family, tuple(drawn)))
    return drawn_groups


def held_addresses(ranges: Iterable[Prefix], taken: Collection[Address]) -> dict[Prefix, Address]:
    """An address of each range to probe from: the last one that is free.

    A range without a free address is left out. `taken` are addresses that the kernel delivers
    somewhere already.
    """
    last_free: dict[Prefix, Address | None] = {}
    # Blocks that lie side by side are probed as one.
    merged = merge(ranges)
    for family in Family:
        blocks = [block for block in merged if block.family is family]
        last_free |= {block: _last_free(block, taken) for block in blocks[:MOST_RANGES]}
    return {block: address for block, address in last_free.items() if address is not None}


def _last_free(block: Prefix, taken: Collection[Address]) -> Address | None:
    # The agent gives the first ones first, so the last one stays out of use the longest.
    for value in range(block.last, block.value - 1, -1):
        address = Address(block.family, value)
        if address not in taken:
            return address
    return None


def egress_sources(document: NodeDocument, held: Iterable[Address]) -> Iterator[Attempt]:
    """Each destination of `egress`, and the source that a pod's packets have on their way there."""
    native = PrefixTable(dict.fromkeys(document.native_prefixes).items())
    of_family = {address.family: address for address in held}
    # Without ranges, as while their source is silent, any family may be the pods'.
    families = document.families or tuple(Family)
    for destination in document.preflight.egress:
        if destination.address.family not in families:
            continue
        is_masqueraded = document.masquerade and not native.match(destination.address)
        if is_masqueraded or not document.wires_pods:
            # The kernel chooses the node's own address, as masquerading does.
            yield Attempt(destination)
        elif source := of_family.get(destination.address.family):
            yield Attempt(destination, source)


def is_empty(document: NodeDocument) -> bool:
    named = document.preflight
    lists: Sequence[Sequence[object]] = (named.peers, named.hub, named.egress)
    return not any(lists) and named.dns_name is None and document.nodes_file is None
