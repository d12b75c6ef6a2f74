"""What is made from code or from other files is what would be written now."""

import re

import pytest

from tests.docs import reference
from tests.docs.blocks import ROOT


@pytest.mark.parametrize("name", reference.pages())
def test_the_page_is_what_the_code_gives(name: str) -> None:
    assert (ROOT / name).read_text("utf-8") == reference.pages()[name], (
        "run: .venv/bin/python -m tests.docs.reference"
    )


def test_contributors_read_of_every_target_of_make() -> None:
    targets = re.findall(r"(?m)^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text())
    told = re.findall(r"`make ([a-z0-9-]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert set(targets) <= set(told)
