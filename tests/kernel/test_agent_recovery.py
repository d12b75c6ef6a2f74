"""What the agent does about lost state, lost links and other programs' meddling."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.dataplane.desired import host_link_name
from netmgr.documents.node import Backend
from netmgr.kernel import netns
from netmgr.model import AttachmentKey
from netmgr.prefixes import Family
from tests.kernel.namespaces import host_link, inside
from tests.lab.errors import LabError
from tests.lab.exchange import End, datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

NewPod = Callable[..., Sandbox]


@pytest.fixture(scope="module")
def world(backend: Backend) -> Iterator[World]:
    """Two nodes whose agents reconcile every half second."""
    topology = replace(cluster(pods=100), pods=())
    settings = {"reconcile_seconds": 0.5}
    with World(
        topology, backend=backend, name=f"recovery-{os.getpid()}-{backend[-6:]}", settings=settings
    ) as made:
        yield made


@pytest.fixture
def restarted(node: LabNode):
    """Has the agent run again after the test, whatever the test did to it."""
    yield
    node.stop_agent()
    node.start_until_ready()


def reaches_internet(world: World, sandbox: Sandbox, family: Family = Family.V4) -> bool:
    with suppress(LabError):
        datagrams(
            End(sandbox.netns, sandbox.address(family)),
            End(world.internet, INTERNET[family]),
            [100],
            [100],
        )
        return True
    return False


def views(node: LabNode) -> dict[str, list[str]]:
    return {item["pod"]: item["addresses"] for item in node.ask("pods")["attachments"]}


@pytest.mark.usefixtures("restarted")
@pytest.mark.parametrize("damage", ["garbage", "a foreign schema", "half of it"])
def test_a_corrupt_state_file_is_kept_and_the_pods_keep_their_addresses(
    node: LabNode, new_pod: NewPod, damage: str
) -> None:
    sandbox = new_pod("node-1")
    before = views(node)
    node.kill_agent()
    state = node.directory / "state" / "ipam.sqlite"
    damage_file(state, damage)
    node.start_until_ready()
    assert views(node) == before
    assert node.snapshot()["state_rebuilds"] == 1
    assert list(state.parent.glob("ipam.sqlite.corrupt-*"))
    assert "state-file-corrupt" in (node.directory / "agent.log").read_text()
    node.runtime.check(sandbox)
    other = new_pod("node-1")
    assert not set(other.addresses) & set(sandbox.addresses)


def damage_file(path: Path, how: str) -> None:
    for companion in ("-wal", "-shm"):
        path.with_name(path.name + companion).unlink(missing_ok=True)
    if how == "a foreign schema":
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE photos (name TEXT)")
        connection.close()
    elif how == "half of it":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 - 100])
    else:
        path.write_bytes(b"no database at all" * 100)


def test_a_lost_route_is_put_back_and_reported(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod("node-1")
    repaired = repairs(node, "wiring")

    def is_lost() -> bool:
        # On a busy machine it may be back before anybody has looked.
        for family in Family:
            inside(
                node.namespace,
                "ip",
                f"-{family.value}",
                "route",
                "flush",
                str(sandbox.address(family).prefix),
            )
        return "host route to" in faults(node, sandbox)

    eventually(is_lost)
    eventually(lambda: repairs(node, "wiring") >= repaired + 2)
    node.runtime.check(sandbox)
    assert all(reaches_internet(world, sandbox, family) for family in Family)


def test_a_lowered_link_is_raised_again(world: World, node: LabNode, new_pod: NewPod) -> None:
    sandbox = new_pod("node-1")
    inside(node.namespace, "ip", "link", "set", host_link(node, sandbox), "down")
    # A datagram that is sent too early is waited for in vain for seconds.
    eventually(lambda: not faults(node, sandbox))
    eventually(lambda: reaches_internet(world, sandbox))
    node.runtime.check(sandbox)


def test_an_address_on_a_pods_link_is_removed_and_the_pod_keeps_its_routes(
    node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod("node-1")
    repaired, link = repairs(node, "wiring"), host_link(node, sandbox)
    inside(node.namespace, "ip", "address", "add", "192.0.2.77/32", "dev", link)
    eventually(lambda: repairs(node, "wiring") > repaired)
    # With its last address the kernel takes a link's routes away.
    assert not faults(node, sandbox)
    assert "192.0.2.77" not in inside(node.namespace, "ip", "address", "show", "dev", link)


def test_an_add_right_after_another_program_flushed_everything_succeeds(
    world: World, node: LabNode, new_pod: NewPod, backend: Backend
) -> None:
    standing = new_pod("node-1")
    flush_rules(node, backend)
    sandbox = new_pod("node-1")
    eventually(lambda: not faults(node, standing))
    assert not faults(node, sandbox)
    assert reaches_internet(world, sandbox)
    gaps = {item["reason"]: item["count"] for item in node.snapshot()["gaps"]}
    assert gaps["removed"] > 0


def flush_rules(node: LabNode, backend: Backend) -> None:
    if backend is Backend.NFTABLES:
        inside(node.namespace, "nft", "flush", "ruleset")
        return
    for program in ("iptables-legacy", "ip6tables-legacy"):
        for table in ("raw", "mangle", "nat"):
            inside(node.namespace, program, "-t", table, "-F")
            inside(node.namespace, program, "-t", table, "-X")
    inside(node.namespace, "ipset", "destroy")


@contextmanager
def table_owned_by_another_program(node: LabNode) -> Iterator[None]:
    """An nftables table that only the program which made it may change, and which ends with it."""
    command = ["nsenter", f"--net={node.namespace}", "nft", "--interactive"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdin is not None
        owner.stdin.write("delete table inet netmgr; add table inet netmgr { flags owner; }\n")
        owner.stdin.flush()
        yield
        owner.stdin.close()


@contextmanager
def legacy_tables_locked_by_another_program(node: LabNode) -> Iterator[None]:
    with Path("/run/xtables.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        elsewhere = {
            "XTABLES_LOCKFILE": "/run/netmgr-test-xtables.lock",
            "PATH": os.environ["PATH"],
        }
        flush = ["nsenter", f"--net={node.namespace}", "iptables-legacy", "-t", "mangle", "-F"]
        assert programs.run(flush, env=elsewhere).returncode == 0
        yield
    Path(elsewhere["XTABLES_LOCKFILE"]).unlink(missing_ok=True)


def test_status_says_that_running_pods_suffer_while_the_rules_cannot_be_put_back(
    node: LabNode, backend: Backend
) -> None:
    obstacles = {
        Backend.NFTABLES: table_owned_by_another_program,
        Backend.IPTABLES_LEGACY: legacy_tables_locked_by_another_program,
    }
    with obstacles[backend](node):
        eventually(lambda: "rules cannot be reconciled" in node.runtime.status(), 30)
        assert node.snapshot()["ready"] is False
    eventually(lambda: not node.runtime.status(), 30)


def faults(node: LabNode, sandbox: Sandbox) -> str:
    try:
        node.runtime.check(sandbox)
    except LabError as error:
        return error.message
    return ""


def test_a_stray_route_of_ours_is_removed_and_others_routes_stay(node: LabNode) -> None:
    inside(node.namespace, "ip", "route", "add", "198.51.100.7/32", "dev", "lo", "proto", "110")
    inside(node.namespace, "ip", "route", "add", "198.51.100.8/32", "dev", "lo", "proto", "111")
    eventually(lambda: "198.51.100.7" not in inside(node.namespace, "ip", "route"))
    assert "198.51.100.8" in inside(node.namespace, "ip", "route")
    inside(node.namespace, "ip", "route", "del", "198.51.100.8/32")


def repairs(node: LabNode, area: str) -> int:
    return {item["reason"]: item["count"] for item in node.snapshot()["drift_repaired"]}.get(
        area, 0
    )


def test_a_sandbox_that_vanished_without_del_gives_its_addresses_back(
    node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod("node-1")
    link = host_link(node, sandbox)
    netns.delete(sandbox.netns)
    eventually(lambda: sandbox.pod.name not in views(node))
    assert link not in inside(node.namespace, "ip", "-o", "link")
    assert 'why="its sandbox is gone"' in (node.directory / "agent.log").read_text()


@pytest.mark.usefixtures("restarted")
def test_a_reboot_ends_the_attachments_and_keeps_the_totals(node: LabNode, new_pod: NewPod) -> None:
    sandbox = new_pod("node-1")
    world_total = {
        (i["namespace"], i["traffic"]): i["bytes"] for i in node.snapshot()["namespaces"]
    }
    node.stop_agent()
    # What a reboot leaves: the state of another boot, and a kernel that knows of nothing.
    with sqlite3.connect(node.directory / "state" / "ipam.sqlite") as connection:
        connection.execute("UPDATE facts SET value = 'the boot before' WHERE name = 'boot_id'")
    connection.close()
    inside(
        node.namespace,
        "ip",
        "link",
        "del",
        host_link_name(AttachmentKey(sandbox.container_id, "eth0")),
    )
    node.start_until_ready()
    assert sandbox.pod.name not in views(node)
    assert {
        (i["namespace"], i["traffic"]): i["bytes"] for i in node.snapshot()["namespaces"]
    } == world_total
    assert new_pod("node-1").addresses != sandbox.addresses


def test_the_mtu_of_pods_follows_the_uplink(world: World, node: LabNode) -> None:
    uplink = node.node.uplink
    inside(node.namespace, "ip", "link", "set", uplink, "mtu", "1400")
    try:

        def has_small_mtu() -> bool:
            sandbox = world.node("node-1").add(f"mtu-{time.monotonic_ns()}")
            try:
                return (
                    "mtu 1400"
                    in programs.run(
                        ["nsenter", f"--net={sandbox.netns}", "ip", "link", "show", "eth0"]
                    ).stdout.decode()
                )
            finally:
                node.runtime.delete(sandbox)

        eventually(has_small_mtu)
    finally:
        inside(node.namespace, "ip", "link", "set", uplink, "mtu", "1500")
