"""`netmgr exporter`: metrics for Prometheus, from the agent's read-only socket."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

Cert = Annotated[Path | None, typer.Option(metavar="FILE", help="Speak TLS alone: certificate and chain, PEM.")]
Key = Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key, PEM, unencrypted.")]
Authorities = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Clients must show a certificate of one of these authorities, PEM.")
]
Pairs = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Ask for a password: lines of user:password, any of which will do.")
]
Tokens = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Ask for a bearer token: one a line, any of which will do.")
]


def exporter(  # noqa: PLR0913  one a command-line option
    *,
    socket: Annotated[
        Path, typer.Option(metavar="PATH", help="The agent's read-only socket: ledger.sock in its run_dir.")
    ] = Path("/run/netmgr/ledger.sock"),
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="Where to answer HTTP; without ADDRESS: everywhere, v4 and v6.")
    ] = ":9119",
    max_series: Annotated[
        int, typer.Option(metavar="NUMBER", help="Most series on a page, 0 for no bound: pods beyond it are left out.")
    ] = 5_000,
    tls_cert: Cert = None,
    tls_key: Key = None,
    tls_client_ca: Authorities = None,
    basic_auth_file: Pairs = None,
    bearer_token_file: Tokens = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve the agent's figures to Prometheus.

    /metrics: text or OpenMetrics, gzip; says netmgr_up 0 while the agent is away.
    /: the node at a glance. /healthz: the exporter runs. /readyz: the agent answers, too, and has its files.

    Needs no privilege: run it as a user of the group that node.yaml names as reader_group.
    Secrets come from files; renewed files, certificates too, are noticed without a restart.
    """
    options: dict[str, object] = {"socket": socket, "listen": listen, "max-series": max_series, "log-level": log_level}
    options |= {"tls-cert": tls_cert, "tls-key": tls_key, "tls-client-ca": tls_client_ca}
    options |= {"basic-auth-file": basic_auth_file, "bearer-token-file": bearer_token_file}
    _become([f"--{name}={value}" for name, value in options.items() if value is not None])


def _become(options: list[str]) -> None:
    """Start over without what reads command lines, 10 MB that a daemon on every node need not keep."""
    home = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
    # One heap for all of glibc's threads (mallopt(3)): each keeps its largest size, and one page is made at a time.
    environment.setdefault("MALLOC_ARENA_MAX", "1")
    command = [sys.executable, "-P", "-m", "exporter", *options]
    os.execve(sys.executable, command, environment)  # noqa: S606  no shell is wanted
