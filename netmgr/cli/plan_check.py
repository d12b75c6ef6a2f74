"""`netmgr plan check` and `reach`: whether the plan is sound, and keeps its clusters apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from netmgr.cli import plan_common
from netmgr.cli.options import DEFAULT_PLAN, Format, OutputFormat, PlanFile
from netmgr.cli.output import Styled, Table, respond, show
from netmgr.cli.plan_common import Planned, answer, finding_lines, load, up_to_date
from netmgr.cli.plan_git import Before, lock_before
from netmgr.cli.plan_report import Checked, Report, growth_table, limits_table, markdown
from netmgr.documents import loader
from netmgr.documents.diagnostics import Diagnostic
from netmgr.documents.sites import HUB
from netmgr.errors import ConfigError, Exit
from netmgr.plan.check.checks import check_limits, check_plan
from netmgr.plan.check.reach import OTHERS, Cell, matrix
from netmgr.plan.check.trace import INTERNET
from netmgr.plan.check.usage import forecasts
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.derive import network

if TYPE_CHECKING:
    from netmgr.documents.node import NodeDocument


def check(  # noqa: PLR0913  one a command-line option
    *,
    file: PlanFile = DEFAULT_PLAN,
    output: Format = OutputFormat.TABLE,
    every: Annotated[
        bool,
        typer.Option("--all", "-a", help="Show every limit, not only the fullest of each kind."),
    ] = False,
    documents: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Check the node.yaml files in this folder, against each other and the plan.",
        ),
    ] = None,
    existing: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare the lock with what exists, which FILE lists as for `plan adopt`.",
        ),
    ] = None,
    names: plan_common.As = None,
    skip: plan_common.Skip = None,
    report: Annotated[
        Report | None,
        typer.Option(
            help="Describe the change for a pull request: what moves, grows, and is left."
        ),
    ] = None,
    before: Before = None,
) -> None:
    """Check overlaps, forbidden ranges, headroom, limits and growth.

    With --documents, machines' documents are checked: no two have the same address, name or Service
    range, all agree on the sites, and each is as the plan renders it. Without a plan they are only
    checked against each other.

    With --existing, an error says what of the lock has grown, shrunk, or is gone there, and what is
    foreign: subnets in the plan's networks, and networks in its pools that it does not know.

    Exit 1 if an error is found, 3 if nothing but the lock is out of date.
    """
    from netmgr.plan.adopt import called, read_existing
    from netmgr.plan.check.drift import cloud_drift

    if documents:
        _check_documents(documents, file, output)
    planned = load(file)
    former = planned.lock if before is None else lock_before(before, file)
    checked = _checked(planned)
    if existing:
        listing = read_existing(loader.read(existing), str(existing))
        present = called(listing, planned.plan, names, skip=skip)
        drifted = list(cloud_drift(planned.plan, planned.locked, present))
        checked = checked._replace(findings=[*checked.findings, *drifted])
    if report is None:
        respond(output, _describe(planned, checked), _lines(planned, checked, every=every))
    else:
        show(*markdown(planned, former, checked))
    if _errors(checked.findings):
        raise typer.Exit(Exit.FAILURE)
    raise typer.Exit(Exit.CHANGES if planned.is_outdated else Exit.SUCCESS)


def _errors(findings: Iterable[Diagnostic]) -> int:
    return sum(finding.severity == "error" for finding in findings)


def _checked(planned: Planned) -> Checked:
    plan, limits = planned.plan, planned.limits
    # Before the first lock: as it would be locked.
    first = planned.lock or answer(planned)
    findings = check_plan(plan, first, limits)
    if _errors(findings):
        return Checked(findings)
    after = answer(planned) if planned.lock and planned.is_outdated else first
    usages, over = check_limits(plan, after, limits)
    return Checked([*findings, *over], usages, forecasts(plan, after, limits))


def _lines(planned: Planned, checked: Checked, *, every: bool) -> Iterator[Table | str]:
    yield from finding_lines(planned.path, checked.findings)
    if checked.usages:
        yield ""
        yield limits_table(planned, checked.usages, every=every)
        if planned.plan.cloud is not Cloud.NONE:
            months = planned.limits.months_old(datetime.now(UTC).date())
            yield f"The figures are {months} months old; compare {planned.limits.source}."
    if checked.forecasts:
        yield ""
        yield growth_table(checked.forecasts, planned.limits.words.network)
    yield ""
    if errors := _errors(checked.findings):
        yield _count(errors)
    elif planned.is_outdated:
        state = "out of date" if planned.lock else "not there yet"
        yield typer.style(f"{planned.lock_path} is {state}; run: netmgr plan lock", fg="yellow")
    else:
        yield typer.style("The plan is sound.", fg="green")


def _describe(planned: Planned, checked: Checked) -> dict[str, Any]:
    return {
        "version": 1,
        "behind": planned.is_outdated,
        "as_of": planned.limits.as_of,
        "findings": [
            {
                "severity": finding.severity,
                "key": ".".join(map(str, finding.at.key)),
                "message": str(finding),
            }
            for finding in checked.findings
        ],
        "limits": [
            {
                "what": usage.what,
                "where": usage.subject,
                "used": usage.used,
                "limit": usage.limit,
                "status": usage.status,
            }
            for usage in checked.usages
        ],
        "growth": checked.forecasts,
    }


def _check_documents(folder: Path, file: Path, output: OutputFormat) -> NoReturn:
    from netmgr.plan.check.fleet import contradictions, drift

    # Without the default plan there is nothing to compare with; a plan that was named must exist.
    given = up_to_date(file) if file.exists() or file != DEFAULT_PLAN else None
    documents = _read(folder)
    diagnostics = list(contradictions(documents))
    if given:
        diagnostics += drift(documents, given.plan, given.locked, str(given.lock_path))
    errors = [loader.describe(diagnostic, folder) for diagnostic in diagnostics]
    lines = [f"{typer.style('error', fg='red', bold=True)}: {line}" for line in errors]
    against = (
        f"{file} and each other" if given else f"each other; there is no {file} to compare with"
    )
    agreed = typer.style(f"The documents agree with {against}.", fg="green")
    lines.append(_count(len(errors)) if errors else agreed)
    respond(output, {"version": 1, "errors": errors}, lines)
    raise typer.Exit(Exit.FAILURE if errors else Exit.SUCCESS)


def _count(errors: int) -> str:
    return typer.style(f"{errors} error{'s' if errors > 1 else ''}.", fg="red", bold=True)


def _read(folder: Path) -> dict[str, NodeDocument]:
    from netmgr.documents.node import NodeDocument

    documents: dict[str, NodeDocument] = {}
    # All that are refused, so that one run shows every fault.
    refused: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            documents[str(path)] = loader.load(path, NodeDocument)
        except ConfigError as error:
            refused.append(error.message)
    if refused:
        raise ConfigError("\n".join(refused))
    if not documents:
        raise ConfigError(
            f"{folder}: holds no document; run: netmgr plan render machines --to {folder}"
        )
    return documents


def reach(
    *,
    file: PlanFile = DEFAULT_PLAN,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Compute who reaches whom from planned routes and rules.

    Packets are followed hop by hop; what is wrong is shown with a packet and its path. Exit 1 if a
    spoke reaches another, or something does not reach what it should.
    """
    given = up_to_date(file)
    cells = matrix(network(given.plan, given.locked, given.limits))
    wrong = [cell.wrong for cell in cells if cell.wrong]
    document = {"version": 1, "cells": [_plain(cell) for cell in cells], "wrong": wrong}
    packets = sum(len(cell.paths) for cell in cells)
    text = f"{packets} packets followed: one for each range that routes and rules distinguish."
    respond(output, document, [_matrix(cells), text])
    # Documents for programs have them already.
    for message in wrong if output is OutputFormat.TABLE else ():
        typer.echo(f"wrong: {message}", err=True)
    raise typer.Exit(Exit.FAILURE if wrong else Exit.SUCCESS)


