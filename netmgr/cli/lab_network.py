"""`netmgr lab verify` and `netmgr lab show`: who reaches whom across hub and spokes, and a picture of it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli.lab_common import Format, Name, Output, console_for, dump

if TYPE_CHECKING:
    from netmgr.lab.world import World


class Picture(StrEnum):
    """Form of a picture."""

    TABLE = "table"
    JSON = "json"
    SVG = "svg"


def show(
    *,
    name: Name = None,
    output: Annotated[
        Picture, typer.Option("--output", "-o", help="For people, for programs, or as a picture.")
    ] = Picture.TABLE,
) -> None:
    """Show the lab as it is now: namespaces, links, addresses, pods, and what was dropped between spokes."""
    from netmgr.lab import live, picture
    from netmgr.lab.world import World

    found = live.look(World.open(name))
    match output:
        case Picture.SVG:
            typer.echo(picture.draw(found), nl=False)
        case Picture.JSON:
            dump(live.document(found))
        case Picture.TABLE:
            from netmgr.lab import live_report

            console_for(Output.TABLE).print(live_report.tree(found))


def verify(*, name: Name = None, output: Format = Output.TABLE) -> None:
    """Probe every cell of the connectivity matrix; exit 1 when anything is not as the design says."""
    from netmgr.lab.world import World

    if not verified(World.open(name), output):
        raise typer.Exit(1)


def verified(world: World, output: Output) -> bool:
    """Probe and print; returns whether all is as it should be.

    Raises:
        LabError: the lab has no hub.
    """
    from netmgr.errors import LabError
    from netmgr.lab import verify, verify_report

    if not world.topology.spokes:
        raise LabError(f"lab {world.name} has no hub and spokes to verify; make one with: netmgr lab up --spokes 3")
    console = console_for(output)
    with console.status("Probing …"):
        found = verify.verify(world)
    if output is Output.JSON:
        dump(verify.document(found))
    else:
        console.print(verify_report.table(found))
        if any(each.sent or each.counted for each in found.drops):
            console.print()
            console.print(verify_report.drops(found))
        style = "green" if found.agrees else "bold red"
        console.print(f"\n[{style}]{verify_report.verdict(found)}[/]", highlight=False)
    return found.agrees
