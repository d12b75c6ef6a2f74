"""`netmgr node`: describe this node through its agent's read-only socket."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from netmgr.cli import node_tables
from netmgr.cli.options import DEFAULT_SOCKET, Format, Output, Socket
from netmgr.cli.output import show, show_document

app = typer.Typer(no_args_is_help=True, help="Describe this node: status, pods, internet traffic.")


@app.command()
def status(*, socket: Socket = DEFAULT_SOCKET, output: Format = Output.TABLE) -> None:
    """Show readiness, addresses, traffic and problems. Exit 1 if the node is not ready."""
    snapshot = _ask(socket, "snapshot")
    if output is Output.TABLE:
        show(*node_tables.status(snapshot))
    else:
        show_document({key: value for key, value in snapshot.items() if key != "pods"}, output)
    raise typer.Exit(0 if snapshot["ready"] else 1)


@app.command()
def pods(*, socket: Socket = DEFAULT_SOCKET, output: Format = Output.TABLE) -> None:
    """List pods with their addresses and their internet traffic."""
    snapshot = _ask(socket, "pods")
    if output is Output.TABLE:
        show(node_tables.pods(snapshot))
    else:
        show_document({key: snapshot[key] for key in ("pods", "attachments")}, output)


@app.command()
def explain(
    address: str, *, socket: Socket = DEFAULT_SOCKET, output: Format = Output.TABLE
) -> None:
    """Explain an address, and which key of which document decides."""
    answer = _ask(socket, "explain", address=address)
    if output is Output.TABLE:
        show(node_tables.explanation(answer))
    else:
        show_document(answer, output)


@app.command()
def audit(*, socket: Socket = DEFAULT_SOCKET, output: Format = Output.TABLE) -> None:
    """Compare pods' counters with forward rules and links.

    Differences are explained. Exit 1 if a pod was counted for more than its link carried.
    """
    answer = _ask(socket, "audit")
    if output is Output.TABLE:
        show(*node_tables.audit(answer))
    else:
        show_document(answer, output)
    raise typer.Exit(0 if node_tables.is_sound(answer) else 1)


@app.command()
def top(
    *,
    socket: Socket = DEFAULT_SOCKET,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between readings.")] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="Number of readings; 0: until Ctrl-C.")] = 0,
    rows: Annotated[int, typer.Option(min=1, help="Pods to show.")] = 20,
) -> None:
    """Show who uses the internet right now, the busiest pod first."""
    from rich.live import Live
    from rich.text import Text

    def drawn(now: dict[str, Any]) -> Text:
        return Text.from_ansi(str(node_tables.busiest(before, now, rows)))

    before = _ask(socket, "snapshot")
    left = count
    with Live(drawn(before), refresh_per_second=4) as live:
        try:
            while not count or left:
                time.sleep(interval)
                now = _ask(socket, "snapshot")
                live.update(drawn(now), refresh=True)
                before, left = now, left - 1
        except KeyboardInterrupt:
            return


def _ask(socket: Path, query: str, address: str = "") -> dict[str, Any]:
    from netmgr.api.client import ask

    return ask(socket, query, address=address) if address else ask(socket, query)