def _plain(cell: Cell) -> dict[str, Any]:
    example = cell.paths[0] if cell.paths else None
    return {
        "from": cell.origin,
        "to": cell.owner,
        "what": cell.target,
        "outcome": cell.outcome,
        "wanted": cell.wanted,
        "packets": len(cell.paths),
        "example": {
            "source": str(example.source),
            "destination": str(example.destination),
            "steps": list(example.steps),
        }
        if example
        else None,
        "wrong": cell.wrong,
    }


def _matrix(cells: list[Cell]) -> Table:
    grouped: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        grouped.setdefault(cell.origin, {}).setdefault(_relation(cell), []).append(cell)
    columns = list(dict.fromkeys(map(_relation, cells)))
    table = Table("", *columns, title="from (down) to (across)")
    for origin, row in grouped.items():
        table.row(origin, *(_mark(row.get(column, [])) for column in columns))
    return table


def _relation(cell: Cell) -> str:
    if cell.owner == cell.origin:
        return "own"
    if cell.owner in {HUB, INTERNET}:
        return cell.owner
    return "spokes" if cell.origin == HUB else OTHERS


def _mark(cells: list[Cell]) -> Styled:
    results = {cell.outcome for cell in cells}
    result = results.pop() if len(results) == 1 else "in part" if results else ""
    if any(cell.wrong for cell in cells):
        return Styled(result, "red")
    return Styled(result, "green") if result == "reached" else Styled(result, is_dim=True)
