"""The launcher waits once for an agent that is being replaced, and for no other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cni.install import Installation
from cni.request import check_wait
from netmgr.documents.node import Backend
from netmgr.errors import InvalidNetworkConfig, TryAgainLater
from tests.kernel.launching import CONFIG, answering, error_of, execute
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.programs

RECENT_SECONDS = 60
AT_ONCE_SECONDS = 0.02
ANSWER_SECONDS = 110
"""How long an ADD waits for an answer."""
PODS = 30


def asking(**keys: object) -> bytes:
    return json.dumps(json.loads(CONFIG) | keys).encode()


@pytest.fixture
def plugin(plugin: Installation) -> Installation:
    plugin.run_dir.mkdir()
    return plugin


def beat(plugin: Installation, seconds_ago: float = 0) -> None:
    """Leave the heartbeat of an agent that was there `seconds_ago`."""
    heartbeat = plugin.run_dir / "cni.heartbeat"
    heartbeat.touch()
    last = time.time() - seconds_ago
    os.utime(heartbeat, (last, last))


def refused(plugin: Installation) -> None:
    """A socket that a killed agent left."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(plugin.socket))


def absent(plugin: Installation) -> None:
    del plugin


def seconds(action: Callable[[], object]) -> float:
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def is_at_once(action: Callable[[], object]) -> bool:
    """The best of many: on a busy machine, too, no launcher that waits is ever this quick."""
    # After a few waits the heartbeat would be too old to wait for.
    deadline = time.monotonic() + RECENT_SECONDS / 2
    while time.monotonic() < deadline:
        if seconds(action) < AT_ONCE_SECONDS:
            return True
    return False


@pytest.mark.alone  # the successor has the ten seconds that a plugin waits
@pytest.mark.parametrize("left", [absent, refused])
@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_a_request_waits_for_the_successor_of_an_agent_that_was_just_there(
    plugin: Installation, agent: Any, left: Callable[[Installation], None], command: str
) -> None:
    left(plugin)
    beat(plugin)

    def succeed() -> None:
        plugin.socket.unlink(missing_ok=True)
        agent(plugin, answering(b"0\n{}"))

    successor = threading.Timer(0.4, succeed)
    begin = time.monotonic()
    successor.start()
    outcome = execute(plugin, command)
    successor.join()
    assert (outcome.returncode, outcome.stdout) == (0, b"{}")
    assert 0.4 <= time.monotonic() - begin < 10, "it waited to the end"


@pytest.mark.parametrize("left", [absent, refused])
def test_the_wait_is_bounded(plugin: Installation, left: Callable[[Installation], None]) -> None:
    left(plugin)
    beat(plugin)
    begin = time.monotonic()
    assert error_of(execute(plugin, "ADD", asking(wait=1)))["code"] == 11
    assert 1 <= time.monotonic() - begin < PATIENCE


def test_an_add_waits_ten_seconds_where_the_configuration_names_none(plugin: Installation) -> None:
    beat(plugin)
    assert seconds(lambda: execute(plugin, "ADD")) >= 10


STATES: dict[str, Callable[[Installation], object]] = {
    "no heartbeat": absent,
    "an old heartbeat": lambda plugin: beat(plugin, RECENT_SECONDS + 2),
    "a heartbeat of tomorrow": lambda plugin: beat(plugin, -24 * 3600),
    "no directory": lambda plugin: shutil.rmtree(plugin.run_dir),
    "switched off": beat,
}


@pytest.mark.parametrize("state", STATES)
def test_an_add_fails_at_once_where_no_agent_was_there_a_moment_ago(
    plugin: Installation, state: str
) -> None:
    STATES[state](plugin)
    stdin = asking(wait=0) if state == "switched off" else CONFIG
    assert error_of(execute(plugin, "ADD", stdin))["code"] == 11
    assert is_at_once(lambda: execute(plugin, "ADD", stdin))


