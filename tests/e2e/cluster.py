"""A whole cluster, and what must be removed after one whose test was killed.

Everything of a cluster is known by its name, `cluster-<number>`: the folder below HOME, which its
owner keeps locked, the lab of that name with its namespaces, and the nodes' control groups.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

from netmgr.prefixes import Family
from tests.e2e import images, network, programs
from tests.e2e.control_plane import ClusterControlPlane
from tests.e2e.images import Archive
from tests.e2e.node import ClusterNode
from tests.lab import world
from tests.lab.world import World
from tests.runtimes.machine import Machine

Value = TypeVar("Value")
HOME = Path("/dev/shm/netmgr-e2e")  # noqa: S108  root alone writes there
"""In memory: a disk would have to be asked for each of the many files to be removed."""

PROGRAMS = "programs"
"""In a cluster's folder: where its programs are."""


@dataclass
class Cluster:
    """Two nodes and a control plane; a context manager.

    The nodes of `with_containerd_2` have containerd 2.x, the others Debian's 1.6. The machines of
    `with_previous` have Kubernetes' minor version before the newest. A kubelet may be older than
    the API server, not newer.
    """

    families: tuple[Family, ...] = (Family.V4,)
    proxy_mode: str = "iptables"
    with_containerd_2: tuple[str, ...] = ("node-2",)
    with_previous: tuple[str, ...] = ("node-2",)
    allocates_node_cidrs: bool = True
    pod_cidr_length: int = 24
    """Of a Node's IPv4 podCIDR."""
    report: Callable[[str], None] = lambda _: None
    plane: ClusterControlPlane = field(init=False)
    nodes: list[ClusterNode] = field(init=False, default_factory=list)
    _closing: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def name(self) -> str:
        """What everything of it is called by."""
        return self._world.name

    @property
    def folder(self) -> Path:
        """Its files: logs, credentials, the nodes' disks."""
        return HOME / self.name

    def node(self, name: str) -> ClusterNode:
        """The node of this name."""
        return next(node for node in self.nodes if node.name == name)

    def namespace(self, host: str) -> Path:
        """Where the network namespace of a machine is pinned."""
        return self._world.namespace(host)

    def _start(self) -> None:
        self.report("network")
        self._world = self._closing.enter_context(_claimed())
        folder = self.folder / "control-plane"
        folder.mkdir()
        self.plane = ClusterControlPlane(
            folder,
            address=str(network.address(network.CONTROL_PLANE)),
            netns=self.namespace(network.CONTROL_PLANE),
            families=self.families,
            allocates_node_cidrs=self.allocates_node_cidrs,
            pod_cidr_length=self.pod_cidr_length,
            has_previous=network.CONTROL_PLANE in self.with_previous,
        )
        self.nodes = [self._describe(name) for name in network.NODES]
        (self.folder / PROGRAMS).symlink_to(programs.folder())
        self.report("images")
        archives = images.make(self.folder)
        self.report("control plane and container runtimes")
        with ThreadPoolExecutor() as pool:
            self._closing.callback(self.plane.stop)
            starting = [pool.submit(self.plane.start)]
            for node in self.nodes:
                self._closing.callback(node.stop)
                starting.append(pool.submit(_boot, node, archives))
            for each in starting:
                each.result()
        self.report("kubelets")
        for node in self.nodes:
            node.join()
        for node in self.nodes:
            wait_for(partial(self._is_registered, node.name), f"Node {node.name}", 60)
        if self.allocates_node_cidrs:
            self.route_pod_cidrs()

    def _describe(self, name: str) -> ClusterNode:
        return ClusterNode(
            name,
            self.namespace(name),
            self.folder / f"of-{name}",
            _cgroup(self.name, name),
            self.plane,
            self.proxy_mode,
            name in self.with_containerd_2,
            name in self.with_previous,
        )

    def _is_registered(self, name: str) -> bool:
        status, _ = self.plane.answer("GET", f"/api/v1/nodes/{name}")
        return status == 200

    def nodes_ready(self) -> dict[str, str]:
        """The condition Ready of every Node: its status and message."""
        found = {}
        for node in self.plane.ask("GET", "/api/v1/nodes")["items"]:
            condition = next(e for e in node["status"]["conditions"] if e["type"] == "Ready")
            found[node["metadata"]["name"]] = f"{condition['status']} {condition['message']}"
        return found

    def nodes_are_ready(self) -> bool:
        """Whether every Node is."""
        return all(condition.startswith("True") for condition in self.nodes_ready().values())

    def label(self, node: str, label: str, value: str = "") -> None:
        """Label a Node, as an administrator."""
        self.plane.kubectl("label", "--overwrite", "node", node, f"{label}={value}")

    def route_pod_cidrs(self, at: str = network.FABRIC) -> None:
        """Have a machine deliver every Node's podCIDRs to the node, once it has them."""
        for node in self.nodes:
            for pod_cidr in wait_for(partial(self.pod_cidrs, node.name), "podCIDRs", 30):
                family = Family.V6 if ":" in pod_cidr else Family.V4
                via = str(network.address(node.name, family))
                self.run_at(at, "ip", "route", "replace", pod_cidr, "via", via)

    def pod_cidrs(self, node: str) -> list[str]:
        """What the Node of this name has."""
        found = self.plane.ask("GET", f"/api/v1/nodes/{node}")["spec"].get("podCIDRs", [])
        return list(found)

    def run_at(self, host: str, *command: str) -> str:
        """Run a program in a machine's network, and return its output."""
        entered = ["nsenter", f"--net={self.namespace(host)}", *command]
        return subprocess.run(entered, check=True, capture_output=True, text=True).stdout


def wait_for(look: Callable[[], Value | None], what: str, seconds: float) -> Value:
    """The first value of `look` that is true; fails, naming `what`, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not there after {seconds:.0f} s: {what}"
        time.sleep(0.1)
    return found


def _boot(node: ClusterNode, archives: list[Archive]) -> None:
    node.boot()
    wait_for(node.containerd_answers, f"containerd of {node.name}", 30)
    for archive in archives:
        node.import_image(archive)


def sweep() -> None:
    """Remove what is left of clusters whose owner is gone."""
    for folder in sorted(HOME.iterdir()):
        with suppress(BlockingIOError), _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            _remove(folder)


def _remove(folder: Path) -> None:
    """Processes and namespaces first, which use the rest."""
    if folder.name in world.names():
        world.remove(folder.name)
    for node in network.NODES:
        Machine(Path(), folder, cgroup=_cgroup(folder.name, node)).sweep()
    shutil.rmtree(folder)


@contextmanager
def _claimed() -> Iterator[World]:
    """A world of its own, its folder locked for as long as this process lives."""
    HOME.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as closing:
        # Others' test sessions ask it whether what they see may be someone else's.
        closing.enter_context(_locked(Path("/run"), fcntl.LOCK_SH))
        with _locked(HOME, fcntl.LOCK_EX):
            sweep()
            folder = _new_folder()
            closing.enter_context(_locked(folder, fcntl.LOCK_EX))
            closing.callback(_remove, folder)
        made = World(network.topology(), name=folder.name)
        made.build()
        yield made


def _new_folder() -> Path:
    """The first free name, as a folder."""
    folder = next(each for number in count(1) if not (each := HOME / f"cluster-{number}").exists())
    folder.mkdir()
    return folder


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    """Hold a lock on a folder, which ends with this process at the latest."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _cgroup(cluster: str, node: str) -> str:
    return f"netmgr-{cluster}-{node}"
