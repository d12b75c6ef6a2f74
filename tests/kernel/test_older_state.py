"""An older copy of the agent's state of addresses is put in its place: running pods keep their
links.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from tests.kernel.common import talk
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import cluster
from tests.lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.slow]

SETTINGS = {
    "reconcile_seconds": 3600,
    "ranges": ["10.128.0.0/29", "fd00:128::/125"],
    "pool": {"cooldown_seconds": 0, "conntrack_wait_seconds": 0},
}


@pytest.fixture
def world(lab_name: str) -> Iterator[World]:
    # Nothing here depends on what holds the rules.
    topology = replace(cluster(pods=8), pods=())
    with World(topology, backend=Backend.NFTABLES, name=lab_name, settings=SETTINGS) as made:
        yield made


def copy_of_state(node: LabNode) -> Path:
    """The database of addresses as it is now."""
    copy = node.directory / "copy"
    with (
        closing(sqlite3.connect(node.directory / "state" / "ipam.sqlite")) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    return copy


def restart_with(node: LabNode, copy: Path) -> None:
    node.kill_agent()
    state = node.directory / "state"
    for path in state.glob("ipam.sqlite*"):
        path.unlink()
    copy.rename(state / "ipam.sqlite")
    node.start_until_ready()


def views(node: LabNode) -> dict[str, set[str]]:
    return {item["pod"]: set(item["addresses"]) for item in node.ask("pods")["attachments"]}


def held(*sandboxes: Sandbox) -> dict[str, set[str]]:
    return {each.pod.name: set(map(str, each.addresses)) for each in sandboxes}


def assert_connected(world: World, *sandboxes: Sandbox) -> None:
    for sandbox in sandboxes:
        world.node("node-1").runtime.check(sandbox)
        talk(world, sandbox)


def other_boot(copy: Path) -> None:
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("UPDATE facts SET value = 'the boot before' WHERE name = 'boot_id'")


@pytest.mark.parametrize(
    "alter", [lambda _copy: None, other_boot], ids=["of this boot", "of the boot before"]
)
def test_pods_that_came_since_keep_their_links_and_addresses(
    world: World, node: LabNode, alter: Callable[[Path], None]
) -> None:
    first, ended = node.add("first"), node.add("ended")
    copy = copy_of_state(node)
    alter(copy)
    node.runtime.delete(ended)
    later, last = node.add("later"), node.add("last")
    restart_with(node, copy)
    assert views(node) == held(first, later, last)
    assert_connected(world, first, later, last)
    assert node.snapshot()["state_rebuilds"] == 1
    log = (node.directory / "agent.log").read_text()
    assert "ipam-state-older-than-kernel" in log
    assert "orphan" not in log
    newest = node.add("newest")
    assert not set(newest.addresses) & {*first.addresses, *later.addresses, *last.addresses}
    for sandbox in (first, later, last, newest):
        node.runtime.delete(sandbox)
    assert views(node) == {}


def test_an_address_that_another_pod_has_by_now_is_that_pods(world: World, node: LabNode) -> None:
    ended = node.add("ended")
    copy = copy_of_state(node)
    node.runtime.delete(ended)
    # Addresses never used come first, so the pool is gone through once.
    later = [node.add(f"later-{number}") for number in range(8)]
    assert set(ended.addresses) <= {address for each in later for address in each.addresses}
    node.runtime.delete(later.pop(0))
    restart_with(node, copy)
    assert views(node) == held(*later)
    assert_connected(world, *later)


def test_a_container_that_was_attached_anew_has_what_the_kernel_gives_it(node: LabNode) -> None:
    sandbox = node.add("again")
    copy = copy_of_state(node)
    node.runtime.execute("DEL", sandbox)
    result = node.runtime.execute("ADD", sandbox)
    now = {entry["address"].partition("/")[0] for entry in result["ips"]}
    assert now != set(map(str, sandbox.addresses))
    restart_with(node, copy)
    assert views(node) == {"again": now}


def test_a_current_state_is_no_older_one(world: World, node: LabNode) -> None:
    sandbox = node.add("only")
    gone = node.add("gone")
    restart_with(node, copy_of_state(node))
    assert views(node) == held(sandbox, gone)
    assert node.snapshot()["state_rebuilds"] == 0
    assert_connected(world, sandbox)
