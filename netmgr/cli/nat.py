"""`netmgr nat`: look at what a NAT host translates, through its agent's read-only socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from netmgr.cli.node import DEFAULT_SOCKET, Format, Output, Socket

PATIENCE_SECONDS = 30.0
"""Ten thousand Services take the agent a few seconds to list."""

app = typer.Typer(no_args_is_help=True, help="Look at a NAT host: translations, Services, ports in use.")


@app.callback()
def _group() -> None:
    """Keep `status` a command of its own, not the whole of `netmgr nat`."""


@app.command()
def status(
    *,
    socket: Socket = DEFAULT_SOCKET,
    output: Format = Output.TABLE,
    services: Annotated[bool, typer.Option("--services", help="List every Service and its endpoints.")] = False,
) -> None:
    """Show what is translated and how often, and how many ports are in use. Exit 1 if documents are refused."""
    from netmgr.readers import ask

    wanted = {"services": "all"} if services else {}
    answer = ask(Path(socket), "nat", timeout=PATIENCE_SECONDS, **wanted)
    if output is Output.JSON:
        typer.echo(json.dumps(answer, indent=2))
    else:
        from rich.console import Console

        from netmgr.cli import nat_tables

        console = Console(highlight=False)
        for renderable in nat_tables.status(answer, services=services):
            console.print(renderable)
    raise typer.Exit(1 if answer["refused"] else 0)
