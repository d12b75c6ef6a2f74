"""`netmgr plan check` and `reach`: whether the plan is sound, and keeps its clusters apart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netmgr.cli.options import DEFAULT_PLAN, Format, Output, PlanFile
from netmgr.cli.output import Styled, Table, show, show_document
from netmgr.cli.plan_common import (
    Planned,
    answer,
    load,
    print_findings,
    up_to_date,
)
from netmgr.errors import ConfigError, Exit

if TYPE_CHECKING:
    from netmgr.documents.diagnostics import Diagnostic
    from netmgr.documents.node import NodeDocument
    from netmgr.plan.check.reach import Cell
    from netmgr.plan.check.usage import Forecast, Usage


STATUS_COLOURS = {"over": "red", "near": "yellow"}
MOST_COLUMNS = 5
"""Owners that still fit side by side on a terminal."""


def check(
    *,
    file: PlanFile = DEFAULT_PLAN,
    output: Format = Output.TABLE,
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
) -> None:
    """Check overlaps, forbidden ranges, headroom, limits and growth.

    With --documents, machines' documents are checked: no two have the same address, name or Service
    range, all agree on the sites, and each is as the plan renders it. Without a plan they are only
    checked against each other.

    Exit 1 if an error is found, 3 if nothing but the lock is out of date.
    """
    if documents:
        _check_documents(documents, file, output)
    else:
        _check_plan(file, output, every=every)


@dataclass(frozen=True, slots=True)
class _Checked:
    """What the check of a plan found."""

    planned: Planned
    findings: list[Diagnostic]
    usages: tuple[Usage, ...] = ()
    forecasts: tuple[Forecast, ...] = ()

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)


def _check_plan(file: Path, output: Output, *, every: bool) -> None:
    checked = _checked(load(file))
    if output is Output.TABLE:
        _print(checked, every=every)
    else:
        show_document(_describe(checked), output)
    if checked.errors:
        raise typer.Exit(Exit.FAILURE)
    raise typer.Exit(Exit.CHANGES if checked.planned.is_outdated else Exit.SUCCESS)


def _checked(planned: Planned) -> _Checked:
    from netmgr.plan.check.checks import check_limits, check_plan
    from netmgr.plan.check.usage import forecasts

    plan, limits = planned.plan, planned.limits
    first = planned.lock or answer(planned)
    checked = _Checked(planned, list(check_plan(plan, first, limits)))
    if checked.errors:
        return checked
    after = answer(planned) if planned.lock and planned.is_outdated else first
    usages, over = check_limits(plan, after, limits)
    ahead = forecasts(plan, after, limits)
    return _Checked(planned, [*checked.findings, *over], usages, ahead)


def _print(checked: _Checked, *, every: bool) -> None:
    planned = checked.planned
    print_findings(planned.path, checked.findings)
    if checked.usages:
        typer.echo()
        show(_limits(planned, checked.usages, every=every))
    if checked.forecasts:
        typer.echo()
        show(_growth(checked.forecasts, planned.limits.words.network))
    typer.echo()
    if errors := checked.errors:
        typer.secho(f"{errors} error{'s' if errors > 1 else ''}.", fg="red", bold=True)
    elif planned.is_outdated:
        typer.secho(f"{_lock_state(planned)}; run: netmgr plan lock", fg="yellow")
    else:
        typer.secho("The plan is sound.", fg="green")


def _lock_state(planned: Planned) -> str:
    return f"{planned.lock_path} is {'out of date' if planned.lock else 'not there yet'}"


def _limits(planned: Planned, usages: tuple[Usage, ...], *, every: bool) -> Table:
    title = f"Limits of {planned.limits.cloud}, as published {planned.limits.as_of}"
    if _has_no_cloud(planned):
        title = "Limits of Kubernetes (cloud: none has no others)"
    table = Table("what", "where", "used>", "limit>", "", title=title)
    for usage in usages if every else _fullest(_with_limits(planned, usages)):
        limit = "unknown" if usage.limit is None else f"{usage.limit:,}"
        cells = (usage.what, usage.subject, f"{usage.used:,}", limit, usage.status)
        table.row(*(Styled(cell, STATUS_COLOURS.get(usage.status)) for cell in cells))
    return table


def _has_no_cloud(planned: Planned) -> bool:
    from netmgr.plan.clouds.cloud import Cloud

    return planned.plan.cloud is Cloud.NONE


def _with_limits(planned: Planned, usages: tuple[Usage, ...]) -> tuple[Usage, ...]:
    """Without a cloud most limits do not exist; that a cloud's is unknown is worth knowing."""
    if not _has_no_cloud(planned):
        return usages
    return tuple(usage for usage in usages if usage.limit is not None)


def _fullest(usages: tuple[Usage, ...]) -> list[Usage]:
    """The fullest subject of each kind."""
    fullest: dict[str, Usage] = {}
    for usage in usages:
        if usage.what not in fullest or usage.used > fullest[usage.what].used:
            fullest[usage.what] = usage
    return [usage for usage in usages if fullest[usage.what] is usage]


