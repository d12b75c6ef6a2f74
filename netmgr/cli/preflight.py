"""`netmgr preflight`: whether the network of a fresh node does what pods will need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli.asking import NODE_DOCUMENT
from netmgr.cli.findings import PassedCheck, findings_table
from netmgr.cli.options import Config, Format, OutputFormat
from netmgr.cli.output import Table, respond
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
    document = {
        "version": 1,
        "passed": not report.failures,
        "skipped": report.skipped,
        "results": [result._asdict() for result in report.results],
    }
    respond(output, document, _tables(report))
    if message is not None:
        message.write_text(report.text() + "\n", encoding="utf-8")
    raise typer.Exit(Exit.FAILURE if report.failures else Exit.SUCCESS)


def _tables(report: PreflightReport) -> list[Table | str]:
    from netmgr.documents.diagnostics import Severity
    from netmgr.findings import Finding
    from netmgr.preflight.results import CheckOutcome

    if report.skipped:
        return [f"skipped: {report.skipped}"]
    failures, passed, findings = report.failures, [], []
    for result in report.results:
        if result.outcome is CheckOutcome.PASSED:
            passed.append(PassedCheck(result.check, result.subject, result.message))
        else:
            # What could not be measured fails only where the document says so.
            severity = Severity.ERROR if result in failures else Severity.WARNING
            subjects = (result.subject,)
            findings.append(
                Finding(severity, result.message, result.remedy, result.check, subjects)
            )
    return findings_table(findings, is_healthy=not failures, word="passed", passed=passed)
