"""`netmgr host`: leave a machine as it was before its agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def host() -> None:
    """Take all of netmgr off a machine."""


@app.command()
def clean(
    *,
    state_dir: Annotated[Path, typer.Option(metavar="DIR", help="The agent's state_dir.")] = Path("/var/lib/netmgr"),
    run_dir: Annotated[Path, typer.Option(metavar="DIR", help="The agent's run_dir.")] = Path("/run/netmgr"),
    rule_owner: Annotated[str, typer.Option(metavar="NAME", help="The document's accounting.rule_owner.")] = "netmgr",
    with_pods: Annotated[bool, typer.Option("--with-pods", help="Cut off pods that netmgr still connects.")] = False,
    keep_state: Annotated[bool, typer.Option("--keep-state", help="Leave totals and leases in state_dir.")] = False,
) -> None:
    """Remove links, routes, rules and state of an agent that has ended. The plugin: `netmgr cni uninstall`.

    Forwarding stays switched on: who else relies on it nobody can tell.
    """
    from netmgr.agent.removal import Leavings, remove

    for sentence in remove(Leavings(state_dir, run_dir, rule_owner), with_pods=with_pods, keep_state=keep_state):
        typer.echo(sentence)
