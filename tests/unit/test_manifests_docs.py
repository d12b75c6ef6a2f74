"""docs/: links lead somewhere, commands and options exist, metrics are in the catalogue, overlays
are there.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter.catalog import CATALOG
from exporter.controller_catalog import CONTROLLER
from tests import commands

NETMGR = commands.whole()
ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
]
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
COMMAND = re.compile(r"netmgr ((?:--)?[a-z][^\n`|&()#'\"]*)")
METRIC = re.compile(r"(?<!:)\bnetmgr_[a-z_]+")
"""Names of metrics, not of recording rules (level:metric:operations)."""
CODE = re.compile(r"`[^`\n]*`")
PATHS = re.compile(r"`((?:netmgr|tests|configs|cni|exporter)/[\w./-]+)`")
# Words behind a command in the pages' sentences, not on a command line.
PROSE = re.compile(
    r"\s(?:on|and|is|says|runs|does|compares|has|leaves|names|which|to see|with its)\b.*"
)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    # Patterns in code may look like links.
    links = LINK.findall(CODE.sub("code", page.read_text()))
    for name, anchor in links:
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"
    for path in PATHS.findall(page.read_text()):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_metrics_are_in_the_catalogue(page: Path):
    known = {metric.name for metric in (*CATALOG, *CONTROLLER)}
    known |= {f"{metric.name}_total" for metric in CATALOG}
    known |= {"netmgr_version"}  # a key of answers
    assert {name for name in METRIC.findall(page.read_text()) if not name.endswith("_")} <= known


def command_lines() -> set[str]:
    found = set()
    for page in PAGES:
        # That page is made from the commands.
        if page.name != "commands.md":
            # What is behind `--` is another program's.
            lines = (line.partition(" -- ")[0] for line in COMMAND.findall(page.read_text()))
            found |= {PROSE.sub("", line).strip(" .,;:") for line in lines}
    lines = {line for line in found if line.split()[0] in NETMGR.commands}
    assert lines >= {"host clean", "plan lock", "cni install"}, "there are commands to check"
    return lines


@pytest.mark.parametrize("line", sorted(command_lines()))
def test_commands_and_options_exist(line: str):
    words = line.split()
    command = NETMGR
    path = [word for word in words if not word.startswith("-")]
    for name in path:
        if not hasattr(command, "commands"):
            break
        assert name in command.commands, line
        command = command.commands[name]
    known = {"--help"} | {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)} <= known, line


def rows_with_tests(page: Path) -> list[str]:
    """Rows of tables whose last column names tests; these have to exist."""
    rows = [
        line for line in page.read_text().splitlines() if re.search(r"\.py::test_\w+` \|$", line)
    ]
    for row in rows:
        for path, name in re.findall(r"`([\w/]+\.py)::(test_\w+)`", row):
            assert f"def {name}(" in (ROOT / "tests" / path).read_text(), f"{path}::{name}"
    return rows


def test_every_threat_and_every_outage_names_tests_that_exist_and_outages_where_they_happened():
    assert len(rows_with_tests(ROOT / "SECURITY.md")) > 15
    rows = rows_with_tests(ROOT / "docs/outages.md")
    assert len(rows) > 20
    assert all("](https://github.com/" in row.split("|")[1] for row in rows)
    lines = (ROOT / "docs/outages.md").read_text().splitlines()
    assert len([line for line in lines if "](http" in line]) == len(rows)


def test_every_overlay_is_told_of():
    text = (ROOT / "docs/kubernetes/install.md").read_text()
    for overlay in (ROOT / "configs" / "kubernetes" / "overlays").iterdir():
        assert f"`{overlay.name}`" in text
