"""While nodes are upgraded a launcher meets an agent of the version before or after its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cni import build
from cni.install import install
from netmgr.documents.node import Backend
from tests.kernel.launching import agents, answering, error_of, execute, layout
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World

pytestmark = pytest.mark.root


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
def next_protocol(tmp_path_factory: pytest.TempPathFactory) -> Path:
    greeting = '#define GREETING "netmgr-cni '
    source = build.SOURCE.read_text()
    assert f'{greeting}1"' in source
    return compiled(
        source.replace(f'{greeting}1"', f'{greeting}2"'), tmp_path_factory.mktemp("next")
    )


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(cluster(nodes=1, pods=0), backend=Backend.NFTABLES, exporters=False) as made:
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
