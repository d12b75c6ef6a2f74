"""ADD and DEL: one after the other, and all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from statistics import median

from netmgr.documents.node import Backend
from netmgr.lab.topology import cluster
from tests.bench.plugins import Plugin, netmgr, ptp
from tests.bench.report import Effort, Figure

PTP = "ptp"


def measure(effort: Effort) -> Iterator[Figure]:
    """Both backends beside `ptp` with `host-local`, in turns."""
    for backend in effort.backends:
        with ExitStack() as stack:
            ours, _ = stack.enter_context(netmgr(backend))
            theirs, _ = stack.enter_context(ptp(cluster(nodes=1, pods=0)))
            yield from _alone(backend, ours, theirs, effort.alone)
            yield from _at_once(backend, ours, theirs, effort.burst)


def _alone(backend: Backend, ours: Plugin, theirs: Plugin, count: int) -> Iterator[Figure]:
    pods = [f"alone-{number}" for number in range(count)]
    took: dict[tuple[Plugin, str], list[float]] = {
        (p, v): [] for p in (ours, theirs) for v in ("ADD", "DEL")
    }
    for plugin in (ours, theirs):
        plugin.make_pods(pods)
    for pod in pods:
        for plugin in (ours, theirs):
            for verb in ("ADD", "DEL"):
                took[plugin, verb].append(plugin.call(verb, pod))
    for plugin in (ours, theirs):
        plugin.remove_pods(pods)
    for verb, budget in (("ADD", 0.25), ("DEL", 0.10)):
        own, other = (1000 * median(took[plugin, verb]) for plugin in (ours, theirs))
        yield Figure(f"{verb}, median of {count}, {backend}", own, "ms", other, PTP, budget)


def _at_once(backend: Backend, ours: Plugin, theirs: Plugin, count: int) -> Iterator[Figure]:
    pods = [f"burst-{number}" for number in range(count)]
    own, other = (_burst(plugin, pods) for plugin in (ours, theirs))
    for verb, budget in (("ADD", 0.30), ("DEL", 0.10)):
        yield Figure(
            f"{count} {verb}s at once, {backend}",
            1000 * own[verb],
            "ms",
            1000 * other[verb],
            PTP,
            budget,
        )


def _burst(plugin: Plugin, pods: Sequence[str]) -> dict[str, float]:
    plugin.make_pods(pods)
    took = {verb: plugin.call_at_once(verb, pods) for verb in ("ADD", "DEL")}
    plugin.remove_pods(pods)
    return took
