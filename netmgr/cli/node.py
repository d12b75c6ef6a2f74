"""`netmgr node`: look at this node through the agent's read-only socket."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="Look at this node: status, pods, who uses the internet, and why.")


class Output(StrEnum):
    """Whom the answer is for."""

    TABLE = "table"
    JSON = "json"


Socket = Annotated[Path, typer.Option("--socket", help="The agent's read-only socket.", envvar="NETMGR_SOCKET")]
Format = Annotated[Output, typer.Option("--output", "-o", help="table for people, json for programs.")]
DEFAULT_SOCKET = Path("/run/netmgr/ledger.sock")


@app.command()
def status(*, socket: Socket = DEFAULT_SOCKET, output: Format = Output.TABLE) -> None:
    """Show whether the node can serve pods, its addresses, its traffic and what went wrong. Exit 1 if not ready."""
    from netmgr.cli import tables

    snapshot = _ask(socket, "snapshot")
    if output is Output.JSON:
        typer.echo(json.dumps({key: value for key, value in snapshot.items() if key != "pods"}, indent=2))
    else:
        _print(*tables.status(snapshot))
    raise typer.Exit(0 if snapshot["ready"] else 1)


@app.command()
def pods(*, socket: Socket = DEFAULT_SOCKET, output: Format = Output.TABLE) -> None:
    """List the node's pods, their addresses and what each exchanged with the internet."""
    from netmgr.cli import tables

    snapshot = _ask(socket, "pods")
    if output is Output.JSON:
        typer.echo(json.dumps({"pods": snapshot["pods"], "attachments": snapshot["attachments"]}, indent=2))
    else:
        _print(tables.pods(snapshot))


@app.command()
def explain(address: str, *, socket: Socket = DEFAULT_SOCKET, output: Format = Output.TABLE) -> None:
    """Say what an address is to this node, and which prefix of which document made it so."""
    from netmgr.cli import tables

    answer = _ask(socket, "explain", address=address)
    if output is Output.JSON:
        typer.echo(json.dumps(answer, indent=2))
    else:
        _print(tables.explanation(answer))


@app.command()
def audit(*, socket: Socket = DEFAULT_SOCKET, output: Format = Output.TABLE) -> None:
    """Hold what pods were counted for against the node's forward rules and the pods' links, and explain differences.

    Exit 1 if a pod was counted for more than its link brought.
    """
    from netmgr.cli import audit_tables

    answer = _ask(socket, "audit")
    if output is Output.JSON:
        typer.echo(json.dumps(answer, indent=2))
    else:
        _print(*audit_tables.report(answer))
    raise typer.Exit(0 if audit_tables.is_sound(answer) else 1)


@app.command()
def top(
    *,
    socket: Socket = DEFAULT_SOCKET,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between readings.")] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="Readings before it ends; 0 for ever.")] = 0,
    rows: Annotated[int, typer.Option(min=1, help="Pods to show.")] = 20,
) -> None:
    """Show live who uses the internet right now, the busiest pod first. Ctrl-C ends it."""
    from rich.live import Live

    from netmgr.cli import tables

    before = _ask(socket, "snapshot")
    left = count
    with Live(tables.busiest(before, before, rows), refresh_per_second=4) as live:
        try:
            while not count or left:
                time.sleep(interval)
                now = _ask(socket, "snapshot")
                live.update(tables.busiest(before, now, rows), refresh=True)
                before, left = now, left - 1
        except KeyboardInterrupt:
            return


def _ask(socket: Path, query: str, address: str = "") -> dict[str, Any]:
    from netmgr.readers import ask

    return ask(socket, query, address=address) if address else ask(socket, query)


def _print(*renderables: Table | str) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for renderable in renderables:
        console.print(renderable)
