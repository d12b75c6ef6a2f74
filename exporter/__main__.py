"""`python -m exporter`: the process that serves, with nothing loaded that it does not need."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from exporter.server import serve
from exporter.settings import DEFAULT_LISTEN, DEFAULT_MAX_SERIES, Settings
from netmgr import logs
from netmgr.api.client import DEFAULT_SOCKET
from netmgr.errors import NetmgrError, of_system
from netmgr.logs import LogFormat, LogLevel

ENDINGS = (signal.SIGTERM, signal.SIGINT)
FILES = (
    *("--tls-cert", "--tls-key", "--tls-client-ca", "--basic-auth-file", "--bearer-token-file"),
    *(f"--budgets-{of}" for of in ("credentials", "file")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code is 0 then."""
    options = vars(_parser().parse_args(arguments))
    agent, level, form = (options.pop(name) for name in ("socket", "log_level", "log_format"))
    logs.begin(level, form)
    # Blocked before any thread starts, so that only sigwait sees them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        serve(agent, Settings(**options), lambda: signal.sigwait(ENDINGS))
    except (NetmgrError, OSError) as fault:
        error = of_system(fault) if isinstance(fault, OSError) else fault
        sys.stderr.write(f"netmgr: {error}\n")
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    """Every option but the socket and those of the log is a field of Settings."""
    parser = argparse.ArgumentParser(prog="netmgr exporter", description=__doc__)
    parser.add_argument("--socket", metavar="PATH", type=Path, default=DEFAULT_SOCKET)
    parser.add_argument("--listen", metavar="ADDRESS:PORT", default=DEFAULT_LISTEN)
    parser.add_argument("--max-series", metavar="NUMBER", type=int, default=DEFAULT_MAX_SERIES)
    for name in FILES:
        parser.add_argument(name, metavar="FILE", type=Path)
    parser.add_argument("--budgets-server", metavar="ADDRESS:PORT", default="")
    parser.add_argument("--throughput-test", action="store_true")
    parser.add_argument("--log-level", default=LogLevel.INFO, type=LogLevel, choices=list(LogLevel))
    parser.add_argument(
        "--log-format", default=LogFormat.TEXT, type=LogFormat, choices=list(LogFormat)
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
