"""Runs the exporter of a lab's node as nobody: `python -m tests.lab.unprivileged SOCKET LISTEN`.

The privileges are dropped here, after the imports, rather than before the interpreter starts:
the user nobody may be unable to read the repository, in root's home for instance.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  socket.getaddrinfo would import it, when it is too late
import os
import signal
import sys
from pathlib import Path

from exporter.server import serve
from exporter.settings import Settings
from netmgr import logs

NOBODY = 65534
"""User and group without any privilege: nobody and nogroup on every distribution."""


ENDINGS = (signal.SIGTERM, signal.SIGINT)


def drop_privileges() -> None:
    """Become nobody, for good: no saved ids, no supplementary groups."""
    # In this order: without root's user id the groups can no longer be changed.
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    agent, listen = sys.argv[1:]
    drop_privileges()
    logs.begin("info")
    # Blocked before any thread starts, so that only sigwait sees them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    serve(Path(agent), Settings(listen=listen), lambda: signal.sigwait(ENDINGS))


if __name__ == "__main__":
    main()
