"""`netmgr plan map`: the address space as a picture."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli.plan_common import DEFAULT_FILE, File, Planned, answer
from netmgr.cli.plan_render import To, up_to_date, write

if TYPE_CHECKING:
    from netmgr.render.picture import Picture


class Form(StrEnum):
    """How the picture is made."""

    TERMINAL = "terminal"
    SVG = "svg"
    HTML = "html"


def map_(
    *,
    file: File = DEFAULT_FILE,
    form: Annotated[Form | None, typer.Option("--as", help="[default: by the suffix of --to, else terminal]")] = None,
    before: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="An earlier plan, its lock beside it: show before and after.")
    ] = None,
    grow: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Show before and after growing this cluster.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="With --grow: how many nodes it would have.")] = None,
    to: To = None,
) -> None:
    """Draw the address space along a Hilbert curve: what is in use, held, reserved and free.

    Every aligned block is one square or rectangle. The HTML page is one file that fetches nothing;
    pointing at it names the address, its owner and its node.
    """
    from netmgr.errors import ConfigError
    from netmgr.render.address_space import picture

    if (grow is None) != (nodes is None) or (grow and before):
        raise ConfigError("--grow and --nodes go together, and not with --before")
    given = up_to_date(file)
    if grow is not None and nodes is not None:
        drawn = _grown(given, grow, nodes)
    else:
        former = up_to_date(before) if before else None
        drawn = picture(given.plan, given.locked, before=(former.plan, former.locked) if former else None)
    chosen = form or _by_suffix(to)
    if chosen is Form.TERMINAL:
        _print(drawn, to)
    else:
        write(to, _document(drawn, chosen))


def _grown(given: Planned, cluster: str, nodes: int) -> Picture:
    from netmgr.plan.grow import grown_plan
    from netmgr.render.address_space import picture

    larger = replace(given, plan=grown_plan(given.plan, cluster, nodes))
    return picture(larger.plan, answer(larger), before=(given.plan, given.locked))


def _by_suffix(to: Path | None) -> Form:
    suffixes = {".svg": Form.SVG, ".html": Form.HTML, ".htm": Form.HTML}
    return suffixes.get(to.suffix.lower(), Form.TERMINAL) if to else Form.TERMINAL


def _document(drawn: Picture, form: Form) -> str:
    from netmgr.render import page, svg

    return svg.draw(drawn) if form is Form.SVG else page.draw(drawn)


def _print(drawn: Picture, to: Path | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from netmgr.render.text_map import draw

    lines = draw(drawn)
    if to is not None:
        write(to, "".join("".join(span.text for span in line) + "\n" for line in lines))
        return
    console = Console(highlight=False)
    for line in lines:
        console.print(Text.assemble(*((span.text, span.colour) for span in line)), soft_wrap=True)
