"""What limits cost: pods that have none, internal and internet packets of those
that have, and the queues' lock.

Nodes whose documents have limits and nodes without are measured in turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from netmgr.documents.node import Backend
from tests.bench import forwarding
from tests.bench.forwarding import INTERNAL, INTERNET, IP_BYTES, SENDER, Sender
from tests.bench.report import Effort, Figure
from tests.bench.throughput import FLOWS, transfer

AMPLE = "100G"
"""More than any packet here meets."""
AMPLE_BYTES = "900T"
"""Likewise."""
TEN_GIGABIT = "10G"


def measure(effort: Effort) -> Iterator[Figure]:
    """Nanoseconds a packet takes beside limited pods, and gigabits a second through a limit."""
    with ExitStack() as stack:
        flood = stack.enter_context(forwarding.compiled(Path(__file__).with_name("flood.c")))

        def node(pods: str = "", **limit: object) -> Sender:
            settings = {"limits": [{"pods": pods, **limit}]} if pods else {}
            return stack.enter_context(forwarding.node_of_ours(Backend.NFTABLES, **settings))

        free, beside, limited = (
            node(),
            node("*/other-*", **both(AMPLE)),
            node(f"*/{SENDER}", **both(AMPLE)),
        )
        for pods in (effort.crowd, effort.big_crowd):
            for one in (free, beside):
                one.fill(pods)
            times = _in_turns(effort, flood, (beside, free), forwarding.INTERNET)
            what = f"packet of a pod without limit, {pods - 1} others have one"
            yield Figure.of(what, times[0], "ns", min, ("none has one", times[1]), 1.02)
        times = _in_turns(effort, flood, (limited, free), INTERNAL)
        what = f"internal {IP_BYTES}-byte packet of a limited pod"
        yield Figure.of(what, times[0], "ns", min, ("of another", times[1]), 1.05)
        charged = node(f"*/{SENDER}", **{"per-day": both(AMPLE_BYTES)})
        for one, what in ((charged, "a quota"), (limited, f"a limit of {AMPLE}bit/s")):
            times = _in_turns(effort, flood, (one, free), forwarding.INTERNET)
            row = f"internet {IP_BYTES}-byte packet of a pod with {what}"
            yield Figure.of(row, times[0], "ns", min, ("with neither", times[1]))
        shaped = node(f"*/{SENDER}", **both(TEN_GIGABIT))
        for flows in FLOWS:
            yield _throughput(effort, shaped, free, flows)


def both(amount: str) -> dict[str, str]:
    """The same limit for both directions."""
    return {"internet-in": amount, "internet-out": amount}


def _in_turns(
    effort: Effort, flood: Path, senders: tuple[Sender, Sender], to: forwarding.Address
) -> tuple[list[float], list[float]]:
    first, second = senders
    times = list[float](), list[float]()
    for _ in range(effort.rounds):
        times[0].append(first.flood(flood, effort.packets, to))
        times[1].append(second.flood(flood, effort.packets, to))
    return times


def _throughput(effort: Effort, shaped: Sender, free: Sender, flows: int) -> Figure:
    rates: tuple[list[float], list[float]] = [], []
    for _ in range(effort.rounds):
        for found, one in zip(rates, (shaped, free), strict=True):
            found.append(transfer(one.netns, one.internet, INTERNET, effort.seconds, flows))
    what = f"TCP to the internet, limit of {TEN_GIGABIT}bit/s, {flows} flow{'s' * (flows > 1)}"
    return Figure.of(what, rates[0], "Gbit/s", median, ("no limit", rates[1]), more_is_better=True)
