"""Host-network pods counted by their cgroup on the real kernel: to the byte, apart from the node's
own.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.common import counted, gap_counts, origins
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING
from tests.kernel.namespaces import inside
from tests.kernel.spending import IN, OUT, run
from tests.lab.exchange import End, datagram_bytes, datagrams, open_socket
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

UNIFIED = next(
    path
    for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
    if (path / "cgroup.procs").exists()
)
Kubelet = Callable[..., Path]
HostPod = Callable[..., AbstractContextManager["Process"]]
TALKER = """
import socket, sys
family = {4: socket.AF_INET, 6: socket.AF_INET6}
sockets = {}
print("ready", flush=True)
for line in sys.stdin:
    version, host, port, count, size = line.split()
    one = sockets.setdefault(version, socket.socket(family[int(version)], socket.SOCK_DGRAM))
    one.settimeout(60)
    for _ in range(int(count)):
        one.sendto(bytes(int(size)), (host, int(port)))
        one.recv(65536)
    print("done", flush=True)
"""


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    """These rules are a table of their own, whatever holds the others."""
    return getattr(request, "param", Backend.NFTABLES)


@pytest.fixture
def cgroups() -> Iterator[Path]:
    """A directory of our own in the place of kubelet's."""
    root = UNIFIED / f"netmgr-test-{os.getpid()}"
    (root / "kubepods" / "burstable").mkdir(parents=True)
    (root / "kubepods.slice" / "kubepods-besteffort.slice").mkdir(parents=True)
    yield root
    for folder, _, _ in os.walk(root, topdown=False):
        Path(folder).rmdir()


@pytest.fixture
def world(backend: Backend, cgroups: Path, tmp_path: Path) -> Iterator[World]:
    room = replace(cluster(nodes=1, pods=5), pods=())
    accounting = {
        "host_pods": True,
        "cgroup_dir": str(cgroups),
        "pod_logs_dir": str(tmp_path),
        "min_reading_seconds": 0,
    }
    settings = {"accounting": accounting, "reconcile_seconds": 0.3}
    with World(
        room, backend=backend, name=f"host-pods-{os.getpid()}", settings=settings, exporters=False
    ) as made:
        yield made


@dataclass
class Process:
    """A process in the node's network, or elsewhere, that talks when told to."""

    world: World
    running: subprocess.Popen[str]
    exchanged: dict[str, int] = field(default_factory=lambda: {OUT: 0, IN: 0})
    """Bytes of IP, sent and received so far."""

    def talk(self, family: Family, count: int, size: int, answer: int) -> None:
        """Exchange datagrams with the internet."""
        with open_socket(self.world.internet, family, socket.SOCK_DGRAM) as far:
            far.bind((str(INTERNET[family]), 0))
            far.settimeout(PATIENCE)
            host, port, *_ = far.getsockname()
            assert self.running.stdin
            assert self.running.stdout
            self.running.stdin.write(f"{family} {host} {port} {count} {size}\n")
            self.running.stdin.flush()
            for _ in range(count):
                _, peer = far.recvfrom(65536)
                far.sendto(bytes(answer), peer)
            assert self.running.stdout.readline() == "done\n"
        self.exchanged[OUT] += count * datagram_bytes(family, size)
        self.exchanged[IN] += count * datagram_bytes(family, answer)


