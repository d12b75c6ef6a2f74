"""A lab node whose pods Debian's own plugins wire, and whose agent only observes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from netmgr.documents.node import Backend
from netmgr.errors import NetmgrError
from netmgr.prefixes import Family
from tests.kernel.namespaces import inside
from tests.lab import wiring
from tests.lab.exchange import datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import Pod, cluster
from tests.lab.world import World
from tests.waiting import eventually

PLUGINS = Path("/usr/lib/cni")
SUBNETS = ("10.88.1.0/24", "fd00:88:1::/112")
Amounts = dict[str, tuple[int, int]]


class ObservedNode:
    """The node, and what the tests ask of it."""

    def __init__(self, world: World, node: LabNode, plugin: str) -> None:
        self.world = world
        self.node = node
        self.results = node.directory / "cache" / "results"
        self._install(plugin)

    def _install(self, plugin: str) -> None:
        runtime = self.node.runtime
        self.node.write_document()
        runtime.bin_dir.symlink_to(PLUGINS)
        runtime.conf_dir.mkdir()
        ranges = [[{"subnet": subnet}] for subnet in SUBNETS]
        kept = {"type": "host-local", "dataDir": str(self.node.directory / "ipam")}
        ipam = {**kept, "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
        wired: dict[str, Any] = {"type": plugin, "ipMasq": True, "ipam": ipam}
        if plugin == "bridge":
            wired |= {"bridge": "cni0", "isGateway": True}
        network = {"cniVersion": "1.0.0", "name": "others", "plugins": [wired]}
        (runtime.conf_dir / "10-others.conflist").write_text(json.dumps(network))

    def start_agent(self) -> None:
        self.node.start_agent()
        self.wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            return self.node.snapshot()["ready"]
        except NetmgrError:
            return False

    def add(self, name: str) -> Sandbox:
        """Run a pod. Real plugins work in the namespace they are started in."""
        with wiring.inside(self.node.namespace):
            return self.node.runtime.add(Pod(name, self.node.name))

    def delete(self, pod: Sandbox) -> None:
        with wiring.inside(self.node.namespace):
            self.node.runtime.delete(pod)

    def forget_addresses(self) -> None:
        """Have host-local begin again with the first address."""
        shutil.rmtree(self.node.directory / "ipam", ignore_errors=True)

    def touch(self, pod: Sandbox) -> None:
        """Have the agent look again."""
        path = self.result_file(pod)
        path.write_bytes(path.read_bytes())

    def our_rules(self) -> str:
        """What netmgr has in the kernel, of either backend."""
        shown = "nft list table inet netmgr 2>/dev/null || iptables-legacy-save | grep -i -e netmgr"
        return inside(self.node.namespace, "sh", "-c", shown)

    def result_file(self, pod: Sandbox) -> Path:
        return next(self.results.glob(f"*-{pod.container_id}-*"))

    def talk(self, pod: Sandbox, forth: int = 20, back: int = 30) -> Amounts:
        """Exchange datagrams with the internet in both families; what that should count."""
        out, home = range(100, 100 + forth), range(back, back + 7 * forth, 7)
        totals = {"internet-out": (0, 0), "internet-in": (0, 0)}
        for family in Family:
            there = self.world.outside(family)
            heard = datagrams(pod.end(family), there, [*out], [*home])
            for traffic, tally in (("internet-out", heard.forth), ("internet-in", heard.back)):
                size, packets = totals[traffic]
                totals[traffic] = size + tally.bytes, packets + tally.packets
        return totals

    def counted(self, name: str) -> Amounts:
        pods = [row for row in self.node.snapshot()["pods"] if row["pod"] == name]
        return {row["traffic"]: (row["bytes"], row["packets"]) for row in pods}

    def unaccounted(self) -> int:
        """Bytes of internet traffic that the node forwarded and no pod was counted for."""
        snapshot = self.node.snapshot()
        forwarded = sum(rule["bytes"] for rule in snapshot["rules"] if rule["chain"] == "forward")
        return forwarded - sum(total["bytes"] for total in snapshot["namespaces"])

    def live(self) -> set[str]:
        return {row["pod"] for row in self.node.snapshot()["pods"] if row["live"]}

    def files(self) -> dict[str, int]:
        """The cache's files by what became of them, those with any."""
        return {
            item["state"]: item["count"]
            for item in self.node.snapshot()["result_files"]
            if item["count"]
        }

    def gaps(self) -> dict[str, int]:
        return {gap["reason"]: gap["count"] for gap in self.node.snapshot()["gaps"] if gap["count"]}

    def losses(self) -> dict[str, int]:
        """The gaps but for the one that is made by a busy machine, which holds the agent up."""
        return {reason: number for reason, number in self.gaps().items() if reason != "late"}

    def log(self) -> str:
        return (self.node.directory / "agent.log").read_text()

    def wait_until(self, holds: Callable[[], object]) -> None:
        eventually(holds, self.log, every=0.02)


@contextmanager
def observed_node(
    plugin: str, backend: Backend, name: str, **more: object
) -> Iterator[ObservedNode]:
    """A world of one such node, agent not yet started; with more keys of node.yaml."""
    settings = {"cni": False, "ranges": [], "accounting": {"min_reading_seconds": 0}, **more}
    world = World(cluster(nodes=1, pods=0), backend=backend, name=name, settings=settings)
    results = world.directory / "nodes" / "node-1" / "cache" / "results"
    world._settings["cni_results_dir"] = str(results)
    try:
        world.build()
        wiring.wait_until_up(world.topology, world.directory / "netns")
        node = ObservedNode(world, world.nodes[0], plugin)
        try:
            yield node
        finally:
            for pod in node.node.runtime.sandboxes():
                node.delete(pod)
    finally:
        world.down()
