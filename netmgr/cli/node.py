"""`netmgr node`: describe this node through its agent's read-only socket."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, cast

import typer

from netmgr.cli import completion, node_tables
from netmgr.cli.asking import ask
from netmgr.cli.options import Format, Output, Socket
from netmgr.cli.output import show, show_document
from netmgr.cli.top.view import Group, Sort, View
from netmgr.errors import ConfigError, Exit

_PATIENCE_SECONDS = 2.0

app = typer.Typer(no_args_is_help=True, help="Describe this node: status, pods, internet traffic.")


@app.command()
def status(*, socket: Socket = None, output: Format = Output.TABLE) -> None:
    """Show readiness, addresses, traffic and problems. Exit 1 if the node is not ready."""
    snapshot = ask(socket, "snapshot")
    if output is Output.TABLE:
        show(*node_tables.status(snapshot))
    else:
        show_document({key: value for key, value in snapshot.items() if key != "pods"}, output)
    raise typer.Exit(Exit.SUCCESS if snapshot["ready"] else Exit.FAILURE)


@app.command()
def pods(*, socket: Socket = None, output: Format = Output.TABLE) -> None:
    """List pods with their addresses and their internet traffic."""
    snapshot = ask(socket, "pods")
    if output is Output.TABLE:
        show(node_tables.pods(snapshot))
    else:
        kept = ("version", "pods", "attachments")
        show_document({key: snapshot[key] for key in kept}, output)


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
    output: Format = Output.TABLE,
) -> None:
    """Explain an address, and which key of which document decides."""
    answer = ask(socket, "explain", address=address)
    if output is Output.TABLE:
        show(node_tables.explanation(answer))
    else:
        show_document(answer, output)


@app.command()
def audit(*, socket: Socket = None, output: Format = Output.TABLE) -> None:
    """Compare pods' counters with forward rules and links.

    Differences are explained. Exit 1 if a pod was counted for more than its link carried.
    """
    answer = ask(socket, "audit")
    if output is Output.TABLE:
        show(*node_tables.audit(answer))
    else:
        show_document(answer, output)
    raise typer.Exit(Exit.SUCCESS if node_tables.is_sound(answer) else Exit.FAILURE)


@app.command()
def top(  # noqa: PLR0913  one a command-line option
    *,
    socket: Socket = None,
    sort: Annotated[Sort, typer.Option("--sort", "-s", help="What comes first.")] = Sort.TOTAL,
    group: Annotated[Group, typer.Option("--group", "-g", help="Of whom rows are.")] = Group.POD,
    pattern: Annotated[
        str,
        typer.Option(
            "--filter", "-f", metavar="REGEX", help="Only pods whose namespace/pod contains it."
        ),
    ] = "",
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between readings.")] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="Number of readings; 0: until Ctrl-C.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="One plain table, as for a pipe.")] = False,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a plain table at most.")] = 20,
    max_series: Annotated[
        int, typer.Option(min=0, help="The exporter's, beside which series are counted; 0: none.")
    ] = 5_000,
) -> None:
    """Show who uses the internet right now, beside limits, quotas and what may run out.

    On a terminal the screen is live, and "?" lists its keys. Elsewhere each reading is a table.
    """
    from netmgr.api.snapshot import Snapshot
    from netmgr.cli.top.watching import Choice, Watching, is_terminal

    choice = Choice(interval, 1 if once else count, rows, max_series)
    watching = Watching(
        # Shorter than other commands wait: keys wait as long.
        lambda: cast(Snapshot, ask(socket, "snapshot", timeout=_PATIENCE_SECONDS)),
        choice,
        View(sort, group, _valid(pattern)),
    )
    with suppress(KeyboardInterrupt):
        if is_terminal() and not once:
            watching.live()
        else:
            watching.print()


def _valid(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--filter {pattern}: no regular expression: {error}") from None
    return pattern
