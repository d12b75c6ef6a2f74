"""The short form of `make fuzz`: properties hold for the corpora and seeded mutations of them."""

from __future__ import annotations

from contextlib import suppress

import pytest

from netmgr import programs
from tests.fuzz import of_exporter, of_launcher
from tests.fuzz.mutation import Shape
from tests.fuzz.of_cni import TOKENS
from tests.fuzz.of_launcher import SANITIZED
from tests.fuzz.target import CORPUS, Target
from tests.fuzz.targets import TARGETS

MOST_FILES, MOST_BYTES = 60, 200_000
ROUNDS_SANITIZED = 3000

pytestmark = pytest.mark.programs  # the launcher is compiled


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_the_property_holds(name: str) -> None:
    target = TARGETS[name]
    for data in target.inputs(target.rounds):
        try:
            target.run(data)
        except Exception as fault:
            fault.add_note(f"the input of {name}: {data!r}")
            raise


@pytest.mark.slow
def test_the_launcher_holds_under_sanitizers() -> None:
    tokens = tuple(TOKENS.split())
    target = Target(SANITIZED, lambda _: None, Shape.BYTES, 0, of_launcher.LONGEST, tokens)
    inputs = [*target.inputs(ROUNDS_SANITIZED)]
    assert of_launcher.run_sanitized(inputs) == len(inputs)


def test_promtool_takes_a_page_of_hostile_names() -> None:
    """It is Prometheus' own reader, but too slow to start for each input."""
    names: list[str] = []
    for data in TARGETS["exposition"].inputs(300):
        with suppress(ValueError, RecursionError):
            names += of_exporter.names_in(data)
    text = [name.encode(errors="replace").decode() for name in dict.fromkeys(names)]
    page = of_exporter.page_of(of_exporter.snapshot_with(text))
    assert len(text) > 50
    assert "netmgr_up 1.0" in page
    done = programs.run(
        [programs.locate("promtool", "prometheus"), "check", "metrics"], stdin=page.encode()
    )
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()


def test_the_corpora_stay_small_and_are_those_of_targets() -> None:
    folders = {folder.name: [*folder.iterdir()] for folder in CORPUS.iterdir()}
    assert folders.keys() == {*TARGETS, SANITIZED}
    assert {
        name: len(files) for name, files in folders.items() if not 0 < len(files) <= MOST_FILES
    } == {}
    assert sum(path.stat().st_size for files in folders.values() for path in files) <= MOST_BYTES
