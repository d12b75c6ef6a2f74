"""A NAT host's answers as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from netmgr.cli.tables import new_table, size

SCARCE = 0.8
"""Share of the ports in use from which it is shown as a warning, as the alert does."""


def status(answer: Mapping[str, Any], *, services: bool) -> list[Table | str]:
    """Headline, ranges, ports, and Services where there are any; what is refused comes last."""
    nat = answer["nat"]
    kept = "clients are seen as this host" if nat["source"] == "snat" else "clients keep their address"
    shown: list[Table | str] = [
        f"NAT host [bold]{escape(answer['node'])}[/] · {nat['translation']} · {kept}",
        _ranges(nat),
    ]
    if nat["ports"]:
        shown.append(_ports(nat))
    if nat["translation"] == "endpoints":
        opened = f"{nat['services']:,} Services with {nat['endpoints']:,} ready endpoints are open"
        shown.append(_services(answer) if services else f"{opened}; --services lists them")
    return [*shown, *(f"[yellow]refused: {escape(sentence)}[/]" for sentence in answer["refused"])]


def _ranges(nat: Mapping[str, Any]) -> Table:
    shown = new_table("Translated", "seen from the hub", "in the spoke", "packets>", "bytes>")
    for one in nat["ranges"]:
        shown.add_row(one["seen"], one["real"], f"{one['packets']:,}", size(one["bytes"]))
    return shown


def _ports(nat: Mapping[str, Any]) -> Table:
    shown = new_table("Ports", "", "in use>", "of>", "share>", "toward the busiest endpoint")
    for one in nat["ports"]:
        share = one["used"] / one["budget"] if one["budget"] else 0.0
        colour = "red" if share > SCARCE else "default"
        shown.add_row(
            f"{one['family']} {one['protocol']}",
            f"{one['used']:,}",
            f"{one['budget']:,}",
            f"[{colour}]{share:.1%}[/]",
            escape(one["endpoint"]) or "none",
        )
    return shown


def _services(answer: Mapping[str, Any]) -> Table:
    shown = new_table("Services", "service", "seen from the hub", "hits>", "ready endpoints", "draining")
    for column in shown.columns:
        # An address that is cut short is of no use.
        column.overflow = "fold"
    for one in answer["services"]:
        hits = "" if one["hits"] is None else f"{one['hits']:,}"
        ready, draining = (escape("\n".join(one[state])) for state in ("ready", "draining"))
        shown.add_row(escape(one["service"]), escape(one["seen"]), hits, ready or "[red]none[/]", draining)
    return shown
