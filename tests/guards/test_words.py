"""One word per idea: one term has one meaning, the one this field uses.

`ROWS` has the words that a term replaces, because elsewhere they mean something else. They appear
in no identifier, string, comment, file name or page: of some folders, of all but some, or anywhere.
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

PAGES = re.compile(r"[A-Z]+\.md|docs/.*\.md")
IDENTIFIER_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
OF_PYTHON = {"slots", "__slots__"}
TEXT_TOKENS = frozenset(
    {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
)


@dataclass(frozen=True)
class Row:
    term: str
    words: tuple[str, ...]
    only_in: tuple[str, ...] = ("",)
    not_in: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        return name.startswith(self.only_in) and not name.startswith(self.not_in)


@dataclass(frozen=True)
class Line:
    """What one token of a module, or one line of a page, says: lower case,
    words parted by spaces."""

    name: str
    number: int
    words: str


ROWS = [
    # the time before a released address or node index is given out again
    Row("cooldown", ("rested", "resting", "rests"), not_in=("netmgr/ipam/store.py",)),
    # the record of a DEL that overtook its ADD
    Row("tombstone", ("bury", "buried", "burial")),
    # a Node's share of its node pool's ranges, and its number there
    Row(
        "allocation, node index",
        ("place", "places", "slot", "slots", "book"),
        only_in=("netmgr/kube",),
    ),
    # what one counter gained in one hour
    Row("hour bucket", ("slot", "slots"), only_in=("netmgr/ledger",)),
    # a CNI result that libcni keeps on the node
    Row("cached result", ("claim", "claims"), only_in=("netmgr/observer",)),
    # what the kernel says about a cached result
    Row("kernel check", ("evidence",)),
    # what a comparison of wanted and found decides to do
    Row("reconcile plan", ("judge", "judged", "judges", "judgement")),
    # what nftables does with a packet: accept, drop, jump
    Row(
        "verdict",
        ("verdict", "verdicts"),
        not_in=("netmgr/rules", "netmgr/kernel", "docs"),
    ),
    # what runs recurring work, and one piece of it
    Row("scheduler, task", ("rhythm", "pulse", "pace", "paced", "paces")),
    # checking a document, or a cloud's answer, before it is used
    Row("validation", ("agreement", "vetting", "vetted", "vet", "vets")),
    # all frontends of a NAT host with their endpoints
    Row("service map", ("desk", "catalogue"), only_in=("netmgr/agent",)),
    # the addresses at which the hub reaches a spoke's Services; the same range inside the spoke
    Row(
        "VIP range, Service CIDR",
        ("seen", "real"),
        only_in=(
            "netmgr/documents/sites.py",
            "netmgr/documents/explain.py",
            "netmgr/documents/node.py",
            "netmgr/rules/translation.py",
            "netmgr/agent/accounting/nat.py",
            "netmgr/agent/health/machine_check.py",
            "netmgr/cli/nat.py",
        ),
    ),
    # dividing a block into prefixes
    Row("subnetting", ("carve", "carved", "carves", "carving")),
    # how long a plan's space lasts while clusters grow
    Row("forecast", ("outlook",)),
    # doing everything but the change itself
    Row("dry run", ("rehearse", "rehearsed", "rehearsal")),
    # what differs from what was decided
    Row("drift", ("departure", "departures"), not_in=("netmgr/rules",)),
    # between two sites: spokes, or spoke and hub
    Row("inter-site", ("crossing", "crossings", "passage", "passages")),
    # a digest that shows whether something changed
    Row("fingerprint", ("wording", "wordings")),
    # the rules that decide what kind of traffic a packet is
    Row("classifier", ("sorting",)),
    # what has no owner any more; what an earlier process left
    Row("orphan, remnant", ("stray", "strays", "leavings")),
    # text for a person
    Row("message", ("sentence", "sentences")),
    # giving information to somebody
    Row("report, say", ("told", "tells")),
    # being somewhere, or being in force
    Row("is, stays, holds", ("stands", "put right", "is none of", "begin of")),
]


def _spaced(text: str) -> str:
    return f" {' '.join(re.findall(r'[a-z]+', text.lower()))} "


def _lines_of_page(name: str, text: str) -> Iterator[Line]:
    for number, line in enumerate(text.splitlines(), 1):
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


def test_every_idea_has_one_word(lines: list[Line]) -> None:
    assert found(ROWS, lines) == []
