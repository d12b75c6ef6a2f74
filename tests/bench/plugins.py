"""Calls CNI plugins as a container runtime does, netmgr's and the reference `ptp` alike, and takes
the time.

A call is timed from just before the plugin's process is made until it has been waited for.
Both plugins are started the same way: posix_spawn from a thread in the node's namespace,
configuration from a file, result into a file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from netmgr.documents.node import Backend
from tests.built import built
from tests.lab import named_netns, wiring
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World

RANGE = "10.128.0.0/21"
"""Room for every pod of a run without using an address twice."""

QUIET = {"ranges": [RANGE], "reconcile_seconds": 3600, "accounting": {"reading_seconds": 5}}
"""One family, as ptp is given; no reconciling while rules are taken away for comparison."""

PEERS = Path(__file__).parent / "peers"
"""The Go module of the reference plugins, which `.ci/programs bench/peers bench` builds."""


class PluginError(Exception):
    """A plugin failed; the message is its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Plugin:
    """One plugin on one node.

    `folder` is where configuration and results are kept, `pods` where the world keeps the
    namespaces that it removes at its end.
    """

    program: Path
    config: dict[str, object]
    node_netns: Path
    folder: Path
    pods: Path

    def __post_init__(self) -> None:
        (self.folder / "results").mkdir(parents=True)
        (self.folder / "config.json").write_text(json.dumps(self.config))

    def make_pods(self, names: Sequence[str]) -> None:
        """Make the namespaces that are to be attached."""
        for name in names:
            named_netns.create(self.pods / name)

    def fill(self, names: Sequence[str]) -> None:
        """Attach so many pods, a hundred at once."""
        self.make_pods(names)
        for first in range(0, len(names), 100):
            self.call_at_once("ADD", names[first : first + 100])

    def remove_pods(self, names: Sequence[str]) -> None:
        """Remove them again."""
        for name in names:
            named_netns.delete(self.pods / name)

    def call(self, verb: str, pod: str) -> float:
        """Run one verb for one pod; the seconds it took."""
        with wiring.inside(self.node_netns):
            began = time.perf_counter()
            process = self._spawn(verb, pod)
            _, status = os.waitpid(process, 0)
            took = time.perf_counter() - began
        self._judge(verb, pod, status)
        return took

    def call_at_once(self, verb: str, pods: Sequence[str]) -> float:
        """Run one verb for all pods, every process started before any is waited for; seconds until
        the last ended.
        """
        with wiring.inside(self.node_netns):
            began = time.perf_counter()
            processes = {self._spawn(verb, pod): pod for pod in pods}
            ended = {process: os.waitpid(process, 0)[1] for process in processes}
            took = time.perf_counter() - began
        for process, pod in processes.items():
            self._judge(verb, pod, ended[process])
        return took

    def _spawn(self, verb: str, pod: str) -> int:
        environment = {
            "PATH": os.defpath + ":/usr/sbin:/sbin",
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": f"bench-{pod}",
            "CNI_NETNS": str(self.pods / pod),
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(self.program.parent),
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME={pod}",
        }
        written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        redirected = [
            (os.POSIX_SPAWN_OPEN, 0, str(self.folder / "config.json"), os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self._result(pod)), written, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawn(self.program, [self.program], environment, file_actions=redirected)

    def _judge(self, verb: str, pod: str, status: int) -> None:
        if status:
            raise PluginError(f"{self.program.name} {verb} {pod}: {self._result(pod).read_text()}")

    def _result(self, pod: str) -> Path:
        return self.folder / "results" / pod


@contextmanager
def netmgr(
    backend: Backend, settings: dict[str, object] | None = None
) -> Iterator[tuple[Plugin, LabNode]]:
    """netmgr on a node of its own, agent warm."""
    with World(
        cluster(nodes=1, pods=0), backend=backend, settings={**QUIET, **(settings or {})}
    ) as world:
        yield plugin_of(world.nodes[0]), world.nodes[0]


def plugin_of(node: LabNode) -> Plugin:
    """The plugin installed on a lab's node."""
    (conflist,) = (node.directory / "net.d").glob("*.conflist")
    network = json.loads(conflist.read_text())
    config = {**network["plugins"][0], "name": network["name"], "cniVersion": "1.0.0"}
    return Plugin(
        node.directory / "bin" / config["type"],
        config,
        node.namespace,
        node.directory / "bench",
        node.pods_dir,
    )


@contextmanager
def ptp(masquerade: str) -> Iterator[Plugin]:
    """`ptp` with `host-local`, masquerading by a backend, on a node of its own."""
    world = World(cluster(nodes=1, pods=0))
    world.build()
    try:
        node = world.nodes[0]
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": RANGE}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(world.directory / "host-local"),
        }
        config = {
            "cniVersion": "0.4.0",
            "name": "bench",
            "type": "ptp",
            "ipMasq": True,
            "ipMasqBackend": masquerade,
            "ipam": ipam,
        }
        program = built(PEERS, "bench") / "ptp"
        if not program.exists():
            # Debian's is older, and will do to show that a benchmark runs.
            program = Path("/usr/lib/cni/ptp")
        at = world.directory
        yield Plugin(program, config, node.namespace, at / "bench", at / "pods")
    finally:
        world.down()
