"""Finds in the source every place where the agent takes a durable step.

A step goes through one of the places that `steps.py` wraps: `PRIMITIVES`. Functions of netmgr's
kernel room, of `durable` and of `sqlite_file` that call one of them are helpers, and so are those
that call a helper. A site is a call of a primitive or helper in the rooms that change a node.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tests.failpoints.steps import ROOT, Step

ROOMS = ("agent", "ipam", "ledger", "rules", "dataplane", "limits")
MODULES = ("durable.py", "sqlite_file.py")
HELPERS = ("kernel", *MODULES)

METHODS = {
    # netlink and nf_tables
    "transact",
    "attempt",
    "commit",
    # libnftables
    "run",
    # iptables, either variant
    "run_script",
    # SQLite
    "executescript",
    "backup",
    # files, by pathlib
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "touch",
    "symlink_to",
    "hardlink_to",
    "write_text",
    "write_bytes",
    # sockets
    "bind",
}
FUNCTIONS = {"os.write", "os.chown", "os.fchmod", "os.link", "shutil.rmtree", "tempfile.mkstemp"}
FUNCTIONS |= {"tempfile.mkdtemp"}
STATEMENTS = ("COMMIT", "PRAGMA wal_checkpoint", "PRAGMA journal_mode")
READING = ("list",)
NOT_OURS = ("health", "self")
"""Receivers of methods that have the name of a primitive, as `health.attempt`."""


class Site(NamedTuple):
    """A call: its file below the repository, the function it is in, what it calls, its lines."""

    path: str
    function: str
    called: str
    first: int
    last: int

    @property
    def name(self) -> str:
        """The same wherever its lines are."""
        return f"{self.path.removesuffix('.py')}:{self.function} {self.called}"


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: str
    tree: ast.Module

    @classmethod
    def of(cls, path: Path) -> Module:
        return cls(str(path.relative_to(ROOT)), ast.parse(path.read_text()))

    @property
    def dotted(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".")

    @cached_property
    def imported(self) -> dict[str, str]:
        """What names of other modules mean here: `durable` is `netmgr.durable`."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                for name in node.names:
                    found[name.asname or name.name] = f"{node.module}.{name.name}"
        return found

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef):
                yield node.name, node

    def called(self, call: ast.Call) -> str:
        """The full name of what a call calls, as far as the source says."""
        text = ast.unparse(call.func)
        first, _, rest = text.partition(".")
        if first in self.imported:
            return f"{self.imported[first]}{'.' if rest else ''}{rest}"
        return text if "." in text else f"{self.dotted}.{text}"

    def takes_a_step(self, call: ast.Call, helpers: set[str]) -> bool:
        name = self.called(call)
        if name in helpers or name in FUNCTIONS:
            return True
        if not isinstance(call.func, ast.Attribute) or name.startswith("netmgr."):
            return False
        receiver, method = ast.unparse(call.func.value), call.func.attr
        if receiver.rpartition(".")[2].removeprefix("_") in NOT_OURS:
            return False
        first = ast.unparse(call.args[0]) if call.args else ""
        if method == "execute":
            # With parameters it is a part of a transaction.
            is_any = len(call.args) == 1 and first.isidentifier() and first.islower()
            return is_any or first.strip("'\"f").startswith(STATEMENTS)
        if method == "run" and first.strip("'\"f").startswith(READING):
            return False
        # Not str.replace, which takes two.
        return method in METHODS or (method == "replace" and len(call.args) == 1)


def of_module(module: Module, known: set[str]) -> Iterator[Site]:
    """Every call of a module that takes a durable step, itself or by a helper that is known."""
    for name, function in module.functions():
        for call in _calls(function):
            if module.takes_a_step(call, known):
                called = ast.unparse(call.func)
                yield Site(module.path, name, called, call.lineno, call.end_lineno or 0)


def helpers(modules: Iterable[Module]) -> set[str]:
    """Full names of the functions that take a durable step, directly or by another of them."""
    listed = list(modules)
    found: set[str] = set()
    while True:
        new = {
            f"{module.dotted}.{name}"
            for module in listed
            for name, function in module.functions()
            if any(module.takes_a_step(call, found) for call in _calls(function))
        }
        if new <= found:
            return found
        found |= new


def sites() -> list[Site]:
    """Every call in the rooms that takes a durable step."""
    known = helpers(map(Module.of, _files(HELPERS)))
    found: list[Site] = []
    for path in _files((*ROOMS, *MODULES)):
        found += of_module(Module.of(path), known)
    return found


def reached(sites: Iterable[Site], steps: Iterable[Step]) -> set[str]:
    """Names of those sites by which one of the steps was taken."""
    lines = {(frame.path, frame.line) for step in steps for frame in step.frames}
    return {
        site.name
        for site in sites
        if any((site.path, line) in lines for line in range(site.first, site.last + 1))
    }


def _files(names: Iterable[str]) -> list[Path]:
    found: list[Path] = []
    for name in names:
        path = ROOT / "netmgr" / name
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def _calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """The calls in a function, without those in functions within it."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, ast.FunctionDef):
            pending += ast.iter_child_nodes(node)
