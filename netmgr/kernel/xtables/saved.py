"""Reads what `iptables-save -c` prints (iptables-save(8)), of either variant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from netmgr.errors import KernelError

_RULE = re.compile(r"\[(\d+):(\d+)\] -A (\S+)(?: (.*))?")
_CHAIN = re.compile(r":(\S+) (\S+) \[\d+:\d+\]")
_COMMENT = re.compile(r'(?:^| )-m comment --comment (?:"((?:[^"\\]|\\.)*)"|(\S+))')
_TARGET = re.compile(r"(?:^| )-[jg] (\S+)")
_ESCAPED = re.compile(r"\\(.)")
_INCOMPATIBLE = re.compile(r"# Table `(\S+)' .*\bincompatible\b")


@dataclass(frozen=True, slots=True)
class SavedRule:
    """One rule: its words without the chain that it is in, and what it has counted."""

    text: str
    packets: int = 0
    bytes: int = 0

    @property
    def comment(self) -> str:
        match = _COMMENT.search(self.text)
        if match is None:
            return ""
        return _ESCAPED.sub(r"\1", match[1]) if match[1] is not None else match[2]

    @property
    def target(self) -> str:
        """A verdict, an extension, or the chain that it leads to; empty: the next rule."""
        # A comment may contain anything, an option too.
        match = _TARGET.search(_COMMENT.sub("", self.text))
        return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table of one family at one moment: policies and rules as printed, by chain."""

    # "-" for a chain that is not built in.
    policies: dict[str, str] = field(default_factory=dict)
    # Another program may have rules by the ten thousand, so only those asked for are parsed.
    lines: dict[str, list[str]] = field(default_factory=dict)

    def rules(self, chain: str) -> list[SavedRule]:
        """The chain's rules in order; none if there is no such chain."""
        return list(map(_rule, self.lines.get(chain, ())))

    def having(self, chain: str, text: str) -> list[SavedRule]:
        """The chain's rules with this text in them."""
        return [_rule(line) for line in self.lines.get(chain, ()) if text in line]


NO_TABLE = SavedTable()


def parse(output: str) -> tuple[Mapping[str, SavedTable], frozenset[str]]:
    """The tables by name, and the names of those that iptables cannot show as they are."""
    tables: dict[str, SavedTable] = {}
    unlistable: set[str] = set()
    table: SavedTable | None = None
    for line in filter(None, output.split("\n")):
        match line[0]:
            case "*":
                table = tables.setdefault(line[1:], SavedTable())
            case "#":
                unlistable.update(_INCOMPATIBLE.findall(line))
            case _:
                table = _added(table, line)
    return tables, frozenset(unlistable)


def _added(table: SavedTable | None, line: str) -> SavedTable | None:
    if line == "COMMIT":
        return None
    # Nothing is skipped, or totals would shrink unnoticed.
    if table is None or not _add(table, line):
        raise _unreadable(line)
    return table


def _add(table: SavedTable, line: str) -> bool:
    """Whether the line is a chain of the table or a rule of such a chain."""
    if chain := _CHAIN.fullmatch(line):
        table.policies[chain[1]] = chain[2]
        table.lines.setdefault(chain[1], [])
        return True
    _, is_rule, rest = line.partition(" -A ")
    lines = table.lines.get(rest.partition(" ")[0])
    if not is_rule or lines is None:
        return False
    lines.append(line)
    return True


def _rule(line: str) -> SavedRule:
    match = _RULE.fullmatch(line)
    if match is None:
        raise _unreadable(line)
    return SavedRule(match[4] or "", int(match[1]), int(match[2]))


def _unreadable(line: str) -> KernelError:
    return KernelError("read what iptables-save prints", details=f"line {line[:200]!r}")
