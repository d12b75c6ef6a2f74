"""Figures, the table they are shown in, and the command line of a program that measures."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from netmgr.documents.node import Backend


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. The defaults are the benchmark;
    `SMOKE` only shows that it still runs."""

    alone: int = 40
    tail: int = 200
    burst: int = 100
    bursts: int = 3
    crowd: int = 250
    big_crowd: int = 1000
    packets: int = 50_000
    rounds: int = 9
    seconds: int = 2
    starts: int = 7
    spokes: tuple[int, ...] = (20, 100)
    shape: tuple[int, int] = (20, 7_500)
    """Clusters of a plan, and nodes of each."""
    seeds: int = 300
    backends: tuple[Backend, ...] = (Backend.NFTABLES, Backend.LINKS, Backend.IPTABLES_LEGACY)
    pods: tuple[int, ...] = (1, 10, 100, 1000)
    """Sizes between which growth is measured, as are the following ones."""
    days: tuple[int, ...] = (1, 7, 30, 365)
    clusters: tuple[int, ...] = (10, 100, 1000)


SMOKE = Effort(
    alone=2,
    tail=2,
    burst=4,
    bursts=1,
    crowd=3,
    big_crowd=4,
    packets=1024,
    rounds=1,
    seconds=1,
    starts=1,
    spokes=(3,),
    shape=(3, 750),
    seeds=2,
    backends=(Backend.NFTABLES, Backend.LINKS),
    pods=(1, 3),
    days=(1, 2),
    clusters=(1, 2),
)

COUNTED = Effort(rounds=1, packets=4096)
"""In `.ci/vm`, where a nanosecond is an instruction, and each round would find the same."""

SOURCE = Path(__file__).resolve().parents[2]

EXPONENT = "exponent"
"""Unit of what may also be negative: how a cost grows."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, beside what it is compared with.

    `reference` is in the same unit. `budget` is the most the ratio may be (the least, when
    `more_is_better`), or without a reference the most the value may be.
    """

    what: str
    value: float
    unit: str
    reference: float | None = None
    against: str = ""
    budget: float | None = None
    more_is_better: bool = False
    quartiles: tuple[float, float] | None = None
    reference_quartiles: tuple[float, float] | None = None
    """The first and the third quartile of what was measured: half of it lies between them."""

    @classmethod
    def of(
        cls,
        what: str,
        values: Sequence[float],
        unit: str,
        statistic: Callable[[Sequence[float]], float],
        reference: tuple[str, Sequence[float]] = ("", ()),
        budget: float | None = None,
        *,
        more_is_better: bool = False,
    ) -> Figure:
        """A figure of several measurements of each side; `reference` is which side, and its."""
        against, others = reference
        return cls(
            what,
            statistic(values),
            unit,
            statistic(others) if others else None,
            against,
            budget,
            more_is_better,
            _quartiles(values),
            _quartiles(others) if others else None,
        )

    @property
    def judged(self) -> float:
        """What the budget is compared with: the ratio to the reference, else the value itself."""
        return self.value if self.reference is None else self.value / self.reference

    @property
    def is_within(self) -> bool:
        """Whether the budget is kept; true without one."""
        if self.budget is None:
            return True
        return self.judged >= self.budget if self.more_is_better else self.judged <= self.budget

    def cells(self) -> list[str]:
        """The table's row."""
        compared = self.reference is not None
        return [
            self.what,
            f"{short(self.value)} {self.unit}",
            f"{short(self.reference)} {self.unit} ({self.against})" if compared else "",
            f"{self.judged:.2f} x" if compared else "",
            self._budget_cell(),
            "" if self.budget is None else "yes" if self.is_within else "NO",
        ]

    def _budget_cell(self) -> str:
        if self.budget is None:
            return ""
        sign = "≥" if self.more_is_better else "≤"
        return f"{sign} {self.budget:g} " + ("x" if self.reference is not None else self.unit)


def show(figures: Sequence[Figure], console: Console | None = None) -> None:
    """Print the figures as a table."""
    table = Table("what", "netmgr", "beside", "ratio", "budget", "kept")
    for column in table.columns[1:5]:
        column.justify = "right"
    for figure in figures:
        table.add_row(*figure.cells(), style="" if figure.is_within else "bold red")
    (console or Console()).print(table)


def write(figures: Iterable[Figure], path: Path) -> None:
    """Write every figure with its ratio and quartiles, and the machine they are from, as JSON."""
    listed = [
        {**asdict(figure), "judged": figure.judged, "is_within": figure.is_within}
        for figure in figures
    ]
    machine = {
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "figures": listed}, indent=1) + "\n")


Amount = TypeVar("Amount")
Subjects = Mapping[str, Callable[[Amount], Iterator[Figure]]]


def run(
    program: str, about: str | None, subjects: Subjects[Amount], whole: Amount, smoke: Amount
) -> None:
    """Measure the subjects asked for, all by default; figures go to build/PROGRAM.json as well."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.{program}", description=about)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=", ".join(subjects))
    parser.add_argument(
        "--smoke", action="store_true", help="tiny counts: shows that it runs, measures nothing"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.subjects) - set(subjects):
        parser.error(f"no subject {', '.join(sorted(unknown))}; there are {', '.join(subjects)}")
    figures: list[Figure] = []
    console, path = Console(), Path("build", f"{program}.json")
    for name in arguments.subjects or subjects:
        with console.status(f"measuring: {name}"):
            figures += subjects[name](smoke if arguments.smoke else whole)
        # After each subject: one that fails leaves what others measured.
        write(figures, path)
    show(figures, console)
    console.print(f"written to {path}")


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


def short(value: float | None) -> str:
    """A value to read: whole from 100 on, else three digits."""
    assert value is not None
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
