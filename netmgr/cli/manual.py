"""Man pages, one for each command, from what the commands declare: `python -m netmgr.cli.manual`.

They are written when netmgr is released, or by whoever wants them (`make man`), and not kept.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperGroup

import netmgr
from netmgr.cli.completion import PROGRAM
from netmgr.cli.main import COMMANDS, command_line
from netmgr.errors import SIGNAL_EXIT, Exit

_ROFF = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"}
"""What is something else in roff, or would be set as a typographic character."""

_CODE = re.compile(r"`([^`]+)`")

# typer's classes of these have no public names.
Command: TypeAlias = Any
Context: TypeAlias = Any


def whole() -> TyperGroup:
    """The command line with all of its commands."""
    root = command_line([])
    for name in COMMANDS:
        root.commands[name] = command_line([name]).commands[name]
    return root


def pages(command: Command, above: Context | None = None) -> Iterator[tuple[str, str]]:
    """Name and text of the page of a command, then of the commands below it."""
    name = command.name if above else PROGRAM
    with typer.Context(command, info_name=name, parent=above, **command.context_settings) as here:
        yield _page_of(here), _page(here)
        for inner in _commands(command):
            yield from pages(inner, here)


def _page(here: Context) -> str:
    command, name = here.command, _page_of(here)
    summary, *paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    # The name's line is what `apropos` shows: no more than the summary.
    line, _, rest = summary.partition(". ")
    sections = {
        "NAME": [f"{_roff(name)} \\- {_roff(line.removesuffix('.'))}"],
        "SYNOPSIS": [f"\\fB{_roff(here.command_path)}\\fR {_roff(_usage(here))}"],
        "DESCRIPTION": [*_paragraphs(f"{line.removesuffix('.')}. {rest}", *paragraphs)],
        "ARGUMENTS": [*_entries(_records(here, "argument"))],
        "OPTIONS": [*_entries(_records(here, "option"))],
        "COMMANDS": [*_entries(_subcommands(here))],
        "ENVIRONMENT": [*_entries(_variables(command))],
        "EXIT STATUS": [*_entries(_codes(here))],
        "SEE ALSO": [", ".join(f"\\fB{_roff(page)}\\fR(1)" for page in _related(here))],
    }
    head = f'.TH "{_roff(name.upper())}" "1" "" "{PROGRAM} {netmgr.__version__}" "{PROGRAM}"'
    lines = [head]
    for title, content in sections.items():
        if any(content):
            lines += [f".SH {title}", *content]
    return "\n".join(lines) + "\n"


def _page_of(here: Context) -> str:
    path: str = here.command_path
    return path.replace(" ", "-")


def _usage(here: Context) -> str:
    return " ".join(here.command.collect_usage_pieces(here))


def _commands(command: Command) -> Iterable[Command]:
    return command.commands.values() if isinstance(command, TyperGroup) else ()


def _records(here: Context, kind: str) -> Iterator[tuple[str, str]]:
    """Names and help of arguments or options, as `--help` has them."""
    for param in here.command.get_params(here):
        if param.param_type_name == kind and (record := param.get_help_record(here)):
            yield record


def _subcommands(here: Context) -> Iterator[tuple[str, str]]:
    for command in _commands(here.command):
        yield f"{_page_of(here)}-{command.name}(1)", command.get_short_help_str()


def _variables(command: Command) -> Iterator[tuple[str, str]]:
    for param in command.params:
        if param.envvar:
            yield param.envvar, f"Used where {max(param.opts, key=len)} is not given."


def _codes(here: Context) -> Iterator[tuple[str, str]]:
    in_plan = here.command_path.startswith(f"{PROGRAM} plan")
    for code in Exit:
        if meaning := code.in_plan if in_plan else code.meaning:
            yield str(int(code)), f"{meaning[0].upper()}{meaning[1:]}."
    yield f"{SIGNAL_EXIT} + n", "Signal n ended the command."


def _related(here: Context) -> Iterator[str]:
    """The pages above and below."""
    if here.parent:
        yield _page_of(here.parent)
    for command in _commands(here.command):
        yield f"{_page_of(here)}-{command.name}"


def _entries(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    for term, text in entries:
        yield from (".TP", f"\\fB{_roff(term)}\\fR", _text(text))


def _paragraphs(first: str, *others: str) -> Iterator[str]:
    yield _text(" ".join(first.split()))
    for paragraph in others:
        yield from (".PP", _text(" ".join(paragraph.split())))


def _text(text: str) -> str:
    """Text, with what is in backticks in bold."""
    parts = _CODE.split(text)
    return "".join(
        f"\\fB{_roff(part)}\\fR" if number % 2 else _roff(part) for number, part in enumerate(parts)
    )


def _roff(text: str) -> str:
    """Text that is nothing else to roff, in ASCII, whatever encoding a reader assumes."""
    escaped = "".join(
        _ROFF.get(each, each if each.isascii() else f"\\[u{ord(each):04X}]") for each in text
    )
    # A line that begins with a dot is a request.
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


def write(
    folder: Annotated[Path, typer.Argument(help="Where to write them; made if it is missing.")],
) -> None:
    """Write the man page of every command."""
    from netmgr.durable import make_folder, write_many

    make_folder(folder)
    written = ((f"{name}.1", text.encode("ascii")) for name, text in pages(whole()))
    typer.echo(f"wrote {write_many(folder, written)} pages to {folder}")


if __name__ == "__main__":
    typer.run(write)
