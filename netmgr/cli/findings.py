"""Findings for people: doctor's, a preflight's, a cluster's, and a connectivity test's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import typer

from netmgr.cli.output import Table, outcome

if TYPE_CHECKING:
    from netmgr.findings import Finding

_ROWS, _NAMES = 30, 3  # of a cluster of thousands, what a screen holds


class PassedCheck(NamedTuple):
    """A check that found nothing wrong, of what, and what it measured."""

    check: str
    subject: str = ""
    message: str = ""


def findings_table(
    findings: Sequence[Finding],
    *,
    is_healthy: bool,
    word: str = "healthy",
    passed: Iterable[PassedCheck] = (),
) -> list[Table | str]:
    """Checks that `passed`, findings as they come, and `word` if all is well nevertheless."""
    table = Table("", "CHECK", "OF", "FINDING")
    for passed_check in passed:
        table.row(outcome("ok"), *passed_check)
    for finding in findings[:_ROWS]:
        names = list(finding.objects[:_NAMES])
        if more := len(finding.objects) - len(names):
            names.append(f"and {more:,} more")
        remedy = f"\n→ {finding.remedy}" if finding.remedy else ""
        cells = (finding.check, "\n".join(names), finding.message + remedy)
        table.row(outcome(finding.severity), *cells)
    left = len(findings) - _ROWS
    rest = [f"and {left:,} more findings, which -o json lists"] if left > 0 else []
    shown: list[Table | str] = [table, *rest] if findings or passed else []
    return [*shown, *([typer.style(word, fg="green")] if is_healthy else [])]