@pytest.mark.parametrize("command", ["STATUS", "GC", "DEL", "VERSION"])
def test_other_verbs_never_wait(plugin: Installation, command: str) -> None:
    beat(plugin)
    assert is_at_once(lambda: execute(plugin, command, CNI_PATH="/bin"))


def test_a_request_that_can_never_succeed_does_not_wait(plugin: Installation) -> None:
    beat(plugin)
    odd = {"CNI_IFNAME": "e%d"}
    assert error_of(execute(plugin, "ADD", **odd))["code"] == 4
    assert is_at_once(lambda: execute(plugin, "ADD", **odd))


def breaking(times: int) -> tuple[list[bytes], Callable[[Any, socket.socket], None]]:
    """An agent that ends in the middle of its first requests."""
    requests: list[bytes] = []

    def behave(_agent: Any, connection: socket.socket) -> None:
        with connection:
            message = b""
            while part := connection.recv(1 << 16):
                message += part
            requests.append(message)
            if len(requests) > times:
                connection.sendall(b"0\n{}")

    return requests, behave


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_a_request_that_broke_off_is_repeated_as_it_was(
    plugin: Installation, agent: Any, command: str
) -> None:
    requests, behave = breaking(1)
    agent(plugin, behave)
    assert execute(plugin, command).returncode == 0
    # The same start, too: a DEL that came between the two is still later than this request.
    assert requests == requests[:1] * 2


def test_a_request_that_no_agent_has_read_is_sent_until_one_does(
    plugin: Installation, agent: Any
) -> None:
    """A process that is killed takes connections until all of it has ended."""
    asked: list[socket.socket] = []

    def behave(served: Any, connection: socket.socket) -> None:
        asked.append(connection)
        if len(asked) > 3:
            answering(b"0\n{}")(served, connection)
        connection.close()

    agent(plugin, behave)
    assert execute(plugin, "ADD").returncode == 0
    assert len(asked) == 4


def test_a_request_that_breaks_off_again_is_not_sent_a_third_time(
    plugin: Installation, agent: Any
) -> None:
    requests, behave = breaking(5)
    agent(plugin, behave)
    assert error_of(execute(plugin, "ADD"))["code"] == 11
    assert len(requests) == 2


@pytest.mark.parametrize("command", ["STATUS", "GC", "DEL"])
def test_other_requests_that_break_off_are_not_repeated(
    plugin: Installation, agent: Any, command: str
) -> None:
    requests, behave = breaking(1)
    agent(plugin, behave)
    execute(plugin, command, CNI_PATH="/bin")
    assert len(requests) == 1


ODD = [-1, 11, 99, 100, 10**30, 0.5, 3.0, "3", "", None, True, False, [3], {"wait": 3}]


@pytest.mark.parametrize("value", ODD, ids=str)
def test_an_odd_wait_is_refused_to_add_alone_by_the_launcher_and_by_the_agent(
    plugin: Installation, value: object
) -> None:
    # It keeps no pod from being checked.
    error = error_of(execute(plugin, "CHECK", asking(wait=value)))
    assert error["code"] == TryAgainLater.cni_code
    beat(plugin)
    error = error_of(execute(plugin, "ADD", asking(wait=value)))
    assert error["code"] == InvalidNetworkConfig.cni_code
    assert error["msg"].startswith("wait: must be a whole number of seconds from 0 to 10")
    with pytest.raises(InvalidNetworkConfig, match="whole number of seconds from 0 to 10"):
        check_wait(value)


@pytest.mark.parametrize(
    "further_in",
    [
        {"args": {"wait": 99}},
        {"args": [{"wait": 99}]},
        {"about": "wait", "args": {}},
        {"about": '"wait": 99'},
        {"about": "\\", "runtimeConfig": {"labels": {"wait": "99"}}},
    ],
    ids=str,
)
def test_only_the_configurations_own_wait_counts(
    plugin: Installation, further_in: dict[str, object]
) -> None:
    beat(plugin)
    stdin = asking(**further_in, zwait=99, wait=0)
    assert error_of(execute(plugin, "ADD", stdin))["code"] == 11
    assert is_at_once(lambda: execute(plugin, "ADD", stdin))


