"""The list of a cluster's nodes, in the order of their creation.

`netmgr controller` writes it as one JSON object, which the kubelet brings to each node as a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from netmgr.prefixes import Address, Prefix

MAX_BYTES = 1 << 20
"""The API server takes no larger ConfigMap."""

_VERSION = 1


@dataclass(frozen=True, slots=True)
class ListedNode:
    """One node: where it is, and which addresses its pods have."""

    name: str
    addresses: tuple[Address, ...]
    """Its InternalIPs."""
    ranges: tuple[Prefix, ...]
    """Its podCIDRs."""


def write(nodes: Iterable[ListedNode]) -> str:
    lines = []
    for node in nodes:
        entry = [node.name, list(map(str, node.addresses)), list(map(str, node.ranges))]
        # Some hundred bytes a node: thousands of them have to fit into one ConfigMap.
        lines.append(json.dumps(entry, separators=(",", ":")))
    return f'{{"version":{_VERSION},"nodes":[\n' + ",\n".join(lines) + "\n]}\n"


def parse(text: str) -> tuple[ListedNode, ...]:
    """Read what `write` wrote; ValueError for anything else, or a later version's."""
    try:
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise ValueError(
                f"its version is {content['version']}, and this agent reads {_VERSION}: "
                "upgrade the agent before the controller"
            )
        return tuple(_entry(*entry) for entry in content["nodes"])
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it is no list of nodes: {error}") from None


def _entry(name: str, addresses: Iterable[str], ranges: Iterable[str]) -> ListedNode:
    return ListedNode(
        str(name),
        tuple(Address.parse(str(address)) for address in addresses),
        tuple(Prefix.parse(str(prefix)) for prefix in ranges),
    )
