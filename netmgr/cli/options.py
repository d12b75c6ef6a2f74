"""Options that several commands have, so that they have one name, one default and one help."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from netmgr.cli import completion
from netmgr.cli.asking import CONFIG_VARIABLE, VARIABLE
from netmgr.logs import LogFormat, LogLevel


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


seconds = partial(typer.Option, metavar="SECONDS", min=0)

Format = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="table for people, json or yaml for programs."),
]
Config = Annotated[
    Path,
    typer.Option("--config", "-c", envvar=CONFIG_VARIABLE, help="The node document (node.yaml)."),
]
Socket = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        metavar="PATH",
        readable=False,  # typer's own message would not name reader_group
        help="The agent's read-only socket [default: ledger.sock in the run_dir that the node "
        "document names, or in /run/netmgr]",
        envvar=VARIABLE,
    ),
]

StateDir = Annotated[Path, typer.Option(metavar="DIR", help="The agent's state_dir.")]
DEFAULT_STATE_DIR = Path("/var/lib/netmgr")
RunDir = Annotated[Path, typer.Option(metavar="DIR", help="The agent's run_dir.")]
DEFAULT_RUN_DIR = Path("/run/netmgr")

PlanFile = Annotated[
    Path,
    typer.Option(
        "--file",
        "-f",
        envvar="NETMGR_PLAN",
        help="The plan; its lock is beside it.",
        metavar="PLAN",
    ),
]
DEFAULT_PLAN = Path("plan.yaml")
ClusterName = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER", help="A cluster of the plan.", autocompletion=completion.clusters
    ),
]
To = Annotated[
    Path | None,
    typer.Option("--to", metavar="FILE", help="Where to write it [default: standard output]"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")]

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="How to reach the API server from outside a pod; inside one it is known.",
        envvar="KUBECONFIG",
    ),
]
ServiceAccount = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        help="The service account's token and ca.crt; a renewed token is read again.",
    ),
]
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
Context = Annotated[
    str, typer.Option(metavar="NAME", help="A context of the kubeconfig [default: its current]")
]
Namespaces = Annotated[
    list[str] | None,
    typer.Option("--namespace", help="netmgr's namespaces. Default: netmgr and netmgr-claims."),
]
LogLevelOption = Annotated[
    LogLevel, typer.Option("--log-level", help="The least severe events that are logged.")
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="One event per line, as text or as JSON.")
]
