"""`netmgr preflight`: whether the network of a fresh node does what pods will need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli.asking import NODE_DOCUMENT
from netmgr.cli.options import Config, Format, OutputFormat
from netmgr.cli.output import Table, outcome, show, show_document
from netmgr.errors import Exit

if TYPE_CHECKING:
    from netmgr.preflight.results import PreflightReport


def preflight(
    *,
    config: Config = NODE_DOCUMENT,
    message: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the result there as a short text: a container's /dev/termination-log.",
        ),
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Probe the network of a node before its agent starts. Exit 1 if a check fails.

    Probes go where node.yaml's `preflight` says: whether the node's ranges are delivered to it,
    path MTU, loss, egress, DNS, throughput. A node that runs pods already is not probed.
    """
    from netmgr.preflight.run import run

    report = run(config)
    if output is OutputFormat.TABLE:
        show(*_tables(report))
    else:
        results = [result._asdict() for result in report.results]
        passes = not report.failures
        show_document(
            {"version": 1, "passed": passes, "skipped": report.skipped, "results": results}, output
        )
    if message is not None:
        message.write_text(report.text() + "\n", encoding="utf-8")
    raise typer.Exit(Exit.FAILURE if report.failures else Exit.SUCCESS)


def _tables(report: PreflightReport) -> list[Table | str]:
    if report.skipped:
        return [f"skipped: {report.skipped}"]
    table = Table("CHECK", "", "OF", "FINDING")
    for result in report.results:
        remedy = f"\n→ {result.remedy}" if result.remedy else ""
        cells = (outcome(result.outcome), result.subject, result.message + remedy)
        table.row(result.check, *cells)
    return [table]
