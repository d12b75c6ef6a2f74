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
from netmgr.errors import NetmgrError, of_system
from netmgr.readers import DEFAULT_SOCKET

ENDINGS = (signal.SIGTERM, signal.SIGINT)
FILES = ("--tls-cert", "--tls-key", "--tls-client-ca", "--basic-auth-file", "--bearer-token-file")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code is 0 then."""
    options = vars(_parser().parse_args(arguments))
    agent, level = options.pop("socket"), options.pop("log_level")
    logs.begin(level)
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
    """Every option but the first and the last is a field of Settings."""
    parser = argparse.ArgumentParser(prog="netmgr exporter", description=__doc__)
    parser.add_argument("--socket", metavar="PATH", type=Path, default=DEFAULT_SOCKET)
    parser.add_argument("--listen", metavar="ADDRESS:PORT", default=DEFAULT_LISTEN)
    parser.add_argument("--max-series", metavar="NUMBER", type=int, default=DEFAULT_MAX_SERIES)
    for name in FILES:
        parser.add_argument(name, metavar="FILE", type=Path)
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
