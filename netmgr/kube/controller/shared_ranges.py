"""Nodes whose pods get the same addresses (pure).

A kubelet may register its Node with podCIDRs of its choice, and a phantom Node keeps those of a
machine that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from netmgr.kube.controller.nodes import NodeView
from netmgr.prefixes import Prefix


class SharedRange(NamedTuple):
    """Two Nodes with one range. The younger is at fault: nobody can choose a Node's age."""

    younger: str
    older: str
    block: Prefix

    @property
    def message(self) -> str:
        return f"its pods and those of Node {self.older} have the same addresses, of {self.block}"

    @property
    def remedy(self) -> str:
        return (
            f"if there is no such machine, kubectl delete node {self.younger}; else delete it as "
            "well, and its kubelet registers it with another podCIDR"
        )


def shared_ranges(views: Sequence[NodeView]) -> Iterator[SharedRange]:
    """Every Node that overlaps an older one, in the order of their blocks."""
    created = {view.name: view.created for view in views}
    held = sorted((block, view.name) for view in views for block in view.cidrs)
    widest: tuple[Prefix, str] | None = None
    for block, name in held:
        # Blocks are prefixes: what overlaps one lies in it, and comes right behind it.
        if widest is None or not widest[0].overlaps(block):
            widest = block, name
        elif name != widest[1]:
            older, younger = sorted((widest[1], name), key=created.__getitem__)
            yield SharedRange(younger, older, block)
