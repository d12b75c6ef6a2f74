"""`netmgr exporter`: metrics for Prometheus, from the agent's read-only socket."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from exporter.settings import DEFAULT_LISTEN, DEFAULT_MAX_SERIES, split_address
from netmgr.cli.asking import find
from netmgr.cli.options import LogFormatOption, LogLevelOption, Socket
from netmgr.logs import LogFormat, LogLevel

_FIRST_OF_ANY_USER = 1024  # lower ports take CAP_NET_BIND_SERVICE

_file = partial(typer.Option, metavar="FILE")


def exporter(  # noqa: PLR0913  one a command-line option
    *,
    socket: Socket = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS:PORT",
            help="Where to serve HTTP; without ADDRESS: on all addresses, IPv4 and IPv6.",
        ),
    ] = DEFAULT_LISTEN,
    max_series: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="Limit of series per scrape, 0 for none; pods beyond it are left out.",
        ),
    ] = DEFAULT_MAX_SERIES,
    tls_cert: Annotated[
        Path | None, _file(help="Serve TLS only: certificate and chain, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, _file(help="The certificate's private key, PEM, unencrypted.")
    ] = None,
    tls_client_ca: Annotated[
        Path | None, _file(help="Require client certificates of one of these authorities, PEM.")
    ] = None,
    basic_auth_file: Annotated[
        Path | None, _file(help="Require a password: lines of user:password, any is accepted.")
    ] = None,
    bearer_token_file: Annotated[
        Path | None, _file(help="Require a bearer token: one per line, any is accepted.")
    ] = None,
    budgets_server: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS:PORT",
            help="Report to this server of a cluster's budgets [default: to none]",
        ),
    ] = "",
    budgets_credentials: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="ca.crt, its authority; and for this node a token, or tls.crt and tls.key.",
        ),
    ] = None,
    budgets_file: Annotated[
        Path | None, _file(help="Where its answers are kept: node.yaml's budgets_file.")
    ] = None,
    throughput_test: Annotated[
        bool,
        typer.Option(
            "--throughput-test",
            help="Serve /throughput: nodes that start measure by it, one at a time, for 2 s.",
        ),
    ] = False,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve the agent's metrics to Prometheus.

    /metrics: text or OpenMetrics, gzip; netmgr_up is 0 while no agent answers.
    /healthz: the exporter runs. /readyz: the agent answers, too, and has its files.

    Needs no privileges: run it as a user of the group that node.yaml names as reader_group.
    Secrets are read from files; renewed files, certificates too, take effect without a restart.
    """
    from netmgr import programs
    from netmgr.kernel import capabilities
    from netmgr.kernel.capabilities import Capability

    options: dict[str, object] = {
        "socket": find(socket).path,
        "listen": listen,
        "max-series": max_series,
        "log-level": log_level,
        "log-format": log_format,
    }
    options |= {"tls-cert": tls_cert, "tls-key": tls_key, "tls-client-ca": tls_client_ca}
    options |= {"basic-auth-file": basic_auth_file, "bearer-token-file": bearer_token_file}
    options |= {"budgets-server": budgets_server or None, "budgets-file": budgets_file}
    options |= {"budgets-credentials": budgets_credentials}
    # Whoever runs it: it needs no capability, except to listen on a port below 1024.
    _, port = split_address("--listen", listen)
    capabilities.keep([Capability.NET_BIND_SERVICE] if port < _FIRST_OF_ANY_USER else [])
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    given += ["--throughput-test"] if throughput_test else []
    # It starts over without the command line parser, which is 10 MB that a daemon need not keep.
    command, environment = programs.python("exporter", *given)
    # One heap for all of glibc's threads (mallopt(3)): each heap keeps its largest size, and the
    # exporter makes one page at a time.
    environment.setdefault("MALLOC_ARENA_MAX", "1")
    os.execve(command[0], command, environment)  # noqa: S606  no shell is wanted
