"""`python -m exporter`: the process that serves, with nothing loaded that it does not need."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from exporter.server import DEFAULT_LISTEN, serve
from netmgr.errors import NetmgrError
from netmgr.readers import DEFAULT_SOCKET

ENDINGS = (signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code is 0 then."""
    parser = argparse.ArgumentParser(prog="netmgr exporter", description=__doc__)
    parser.add_argument("--socket", metavar="PATH", type=Path, default=DEFAULT_SOCKET)
    parser.add_argument("--listen", metavar="ADDRESS:PORT", default=DEFAULT_LISTEN)
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    options = parser.parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr,
        level=options.log_level.upper(),
        format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s",
    )
    # Blocked before any thread starts, so that only sigwait sees them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        serve(options.socket, options.listen, lambda: signal.sigwait(ENDINGS))
    except NetmgrError as error:
        sys.stderr.write(f"netmgr: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
