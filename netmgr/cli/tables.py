"""The agent's answers as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

IN, OUT = "internet-in", "internet-out"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP = 1000.0


def status(snapshot: Mapping[str, Any]) -> list[Table | str]:
    """The node at a glance: a headline, its addresses, its traffic, and what was repaired or lost."""
    state = "[green]ready[/]" if snapshot["ready"] else f"[red]not ready[/]: {escape(snapshot['reason'])}"
    backend, version = snapshot["backend"], snapshot["netmgr_version"]
    role = str(snapshot.get("role", "node"))
    headline = f"{role} [bold]{escape(snapshot['node'])}[/] is {state} · {backend} · netmgr {version}"
    return [headline, *_own(snapshot), _traffic(snapshot), *_dropped(snapshot), *_troubles(snapshot)]


def _own(snapshot: Mapping[str, Any]) -> list[Table | str]:
    """What a machine of its role has: addresses, pods of another plugin, or nothing but what it forwards."""
    if snapshot.get("role", "node") != "node":
        return []
    return [_pool(snapshot) if snapshot["pool"] else _files(snapshot)]


def _dropped(snapshot: Mapping[str, Any]) -> list[Table | str]:
    pairs = snapshot.get("isolation", [])
    met = [pair for pair in pairs if pair["packets"]]
    if not met:
        return [f"spokes kept apart here: {len(pairs)} ways, nothing dropped"] if pairs else []
    shown = new_table("Dropped between spokes", "from", "to", "packets>", "bytes>")
    for pair in met:
        shown.add_row(pair["origin"], pair["destination"], f"{pair['packets']:,}", size(pair["bytes"]))
    return [shown]


def _pool(snapshot: Mapping[str, Any]) -> Table:
    states = ("allocated", "cooldown", "free", "withdrawn")
    table = new_table("Addresses", "family", *(f"{state}>" for state in states))
    for pool in snapshot["pool"]:
        table.add_row(pool["family"], *(f"{pool.get(state, 0):,}" for state in states))
    return table


def _files(snapshot: Mapping[str, Any]) -> str:
    files = [f"{item['count']} {item['state']}" for item in snapshot["result_files"] if item["count"]]
    return f"pods of another plugin, by its runtime's result files: {', '.join(files) or 'none'}"


def _traffic(snapshot: Mapping[str, Any]) -> Table:
    table = new_table("Internet", "", "in>", "out>")
    table.add_row("node", *_both({item["traffic"]: item["bytes"] for item in snapshot["node_totals"]}))
    for namespace, totals in _by(snapshot["namespaces"], "namespace").items():
        table.add_row(escape(namespace[0]), *_both(totals))
    return table


def _troubles(snapshot: Mapping[str, Any]) -> list[str]:
    ranges = snapshot.get("ranges", {"failing": "", "withdrawn": []})
    lines = [f"ranges cannot be followed: {escape(ranges['failing'])}"] if ranges["failing"] else []
    lines += [f"{i['address']} was withdrawn; {i['namespace']}/{i['pod']} holds it" for i in ranges["withdrawn"]]
    lines += [f"counter gap: {gap['reason']} x {gap['count']}" for gap in snapshot["gaps"] if gap["count"]]
    lines += [f"repaired: {item['reason']} x {item['count']}" for item in snapshot["drift_repaired"] if item["count"]]
    if snapshot["state_rebuilds"]:
        lines.append(f"state files rebuilt from the kernel: {snapshot['state_rebuilds']}")
    return [f"[yellow]{line}[/]" for line in lines]


def pods(snapshot: Mapping[str, Any]) -> Table:
    """One line for each pod that is attached or whose series lingers."""
    table = new_table("", "namespace", "pod", "addresses", "link", "in>", "out>")
    totals = _by(snapshot["pods"], "namespace", "pod")
    attached: dict[tuple[str, ...], tuple[str, str]] = {}
    for item in snapshot["attachments"]:
        attached[item["namespace"], item["pod"]] = (", ".join(item["addresses"]), item["host_link"])
    for name in sorted(totals.keys() | attached.keys()):
        addresses, link = attached.get(name, ("[dim]gone[/]", ""))
        table.add_row(*map(escape, name), addresses, link, *_both(totals.get(name, {})))
    return table


def explanation(answer: Mapping[str, Any]) -> Table:
    """What `netmgr node explain` knows of one address."""
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(overflow="fold")
    yes = {True: "yes", False: "no"}
    for name, value in (
        ("address", answer["address"]),
        ("is", answer["role"]),
        ("pod", answer["pod"] or "none"),
        ("prefix", answer["prefix"] or "none"),
        ("of", answer["site"] or "no site"),
        ("because", answer["because"]),
        ("written in", answer["where"] or "no document"),
        ("a packet there", answer["packet"]),
        ("traffic with it is counted", yes[answer["counted"]]),
        ("pods reach it as the node", yes[answer["masqueraded"]]),
    ):
        table.add_row(f"[dim]{name}[/]", escape(value))
    return table


def busiest(before: Mapping[str, Any], now: Mapping[str, Any], rows: int) -> Table:
    """Bytes per second between two snapshots, the busiest pods first."""
    seconds = max(now["taken_at"] - before["taken_at"], 1e-3)
    former, current = (_by(snapshot["pods"], "namespace", "pod") for snapshot in (before, now))
    rates = {
        name: {
            traffic: max(0, value - former.get(name, {}).get(traffic, 0)) / seconds for traffic, value in item.items()
        }
        for name, item in current.items()
    }
    table = new_table(f"{now['node']}: internet traffic", "namespace", "pod", "in/s>", "out/s>")
    for name in sorted(rates, key=lambda name: -sum(rates[name].values()))[:rows]:
        table.add_row(*map(escape, name), *_both(rates[name]))
    return table


def size(count: float) -> str:
    """A number of bytes in decimal units, as network engineers count them."""
    for unit in _UNITS[:-1]:
        if count < _STEP:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _STEP
    return f"{count:.1f} {_UNITS[-1]}"


def _both(totals: Mapping[str, float]) -> tuple[str, str]:
    return size(totals.get(IN, 0)), size(totals.get(OUT, 0))


def _by(items: list[dict[str, Any]], *keys: str) -> dict[tuple[str, ...], dict[str, int]]:
    """Bytes by traffic, for each value of `keys`."""
    grouped: dict[tuple[str, ...], dict[str, int]] = {}
    for item in items:
        grouped.setdefault(tuple(item[key] for key in keys), {})[item["traffic"]] = item["bytes"]
    return grouped


def new_table(title: str, *columns: str) -> Table:
    """An empty table; a column whose title ends with `>` is of numbers."""
    table = Table(title=escape(title) or None, title_justify="left", title_style="bold", header_style="dim", box=None)
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left")
    return table
