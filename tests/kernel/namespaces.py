"""Programs in the network namespaces of a world, and the links of its pods."""

from __future__ import annotations

from pathlib import Path

from netmgr import programs
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox


def inside(namespace: Path, *command: str) -> str:
    """What a program prints there; it must succeed."""
    done = programs.run(["nsenter", f"--net={namespace}", *command])
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def host_link(node: LabNode, sandbox: Sandbox) -> str:
    """The node's end of a pod's link, as the agent names it."""
    return next(
        item["host_link"]
        for item in node.ask("pods")["attachments"]
        if item["container_id"] == sandbox.container_id
    )