def _growth(ahead: tuple[Forecast, ...], network: str) -> Table:
    headings = ("cluster", "nodes>", "places>", f"{network}s>", "doublings left>")
    table = Table(*headings, "the first limit you hit", "at", title="Growth")
    for forecast in ahead:
        table.row(
            forecast.cluster,
            f"{forecast.nodes:,}",
            f"{forecast.capacity:,}",
            str(forecast.networks),
            str(forecast.doublings),
            forecast.first_limit,
            f"{forecast.at_nodes:,} nodes",
        )
    return table


def _describe(checked: _Checked) -> dict[str, Any]:
    return {
        "version": 1,
        "behind": checked.planned.is_outdated,
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


def _check_documents(folder: Path, file: Path, output: Output) -> None:
    from netmgr.documents.loader import describe
    from netmgr.plan.check.fleet import contradictions, drift

    # Without the default plan there is nothing to compare with; a plan that was named must exist.
    given = up_to_date(file) if file.exists() or file != DEFAULT_PLAN else None
    documents = _read(folder)
    diagnostics = list(contradictions(documents))
    if given:
        diagnostics += drift(documents, given.plan, given.locked, str(given.lock_path))
    errors = [describe(diagnostic, folder) for diagnostic in diagnostics]
    if output is not Output.TABLE:
        document = {"version": 1, "errors": errors}
        show_document(document, output)
        raise typer.Exit(Exit.FAILURE if errors else Exit.SUCCESS)
    for line in errors:
        typer.echo(f"{typer.style('error', fg='red', bold=True)}: {line}")
    if errors:
        typer.secho(f"{len(errors)} error{'s' if len(errors) > 1 else ''}.", fg="red", bold=True)
        raise typer.Exit(Exit.FAILURE)
    against = (
        f"{file} and each other" if given else f"each other; there is no {file} to compare with"
    )
    typer.secho(f"The documents agree with {against}.", fg="green")


def _read(folder: Path) -> dict[str, NodeDocument]:
    from netmgr.documents.loader import load
    from netmgr.documents.node import NodeDocument

    documents: dict[str, NodeDocument] = {}
    refused: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            documents[str(path)] = load(path, NodeDocument)
        except ConfigError as error:
            refused.append(error.message)
    if refused:
        raise ConfigError("\n".join(refused))
    if not documents:
        raise ConfigError(
            f"{folder}: holds no document; run: netmgr plan render machines --to {folder}"
        )
    return documents


class Layer(StrEnum):
    """One of the things that keep spokes apart."""

    ROUTES = "routes"
    GROUPS = "groups"
    ROUTERS = "routers"
    PEERINGS = "peerings"


def reach(
    *,
    file: PlanFile = DEFAULT_PLAN,
    without: Annotated[
        list[Layer] | None,
        typer.Option(help="Assume that this layer of the isolation is missing; repeatable."),
    ] = None,
    output: Format = Output.TABLE,
) -> None:
    """Compute who reaches whom from planned routes and rules.

    Packets are followed hop by hop; what is wrong is shown with a packet and its path. Exit 1 if a
    spoke reaches another, or something does not reach what it should.
    """
    from netmgr.plan.check.reach import matrix, weakened
    from netmgr.plan.derive import network

    given = up_to_date(file)
    planned = network(given.plan, given.locked, given.limits)
    cells = matrix(weakened(planned, {layer.value for layer in without or ()}))
    wrong = [cell.wrong for cell in cells if cell.wrong]
    if output is Output.TABLE:
        packets = sum(len(cell.paths) for cell in cells)
        show(
            _matrix(cells),
            f"{packets} packets followed: one for each range that routes and rules distinguish.",
        )
        for message in wrong:
            typer.echo(f"wrong: {message}", err=True)
    else:
        document = {"version": 1, "cells": [_plain(cell) for cell in cells], "wrong": wrong}
        show_document(document, output)
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
    """One column for each owner, or, where those are too many to read, one for each relation."""
    owners = list(dict.fromkeys(cell.origin for cell in cells))
    name_of = _column if len(owners) <= MOST_COLUMNS else _relation
    grouped: dict[str, dict[str, list[Cell]]] = {owner: {} for owner in owners}
    for cell in cells:
        grouped[cell.origin].setdefault(name_of(cell), []).append(cell)
    columns = list(dict.fromkeys(name_of(cell) for cell in cells))
    table = Table("", *columns, title="from (down) to (across)")
    for owner, row in grouped.items():
        table.row(owner, *(_mark(row.get(column, [])) for column in columns))
    return table


def _column(cell: Cell) -> str:
    return cell.owner if cell.target != "Services" else f"{cell.owner} Services"


def _relation(cell: Cell) -> str:
    if cell.owner == cell.origin:
        return "own"
    if cell.owner in {"hub", "internet"}:
        return cell.owner
    return "spokes" if cell.origin == "hub" else "other spokes"


def _mark(cells: list[Cell]) -> Styled:
    results = {cell.outcome for cell in cells}
    result = results.pop() if len(results) == 1 else "in part" if results else ""
    if any(cell.wrong for cell in cells):
        return Styled(result, "red")
    return Styled(result, "green") if result == "reached" else Styled(result, is_dim=True)
