"""STATUS: would an ADD succeed now?"""

from __future__ import annotations

from netmgr.agent import files
from netmgr.agent.node import Node
from netmgr.agent.telemetry import Telemetry, require
from netmgr.errors import LimitedConnectivity, NotReady, StateError

VITAL_STEPS = ("rules", "wiring", "forwarding")
"""Without these pods cannot be counted and reached as they should be, those that run already included."""


def status(node: Node, telemetry: Telemetry) -> None:
    """Say nothing when ready.

    Raises:
        LimitedConnectivity: rules, routes to pods or forwarding could not be put right.
        NotReady: a family has no free address, what an ADD gets could not be remembered, or files that were removed
            could not be made again.
    """
    for step in VITAL_STEPS:
        if step in telemetry.failing:
            raise LimitedConnectivity(f"{step} cannot be put right: {telemetry.failing[step]}")
    require([files.STEP], telemetry.failing)
    try:
        node.leases.flush()
    except StateError as error:
        raise NotReady(error.message, "make room on the disk of state_dir") from None
    families, occupancy = node.leases.families, node.leases.occupancy()
    if not families:
        raise NotReady("no range is known to give addresses of", telemetry.failing.get("ranges", ""))
    if any(not occupancy[family].free for family in families):
        node.leases.settle(at_most=8)
        occupancy = node.leases.occupancy()
    for family in families:
        state = occupancy[family]
        if not state.free:
            raise NotReady(
                f"no IPv{family.value} address is free: {state.allocated} held, {state.cooldown} resting",
                "give the node more ranges, or wait until resting addresses return",
            )
