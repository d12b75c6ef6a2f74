"""What running pods notice when the agent's memory is gone, out of reach or full: nothing."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from tests.kernel.common import END, USE_UP, NewPod, goes_on, talk, use_up_blocks, views
from tests.kernel.conftest import one_of
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

WORLD = {"nodes": 1, "settings": {"reconcile_seconds": 3600}, "exporters": False}


backend = one_of([Backend.NFTABLES])


def test_pods_stay_connected_when_the_state_file_was_removed(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod()
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
    sandbox = new_pod()
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


@USE_UP
@END
def test_a_full_disk_never_stops_dels_whether_the_agent_goes_on_or_starts_on_it(
    node: LabNode,
    new_pod: NewPod,
    small_disk: Path,
    use_up: Callable[[Path], None],
    end: Callable[[LabNode], None],
) -> None:
    pods = [new_pod() for _ in range(4)]
    use_up(small_disk)
    for _ in range(2):
        end(node)
        # What the agent gave back when it ended is taken by others.
        use_up(small_disk)
        node.runtime.delete(pods.pop())
        if end is not goes_on:
            node.start_until_ready()
    assert set(views(node)) == {sandbox.pod.name for sandbox in pods}
    for sandbox in pods:
        node.runtime.check(sandbox)
        node.runtime.delete(sandbox)
    assert views(node) == {}
    assert not node.runtime.status(), "STATUS succeeds, or the node's pods would be evicted"
    shutil.rmtree(small_disk)
    node.restart_after_kill()
    assert views(node) == {}
    node.runtime.delete(node.add("again"))


@END
def test_a_full_disk_stops_adds(
    node: LabNode, small_disk: Path, end: Callable[[LabNode], None]
) -> None:
    use_up_blocks(small_disk)
    end(node)
    use_up_blocks(small_disk)
    if end is not goes_on:
        node.start_until_ready()
    pods = []
    with pytest.raises(LabError, match=r"code 103: .* full"):
        # What the log has room for already is still used.
        pods.extend(node.add(f"{end.__name__}-{number}".replace("_", "-")) for number in range(60))
    for sandbox in pods:
        node.runtime.delete(sandbox)
    shown = node.snapshot()
    assert (shown["ready"], "disk is full" in shown["reason"]) == (False, True)
    shutil.rmtree(small_disk)
    eventually(lambda: node.snapshot()["ready"])
    node.runtime.delete(node.add("later"))


def test_a_disk_that_fails_otherwise_fails_status(node: LabNode) -> None:
    sandbox, agent = node.add("failing"), node.agent_pid()
    assert agent
    # No file of the agent may grow (EFBIG), which SQLite reports as an I/O error.
    resource.prlimit(agent, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    node.runtime.delete(sandbox)
    assert "code 50" in node.runtime.status()
    resource.prlimit(agent, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert not node.runtime.status()
