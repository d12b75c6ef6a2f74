"""`netmgr exporter`: metrics for Prometheus, from the agent's read-only socket."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def exporter(
    *,
    socket: Annotated[
        Path, typer.Option(metavar="PATH", help="The agent's read-only socket: ledger.sock in its run_dir.")
    ] = Path("/run/netmgr/ledger.sock"),
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="Where to answer HTTP; without ADDRESS: everywhere, v4 and v6.")
    ] = ":9119",
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve the agent's figures to Prometheus.

    /metrics: text or OpenMetrics, gzip; says netmgr_up 0 while the agent is away.
    /healthz: the exporter runs. /readyz: the agent answers, too.

    Needs no privilege: run it as a user of the group that node.yaml names as reader_group.
    """
    # This process has loaded what reads command lines, 10 MB that a daemon on every node need not keep.
    options = ["--socket", str(socket), "--listen", listen, "--log-level", log_level]
    home = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-P", "-m", "exporter", *options]
    os.execve(sys.executable, command, environment)  # noqa: S606  no shell is wanted
