"""Entry point of the `netmgr` command: a table of commands, of which only the one asked for is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

import netmgr
from netmgr.errors import NetmgrError, of_system

COMMANDS = {
    "agent": "Run the node agent: CNI requests, accounting, reconciliation.",
    "exporter": "Serve the agent's figures to Prometheus.",
    "cni": "Install or remove the CNI plugin on this node.",
    "node": "Look at this node: status, pods, who uses the internet, and why.",
    "nat": "Look at a NAT host: translations, Services, ports in use.",
    "usage": "Show who used the internet in past hours.",
    "plan": "Plan the addresses of a hub and every cluster.",
    "controller": "Give each Node of a Kubernetes cluster its ranges of the plan.",
    "kube": "Ask a Kubernetes API server, so that the node's agent need not.",
    "host": "Take all of netmgr off a machine.",
    "lab": "Build a whole world of network namespaces on this machine.",
}
"""Name and summary. The module of that name beside this one has `app`, or a function of that name."""


def build(arguments: Sequence[str]) -> typer.Typer:
    """The command line for these arguments; commands they do not name are there for `--help` alone."""
    app = typer.Typer(
        help="Native pod addresses and byte-exact internet accounting for Kubernetes clusters.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,  # importing rich for the help alone takes longer than all the rest
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), "")
    for name, summary in COMMANDS.items():
        module = import_module(f"netmgr.cli.{name}") if name == chosen else None
        if module is None:
            app.command(name, help=summary)(_unloaded)
        elif hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=summary)
        else:
            app.command(name)(getattr(module, name))
    return app


def main() -> None:
    """Run the command line; a user's mistake, or a machine's, ends in one clear sentence, never in a traceback."""
    try:
        build(sys.argv[1:])()
    except (NetmgrError, OSError) as fault:
        error = of_system(fault) if isinstance(fault, OSError) else fault
        for line in str(error).splitlines():
            print(f"netmgr: {line}", file=sys.stderr)  # noqa: T201  the command line speaks to its user
        if error.details and error.details not in error.message:
            print(f"  {error.details}", file=sys.stderr)  # noqa: T201  as above
        if error.retryable:
            print("  This may pass; try again.", file=sys.stderr)  # noqa: T201  as above
        sys.exit(error.exit_code)


def _unloaded() -> None:
    """Stand in for a command that these arguments do not run."""


def _show_version(value: bool) -> None:  # noqa: FBT001  typer's signature of a callback
    if value:
        typer.echo(netmgr.__version__)
        raise typer.Exit


def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version
