"""What a lab is made of, for people and for programs."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from netmgr.lab.counted import POD_BYTES
from netmgr.lab.nodes import EXPORTER_PORT, LabNode
from netmgr.lab.runtime import Sandbox
from netmgr.lab.topology import INTERNET, Spoke
from netmgr.lab.world import World
from netmgr.sites import Role

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
        "spokes": [_spoke(world, spoke) for spoke in world.topology.spokes],
        "researcher": _researcher(world),
    }


def _spoke(world: World, spoke: Spoke) -> dict[str, Any]:
    return {
        "name": spoke.name,
        "prefixes": list(map(str, spoke.prefixes)),
        "nat_host": spoke.nat_host,
        "services": [{"seen": str(each.seen), "real": str(each.real)} for each in spoke.services],
        "translation": str(spoke.translation),
        "source": str(spoke.source),
        "rogues": {name: _addresses(world, name) for name in spoke.rogues},
    }


def _researcher(world: World) -> list[str]:
    return _addresses(world, world.topology.researcher) if world.topology.researcher else []


def _addresses(world: World, host: str) -> list[str]:
    return [str(own.address) for end in world.topology.attached(host) for own in end.addresses]


def _node(node: LabNode) -> dict[str, Any]:
    not_ready = node.status()
    return {
        "name": node.name,
        "role": str(node.node.role),
        "site": node.node.site,
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
    if lab["researcher"]:
        rows.add_row("researcher", *lab["researcher"], Text("reaches every spoke from the hub", style="dim"))
    site = ""
    for node in lab["nodes"]:
        if node["site"] != site and (site := node["site"]):
            _add_site(rows, lab, site)
        elif not site or node["role"] == Role.NODE:
            rows.add_row()
        _add_node(rows, lab, node)
    return rows


def _add_site(rows: Table, lab: dict[str, Any], site: str) -> None:
    rows.add_row()
    for spoke in lab["spokes"]:
        if spoke["name"] == site:
            for side, meaning in (("seen", "Services, from the hub"), ("real", "Services, inside")):
                name = Text(site if side == "seen" else "", style="bold cyan")
                rows.add_row(name, *(each[side] for each in spoke["services"]), Text(meaning, style="dim"))


def _add_node(rows: Table, lab: dict[str, Any], node: dict[str, Any]) -> None:
    rows.add_row(Text(node["name"], style="bold"), *node["addresses"], _state(node))
    for pod in lab["pods"]:
        if pod["node"] == node["name"]:
            rows.add_row(f"  {pod['name']}", *pod["addresses"])


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
