"""How commands answer: tables for people, JSON or YAML for programs, and amounts in words.

A table is plain text as wide as what is in it: nothing is cut to the width of a terminal, so that
an address in a pipe is a whole address. Colours are left out wherever output is no terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import zip_longest
from typing import Any, NamedTuple

import typer

from netmgr.printable import plain

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
STEP = 1000.0
LONGEST_NAME = 64
"""Characters of a pod's name in a table: container ids have so many, names may have 253."""


COLOURS = {
    **dict.fromkeys(("ok", "passed"), "green"),
    **dict.fromkeys(("unmeasured", "warning"), "yellow"),
    **dict.fromkeys(("error", "failed"), "red"),
}
"""Of the words that say how something went; others have none."""


class Styled(NamedTuple):
    text: str
    # None and not False, for which typer writes a sequence that switches the style off.
    colour: str | None = None
    is_dim: bool | None = None
    is_bold: bool | None = None


Cell = str | Styled


def outcome(word: str) -> Styled:
    return Styled(word, COLOURS.get(word))


class Table:
    """Rows under headings; a heading that ends with `>` aligns its column to the right."""

    def __init__(self, *headings: str, title: str = "", gap: int = 2) -> None:
        self._gap = " " * gap
        self._title = title
        self._headings = [heading.rstrip(">") for heading in headings]
        self._is_right = [heading.endswith(">") for heading in headings]
        self._rows: list[list[Styled]] = []

    def row(self, *cells: Cell) -> None:
        """Add a row; a cell may have several lines."""
        self._rows.append([Styled(cell) if isinstance(cell, str) else cell for cell in cells])

    def lines(self) -> Iterator[str]:
        head = [Styled(heading, is_dim=True) for heading in self._headings]
        # Widths are of plain text: colours are added last, because escape sequences take no column.
        lines = [line for row in (head, *self._rows) for line in _split(row)]
        widths = [max(len(cell.text) for cell in column) for column in zip(*lines, strict=True)]
        if self._title:
            yield typer.style(plain(self._title), bold=True)
        for line in lines if any(self._headings) else lines[1:]:
            yield self._line(line, widths)

    def _line(self, cells: list[Styled], widths: list[int]) -> str:
        texts: list[str] = []
        for cell, width, is_right in zip(cells, widths, self._is_right, strict=True):
            padding = " " * (width - len(cell.text))
            text = cell.text
            if text and any(cell[1:]):
                text = typer.style(text, fg=cell.colour, dim=cell.is_dim, bold=cell.is_bold)
            texts.append(padding + text if is_right else text + padding)
        return self._gap.join(texts).rstrip()

    def markdown(self, most: int) -> Iterator[str]:
        """The same for a comment of a pull request, with so many rows; nothing without any."""
        rows = [self._headings, ["---"] * len(self._headings)]
        rows += ([cell.text for cell in row] for row in self._rows[:most])
        for row in rows if self._rows else ():
            # A bar would end the cell.
            yield f"| {' | '.join(plain(text).replace('|', chr(92) + '|') for text in row)} |"
        if len(self._rows) > most:
            yield f"\nand {len(self._rows) - most:,} more."

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _split(row: list[Styled]) -> Iterator[list[Styled]]:
    """The row's lines: as many as its longest cell has."""
    split = [cell.text.split("\n") for cell in row]
    for texts in zip_longest(*split, fillvalue=""):
        # A name must not carry escape sequences to the terminal.
        yield [cell._replace(text=plain(text)) for cell, text in zip(row, texts, strict=True)]


def short(name: str) -> str:
    """A name without its middle where it is longer than any usual one."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 21]}…{name[-20:]}"


def show(*parts: Table | str) -> None:
    for part in parts:
        typer.echo(part)


def respond(output: StrEnum, document: object, parts: Iterable[Table | str]) -> None:
    """Answer a command as its `--output` says; `parts` are made for people alone."""
    if output == "table":
        show(*parts)
    else:
        show_document(document, output)


def show_document(document: Any, output: StrEnum) -> None:  # noqa: ANN401  whatever JSON can say
    from pydantic_core import to_jsonable_python

    # Documents have dataclasses in them, such as findings, which json and yaml do not know.
    plain = to_jsonable_python(document)
    if output == "yaml":
        from netmgr.plan.files import to_yaml

        typer.echo(to_yaml(plain), nl=False)
    else:
        import json

        typer.echo(json.dumps(plain, indent=2))


def size(count: float) -> str:
    """A number of bytes in decimal units, as network engineers count them."""
    for unit in UNITS[:-1]:
        if count < STEP:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= STEP
    return f"{count:.1f} {UNITS[-1]}"
