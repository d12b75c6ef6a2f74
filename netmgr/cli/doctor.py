"""`netmgr doctor`: what would keep netmgr from working on this machine, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import typer

from netmgr.cli.asking import NODE_DOCUMENT
from netmgr.cli.options import Config, Format, Output
from netmgr.cli.output import Styled, Table, show, show_document
from netmgr.errors import Exit

if TYPE_CHECKING:
    from netmgr.agent.doctor import Finding
    from netmgr.cli.answers import Examination, Found

_COLOURS = {"ok": "green", "note": None, "warning": "yellow", "error": "red"}


def doctor(
    *,
    config: Config = NODE_DOCUMENT,
    output: Format = Output.TABLE,
) -> None:
    """Examine this machine, before or after an installation. Exit 1 if netmgr cannot work here.

    Changes nothing. Each finding has a severity and, where there is one, the command that mends it.
    """
    from netmgr.agent.doctor import examine

    found = examine(config)
    if output is Output.TABLE:
        show(_table(found))
    else:
        show_document(_document(found), output)
    is_bad = any(one.severity == "error" for each in found.values() for one in each)
    raise typer.Exit(Exit.FAILURE if is_bad else Exit.SUCCESS)


def _document(found: Mapping[str, Iterable[Finding]]) -> Examination:
    checks: dict[str, list[Found]] = {
        check: [
            {"severity": one.severity, "message": one.message, "remedy": one.remedy} for one in each
        ]
        for check, each in found.items()
    }
    return {"version": 1, "checks": checks}


def _table(found: Mapping[str, Iterable[Finding]]) -> Table:
    table = Table("CHECK", "", "FINDING")
    for check, findings in found.items():
        if not findings:
            table.row(check, Styled("ok", _COLOURS["ok"]), "")
        for finding in findings:
            severity = Styled(finding.severity, _COLOURS[finding.severity])
            remedy = f"\n→ {finding.remedy}" if finding.remedy else ""
            table.row(check, severity, finding.message + remedy)
    return table
