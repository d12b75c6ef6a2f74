"""Entry point of `netmgr`."""

from __future__ import annotations

import os
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup

import netmgr
from netmgr.cli import completion, terminal
from netmgr.cli.ending import told_errors
from netmgr.cli.groups import LazyGroup

SECTIONS = {
    "Start here": {
        "status": ("status:status", "Show whether netmgr is healthy, here or in a cluster."),
        "node": ("node:app", "Describe this node: status, pods, internet traffic."),
        "usage": ("usage:usage", "Show pods' internet traffic in past hours."),
        "doctor": (
            "doctor:doctor",
            "Examine this machine for what would keep netmgr from working.",
        ),
    },
    "Then": {
        "connectivity-test": (
            "connectivity:connectivity_test",
            "Probe a cluster's pod network, and whether it counts right.",
        ),
        "budgets": ("budgets:app", "Show a cluster's budgets of internet traffic, or serve them."),
        "plan": ("plan:app", "Plan the addresses of a hub and every cluster."),
        "nat": ("nat:app", "Describe a NAT host: translations, Services, ports in use."),
        "bundle": ("bundle:bundle", "Collect what support needs to know of this node."),
        "completion": (
            "completion:completion",
            "Print the script by which a shell completes commands.",
        ),
        "version": ("version:version", "Show which netmgr this is, and what it was built from."),
    },
    "Advanced, run by manifests and units": {
        "agent": ("agent:agent", "Run the node agent: CNI requests, accounting, reconciliation."),
        "exporter": ("exporter:exporter", "Serve the agent's metrics to Prometheus."),
        "controller": ("kube:controller", "Assign each Node of a Kubernetes cluster its ranges."),
        "cni": ("cni:app", "Install or remove the CNI plugin on this node."),
        "kube": ("kube:app", "Ask a Kubernetes API server on behalf of agents."),
        "preflight": ("preflight:preflight", "Probe a fresh node's network before it runs pods."),
        "host": ("agent:host", "Remove all of netmgr from a machine."),
    },
}


def command_line() -> TyperGroup:
    app = typer.Typer(
        cls=_Root,
        help="Native pod addresses and byte-exact internet accounting for Kubernetes clusters.",
        no_args_is_help=True,
        rich_markup_mode=None,  # importing rich for the help alone takes longer than all the rest
        # Inherited by the contexts of all commands.
        context_settings={
            "help_option_names": ["-h", "--help"],
            "terminal_width": terminal.width(),
            # no-color.org; None leaves them to whether it is a terminal.
            "color": False if os.environ.get("NO_COLOR") else None,
        },
    )
    app.callback()(_options)
    return typer.main.get_group(app)


class _Root(LazyGroup):
    """All commands in their sections, and typer's errors, which may be pydantic's, in our words."""

    entries: ClassVar = {
        name: entry for section in SECTIONS.values() for name, entry in section.items()
    }

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  as below
        del ctx
        width = max(map(len, self.entries))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), text) for name, (_, text) in section.items()]
                )

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  typer has no public name for its context
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            from netmgr.documents import validation

            if isinstance(error.__cause__, ValidationError):
                error.message = validation.message(error.__cause__.errors()[0])
            raise


def main() -> None:
    """Run the command line."""
    if completion.VARIABLE in os.environ:
        completion.prepare()
    with told_errors():
        command_line()(prog_name=completion.PROGRAM)


def _show_version(value: bool) -> None:  # noqa: FBT001  typer's signature of a callback
    if value:
        typer.echo(netmgr.__version__)
        raise typer.Exit


def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    del version
