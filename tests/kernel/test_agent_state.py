"""What running pods notice when the agent's memory is gone, out of reach or full: nothing."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.documents.node import Backend
from tests.kernel.common import talk, views
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

NewPod = Callable[..., Sandbox]


WORLD = {"nodes": 1, "settings": {"reconcile_seconds": 3600}, "exporters": False}


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Backend.NFTABLES


def test_pods_stay_connected_when_the_state_file_was_removed(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod("node-1")
    before = views(node)
    node.kill_agent()
    for path in (node.directory / "state").glob("ipam.sqlite*"):
        path.unlink()
    node.start_until_ready()
    assert views(node) == before
    assert node.snapshot()["state_rebuilds"] == 0
    talk(world, sandbox)
    node.runtime.check(sandbox)


def test_a_spooled_del_of_an_earlier_life_leaves_a_newer_attachment_alone(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod("node-1")
    node.kill_agent()
    node.runtime.execute("DEL", sandbox)
    (spooled,) = (node.directory / "state" / "spool").iterdir()
    late = spooled.rename(node.directory / spooled.name)
    node.start_until_ready()
    node.runtime.execute("ADD", sandbox)
    node.kill_agent()
    late.rename(spooled)
    node.start_until_ready()
    assert not spooled.exists()
    talk(world, sandbox)
    node.runtime.execute("DEL", sandbox)
    assert sandbox.pod.name not in views(node)


def test_a_full_disk_stops_adds_and_never_dels(node: LabNode, small_disk: Path) -> None:
    pods = [node.add(f"full-{number}") for number in range(4)]
    programs.run(["dd", "if=/dev/zero", f"of={small_disk}"])
    with pytest.raises(LabError, match=r"code 103: .* full"):
        # What the log has room for already is still used.
        pods.extend(node.add(f"more-{number}") for number in range(30))
    for sandbox in pods:
        node.runtime.delete(sandbox)
    assert views(node) == {}
    shown = node.snapshot()
    assert (shown["ready"], "disk is full" in shown["reason"]) == (False, True)
    assert not node.runtime.status(), "STATUS succeeds, or the node's pods would be evicted"
    small_disk.unlink()
    eventually(lambda: node.snapshot()["ready"])
    node.restart_after_kill()
    assert views(node) == {}
    node.runtime.delete(node.add("again"))


def test_a_disk_that_fails_otherwise_fails_status(node: LabNode) -> None:
    sandbox, agent = node.add("failing"), node.agent_pid()
    assert agent
    # No file of the agent may grow (EFBIG), which SQLite reports as an I/O error.
    resource.prlimit(agent, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    node.runtime.delete(sandbox)
    assert "code 50" in node.runtime.status()
    resource.prlimit(agent, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert not node.runtime.status()
