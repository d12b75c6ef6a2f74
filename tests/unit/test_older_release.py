"""Beside the release before this one: its state, its snapshot, and what it reads of ours.

`tests/golden/older` was written by that release: the databases of a node with one pod that runs and
two that ended, and a snapshot of everything that it shows.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cni.install import Installation, conflist
from exporter.collector import Collector
from netmgr.api.client import read_snapshot
from netmgr.ipam.store import Store
from netmgr.ledger import store as ledger_store
from netmgr.ledger.tables import Phase, Scope
from netmgr.model import AttachmentKey
from netmgr.prefixes import Address
from tests.fakes import agent_socket

OLDER = Path(__file__).parents[1] / "golden" / "older"
STAYS = AttachmentKey("c2868303b95f4557b339002d36290931", "eth0")


def opened(name: str, folder: Path) -> Path:
    """A database as the older release left it."""
    path = folder / f"{name}.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((OLDER / f"{name}.sql").read_text())
    return path


def schema(path: Path) -> tuple[int, set[str]]:
    """Version and tables of a database; white space does not matter."""
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        return version, {" ".join(text.split()) for (text,) in rows}


def test_addresses_and_cooldowns_are_taken_over(tmp_path: Path) -> None:
    store = Store(opened("ipam", tmp_path))
    found = store.remembered()
    (attachment,) = found.attachments.values()
    assert attachment.key == STAYS
    assert list(map(str, attachment.addresses)) == ["10.128.16.0", "fd00:128:0:1::"]
    assert (attachment.pod.namespace, attachment.pod.name) == ("research", "stays")
    assert found.cooldown[Address.parse("10.128.16.1")] == 7509.063976154
    assert len(found.cooldown) == 4
    assert len(found.tombstones) == 2
    store.close()


@pytest.mark.parametrize("name", ["ipam", "ledger"])
def test_the_older_release_can_open_what_this_one_wrote(name: str, tmp_path: Path) -> None:
    older = schema(opened(name, tmp_path))
    new = tmp_path / "new.sqlite"
    (Store if name == "ipam" else ledger_store.Store)(new).close()
    assert schema(new) == older


def test_what_it_would_not_understand_is_never_written() -> None:
    # It refuses a row with another value: StateError, and a ledger that is set aside.
    assert set(Scope) == {"pod", "namespace", "hook", "audit"}
    assert set(Phase) == {0, 1, 2}


def test_runtimes_keep_the_network_configuration(tmp_path: Path) -> None:
    older = {
        "cniVersion": "1.0.0",
        "cniVersions": ["1.0.0", "1.1.0"],
        "name": "netmgr",
        "plugins": [{"type": "netmgr", "capabilities": {"ips": True, "mac": True, "dns": True}}],
    }
    plan = Installation(tmp_path, tmp_path, tmp_path, tmp_path, portmap=False)
    new = conflist(plan)
    ((plugin,), (former,)) = new.pop("plugins"), older.pop("plugins")
    assert new == older
    # What more the runtime passes on, an older agent leaves out and logs.
    assert plugin.pop("capabilities").items() >= former.pop("capabilities").items()
    assert plugin == former


def test_its_snapshot_makes_a_whole_page(tmp_path: Path) -> None:
    older = json.loads((OLDER / "snapshot.json").read_text())
    assert "vip_range" not in older["nat"]["ranges"][0]
    path = tmp_path / "ledger.sock"
    with agent_socket.agent(path, agent_socket.canned(older)):
        families = list(Collector(lambda: read_snapshot(path)).collect())
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    assert values["netmgr_up",] == 1
    ranges = [labels for name, *labels in values if name == "netmgr_nat_translated_bytes_total"]
    assert ranges == [[each["seen"], each["real"]] for each in older["nat"]["ranges"]]


def test_its_exporter_finds_every_key_that_it_reads_in_our_snapshot() -> None:
    older = json.loads((OLDER / "snapshot.json").read_text())
    assert set(keys(older)) - set(keys(agent_socket.snapshot())) == set()


def keys(value: object, at: str = "") -> Iterator[str]:
    """Every key of a document with the keys above it; of a list, those of its entries."""
    if isinstance(value, list):
        for each in value:
            yield from keys(each, f"{at}[]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield f"{at}.{key}"
            yield from keys(inner, f"{at}.{key}")


def test_ranges_that_are_no_objects_are_left_to_who_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sock"
    with agent_socket.agent(path, agent_socket.canned({"version": 1, "nat": {"ranges": [5]}})):
        assert read_snapshot(path)["nat"] == {"ranges": [5]}
