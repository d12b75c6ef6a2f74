"""While nodes are upgraded a launcher meets an agent of the version before or after its own.

`launchers/first.c` is the launcher as it first was: it did not say when it began. It and the agents
of its time read any `NAME=value`, which is what makes room for more without another protocol.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cni import build
from cni.install import install
from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.launching import CONFIG, agents, answering, error_of, execute, layout, variables
from tests.lab.errors import LabError
from tests.lab.exchange import End, datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World

pytestmark = pytest.mark.root

FIRST = Path(__file__).with_name("launchers") / "first.c"
PAYLOADS = [1000] * 10
BYTES = 10 * (1000 + 28)


def compiled(source: str, folder: Path) -> Path:
    (folder / "launcher.c").write_text(source)
    command = [
        "cc",
        "-std=c11",
        "-O1",
        "-static",
        "-Wall",
        "-Wextra",
        f"-I{build.SOURCE.parent}",
        "-o",
        "launcher",
        "launcher.c",
    ]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "launcher"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(FIRST.read_text(), tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def next_protocol(tmp_path_factory: pytest.TempPathFactory) -> Path:
    greeting = '#define GREETING "netmgr-cni '
    source = build.SOURCE.read_text()
    assert f'{greeting}1"' in source
    return compiled(
        source.replace(f'{greeting}1"', f'{greeting}2"'), tmp_path_factory.mktemp("next")
    )


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    name = f"versions-{os.getpid()}"
    room = cluster(nodes=1, pods=0)
    with World(room, backend=Backend.NFTABLES, name=name, exporters=False) as made:
        yield made


@pytest.fixture
def node(world: World) -> LabNode:
    return world.nodes[0]


@pytest.fixture
def put(node: LabNode) -> Iterator[Callable[[Path], None]]:
    """Puts another launcher where the node's runtime finds its plugin; the node's own returns after
    the test.
    """
    place = node.runtime.bin_dir / "netmgr"
    own = place.read_bytes()

    def change(launcher: Path) -> None:
        shutil.copy(launcher, place.with_name("scratch"))
        place.with_name("scratch").replace(place)

    yield change
    place.unlink()
    place.write_bytes(own)
    place.chmod(0o755)


def talk(world: World, sandbox: Sandbox) -> None:
    internet = End(world.internet, INTERNET[Family.V4])
    datagrams(End(sandbox.netns, sandbox.address(Family.V4)), internet, PAYLOADS, PAYLOADS)


def sent(node: LabNode, sandbox: Sandbox) -> int:
    time.sleep(0.1)
    rows = node.snapshot()["pods"]
    return sum(
        row["bytes"]
        for row in rows
        if (row["pod"], row["traffic"]) == (sandbox.pod.name, "internet-out")
    )


def test_the_first_launcher_is_served_by_this_agent(
    world: World, node: LabNode, put: Callable[[Path], None], first: Path
):
    put(first)
    assert node.runtime.status() == ""
    sandbox = node.add("first")
    node.runtime.check(sandbox)
    talk(world, sandbox)
    assert sent(node, sandbox) == BYTES
    node.runtime.delete(sandbox)
    assert node.ask("pods")["attachments"] == []


def test_a_del_that_the_first_launcher_kept_is_carried_out_by_this_agent(
    node: LabNode, put: Callable[[Path], None], first: Path
):
    put(first)
    sandbox = node.add("kept")
    node.stop_agent()
    node.runtime.delete(sandbox)
    (kept,) = (node.directory / "state" / "spool").iterdir()
    assert b"NETMGR_STARTED" not in kept.read_bytes()
    node.start_agent()
    node.wait_until_ready()
    assert node.ask("pods")["attachments"] == []
    assert not kept.exists()


def test_an_upgrade_of_both_keeps_pods_traffic_and_counters_whole(
    world: World, node: LabNode, put: Callable[[Path], None], first: Path
):
    put(first)
    sandbox = node.add("through")
    talk(world, sandbox)
    node.stop_agent()
    talk(world, sandbox)
    node.install_plugin()
    assert build.is_current(node.runtime.bin_dir / "netmgr")
    node.start_agent()
    node.wait_until_ready()
    talk(world, sandbox)
    assert sent(node, sandbox) == 3 * BYTES
    node.runtime.delete(sandbox)
    assert node.ask("pods")["attachments"] == []
    assert sum(gap["count"] for gap in node.snapshot()["gaps"]) == 0


def test_this_launcher_is_understood_by_an_agent_of_the_first_version(tmp_path: Path):
    plan = layout(tmp_path)
    install(plan)
    answer = json.dumps({"cniVersion": "1.0.0", "ips": []}).encode()
    with agents() as start:
        listening = start(plan, answering(b"0\n" + answer))
        outcome = execute(plan, "ADD")
    assert (outcome.returncode, outcome.stdout) == (0, answer)
    environment, stdin = as_the_first_agent_read_it(listening.requests[0])
    assert {
        name: value for name, value in environment.items() if name.startswith("CNI_")
    } == variables("ADD")
    assert stdin == CONFIG


def as_the_first_agent_read_it(message: bytes) -> tuple[dict[str, str], bytes]:
    greeting, *entries = message.split(b"\0")
    assert greeting == b"netmgr-cni 1"
    end = entries.index(b"")
    pairs = (entry.decode().partition("=") for entry in entries[:end])
    return {name: value for name, _, value in pairs}, b"\0".join(entries[end + 1 :])


@pytest.mark.parametrize("command", ["ADD", "DEL", "STATUS"])
def test_another_protocol_is_refused_with_what_to_do(
    node: LabNode, put: Callable[[Path], None], next_protocol: Path, command: str
):
    sandbox = node.add("refused")
    put(next_protocol)
    with pytest.raises(
        LabError, match=r"code 5: .*speaks b'netmgr-cni 2'.* install the launcher again"
    ):
        node.runtime.execute(command, None if command == "STATUS" else sandbox)
    node.install_plugin()
    node.runtime.delete(sandbox)


def test_a_refusal_by_an_older_agent_reaches_the_runtime_as_it_is(tmp_path: Path):
    plan = layout(tmp_path)
    install(plan)
    refusal = {
        "cniVersion": "1.0.0",
        "code": 5,
        "msg": "the launcher speaks another protocol",
        "details": "",
    }
    with agents() as start:
        start(plan, answering(b"1\n" + json.dumps(refusal).encode()))
        error = error_of(execute(plan, "ADD"))
    assert (error["code"], error["msg"]) == (5, refusal["msg"])
