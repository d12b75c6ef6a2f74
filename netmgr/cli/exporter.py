"""`netmgr exporter`: metrics for Prometheus, from the agent's read-only socket."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.models import OptionInfo

from netmgr.cli.options import LogFormatOption, LogLevelOption
from netmgr.logs import LogFormat


def _file(help_text: str) -> OptionInfo:
    """An option that names a file."""
    option: OptionInfo = typer.Option(metavar="FILE", help=help_text)
    return option


def exporter(  # noqa: PLR0913  one a command-line option
    *,
    socket: Annotated[
        Path,
        typer.Option(
            metavar="PATH", help="The agent's read-only socket: ledger.sock in its run_dir."
        ),
    ] = Path("/run/netmgr/ledger.sock"),
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS:PORT",
            help="Where to serve HTTP; without ADDRESS: on all addresses, IPv4 and IPv6.",
        ),
    ] = ":9119",
    max_series: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="Limit of series per scrape, 0 for none; pods beyond it are left out.",
        ),
    ] = 5_000,
    tls_cert: Annotated[Path | None, _file("Serve TLS only: certificate and chain, PEM.")] = None,
    tls_key: Annotated[
        Path | None, _file("The certificate's private key, PEM, unencrypted.")
    ] = None,
    tls_client_ca: Annotated[
        Path | None, _file("Require client certificates of one of these authorities, PEM.")
    ] = None,
    basic_auth_file: Annotated[
        Path | None, _file("Require a password: lines of user:password, any is accepted.")
    ] = None,
    bearer_token_file: Annotated[
        Path | None, _file("Require a bearer token: one per line, any is accepted.")
    ] = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve the agent's metrics to Prometheus.

    /metrics: text or OpenMetrics, gzip; netmgr_up is 0 while no agent answers.
    /: the node at a glance. /healthz: the exporter runs. /readyz: the agent answers, too, and has
    its files.

    Needs no privileges: run it as a user of the group that node.yaml names as reader_group.
    Secrets are read from files; renewed files, certificates too, take effect without a restart.
    """
    options: dict[str, object] = {
        "socket": socket,
        "listen": listen,
        "max-series": max_series,
        "log-level": log_level,
        "log-format": log_format,
    }
    options |= {"tls-cert": tls_cert, "tls-key": tls_key, "tls-client-ca": tls_client_ca}
    options |= {"basic-auth-file": basic_auth_file, "bearer-token-file": bearer_token_file}
    _become([f"--{name}={value}" for name, value in options.items() if value is not None])


def _become(options: list[str]) -> None:
    """Start over without the command line parser, which is 10 MB that a daemon need not keep."""
    home = str(Path(__file__).resolve().parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH")))),
    }
    # One heap for all of glibc's threads (mallopt(3)): each heap keeps its largest size, and the
    # exporter makes one page at a time.
    environment.setdefault("MALLOC_ARENA_MAX", "1")
    # -P: the working directory must not provide modules to a daemon.
    command = [sys.executable, "-P", "-m", "exporter", *options]
    os.execve(sys.executable, command, environment)  # noqa: S606  no shell is wanted
