"""STATUS: would an ADD succeed now?"""

from __future__ import annotations

from netmgr.agent.node import Node
from netmgr.errors import NotReady


def status(node: Node) -> None:
    """Say nothing when ready.

    Raises:
        NotReady: a family has no free address.
    """
    occupancy = node.leases.occupancy()
    if any(not state.free for state in occupancy.values()):
        node.leases.settle(at_most=8)
        occupancy = node.leases.occupancy()
    for family, state in occupancy.items():
        if not state.free:
            raise NotReady(
                f"no IPv{family.value} address is free: {state.allocated} held, {state.cooldown} resting",
                "give the node more ranges, or wait until resting addresses return",
            )
