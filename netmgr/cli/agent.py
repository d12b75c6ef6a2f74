"""`netmgr agent`, the node agent, and `netmgr host`, which takes all of it off a machine."""

from __future__ import annotations

from typing import Annotated

import typer

from netmgr.cli import options
from netmgr.cli.asking import NODE_DOCUMENT
from netmgr.logs import LogFormat

host = typer.Typer(no_args_is_help=True)


def agent(
    *,
    config: options.Config = NODE_DOCUMENT,
    check: Annotated[bool, typer.Option("--check", help="Validate the document and exit.")] = False,
    log_format: options.LogFormatOption = LogFormat.TEXT,
) -> None:
    """Run the node agent: serve CNI requests, count traffic, reconcile rules and routes."""
    # Only the document: this needs no privileges, and may be run beside an agent.
    if check:
        from netmgr.documents import loader
        from netmgr.documents.node import NodeDocument

        loader.load(config, NodeDocument)
        typer.echo(f"{config}: valid")
        return
    from netmgr.agent.core.checking import DocumentCheck
    from netmgr.agent.main import run

    run(config, DocumentCheck(config), log_format)


@host.callback()
def _group() -> None:
    """Remove all of netmgr from a machine."""


@host.command()
def clean(
    *,
    state_dir: options.StateDir = options.DEFAULT_STATE_DIR,
    run_dir: options.RunDir = options.DEFAULT_RUN_DIR,
    rule_owner: Annotated[
        str, typer.Option(metavar="NAME", help="The document's accounting.rule_owner.")
    ] = "netmgr",
    with_pods: Annotated[
        bool, typer.Option("--with-pods", help="Disconnect pods that netmgr still connects.")
    ] = False,
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Keep totals and leases in state_dir.")
    ] = False,
) -> None:
    """Remove links, routes, rules and state of an ended agent.

    The plugin is removed by `netmgr cni uninstall`. Forwarding stays enabled: other programs may
    rely on it.
    """
    from netmgr.agent.core.components import Remnants
    from netmgr.agent.roles import remove

    remnants = Remnants(state_dir, run_dir, rule_owner, with_pods, keep_state)
    # Line by line: what was removed before an error is reported too.
    for line in remove(remnants):
        typer.echo(line)
