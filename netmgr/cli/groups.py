"""Groups of commands, of which only the requested one is imported."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


class LazyGroup(TyperGroup):
    """A group that imports a command once it is named; help and completion list the summaries."""

    entries: ClassVar[Mapping[str, tuple[str, str]]]
    """By a command's name: its place, a module beside this one and a name in it; its summary."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  typer's own
        super().__init__(**settings)
        # What help and completion need of a command that is not imported.
        for name, (_, summary) in self.entries.items():
            self.add_command(TyperCommand(name, help=summary, short_help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  typer has no public names for these
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.load(name) if name and command else command, rest

    def load(self, name: str) -> Any:  # noqa: ANN401  as above
        place, summary = self.entries[name]
        module, _, attribute = place.partition(":")
        # All of them would load pydantic, kubernetes and rich for every command.
        command = getattr(import_module(f"netmgr.cli.{module}"), attribute)
        above = typer.Typer(rich_markup_mode=None)
        above.callback()(lambda: None)  # makes it a group, even of one command
        if isinstance(command, typer.Typer):
            above.add_typer(command, name=name, help=summary)
        else:
            above.command(name)(command)
        group = typer.main.get_group(above)
        _summarize(group)
        self.commands[name] = group.commands[name]
        return self.commands[name]


def _summarize(group: TyperGroup) -> None:
    for command in group.commands.values():
        summary = inspect.cleandoc(command.help or "").partition("\n\n")[0]
        # typer would cut it to the width that is left.
        command.short_help = re.split(r"(?<=\.)\s", summary, maxsplit=1)[0]
        if isinstance(command, TyperGroup):
            _summarize(command)
