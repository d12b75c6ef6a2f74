"""`python -m tests.bench [SUBJECT…]`: measure, and print each figure beside its budget."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from tests.bench import (
    attaching,
    crowded,
    forwarding,
    growth,
    limits,
    planning,
    profile,
    routing,
    services,
    starting,
    throughput,
)
from tests.bench.report import SMOKE, Effort, Figure, show, write

SUBJECTS: dict[str, Callable[[Effort], Iterator[Figure]]] = {
    "attaching": attaching.measure,
    "crowded": crowded.measure,
    "forwarding": forwarding.measure,
    "profile": profile.measure,
    "throughput": throughput.measure,
    "starting": starting.measure,
    "planning": planning.measure,
    "services": services.measure,
    "routing": routing.measure,
    "growth": growth.measure,
    "limits": limits.measure,
}

FILE = Path("build/bench.json")


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
    figures: list[Figure] = []
    console = Console()
    for name in arguments.subjects or SUBJECTS:
        with console.status(f"measuring: {name}"):
            figures += SUBJECTS[name](SMOKE if arguments.smoke else Effort())
        # After each subject: one that fails leaves what others measured.
        write(figures, FILE)
    show(figures, console)
    console.print(f"written to {FILE}")


if __name__ == "__main__":
    main()
