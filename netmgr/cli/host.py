"""`netmgr host`: make a machine ready for its agent, or leave it as it was before there was one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Make a machine ready for its agent, or take all of netmgr off it.")


@app.command()
def forward(
    *,
    config: Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The node document.")] = Path(
        "/etc/netmgr/node.yaml"
    ),
    sysctls: Annotated[
        Path, typer.Option(metavar="DIR", help="The machine's /proc/sys/net; elsewhere in a container.")
    ] = Path("/proc/sys/net"),
) -> None:
    """Have the kernel forward what the document needs: what an agent in a container has no right to switch on."""
    from netmgr import documents
    from netmgr.agent.ranging import resolved
    from netmgr.agent.router import forwarded
    from netmgr.config import NodeDocument
    from netmgr.dataplane import forwarding

    families = forwarded(resolved(documents.load(config, NodeDocument)))
    for sentence in forwarding.enable(families, sysctls):
        typer.echo(f"{sentence}; it is on now")


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