@pytest.mark.parametrize("text", [b"", b'{"wait"', b'{"wait":', b'{"wait', b'{"a":"\\', b"}" * 99])
def test_a_configuration_that_is_no_json_ends_the_wait_like_any_other(
    plugin: Installation, text: bytes
) -> None:
    assert error_of(execute(plugin, "ADD", text))["code"] in (7, 11)


@pytest.fixture(scope="module")
def node() -> Iterator[LabNode]:
    name = f"waiting-{os.getpid()}"
    room = replace(cluster(nodes=1, pods=6 * PODS), pods=())
    with World(room, backend=Backend.NFTABLES, name=name, exporters=False) as world:
        yield world.nodes[0]


def heartbeat_age(node: LabNode) -> float:
    return time.time() - (node.run_dir / "cni.heartbeat").stat().st_mtime


@pytest.mark.slow
@pytest.mark.root
def test_an_agent_renews_its_heartbeat_and_leaves_one_when_it_ends(node: LabNode) -> None:
    heartbeat = node.run_dir / "cni.heartbeat"
    os.utime(heartbeat, (0, 0))
    # Right behind a heartbeat, so that the next one that the agent is due to leave is its last.
    eventually(lambda: heartbeat_age(node) <= 0.5)
    os.utime(heartbeat, (0, 0))
    node.stop_agent()
    assert heartbeat_age(node) < 5
    node.start_until_ready()


def stop(node: LabNode) -> int:
    """Have every thread of the agent stand still; returns its process number."""
    agent = node.agent_pid()
    assert agent
    os.kill(agent, signal.SIGSTOP)
    threads = Path(f"/proc/{agent}/task")
    eventually(lambda: all(") T " in (each / "stat").read_text() for each in threads.iterdir()))
    return agent


@pytest.mark.root
def test_an_agent_that_hangs_is_reported_at_once_and_its_successor_answers(node: LabNode) -> None:
    sandbox = node.add("hanging")
    agent = stop(node)
    try:
        begin = time.monotonic()
        reason = node.status()
        with pytest.raises(LabError, match="code 50: the netmgr agent does not answer"):
            node.runtime.check(sandbox, patience=0)
        took = time.monotonic() - begin
    finally:
        os.kill(agent, signal.SIGCONT)
    assert "code 50: the netmgr agent does not answer" in reason
    assert took < ANSWER_SECONDS / 2, "one of them waited as long as an ADD would"
    node.runtime.check(sandbox)
    stop(node)
    node.restart_after_kill()
    node.runtime.check(sandbox)
    node.runtime.delete(sandbox)


@pytest.mark.root
@pytest.mark.alone  # the successor has the ten seconds that a plugin waits
@pytest.mark.parametrize("end", [LabNode.kill_agent, LabNode.stop_agent])
def test_no_add_fails_while_the_agent_is_replaced(
    node: LabNode, end: Callable[[LabNode], None]
) -> None:
    ended = threading.Event()

    def exchange() -> None:
        # With the first ADDs under way.
        time.sleep(0.02)
        end(node)
        ended.set()
        node.start_agent()

    def add(number: int) -> int:
        # Half of them while the agent is there, half while it is not.
        if number % 2:
            ended.wait(PATIENCE)
        made = node.add(f"{end.__name__.replace('_', '-')}-{number}")
        node.runtime.check(made)
        return len(made.addresses)

    with ThreadPoolExecutor(PODS + 1) as threads:
        replacing = threads.submit(exchange)
        added = list(threads.map(add, range(PODS)))
        replacing.result()
    assert set(added) == {2}
    assert sum(each["allocated"] for each in node.snapshot()["pool"]) == 2 * PODS
    for sandbox in node.runtime.sandboxes():
        node.runtime.delete(sandbox)
