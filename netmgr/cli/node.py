"""`netmgr node`: describe this node through its agent's read-only socket."""

from __future__ import annotations

from typing import Annotated

import typer

from netmgr.cli import completion, node_tables
from netmgr.cli.asking import ask
from netmgr.cli.options import Format, OutputFormat, Socket
from netmgr.cli.output import respond
from netmgr.cli.top import top
from netmgr.errors import Exit

app = typer.Typer(no_args_is_help=True, help="Describe this node: status, pods, internet traffic.")


@app.command()
def status(*, socket: Socket = None, output: Format = OutputFormat.TABLE) -> None:
    """Show readiness, addresses, traffic and problems. Exit 1 if the node is not ready."""
    snapshot = ask(socket, "snapshot")
    document = {key: value for key, value in snapshot.items() if key != "pods"}
    respond(output, document, node_tables.status(snapshot))
    raise typer.Exit(Exit.SUCCESS if snapshot["ready"] else Exit.FAILURE)


@app.command()
def pods(*, socket: Socket = None, output: Format = OutputFormat.TABLE) -> None:
    """List pods with their addresses and their internet traffic."""
    snapshot = ask(socket, "pods")
    document = {key: snapshot[key] for key in ("version", "pods", "attachments")}
    respond(output, document, node_tables.pods(snapshot))


@app.command()
def explain(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            help="An IPv4 or IPv6 address.",
            autocompletion=completion.pod_addresses,
        ),
    ],
    *,
    socket: Socket = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Explain an address, and which key of which document decides."""
    answer = ask(socket, "explain", address=address)
    # By map(), lazily: programs get no table.
    respond(output, answer, map(node_tables.explanation, [answer]))


@app.command()
def audit(*, socket: Socket = None, output: Format = OutputFormat.TABLE) -> None:
    """Compare pods' counters with forward rules and links.

    Differences are explained. Exit 1 if a pod was counted for more than its link carried.
    """
    answer = ask(socket, "audit")
    respond(output, answer, node_tables.audit(answer))
    raise typer.Exit(Exit.SUCCESS if node_tables.is_sound(answer) else Exit.FAILURE)


app.command()(top)
