"""Starts a cluster and keeps it, or runs kubectl against one: see README.md.

python -m tests.e2e
python -m tests.e2e kubectl [ARGUMENTS]
python -m tests.e2e at HOST [COMMAND]
"""

from __future__ import annotations

import signal
import sys
from functools import partial

from tests.e2e import programs, remote
from tests.e2e.cluster import Cluster


def main(verb: str = "", *arguments: str) -> None:
    """Do what the command line says."""
    if verb:
        remote.run(verb, arguments)
    if reason := programs.missing():
        sys.exit(reason)
    keep()


def keep() -> None:
    """Start a cluster, say how to use it, and keep it until an interrupt."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    with Cluster(report=partial(print, flush=True)) as cluster:
        cluster.report(f"{cluster.name} is up. Try: {sys.executable} -m tests.e2e kubectl get node")
        cluster.report("It stays until you press Ctrl-C.")
        try:
            signal.pause()
        except KeyboardInterrupt:
            cluster.report("removing it")


if __name__ == "__main__":
    main(*sys.argv[1:])
