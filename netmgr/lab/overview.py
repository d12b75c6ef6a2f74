"""What a lab is made of, for people and for programs."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from netmgr.lab.counted import POD_BYTES
from netmgr.lab.nodes import EXPORTER_PORT, LabNode
from netmgr.lab.runtime import Sandbox
from netmgr.lab.topology import INTERNET
from netmgr.lab.world import World

NODE_BYTES = "netmgr_node_traffic_bytes_total"


def document(world: World) -> dict[str, Any]:
    """The lab as one JSON object: where everything is, and whether it runs."""
    return {
        "name": world.name,
        "directory": str(world.directory),
        "backend": world.backend.value,
        "internet": [str(address) for address in INTERNET.values()],
        "nodes": [_node(node) for node in world.nodes],
        "pods": [_pod(sandbox) for sandbox in world.pods()],
    }


def _node(node: LabNode) -> dict[str, Any]:
    not_ready = node.runtime.status()
    return {
        "name": node.name,
        "addresses": [str(address) for address in node.node.addresses],
        "ranges": [str(block) for block in node.node.ranges],
        "namespace": str(node.namespace),
        "ledger_socket": str(node.ledger_socket),
        "agent_pid": node.agent_pid(),
        "exporter_pid": node.exporter_pid(),
        "ready": not not_ready,
        "reason": not_ready,
    }


def _pod(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "name": sandbox.pod.name,
        "namespace": sandbox.pod.namespace,
        "node": sandbox.pod.node,
        "addresses": [str(address) for address in sandbox.addresses],
        "netns": str(sandbox.netns),
        "container_id": sandbox.container_id,
    }


def table(lab: dict[str, Any]) -> Table:
    """The same for people: every host with its addresses, pods under their node."""
    rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    rows.add_row("internet", *lab["internet"], Text("stands for everything outside", style="dim"))
    for node in lab["nodes"]:
        rows.add_row()
        rows.add_row(Text(node["name"], style="bold"), *node["addresses"], _state(node))
        for pod in lab["pods"]:
            if pod["node"] == node["name"]:
                rows.add_row(f"  {pod['name']}", *pod["addresses"])
    return rows


def _state(node: dict[str, Any]) -> Text:
    if node["ready"] and node["exporter_pid"]:
        return Text(f"agent ready, metrics on :{EXPORTER_PORT}", style="green")
    if not node["agent_pid"]:
        return Text("no agent runs", style="red")
    return Text(node["reason"] or "no exporter runs", style="red")


def excerpt(page: str, pods: set[str]) -> list[str]:
    """The lines of a metrics page that tell of these pods, and of the node as a whole."""
    wanted = tuple(f'pod="{pod}"' for pod in sorted(pods))
    return [
        line
        for line in page.splitlines()
        if line.startswith(NODE_BYTES) or (line.startswith(POD_BYTES) and any(label in line for label in wanted))
    ]
