"""ADD and DEL: one after the other, and all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from statistics import median, quantiles

from netmgr.documents.backend import Backend
from tests.bench.plugins import Plugin, netmgr, ptp
from tests.bench.report import Effort, Figure

OURS = "netmgr"
VERBS = ("ADD", "DEL")
TAIL = 3.0
"""The most that the 99th percentile may be, as a multiple of the median."""
OF_RULES = 1.05
"""The most that counting at links may take, as a multiple of counting by rules."""

Took = Mapping[tuple[str, str], Sequence[float]]
"""Milliseconds of each call, by plugin and verb."""


def measure(effort: Effort) -> Iterator[Figure]:
    """Rules of either kind beside `ptp` with `host-local`, links beside rules, in turns."""
    for backend in effort.backends:
        with ExitStack() as stack:
            plugins = {OURS: stack.enter_context(netmgr(backend))[0]}
            if at_links := backend is Backend.LINKS:
                plugins["rules"] = stack.enter_context(netmgr(Backend.NFTABLES))[0]
            for peer in () if at_links else ("iptables", "nftables"):
                plugins[f"ptp, {peer}"] = stack.enter_context(ptp(peer))
            alone = _alone(plugins, effort.alone)
            tail = _alone({OURS: plugins[OURS]}, effort.tail)
            for verb in VERBS:
                yield from _figures(
                    f"{verb}, {backend}", alone, verb, OF_RULES if at_links else 0.10
                )
                own = tail[OURS, verb]
                last = quantiles(own, n=100, method="inclusive")[-1]
                what = f"{verb}, 99th percentile of {effort.tail}, {backend}"
                yield Figure(what, last, "ms", median(own), "its median", TAIL)
            bursts = _bursts(plugins, effort.burst, effort.bursts)
            for verb, budget in (("ADD", 0.08), ("DEL", 0.10)):
                what = f"{effort.burst} {verb}s at once, {backend}"
                yield from _figures(what, bursts, verb, OF_RULES if at_links else budget)


def _figures(what: str, took: Took, verb: str, budget: float) -> Iterator[Figure]:
    own = median(took[OURS, verb])
    for plugin, measured in took.items():
        if plugin[1] == verb and plugin[0] != OURS:
            yield Figure(what, own, "ms", median(measured), plugin[0], budget)


def _alone(plugins: Mapping[str, Plugin], count: int) -> Took:
    took: dict[tuple[str, str], list[float]] = {(p, v): [] for p in plugins for v in VERBS}
    pods = [f"alone-{len(plugins)}-{number}" for number in range(count)]
    for plugin in plugins.values():
        plugin.make_pods(pods)
    for pod in pods:
        for name, plugin in plugins.items():
            for verb in VERBS:
                took[name, verb].append(1000 * plugin.call(verb, pod))
    for plugin in plugins.values():
        plugin.remove_pods(pods)
    return took


def _bursts(plugins: Mapping[str, Plugin], count: int, rounds: int) -> Took:
    took: dict[tuple[str, str], list[float]] = {(p, v): [] for p in plugins for v in VERBS}
    for number in range(rounds):
        pods = [f"burst-{number}-{pod}" for pod in range(count)]
        for name, plugin in plugins.items():
            plugin.make_pods(pods)
            for verb in VERBS:
                took[name, verb].append(1000 * plugin.call_at_once(verb, pods))
            plugin.remove_pods(pods)
    return took
