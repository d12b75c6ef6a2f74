"""TCP between pods of two nodes, beside the same pods when netmgr's rules are gone.

Nodes without rules track no connections, so nodes that do nothing else are shown beside them.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.bench.forwarding import NO_RULES, TRACKING, TRACKING_ALONE, WITHOUT_RULES, run_in
from tests.bench.plugins import QUIET
from tests.bench.report import Effort, Figure
from tests.lab.topology import cluster
from tests.lab.world import World

PATIENCE = 10.0
FLOWS = (1, 8)


def measure(effort: Effort) -> Iterator[Figure]:
    """Gigabits a second, all worlds in turns."""
    with ExitStack() as stack:
        bare, tracking = (stack.enter_context(_world(Backend.NFTABLES)) for _ in range(2))
        for node in (*bare.nodes, *tracking.nodes):
            node.stop_agent()
            run_in(node, *WITHOUT_RULES)
        for node in tracking.nodes:
            run_in(node, *TRACKING_ALONE)
        ruled = {backend: stack.enter_context(_world(backend)) for backend in effort.backends}
        for flows in FLOWS:
            rates: dict[World, list[float]] = {
                world: [] for world in (bare, tracking, *ruled.values())
            }
            for _ in range(effort.rounds):
                for world, measured in rates.items():
                    measured.append(_transfer(world, effort.seconds, flows))
            for backend, world in ruled.items():
                what = f"TCP pod to pod, two nodes, {flows} flow{'s' * (flows > 1)}, {backend}"
                for against, peer, least in ((NO_RULES, bare, 1.0), (TRACKING, tracking, None)):
                    reference = against, rates[peer]
                    own = rates[world]
                    yield Figure.of(
                        what, own, "Gbit/s", median, reference, least, more_is_better=True
                    )


@contextmanager
def _world(backend: Backend) -> Iterator[World]:
    settings = {key: value for key, value in QUIET.items() if key != "ranges"}
    with World(cluster(pods=1), backend=backend, settings=settings) as world:
        yield world


def _transfer(world: World, seconds: int, flows: int) -> float:
    """Gigabits a second from the first node's pod to the second's."""
    sender, receiver = world.pods()
    return transfer(sender.netns, receiver.netns, receiver.address(Family.V4), seconds, flows)


def transfer(sender: Path, receiver: Path, address: Address, seconds: int, flows: int) -> float:
    """Gigabits a second of TCP from one namespace to an address in another."""
    server = subprocess.Popen(
        ["nsenter", f"--net={receiver}", "iperf3", "--server", "--one-off"],
        stdout=subprocess.DEVNULL,
    )
    try:
        client = [
            "nsenter",
            f"--net={sender}",
            "iperf3",
            "--client",
            str(address),
            "--time",
            str(seconds),
            "--parallel",
            str(flows),
            "--json",
        ]
        report = _once_it_listens(client)
    finally:
        server.kill()
        server.wait()
    return report["end"]["sum_received"]["bits_per_second"] / 1e9


def _once_it_listens(client: list[str]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while True:
        report: dict[str, Any] = json.loads(
            subprocess.run(client, stdout=subprocess.PIPE, check=False).stdout
        )
        if "error" not in report:
            return report
        if time.monotonic() > deadline:
            raise TimeoutError(f"iperf3: {report['error']}")
        time.sleep(0.05)
