"""`netmgr plan reach`: who reaches whom, from the planned routes and rules."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli.plan_common import DEFAULT_FILE, File, Format, Output, print_document
from netmgr.cli.plan_render import up_to_date

if TYPE_CHECKING:
    from rich.table import Table

    from netmgr.plan.reach import Cell


MOST_COLUMNS = 5
"""Owners that still fit side by side on a terminal."""


class Layer(StrEnum):
    """One of the things that keep spokes apart."""

    ROUTES = "routes"
    GROUPS = "groups"
    ROUTERS = "routers"
    PEERINGS = "peerings"


def reach(
    *,
    file: File = DEFAULT_FILE,
    without: Annotated[
        list[Layer] | None,
        typer.Option(help="Suppose that this layer of the isolation were missing; may be given several times."),
    ] = None,
    output: Format = Output.TABLE,
) -> None:
    """Compute the isolation matrix: packets followed hop by hop through the planned routes and rules.

    Exit 0: everybody reaches what they should and nothing else. Exit 1: a spoke reaches another, or
    somebody does not reach what they should; each is named with the packet and its way.
    """
    from netmgr.plan.derive import network
    from netmgr.plan.reach import matrix, weakened

    given = up_to_date(file)
    cells = matrix(weakened(network(given.plan, given.locked, given.limits), {layer.value for layer in without or ()}))
    wrong = [cell.wrong for cell in cells if cell.wrong]
    if output is not Output.TABLE:
        print_document({"cells": [_plain(cell) for cell in cells], "wrong": wrong}, output)
    else:
        from rich.console import Console

        Console(highlight=False).print(_table(cells))
        typer.echo(
            f"{sum(len(cell.paths) for cell in cells)} packets followed; every border of a route or rule between."
        )
        for sentence in wrong:
            typer.echo(f"wrong: {sentence}", err=True)
    raise typer.Exit(1 if wrong else 0)


def _plain(cell: Cell) -> dict[str, object]:
    example = cell.paths[0] if cell.paths else None
    return {
        "from": cell.origin,
        "to": cell.owner,
        "what": cell.target.value,
        "verdict": cell.verdict,
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


def _table(cells: list[Cell]) -> Table:
    """One column for each owner, or, where those are too many to read, one for each relation."""
    from rich.markup import escape
    from rich.table import Table

    owners = list(dict.fromkeys(cell.origin for cell in cells))
    grouped: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        column = _column(cell) if len(owners) <= MOST_COLUMNS else _relation(cell)
        grouped.setdefault((cell.origin, column), []).append(cell)
    columns = list(dict.fromkeys(column for _, column in grouped))
    table = Table(title="from (down) to (across)", title_justify="left", header_style="dim", box=None)
    for head in ("", *columns):
        table.add_column(escape(head))
    for origin in owners:
        table.add_row(escape(origin), *(_mark(grouped.get((origin, column), [])) for column in columns))
    return table


def _column(cell: Cell) -> str:
    return cell.owner if cell.target != "Services" else f"{cell.owner} Services"


def _relation(cell: Cell) -> str:
    if cell.owner == cell.origin:
        return "own"
    return cell.owner if cell.owner in {"hub", "internet"} else "other spokes" if cell.origin != "hub" else "spokes"


def _mark(cells: list[Cell]) -> str:
    verdicts = {cell.verdict for cell in cells}
    verdict = verdicts.pop() if len(verdicts) == 1 else "in part" if verdicts else ""
    colour = "red" if any(cell.wrong for cell in cells) else "green" if verdict == "reached" else "dim"
    return f"[{colour}]{verdict}[/]"
