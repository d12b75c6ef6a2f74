"""One word per idea: the table in ARCHITECTURE.md is the rule, and this guard reads it.

A row's third column has the words that its term replaces. They appear in no identifier, string,
comment, file name or page, within what the last column says: some folders, all but some, or
everywhere if it is empty.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

pytestmark = pytest.mark.programs

PAGE = "ARCHITECTURE.md"
TITLE = "## One word per idea\n"
PAGES = re.compile(r"[A-Z]+\.md|docs/.*\.md")
IDENTIFIER_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
OF_PYTHON = {"slots", "__slots__"}
QUOTED = re.compile(r"`([^`]+)`")
TEXT_TOKENS = frozenset(
    {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
)


@dataclass(frozen=True)
class Row:
    term: str
    words: tuple[str, ...]
    only_in: tuple[str, ...]
    not_in: tuple[str, ...]

    def covers(self, name: str) -> bool:
        return name.startswith(self.only_in or ("",)) and not name.startswith(self.not_in)


@dataclass(frozen=True)
class Line:
    """What one token of a module, or one line of a page, says: lower case,
    words parted by spaces."""

    name: str
    number: int
    words: str


def rows_of(page: str) -> list[Row]:
    section = page.partition(TITLE)[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    return [_row(*line) for line in cells[2:]]


def _row(term: str, _meaning: str, words: str, where: str) -> Row:
    folders = tuple(QUOTED.findall(where))
    but = where.startswith("all but")
    return Row(term, tuple(QUOTED.findall(words)), () if but else folders, folders if but else ())


def _without_table(page: str) -> str:
    """The page with empty lines for its table, so that line numbers stay."""
    before, title, rest = page.partition(TITLE)
    table, following, after = rest.partition("\n## ")
    return before + title + "\n" * table.count("\n") + following + after


def _spaced(text: str) -> str:
    return f" {' '.join(re.findall(r'[a-z]+', text.lower()))} "


def _lines_of_page(name: str, text: str) -> Iterator[Line]:
    for number, line in enumerate(_without_table(text).splitlines(), 1):
        yield Line(name, number, _spaced(line))


def _lines_of_module(name: str, text: str) -> Iterator[Line]:
    yield Line(name, 0, _spaced(name))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.string in OF_PYTHON:
            continue
        if token.type == tokenize.NAME:
            parts = IDENTIFIER_PART.findall(token.string)
            yield Line(name, token.start[0], _spaced(" ".join(parts)))
        elif token.type in TEXT_TOKENS:
            yield Line(name, token.start[0], _spaced(token.string))


def found(rows: list[Row], lines: list[Line]) -> list[str]:
    return [
        f"{line.name}:{line.number}: {word!r}, use {row.term!r}"
        for row in rows
        for word in row.words
        for line in lines
        if f" {word} " in line.words and row.covers(line.name)
    ]


@pytest.fixture(scope="module")
def lines(texts: dict[str, str], product: dict[str, ast.Module]) -> list[Line]:
    of_modules = [line for name in product for line in _lines_of_module(name, texts[name])]
    pages = [name for name in texts if PAGES.fullmatch(name) and name != "CHANGELOG.md"]
    return of_modules + [line for name in pages for line in _lines_of_page(name, texts[name])]


def test_every_idea_has_one_word(texts: dict[str, str], lines: list[Line]) -> None:
    rows = rows_of(texts[PAGE])
    assert len(rows) > 1
    assert found(rows, lines) == []


TABLE = f"""{TITLE}
| term | meaning | not | where |
|---|---|---|---|
| drift | a difference | `departure`, `put right` | |
| hour bucket | an hour's sum | `slot` | `netmgr/ledger` |
| verdict | nftables' word | `verdict` | all but `netmgr/rules` |

## Next
"""


@pytest.mark.parametrize(
    ("name", "text", "refused"),
    [
        ("netmgr/plan/diff.py", "departure = 1\n", True),
        ("netmgr/plan/diff.py", "class LastDeparture: ...\n", True),
        ("netmgr/plan/diff.py", "a = 1  # a departure\n", True),
        ("netmgr/plan/diff.py", 'a = f"put  right by {b}"\n', True),
        ("netmgr/plan/diff.py", "departures_board = right\n", False),
        ("netmgr/ledger/hours.py", "slot = 1\n", True),
        ("netmgr/plan/hours.py", "slot = 1\n", False),
        ("netmgr/rules/nft.py", "verdict = 1\n", False),
        ("netmgr/agent/nft.py", "verdict = 1\n", True),
    ],
)
def test_the_table_is_the_rule(name: str, text: str, refused: bool) -> None:  # noqa: FBT001 -- a row of the table above
    assert bool(found(rows_of(TABLE), list(_lines_of_module(name, text)))) == refused


def test_the_table_itself_may_name_the_words() -> None:
    page = f"# Page\ndeparture\n{TABLE}departure\n"
    wrong = found(rows_of(page), list(_lines_of_page("docs/page.md", page)))
    assert [line.split(":")[1] for line in wrong] == ["2", str(len(page.splitlines()))]
