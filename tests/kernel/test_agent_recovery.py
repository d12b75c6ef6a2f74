"""What the agent does about lost state, lost links and other programs' meddling."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.common import (
    END,
    UNCHANGEABLE,
    NewPod,
    agent_kept_from_tables,
    flushing,
    flushing_all,
    gap_counts,
    goes_on,
    kernel_state,
    repairs,
    talk,
    views,
)
from tests.kernel.conftest import EITHER_BACKEND, one_of
from tests.kernel.namespaces import host_link, inside
from tests.lab import named_netns
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

WORLD = {"nodes": 1, "settings": {"reconcile_seconds": 0.5}, "exporters": False}
backend = one_of([Backend.NFTABLES])


def reaches_internet(world: World, sandbox: Sandbox) -> bool:
    with suppress(LabError):
        return talk(world, sandbox) > 0
    return False


def faults(node: LabNode, sandbox: Sandbox) -> str:
    try:
        node.runtime.check(sandbox)
    except LabError as error:
        return error.message
    return ""


def wait_until_sound(node: LabNode, sandbox: Sandbox) -> None:
    eventually(lambda: not faults(node, sandbox), lambda: faults(node, sandbox))


def test_a_corrupt_state_file_is_kept_and_the_pods_keep_their_addresses(
    node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod()
    before = views(node)
    node.kill_agent()
    state = node.directory / "state" / "ipam.sqlite"
    for companion in ("-wal", "-shm"):
        state.with_name(state.name + companion).unlink(missing_ok=True)
    state.write_bytes(b"no database at all" * 100)
    node.start_until_ready()
    assert views(node) == before
    assert node.snapshot()["state_rebuilds"] == 1
    assert list(state.parent.glob("ipam.sqlite.corrupt-*"))
    assert "state-file-corrupt" in (node.directory / "agent.log").read_text()
    node.runtime.check(sandbox)
    other = new_pod()
    assert not set(other.addresses) & set(sandbox.addresses)


def test_a_lost_route_is_put_back_and_reported(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod()
    repaired = repairs(node, "wiring")

    def is_lost() -> bool:
        # On a busy machine it may be back before anybody has looked.
        for family in Family:
            route = f"-{family.value} route flush {sandbox.address(family).prefix}"
            inside(node.namespace, "ip", *route.split())
        return "host route to" in faults(node, sandbox)

    eventually(is_lost)
    eventually(lambda: repairs(node, "wiring") >= repaired + 2)
    # These repairs may be of an earlier loss.
    wait_until_sound(node, sandbox)
    assert reaches_internet(world, sandbox)


def test_a_lowered_link_is_raised_again(world: World, node: LabNode, new_pod: NewPod) -> None:
    sandbox = new_pod()
    inside(node.namespace, "ip", "link", "set", host_link(node, sandbox), "down")
    # A datagram that is sent too early is waited for in vain for seconds.
    wait_until_sound(node, sandbox)
    eventually(lambda: reaches_internet(world, sandbox))
    node.runtime.check(sandbox)


def rename(node: LabNode, link: str, *more: str) -> None:
    """Call a link `stolen0`, and do more before an agent has looked."""
    changes = (f"link set {link} down", f"link set {link} name stolen0", *more)
    batch = "\n".join(changes)
    inside(node.namespace, "sh", "-c", f"echo '{batch}' | ip -batch -")
    with suppress(AssertionError):  # an agent has been quick to give it its name back
        inside(node.namespace, "ip", "link", "set", "stolen0", "up")


@END
@pytest.mark.parametrize("name", ["renamed", "renamed-" + "n" * 240], ids=["short", "long"])
def test_a_renamed_link_gets_its_name_back(
    world: World, node: LabNode, name: str, end: Callable[[LabNode], None]
) -> None:
    sandbox = node.add(name)
    try:
        link, before = host_link(node, sandbox), views(node)
        state, repaired = kernel_state(node.namespace), repairs(node, "wiring")
        end(node)
        rename(node, link)
        if end is not goes_on:
            node.start_until_ready()
            repaired = 0
        eventually(lambda: repairs(node, "wiring") > repaired)
        wait_until_sound(node, sandbox)
        assert host_link(node, sandbox) == link
        eventually(lambda: kernel_state(node.namespace) == state)
        assert views(node) == before
        # The pod's end learns of its carrier from a work queue, and drops what it sends before.
        eventually(lambda: reaches_internet(world, sandbox))
    finally:
        node.runtime.delete(sandbox)


def test_a_renamed_link_whose_name_is_taken_is_reported_and_its_pod_keeps_its_addresses(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod()
    link, before = host_link(node, sandbox), views(node)

    def is_taken() -> bool:
        # On a busy machine it may have its name again before the other link is made.
        with suppress(AssertionError):
            rename(node, link, f"link add {link} type bridge")
            return True
        return False

    eventually(is_taken)
    try:
        eventually(lambda: link in " ".join(node.snapshot()["wiring_faults"]))
        assert views(node) == before
        assert f"{link} is called stolen0" in faults(node, sandbox)
        assert node.runtime.status() == ""
    finally:
        inside(node.namespace, "ip", "link", "delete", link)
    wait_until_sound(node, sandbox)
    eventually(lambda: reaches_internet(world, sandbox))
    # The list is that of a whole pass.
    eventually(lambda: not node.snapshot()["wiring_faults"])


def test_a_renamed_link_goes_with_its_pod(node: LabNode, new_pod: NewPod) -> None:
    sandbox = new_pod()
    link = host_link(node, sandbox)
    node.kill_agent()
    rename(node, link)
    node.start_until_ready()
    rename(node, link)
    node.runtime.delete(sandbox)
    assert "stolen0" not in inside(node.namespace, "ip", "link")


def test_an_address_on_a_pods_link_is_removed_and_the_pod_keeps_its_routes(
    node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod()
    repaired, link = repairs(node, "wiring"), host_link(node, sandbox)
    inside(node.namespace, "ip", "address", "add", "192.0.2.77/32", "dev", link)
    show = ("ip", "address", "show", "dev", link)
    eventually(lambda: "192.0.2.77" not in inside(node.namespace, *show))
    # With its last address the kernel takes a link's routes away.
    wait_until_sound(node, sandbox)
    eventually(lambda: repairs(node, "wiring") > repaired)


@EITHER_BACKEND
def test_an_add_right_after_another_program_flushed_everything_succeeds(
    world: World, node: LabNode, new_pod: NewPod, backend: Backend, tmp_path: Path
) -> None:
    standing = new_pod()
    with agent_kept_from_tables(tmp_path) as lock:
        for command in flushing(backend):
            inside(node.namespace, "env", lock, *command)
    sandbox = new_pod()
    eventually(lambda: not faults(node, standing))
    assert not faults(node, sandbox)
    assert reaches_internet(world, sandbox)
    assert gap_counts(node)["removed"] > 0


@EITHER_BACKEND
def test_status_says_that_running_pods_suffer_while_the_rules_cannot_be_put_back(
    node: LabNode, backend: Backend
) -> None:
    with UNCHANGEABLE[backend](node):
        eventually(lambda: "rules cannot be reconciled" in node.runtime.status())
        assert node.snapshot()["ready"] is False
    eventually(lambda: not node.runtime.status())


def test_a_stray_route_of_ours_is_removed_and_others_routes_stay(node: LabNode) -> None:
    inside(node.namespace, "ip", "route", "add", "198.51.100.7/32", "dev", "lo", "proto", "110")
    inside(node.namespace, "ip", "route", "add", "198.51.100.8/32", "dev", "lo", "proto", "111")
    eventually(lambda: "198.51.100.7" not in inside(node.namespace, "ip", "route"))
    assert "198.51.100.8" in inside(node.namespace, "ip", "route")
    inside(node.namespace, "ip", "route", "del", "198.51.100.8/32")


@pytest.mark.parametrize("kind", ["blackhole", "unreachable", "prohibit", "throw"])
def test_a_route_that_drops_a_pods_packets_is_removed_and_ours_stay(
    world: World, node: LabNode, new_pod: NewPod, kind: str
) -> None:
    def routes() -> list[str]:
        return [inside(node.namespace, "ip", family, "route") for family in ("-4", "-6")]

    def restored() -> int:
        return (node.directory / "agent.log").read_text().count("host route to ")

    sandbox, lost = new_pod(), restored()
    before, to = routes(), {address.family: str(address) for address in sandbox.addresses}
    v4, v6 = [kind, to[Family.V4]], [kind, to[Family.V6]]
    inside(node.namespace, "ip", "route", "prepend", *v4)
    # With our protocol, and behind our route: of two the kernel removes the first that matches.
    inside(node.namespace, "ip", "route", "append", *v4, "proto", "110")
    inside(node.namespace, "ip", "-6", "route", "add", *v6, "proto", "110")
    eventually(lambda: routes() == before, lambda: str(routes()))
    assert reaches_internet(world, sandbox)
    assert restored() == lost


def test_a_sandbox_that_vanished_without_del_gives_its_addresses_back(
    node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod()
    link = host_link(node, sandbox)
    named_netns.delete(sandbox.netns)
    eventually(lambda: sandbox.pod.name not in views(node))
    assert link not in inside(node.namespace, "ip", "-o", "link")
    # Logged once it is gone.
    log = node.directory / "agent.log"
    eventually(lambda: 'why="its sandbox is gone"' in log.read_text())


@pytest.mark.parametrize("backend", [Backend.NFTABLES, Backend.LINKS], indirect=True, ids=str)
def test_a_reboot_ends_the_attachments_and_keeps_the_totals(
    world: World, node: LabNode, new_pod: NewPod, backend: Backend
) -> None:
    sandbox = new_pod()
    talk(world, sandbox)
    link, totals = host_link(node, sandbox), node.snapshot()["namespaces"]
    gaps = gap_counts(node)
    node.stop_agent()
    # What a reboot leaves: the state of another boot, and a kernel that knows of nothing.
    for state, facts, key in (("ipam", "facts", "name"), ("ledger", "fact", "key")):
        with sqlite3.connect(node.directory / "state" / f"{state}.sqlite") as connection:
            change = f"UPDATE {facts} SET value = 'the boot before' WHERE {key} = 'boot_id'"  # noqa: S608 - our own names
            connection.execute(change)
        connection.close()
    inside(node.namespace, "ip", "link", "del", link)
    for command in flushing_all(backend):
        inside(node.namespace, *command)
    node.start_until_ready()
    assert sandbox.pod.name not in views(node)
    assert node.snapshot()["namespaces"] == totals
    assert gap_counts(node) == gaps | {"reboot": 1}
    assert new_pod().addresses != sandbox.addresses


def test_the_mtu_of_pods_follows_the_uplink(node: LabNode) -> None:
    def is_followed(mtu: int) -> bool:
        sandbox = node.add(f"mtu-{time.monotonic_ns()}")
        try:
            return f"mtu {mtu} " in inside(sandbox.netns, "ip", "link", "show", "eth0")
        finally:
            node.runtime.delete(sandbox)

    # Back as well, or pods of later tests would have the smaller one.
    for mtu in (1400, 1500):
        inside(node.namespace, "ip", "link", "set", node.node.uplink, "mtu", str(mtu))
        eventually(lambda mtu=mtu: is_followed(mtu))
