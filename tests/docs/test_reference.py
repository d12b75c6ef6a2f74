"""What is made from code or from other files is what would be written now."""

import re

from tests.docs import reference
from tests.docs.blocks import ROOT


def test_pages_are_what_the_code_gives() -> None:
    pages = reference.pages()
    read = {name: (ROOT / name).read_text("utf-8") for name in pages}
    assert read == pages, "run: .venv/bin/python -m tests.docs.reference"


def test_code_of_a_command_line_is_not_escaped() -> None:
    assert reference._escaped("*or* `b/*`, <c>") == "\\*or\\* `b/*`, &lt;c>"


def test_contributors_read_of_every_target_of_make() -> None:
    targets = re.findall(r"(?m)^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text())
    told = re.findall(r"`make ([a-z0-9-]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert set(targets) <= set(told)
