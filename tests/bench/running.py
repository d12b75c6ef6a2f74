"""The command line of a program that measures: which subjects, and where their figures go."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from tests.bench.report import Figure, show, write

Effort = TypeVar("Effort")
Subjects = Mapping[str, Callable[[Effort], Iterator[Figure]]]


def run(program: str, about: str | None, subjects: Subjects[Effort], whole: Effort, smoke: Effort):
    """Measure the subjects asked for, all by default; figures go to build/PROGRAM.json as well."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.{program}", description=about)
    known = ", ".join(subjects)
    parser.add_argument(
        "subjects", nargs="*", metavar="SUBJECT", help=f"any of {known}; default: all"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(subjects):
        parser.error(f"no subject {', '.join(sorted(unknown))}; there are {known}")
    figures: list[Figure] = []
    console, path = Console(), Path("build", f"{program}.json")
    for name in arguments.subjects or subjects:
        with console.status(f"measuring: {name}"):
            figures += subjects[name](smoke if arguments.smoke else whole)
        # After each subject: one that fails leaves what others measured.
        write(figures, path)
    show(figures, console)
    console.print(f"written to {path}")
