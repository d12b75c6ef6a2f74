"""Code blocks of the pages, and what is expected of those that are run.

A `console` block is a session: a line that begins with `$ ` is a command, and what follows is its
whole output, in which … stands for anything within a line, and a line of it alone for any lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_FENCE = re.compile(r"(?ms)^(?P<indent> *)```(?P<language>[a-z]*)\n(?P<text>.*?)^(?P=indent)```$")


@dataclass(frozen=True)
class Block:
    """One block; `line` is where it begins."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a session, with what it has to print."""

    line: str
    output: str

    def is_printed_by(self, text: str) -> bool:
        pattern = ""
        for line in self.output.splitlines():
            if line.strip() == "…":
                pattern += r"(?:.*\n)*?"
            else:
                pattern += ".*".join(map(re.escape, line.split("…"))) + r"[^\S\n]*\n"
        return re.fullmatch(pattern, text) is not None


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for found in _FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            indent = len(found["indent"])
            inner = "\n".join(each[indent:] for each in found["text"].splitlines())
            yield Block(page, line, found["language"], inner + "\n")


def commands(block: Block) -> list[Command]:
    parts = re.split(r"(?m)^\$ ", block.text)
    assert not parts[0], f"{block.name} begins with output"
    found = []
    for part in parts[1:]:
        line, _, output = part.partition("\n")
        found.append(Command(line, output))
    return found
