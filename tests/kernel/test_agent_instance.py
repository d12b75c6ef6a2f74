"""One agent for a network namespace: a second is refused before it changes anything."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from netmgr.agent.core import instance
from netmgr.agent.core.instance import HANDOVER_SECONDS, Held, Holder
from netmgr.documents.node import Backend
from netmgr.kernel import packet_queue
from tests.kernel.common import ROLES, NewPod, kernel_state, repairs
from tests.kernel.conftest import one_of
from tests.kernel.spending import run
from tests.lab import wiring
from tests.lab.nodes import LabNode
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root

WORLD = {"settings": {"reconcile_seconds": 0.5}, "exporters": False}


backend = one_of([Backend.NFTABLES])


def document(lab_node: LabNode, directory: Path, **changes: object) -> Path:
    """The node's own document with other directories, and `changes`."""
    content = yaml.safe_load(lab_node.document.read_text())
    content |= {"state_dir": str(directory / "state"), "run_dir": str(directory / "run"), **changes}
    path = directory / "node.yaml"
    if "role" in changes:
        del content["ranges"]
    path.write_text(yaml.safe_dump(content))
    return path


@contextmanager
def started(node: LabNode | None, config: Path) -> Iterator[subprocess.Popen[str]]:
    """An agent in the node's namespace, or in one of its own."""
    enter = ["nsenter", f"--net={node.namespace}"] if node else ["unshare", "--net"]
    command = [*enter, sys.executable, "-m", "netmgr", "agent", "-c", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_with(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr
    return next(line for line in process.stderr if words in line)


@pytest.mark.slow
def test_whoever_finds_an_agent_is_refused_before_it_changes_anything(
    world: World, node: LabNode, new_pod: NewPod, tmp_path: Path
) -> None:
    """Agents of every role in its namespace, and in other namespaces with its directories."""
    sandbox = new_pod()
    before = kernel_state(node.namespace)
    roles = {"node": {}, **ROLES}
    places = {role: tmp_path / role for role in roles}
    in_this_namespace = (
        f"another agent runs in this network namespace (process {node.agent_pid()}); "
    )
    other = world.node("node-2")
    in_that_namespace = in_this_namespace.replace(str(node.agent_pid()), str(other.agent_pid()))
    shared = f"{node.run_dir}: another agent runs on this state"
    with ExitStack() as running:
        # All at once: each waits for the first agent's end until HANDOVER_SECONDS have passed.
        agents: dict[str, tuple[subprocess.Popen[str], str]] = {}
        for role, place in places.items():
            place.mkdir()
            config = document(node, place, **roles[role])
            agents[role] = running.enter_context(started(node, config)), in_this_namespace
        # For another machine, which has neither the node's addresses nor its uplink.
        directories = {key: str(node.directory / key[:-4]) for key in ("state_dir", "run_dir")}
        theirs = document(node, tmp_path, node={"name": "node-1"}, **directories)
        agents["busy"] = running.enter_context(started(other, theirs)), in_that_namespace
        agents["free"] = running.enter_context(started(None, theirs)), shared
        for name, (process, reason) in agents.items():
            # They start side by side.
            _, shown = process.communicate(timeout=2 * PATIENCE)
            assert process.returncode == 1, f"{name}: {shown}"
            assert reason in shown, name
            assert "Traceback" not in shown
    assert kernel_state(node.namespace) == before
    for place in places.values():
        assert [path.name for path in place.iterdir()] == ["node.yaml"]
    node.runtime.check(sandbox)
    assert not node.runtime.status()
    assert node.ask("snapshot")["node"] == "node-1"


@pytest.mark.alone  # it waits for HANDOVER_SECONDS
def test_a_waiting_agent_takes_over_from_one_that_is_killed(
    node: LabNode, new_pod: NewPod, tmp_path: Path
) -> None:
    sandbox = new_pod()
    with started(
        node, document(node, tmp_path, state_dir=str(node.directory / "state"))
    ) as waiting:
        assert "another agent runs in this network namespace" in line_with(
            waiting, "waiting-for-predecessor"
        )
        node.kill_agent()
        line_with(waiting, " ready ")
        assert owner(node) == waiting.pid
        waiting.terminate()
        assert waiting.wait(PATIENCE) == 0
    assert owner(node) is None
    node.start_until_ready()
    node.runtime.check(sandbox)


def owner(node: LabNode) -> int | None:
    with wiring.inside(node.namespace):
        found = packet_queue.owner_of(instance.QUEUE)
    return found and found[0]


@pytest.mark.alone
def test_an_agent_that_waits_can_be_stopped(node: LabNode, tmp_path: Path) -> None:
    with started(node, document(node, tmp_path)) as waiting:
        line_with(waiting, "waiting-for-predecessor")
        began = time.monotonic()
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(PATIENCE) == 0
        assert time.monotonic() - began < HANDOVER_SECONDS / 2


def test_no_flush_takes_the_lock_away(node: LabNode) -> None:
    repaired = repairs(node, "rules")
    assert run(node, "nft", "flush", "ruleset").returncode == 0
    assert owner(node) == node.agent_pid()
    eventually(lambda: repairs(node, "rules") > repaired)


def test_a_ruleset_that_was_saved_while_an_agent_runs_loads(node: LabNode) -> None:
    """With the nft of the machine: what it prints it can read."""
    eventually(lambda: "chain" in run(node, "nft", "list", "table", "inet", "netmgr").stdout)
    saved = run(node, "nft", "list", "ruleset").stdout
    loaded = ["nsenter", f"--net={node.namespace}", "nft", "-c", "-f", "-"]
    done = subprocess.run(loaded, input=saved, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(run(node, "nft", "-j", "list", "ruleset").stdout)["nftables"]


@pytest.mark.slow
def test_who_may_not_change_the_network_cannot_take_the_lock(node: LabNode) -> None:
    """As a pod in the host's network would try to, to keep the agent out."""
    unprivileged = "setpriv --reuid=65534 --clear-groups --bounding-set=-all --inh-caps=-all"
    taking = "with instance.namespace(instance.Holder.AGENT): print('taken')"
    program = f"from netmgr.agent.core import instance\n{taking}"
    node.stop_agent()
    done = run(node, *unprivileged.split(), sys.executable, "-c", program)
    assert "taken" not in done.stdout
    assert "run it as root" in done.stderr
    node.start_until_ready()


@pytest.mark.slow
def test_a_kernel_without_packet_queues_locks_the_namespace_all_the_same(
    node: LabNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Refused as a kernel refuses what it was built without.
    monkeypatch.setattr(packet_queue, "_SUBSYSTEM", 0x1F)
    node.stop_agent()
    with wiring.inside(node.namespace), instance.namespace(Holder.AGENT):
        with (
            pytest.raises(Held, match="another agent runs in this network namespace"),
            instance.namespace(Holder.CLEAN),
        ):
            pass
        assert owner(node) is None
    # This test's own is another one.
    with instance.namespace(Holder.DOCTOR):
        pass
    node.start_until_ready()
