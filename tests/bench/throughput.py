"""TCP between pods of two nodes beside the same without netmgr's rules, and what limits cost: a
packet of pods that have none, and TCP through one.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.bench.forwarding import (
    MASQUERADING,
    NO_CLASS,
    NO_RULES,
    SENDER,
    WITHOUT_RULES,
    Sender,
    compiled,
    node_of_ours,
    run_in,
)
from tests.bench.plugins import QUIET
from tests.bench.report import Effort, Figure
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import PATIENCE

FLOWS = {
    "1 flow": (),
    "8 flows": ("--parallel", "8"),
    "1 flow, reverse": ("--reverse",),
}
"""What a client of iperf3 is told besides."""
OF_MASQUERADE = {Backend.LINKS: 1.05}
"""The least that TCP is to attain, as a multiple of what masquerading alone does; else 1."""

AMPLE = "100G"
"""More than any packet here meets."""


def measure(effort: Effort) -> Iterator[Figure]:
    """Gigabits a second between two nodes, all worlds in turns."""
    with ExitStack() as stack:
        bare = stack.enter_context(_world(Backend.NFTABLES))
        for node in bare.nodes:
            node.stop_agent()
            run_in(node, *WITHOUT_RULES)
        for backend in effort.backends:
            ruled = stack.enter_context(_world(backend))
            own, other = in_turns(
                effort, *(partial(_between_pods, world, effort) for world in (ruled, bare))
            )
            what = f"TCP pod to pod, two nodes, 1 flow, {backend}"
            reference = NO_RULES, other
            yield Figure.of(what, own, "Gbit/s", median, reference, 1.0, more_is_better=True)
    for backend in effort.backends:
        with node_of_ours(backend) as sender:
            sender.fill(1)
            for flows in FLOWS:
                yield _to_the_internet(effort, sender, flows)


def _to_the_internet(effort: Effort, sender: Sender, flows: str) -> Figure:
    attained: dict[str, list[float]] = {NO_CLASS: [], MASQUERADING: []}
    ends = sender.netns, sender.internet, INTERNET[Family.V4]
    for _ in range(effort.rounds):
        for variant, values in attained.items():
            with sender.as_variant(variant):
                values.append(_transfer(*ends, effort.seconds, FLOWS[flows]))
    what = f"TCP to the internet, {flows}, {sender.backend}"
    reference, budget = (MASQUERADING, attained[MASQUERADING]), OF_MASQUERADE.get(sender.backend, 1)
    return Figure.of(
        what, attained[NO_CLASS], "Gbit/s", median, reference, budget, more_is_better=True
    )


def measure_limits(effort: Effort) -> Iterator[Figure]:
    """Nodes whose documents have limits, in turns with one without."""
    with ExitStack() as stack:
        flood = stack.enter_context(compiled())

        def node(pods: str = "", rate: str = "") -> Sender:
            limit = {"pods": pods, "internet-in": rate, "internet-out": rate}
            settings: dict[str, object] = {"limits": [limit]} if pods else {}
            return stack.enter_context(node_of_ours(Backend.NFTABLES, **settings))

        free, beside, shaped = node(), node("*/other-*", AMPLE), node(f"*/{SENDER}", "10G")
        for sender in (free, beside):
            sender.fill(effort.big_crowd)
        own, other = in_turns(
            effort, *(partial(each.flood, flood, effort.packets) for each in (beside, free))
        )
        what = f"packet of a pod without limit, {effort.big_crowd - 1} others have one"
        yield Figure.of(what, own, "ns", min, ("none has one", other), 1.02)
        own, other = in_turns(
            effort,
            *(
                partial(_transfer, each.netns, each.internet, INTERNET[Family.V4], effort.seconds)
                for each in (shaped, free)
            ),
        )
        what, reference = "TCP to the internet, limit of 10Gbit/s, 1 flow", ("no limit", other)
        yield Figure.of(what, own, "Gbit/s", median, reference, more_is_better=True)


def in_turns(
    effort: Effort, own: Callable[[], float], other: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """What either yields in each round."""
    pairs = [(own(), other()) for _ in range(effort.rounds)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


@contextmanager
def _world(backend: Backend) -> Iterator[World]:
    settings = {key: value for key, value in QUIET.items() if key != "ranges"}
    with World(cluster(pods=1), backend=backend, settings=settings) as world:
        yield world


def _between_pods(world: World, effort: Effort) -> float:
    sender, receiver = world.pods()
    return _transfer(sender.netns, receiver.netns, receiver.address(Family.V4), effort.seconds)


def _transfer(
    sender: Path, receiver: Path, address: Address, seconds: int, more: Sequence[str] = ()
) -> float:
    """Gigabits a second of TCP from one namespace to an address in another."""
    server = subprocess.Popen(
        ["nsenter", f"--net={receiver}", "iperf3", "--server", "--one-off"],
        stdout=subprocess.DEVNULL,
    )
    client = ["nsenter", f"--net={sender}", "iperf3", "--json"]
    client += ["--client", str(address), "--time", str(seconds), *more]
    try:
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
