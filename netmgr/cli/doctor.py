"""`netmgr doctor`: what would keep netmgr from working on this machine, and what mends it."""

from __future__ import annotations

import typer

from netmgr.cli.asking import NODE_DOCUMENT
from netmgr.cli.findings import PassedCheck, findings_table
from netmgr.cli.options import Config, Format, OutputFormat
from netmgr.cli.output import respond
from netmgr.errors import Exit


def doctor(*, config: Config = NODE_DOCUMENT, output: Format = OutputFormat.TABLE) -> None:
    """Examine this machine, before or after an installation. Exit 1 if netmgr cannot work here.

    Changes nothing. Each finding has a severity and, where there is one, the command that mends it.
    """
    from netmgr.agent.health.doctor import examine
    from netmgr.findings import is_healthy

    checks = examine(config)
    findings = [finding for check_findings in checks.values() for finding in check_findings]
    passed = [PassedCheck(check) for check in checks if not checks[check]]
    # No word at the end: a row for each check that passed says as much.
    table = findings_table(findings, is_healthy=False, passed=passed)
    respond(output, {"version": 1, "checks": checks}, table)
    raise typer.Exit(Exit.SUCCESS if is_healthy(findings) else Exit.FAILURE)
