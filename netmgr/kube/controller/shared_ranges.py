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
    # Blocks nest or are disjoint. These enclose the next one, each with the oldest Node up to it.
    # Comparing with that Node alone is enough, since all others of these overlap it as well.
    enclosing: list[tuple[Prefix, str]] = []
    for block, name in held:
        while enclosing and not enclosing[-1][0].overlaps(block):
            enclosing.pop()
        oldest = enclosing[-1][1] if enclosing else name
        if oldest != name:
            oldest, younger = sorted((oldest, name), key=created.__getitem__)
            yield SharedRange(younger, oldest, block)
        enclosing.append((block, oldest))
