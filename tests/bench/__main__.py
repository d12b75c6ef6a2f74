"""`python -m tests.bench [SUBJECT…]`: measure, and print each figure beside its budget."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from rich.console import Console

from tests.bench import (
    attaching,
    crowded,
    forwarding,
    planning,
    routing,
    services,
    starting,
    throughput,
)
from tests.bench.report import SMOKE, Effort, Figure, show

SUBJECTS: dict[str, Callable[[Effort], Iterator[Figure]]] = {
    "attaching": attaching.measure,
    "crowded": crowded.measure,
    "forwarding": forwarding.measure,
    "throughput": throughput.measure,
    "starting": starting.measure,
    "planning": planning.measure,
    "services": services.measure,
    "routing": routing.measure,
}


def main() -> None:
    """Run the subjects asked for, all of them by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "subjects", nargs="*", metavar="SUBJECT", help=f"any of {', '.join(SUBJECTS)}; default: all"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(SUBJECTS):
        parser.error(f"no subject {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
    figures = []
    console = Console()
    for name in arguments.subjects or SUBJECTS:
        with console.status(f"measuring: {name}"):
            figures += SUBJECTS[name](SMOKE if arguments.smoke else Effort())
    show(figures, console)


if __name__ == "__main__":
    main()
