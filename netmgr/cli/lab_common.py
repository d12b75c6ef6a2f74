"""What the commands of `netmgr lab` share: their options, where they print, and how they are interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Output(StrEnum):
    """For whom to print."""

    TABLE = "table"
    JSON = "json"


Name = Annotated[str | None, typer.Option("--name", "-n", help="Which lab; needed only when there are several.")]
Format = Annotated[Output, typer.Option("--output", "-o", help="For people or for programs.")]


def console_for(output: Output) -> Console:
    """Where people read; a program's JSON has standard output for itself."""
    from rich.console import Console

    return Console(stderr=output is Output.JSON)


def dump(document: dict[str, Any]) -> None:
    """Print a document for programs."""
    import json

    typer.echo(json.dumps(document, indent=2))


@contextmanager
def undone_when_interrupted() -> Iterator[None]:
    """Turn the first signal to end into an exception, so that whoever builds can remove; ignore later ones."""

    def leave(number: int, _: FrameType | None) -> None:
        for each in ENDINGS:
            signal.signal(each, signal.SIG_IGN)
        typer.echo("\nInterrupted: removing the lab …", err=True)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
