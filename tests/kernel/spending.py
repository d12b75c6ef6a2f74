"""A pod that spends bytes, and what its node says of them: to the byte, since the agent reads when
it is asked.
"""

from __future__ import annotations

import socket
import subprocess
from dataclasses import dataclass

from netmgr.prefixes import Family
from tests.lab.exchange import open_socket
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World

IN, OUT = "internet-in", "internet-out"
HEADERS = 20 + 8


@dataclass
class Spender:
    """A pod, and what the node says of it."""

    world: World
    node: LabNode
    sandbox: Sandbox

    def send(self, size: int = 1000) -> int:
        """Have one packet reach the internet, of so many bytes; it is on its way once, or not at
        all.
        """
        with (
            open_socket(self.sandbox.netns, Family.V4, socket.SOCK_DGRAM) as near,
            open_socket(self.world.internet, Family.V4, socket.SOCK_DGRAM) as far,
        ):
            far.bind((str(INTERNET[Family.V4]), 0))
            near.sendto(bytes(size - HEADERS), far.getsockname())
            assert len(far.recv(size)) == size - HEADERS
        return size

    def counted(self) -> int:
        rows = self.node.snapshot()["pods"]
        (size,) = [
            row["bytes"]
            for row in rows
            if (row["pod"], row["traffic"]) == (self.sandbox.pod.name, OUT)
        ]
        return size

    @property
    def address(self) -> str:
        return str(self.sandbox.address(Family.V4))


def run(node: LabNode, *command: str) -> subprocess.CompletedProcess[str]:
    inside = ["nsenter", f"--net={node.namespace}", *command]
    return subprocess.run(inside, capture_output=True, check=False, text=True)


def gaps(node: LabNode) -> dict[str, tuple[int, float]]:
    return {one["reason"]: (one["count"], one["seconds"]) for one in node.snapshot()["gaps"]}
