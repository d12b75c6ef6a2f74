"""Decides which unhealthy Nodes are tainted (pure): never more than a share of a pool at once.

1. A Node is a candidate once its condition NetmgrHealthy has been False for a while, which the
   caller measures. It stays tainted until that is True again, or gone. While nobody knows
   (Unknown), nothing changes.
2. Of the n Nodes of a pool, at most the share of n, rounded down, is tainted, and so none of a
   small pool; and never the last one, whatever the share.
3. Those that are tainted stay so. Then the ones come that have been unhealthy the longest, and the
   rest are withheld until there is room.
4. Nodes that no pods come to anyway, because of their role or the startup taint, do not count.

What is tainted is in the Nodes themselves, so that a new leader goes on from there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from netmgr.errors import ConfigError
from netmgr.kube.controller.nodes import STARTUP_TAINT, UNHEALTHY_TAINT, NodeView


def parse_share(text: str) -> Fraction:
    """The share that a text like `5%` is, from 0 to 1; ConfigError for any other text."""
    number = text.removesuffix("%")
    # No sign, exponent, fraction or underscore, all of which Fraction takes.
    is_number = number.isascii() and number.replace(".", "", 1).isdecimal()
    if number == text or not is_number or not 0 < (share := Fraction(number) / 100) <= 1:
        raise ConfigError(
            f"--taint-unhealthy {text}: give a share of each node pool, above 0% and at most 100%"
        )
    return share


@dataclass
class Tainting:
    """What to do: whose taint to add, whose to remove, and who goes without for lack of room."""

    add: list[NodeView] = field(default_factory=list)
    remove: list[NodeView] = field(default_factory=list)
    withheld: list[NodeView] = field(default_factory=list)


def decide(nodes: Iterable[NodeView], lasting: Collection[str], share: Fraction | None) -> Tainting:
    """Decide for all Nodes.

    `lasting` are names of those whose condition has been False for long enough. `share` is of a
    node pool, from 0 to 1; None removes every taint.
    """
    if share is None:
        return Tainting(remove=[node for node in nodes if node.has_taint(UNHEALTHY_TAINT)])
    decision = Tainting()
    pools: dict[str | None, list[NodeView]] = {}
    # Sorted, so that nothing depends on the order in which a watch delivers Nodes.
    for node in sorted(nodes, key=lambda node: (node.health_since, node.name)):
        if node.runs_pods and not node.has_taint(STARTUP_TAINT):
            pools.setdefault(node.pool, []).append(node)
        elif node.has_taint(UNHEALTHY_TAINT):
            decision.remove.append(node)
    for pool in pools.values():
        _decide(pool, lasting, most_of(len(pool), share), decision)
    return decision


def most_of(nodes: int, share: Fraction) -> int:
    """How many Nodes of a pool may be tainted at once."""
    return min(nodes - 1, int(nodes * share))


def _decide(pool: Collection[NodeView], lasting: Collection[str], most: int, to: Tainting) -> None:
    tainted = [node for node in pool if node.has_taint(UNHEALTHY_TAINT)]
    # Of too many, as in a pool that shrank, the newest lose it.
    staying = [node for node in tainted if _status(node) != "True"][:most]
    to.remove += [node for node in tainted if node not in staying]
    ill = [node for node in pool if _status(node) == "False" and node.name in lasting]
    candidates = [node for node in ill if node not in tainted]
    room = most - len(staying)
    to.add += candidates[:room]
    to.withheld += candidates[room:]


def _status(node: NodeView) -> str:
    """That of its condition; a Node without one is not known to be ill."""
    return node.health[0] if node.health else "True"