@contextmanager
def process(world: World, namespace: Path, cgroup: Path | None) -> Iterator[Process]:
    command = ["nsenter", f"--net={namespace}", sys.executable, "-c", TALKER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout
            assert running.stdout.readline() == "ready\n"
            if cgroup:
                (cgroup / "cgroup.procs").write_text(str(running.pid))
            yield Process(world, running)
        finally:
            running.kill()
            running.wait()


def kubelets(cgroups: Path, logs: Path, name: str, *, slices: bool = False) -> Path:
    """What kubelet makes for a pod: a cgroup with one for a container in it, and a directory for
    logs.
    """
    uid = str(uuid.uuid4())
    (logs / f"kube-system_{name}_{uid}").mkdir()
    if slices:
        parent = cgroups / "kubepods.slice" / "kubepods-besteffort.slice"
        made = parent / f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice" / "cri-0.scope"
    else:
        made = cgroups / "kubepods" / f"pod{uid}" / "container"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def kubelet(cgroups: Path, tmp_path: Path) -> Kubelet:
    return partial(kubelets, cgroups, tmp_path)


def wait_for(node: LabNode, name: str, *, live: bool) -> None:
    def is_so() -> bool:
        pods = node.snapshot()["pods"]
        return any(row["pod"] == name and row["live"] is live for row in pods)

    eventually(is_so, (node.directory / "agent.log").read_text)


@pytest.fixture
def host_pod(world: World, node: LabNode, kubelet: Kubelet) -> HostPod:
    """Runs a host-network pod for a block, in a cgroup of its own or another one's."""

    @contextmanager
    def running(name: str, container: Path | None = None, *, slices: bool = False) -> Any:
        container = container or kubelet(name, slices=slices)
        with process(world, node.namespace, container) as talker:
            wait_for(node, name, live=True)
            yield talker

    return running


@pytest.mark.parametrize("backend", EVERY_WAY_OF_COUNTING, indirect=True, ids=str)
def test_a_host_network_pod_is_counted_to_the_byte_and_the_rest_is_the_nodes_own(
    world: World, node: LabNode, host_pod: HostPod
) -> None:
    with host_pod("apiserver") as apiserver, host_pod("proxy", slices=True) as proxy:
        pods = {"apiserver": apiserver, "proxy": proxy}
        before = origins(node)
        for number, family in enumerate(Family):
            for name, talker in pods.items():
                talker.talk(family, 5 + number, 100 * len(name), 300)
        own = End(node.namespace, next(a for a in node.node.addresses if a.family is Family.V4))
        of_node = datagrams(own, End(world.internet, INTERNET[Family.V4]), [777] * 3, [50] * 3)
        for name, talker in pods.items():
            assert counted(node, name) == talker.exchanged
        grown = {
            key: size - before[key] for key, size in origins(node).items() if size != before[key]
        }
        assert grown == {
            ("host-pods", OUT): sum(talker.exchanged[OUT] for talker in pods.values()),
            ("host-pods", IN): sum(talker.exchanged[IN] for talker in pods.values()),
            ("node", OUT): of_node.forth.bytes,
            ("node", IN): of_node.back.bytes,
        }
        assert {row["bytes"] for row in node.snapshot()["unattributed"]} == {0}


def test_a_host_network_pods_bytes_survive_its_end_the_agents_and_the_rules(
    node: LabNode, kubelet: Kubelet, host_pod: HostPod
) -> None:
    container = kubelet("etcd")
    with host_pod("etcd", container) as talker:
        talker.talk(Family.V4, 4, 500, 20)
        node.kill_agent()
        talker.talk(Family.V4, 3, 200, 10)
        node.start_until_ready()
        assert counted(node, "etcd") == talker.exchanged
        inside(node.namespace, "nft", "delete table inet netmgr-host-pods")
        table = ("nft", "list table inet netmgr-host-pods")
        eventually(lambda: "packets" in run(node, *table).stdout)
        talker.talk(Family.V6, 2, 900, 90)
        assert counted(node, "etcd") == talker.exchanged
        assert gap_counts(node) == {"removed": 1}
        talker.talk(Family.V4, 1, 1000, 1)
    # Its last packets were read by nobody when its cgroup goes.
    container.rmdir()
    container.parent.rmdir()
    wait_for(node, "etcd", live=False)
    assert counted(node, "etcd") == talker.exchanged
    assert "packets" not in inside(node.namespace, "nft", "list table inet netmgr-host-pods")


@pytest.mark.parametrize("backend", [Backend.NFTABLES], indirect=True, ids=str)
def test_a_flush_of_all_rules_is_one_gap_of_pods_and_host_network_pods(
    node: LabNode, host_pod: HostPod
) -> None:
    with host_pod("dns") as talker:
        talker.talk(Family.V4, 1, 500, 20)
        node.snapshot()
        inside(node.namespace, "nft", "flush ruleset")

        with sqlite3.connect(node.directory / "state" / "ledger.sqlite") as ledger:
            ((every,),) = ledger.execute("SELECT count(*) FROM counter").fetchall()

        def concerned() -> int:
            return sum(gap["concerned"] for gap in node.snapshot()["gaps"])

        eventually(lambda: concerned() >= every)
        assert (gap_counts(node), concerned()) == ({"removed": 1}, every)


def test_a_host_network_pods_counters_that_are_put_back_are_not_counted_again(
    node: LabNode, host_pod: HostPod, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    with host_pod("proxy") as talker:
        talker.talk(Family.V4, 4, 500, 20)
        assert counted(node, "proxy") == talker.exchanged
        saved.write_text(inside(node.namespace, "nft", "list table inet netmgr-host-pods"))
        talker.talk(Family.V4, 3, 200, 10)
        assert counted(node, "proxy") == talker.exchanged
        # While no agent runs, or its next look may make the table anew.
        node.kill_agent()
        inside(node.namespace, "nft", "delete table inet netmgr-host-pods")
        inside(node.namespace, "nft", "-f", str(saved))
        node.start_until_ready()
        wait_for(node, "proxy", live=True)
        assert counted(node, "proxy") == talker.exchanged
        assert gap_counts(node) == {"restored": 1}
        talker.talk(Family.V6, 2, 300, 40)
        assert counted(node, "proxy") == talker.exchanged


def test_a_pod_between_two_containers_while_the_agent_starts_is_counted_once(
    node: LabNode, kubelet: Kubelet, host_pod: HostPod
) -> None:
    """It has no process for a moment, and its cgroup stays."""
    container = kubelet("restarting")
    with host_pod("restarting", container) as former:
        former.talk(Family.V4, 4, 500, 20)
        assert counted(node, "restarting") == former.exchanged
    node.kill_agent()
    node.start_until_ready()
    with host_pod("restarting", container) as talker:
        talker.talk(Family.V6, 2, 300, 40)
        assert counted(node, "restarting") == {
            way: former.exchanged[way] + size for way, size in talker.exchanged.items()
        }
    assert gap_counts(node) == {}


def test_a_pod_with_a_network_of_its_own_is_none_of_these(
    world: World, node: LabNode, cgroups: Path, kubelet: Kubelet
) -> None:
    sandbox = node.add("own-network")
    unnamed = cgroups / "kubepods" / f"pod{uuid.uuid4()}"
    unnamed.mkdir()
    with (
        process(world, sandbox.netns, kubelet("own-network")),
        process(world, node.namespace, unnamed),
    ):
        time.sleep(1)
        assert {row["namespace"] for row in node.snapshot()["pods"]} == {"research"}
    node.runtime.delete(sandbox)


def test_what_was_counted_ends_where_it_is_no_longer_asked_for(
    node: LabNode, host_pod: HostPod
) -> None:
    with host_pod("dns") as talker:
        talker.talk(Family.V4, 4, 500, 20)
        assert counted(node, "dns") == talker.exchanged
        node.stop_agent()
        node.document.write_text(
            node.document.read_text().replace("host_pods: true", "host_pods: false")
        )
        node.start_until_ready()
        wait_for(node, "dns", live=False)
        assert counted(node, "dns") == talker.exchanged
        assert "host-pods" not in inside(node.namespace, "nft", "list tables")


def test_a_new_range_is_no_internet_to_host_network_pods_either_and_costs_no_count(
    node: LabNode, host_pod: HostPod
) -> None:
    with host_pod("lasting") as talker:
        talker.talk(Family.V4, 3, 100, 200)
        node.document.write_text(
            node.document.read_text().replace("ranges:\n", "ranges:\n- 198.51.100.0/28\n")
        )
        listing = "list set inet netmgr-host-pods internal4"
        eventually(lambda: "198.51.100.0/28" in inside(node.namespace, "nft", listing))
        talker.talk(Family.V4, 2, 50, 60)
        assert counted(node, "lasting") == talker.exchanged
        assert gap_counts(node) == {}


def test_a_kubelet_that_starts_later_and_uses_cgroup_v1_is_reported(
    node: LabNode, cgroups: Path
) -> None:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    v1 = next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup"), None)
    if v1 is None:
        pytest.skip("this machine has no cgroup v1 beside v2")
    log = node.directory / "agent.log"
    assert "host-pods-uncounted" not in log.read_text()
    for folder, _, _ in os.walk(cgroups, topdown=False):
        if Path(folder) != cgroups:
            Path(folder).rmdir()
    beside = v1 / cgroups.name / "kubepods"
    beside.mkdir(parents=True)
    try:
        eventually(lambda: "host-pods-uncounted" in log.read_text())
        assert f"kubelet keeps its pods in cgroup v1 ({v1 / cgroups.name})" in log.read_text()
        assert not node.runtime.status()
    finally:
        beside.rmdir()
        beside.parent.rmdir()
