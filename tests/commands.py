"""The command line with all of its commands, for tests that look at each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup

from netmgr.cli.groups import LazyGroup
from netmgr.cli.main import command_line


def whole() -> TyperGroup:
    root = command_line()
    for _ in walk(root):
        pass
    return root


def walk(command: Any, path: str = "netmgr") -> Iterator[tuple[str, Any]]:
    """A command and those below it, imported, each behind the words that name it."""
    yield path, command
    if isinstance(command, TyperGroup):
        for name in tuple(command.commands):
            lazy = isinstance(command, LazyGroup)
            inner = command.load(name) if lazy else command.commands[name]
            yield from walk(inner, f"{path} {name}")
