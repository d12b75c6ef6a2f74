"""An agent meets state that a newer netmgr wrote: it ends, and touches nothing."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kernel.spending import Spender, gaps
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def world(lab_name: str) -> Iterator[World]:
    # What is refused does not depend on what holds the rules.
    with World(replace(cluster(pods=8), pods=()), name=lab_name, exporters=False) as made:
        yield made


@pytest.fixture(params=["ledger.sqlite", "ipam.sqlite"])
def path(request: pytest.FixtureRequest, node: LabNode) -> Path:
    return node.directory / "state" / request.param


def raise_schema(path: Path, by: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version + by}")


def refused(node: LabNode) -> str:
    """Start the agent, which has to refuse its state; returns what it says."""
    node.start_agent()
    with pytest.raises(LabError, match="did not start") as failed:
        node.wait_until_ready()
    return failed.value.details


def lost(node: LabNode) -> dict[str, int]:
    return {reason: count for reason, (count, _) in gaps(node).items() if count}


def test_it_is_left_alone_and_the_newer_version_goes_on_with_it(
    node: LabNode, path: Path, spender: Spender
) -> None:
    sent = spender.send()
    node.stop_agent()
    raise_schema(path, 1)
    before = path.read_bytes()
    log = refused(node)
    assert f"{path}: a newer netmgr wrote it" in log
    assert path.read_bytes() == before
    # The pod keeps its network and is counted; a new one has to wait.
    sent += spender.send()
    with pytest.raises(LabError, match="11"):
        node.add("refused")
    raise_schema(path, -1)
    node.start_until_ready()
    assert spender.counted() == sent
    assert lost(node) == {}


def test_what_the_message_says_begins_anew_and_keeps_the_file(
    node: LabNode, path: Path, spender: Spender
) -> None:
    sent = spender.send()
    node.stop_agent()
    raise_schema(path, 1)
    (remedy,) = re.findall(r"mkdir .*", refused(node))
    subprocess.run(["sh", "-ec", remedy], check=True)
    node.start_until_ready()
    assert (path.parent / "kept" / path.name).exists()
    (view,) = node.ask("pods")["attachments"]
    assert set(view["addresses"]) == set(map(str, spender.sandbox.addresses))
    is_ledger = path.name == "ledger.sqlite"
    # A new ledger begins at zero, whatever live counters show.
    assert spender.counted() == (0 if is_ledger else sent)
    assert lost(node) == ({"ledger-lost": 1} if is_ledger else {})
    assert node.snapshot()["state_rebuilds"] == is_ledger
