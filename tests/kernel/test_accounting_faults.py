"""Faults from outside on the real kernel: every byte is counted, or a gap tells of it and for how
long.

The agents here read and reconcile only when they are asked to or when a test says so, so that what
is lost is known to the byte.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.kernel import netns
from tests.kernel.spending import Spender, gaps, run
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

PATIENCE = 10.0
_numbers = count(1)


@pytest.fixture(scope="module")
def world(backend: Backend) -> Iterator[World]:
    room = replace(cluster(nodes=1, pods=20), pods=())
    settings = {
        "accounting": {"min_reading_seconds": 0, "reading_seconds": 300},
        "reconcile_seconds": 1,
    }
    with World(
        room, backend=backend, name=f"faults-{os.getpid()}-{next(_numbers)}", settings=settings
    ) as made:
        yield made


@pytest.fixture
def spender(world: World, node: LabNode) -> Iterator[Spender]:
    sandbox = node.add(f"pod-{next(_numbers)}", f"team-{next(_numbers)}")
    yield Spender(world, node, sandbox)
    node.runtime.delete(sandbox)


def repairs(node: LabNode) -> int:
    return sum(
        one["count"] for one in node.snapshot()["drift_repaired"] if one["reason"] == "rules"
    )


def everything(backend: Backend) -> list[list[str]]:
    if backend is Backend.NFTABLES:
        return [["nft", "flush", "ruleset"]]
    tables = [
        (program, table)
        for program in ("iptables-legacy", "ip6tables-legacy")
        for table in ("raw", "mangle", "nat")
    ]
    return [[program, "-t", table, what] for program, table in tables for what in ("-F", "-X")] + [
        ["ipset", "destroy"]
    ]


def rules_alone(backend: Backend) -> list[list[str]]:
    if backend is Backend.NFTABLES:
        chains = ("forward", "before_srcnat")
        return [["nft", "flush", "chain", "inet", "netmgr", chain] for chain in chains]
    return [["iptables-legacy", "-t", "mangle", "-F"]]


def rules_off(backend: Backend) -> list[list[str]]:
    """All rules are there, and those that count pods are not in effect."""
    if backend is Backend.NFTABLES:
        return [["nft", "add", "table", "inet", "netmgr", "{ flags dormant; }"]]
    return [["iptables-legacy", "-t", "mangle", "-F", "POSTROUTING"]]


FAULTS = {
    "everything flushed": (everything, False),
    "rules flushed, counters left": (rules_alone, True),
    "rules switched off": (rules_off, True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_lost_while_rules_are_gone_is_a_gap_as_long_as_it_was(
    node: LabNode, spender: Spender, backend: Backend, fault: str
) -> None:
    commands, counters_stay = FAULTS[fault]
    kept = spender.send()
    assert spender.counted() == kept
    before, repaired, read_at = gaps(node)["removed"], repairs(node), time.monotonic()
    unread = spender.send()
    for command in commands(backend):
        done = run(node, *command)
        assert done.returncode == 0, done.stderr
    missed = spender.send() if not _is_back(node, backend) else 0
    eventually(lambda: repairs(node) > repaired)
    whole = time.monotonic() - read_at
    after = spender.send()
    counted = spender.counted()
    assert counted in {
        kept + (unread if counters_stay else 0) + after + late for late in (0, missed)
    }
    times, seconds = (now - then for now, then in zip(gaps(node)["removed"], before, strict=True))
    assert times >= 1
    assert 0 < seconds <= whole + 1.1, (
        "the gap tells of a longer time than there was since all was well"
    )


@pytest.mark.parametrize("fault", [rules_alone, rules_off], ids=lambda fault: fault.__name__)
def test_rules_that_were_lost_while_no_agent_was_there_are_a_gap_too(
    node: LabNode,
    spender: Spender,
    backend: Backend,
    fault: Callable[[Backend], list[list[str]]],
) -> None:
    kept = spender.send()
    assert spender.counted() == kept
    before, read_at = gaps(node)["removed"], time.monotonic()
    node.kill_agent()
    for command in fault(backend):
        assert run(node, *command).returncode == 0
    spender.send()
    node.start_until_ready()
    assert spender.counted() == kept
    times, seconds = (now - then for now, then in zip(gaps(node)["removed"], before, strict=True))
    assert times >= 1
    assert 0.1 < seconds <= time.monotonic() - read_at + 1.1
    calm = gaps(node)
    node.restart_after_kill()
    assert gaps(node) == calm


def test_a_pod_that_went_with_its_rules_while_no_agent_was_there_is_a_gap(
    world: World, node: LabNode, backend: Backend
) -> None:
    spender = Spender(world, node, node.add(f"pod-{next(_numbers)}", f"team-{next(_numbers)}"))
    sent = spender.send()
    assert spender.counted() == sent
    before = gaps(node)["removed"][0]
    node.kill_agent()
    spender.send()
    for command in everything(backend):
        assert run(node, *command).returncode == 0
    netns.delete(spender.sandbox.netns)
    node.start_until_ready()
    assert spender.counted() == sent
    assert gaps(node)["removed"][0] > before + 8, "the hooks' and the pod's"


def _is_back(node: LabNode, backend: Backend) -> bool:
    command = (
        ["nft", "list", "table", "inet", "netmgr"]
        if backend is Backend.NFTABLES
        else ["ipset", "list", "-n"]
    )
    return "pod_out4" in run(node, *command).stdout.replace("-", "_")


def test_destroying_a_set_that_counts_is_refused_by_the_kernel_and_costs_nothing(
    node: LabNode, spender: Spender, backend: Backend
) -> None:
    before = gaps(node)
    sent = spender.send()
    attempts = (
        (
            ["nft", "delete", "set", "inet", "netmgr", "pod_out4"],
            ["nft", "delete", "counter", "inet", "netmgr", "forward_out4"],
        )
        if backend is Backend.NFTABLES
        else (["ipset", "destroy", "netmgr-pod-out4"], ["ipset", "destroy"])
    )
    for attempt in attempts:
        assert run(node, *attempt).returncode != 0
    sent += spender.send()
    assert spender.counted() == sent
    assert gaps(node) == before


def test_zeroed_counters_are_a_gap_and_what_they_show_since_counts(
    node: LabNode, spender: Spender, backend: Backend
) -> None:
    kept = spender.send()
    assert spender.counted() == kept
    before = gaps(node)["reset"]
    spender.send()
    if backend is Backend.NFTABLES:
        table = ["inet", "netmgr", "pod_out4", f"{{ {spender.address} }}"]
        assert (
            run(
                node, "nft", f"delete element {' '.join(table)}; add element {' '.join(table)}"
            ).returncode
            == 0
        )
    else:
        assert (
            run(
                node,
                "ipset",
                "-exist",
                "add",
                "netmgr-pod-out4",
                spender.address,
                "packets",
                "0",
                "bytes",
                "0",
            ).returncode
            == 0
        )
    after = spender.send(500)
    assert spender.counted() == kept + after
    times, seconds = (now - then for now, then in zip(gaps(node)["reset"], before, strict=True))
    assert times == 1
    assert 0 < seconds < PATIENCE


@pytest.mark.parametrize("edge", [1 << 63, 1 << 64], ids=["2**63", "2**64"])
def test_a_counter_that_wraps_loses_nothing(
    node: LabNode, spender: Spender, backend: Backend, edge: int
) -> None:
    spender.send()
    preset = edge - 1500
    if backend is Backend.NFTABLES:
        element = f"inet netmgr pod_out4 {{ {spender.address}"
        commands = (
            f"delete element {element} }}; add element {element} counter packets 9 bytes "
            f"{preset} }}"
        )
        done = run(node, "nft", commands)
    else:
        words = f"-exist add netmgr-pod-out4 {spender.address} packets 9 bytes {preset}"
        done = run(node, "ipset", *words.split())
    assert done.returncode == 0, done.stderr
    start, before = spender.counted(), gaps(node)
    sent = spender.send() + spender.send()
    assert sent > 1500
    assert spender.counted() == start + sent
    assert gaps(node)["reset"] == before["reset"]
    assert node.snapshot()["durable"]


@pytest.fixture
def small_disk(node: LabNode) -> Iterator[Path]:
    """The node's state on a file system of 1 MiB; a file to fill the rest of it with."""
    node.kill_agent()
    state = node.directory / "state"
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "netmgr-test", str(state)]
    assert programs.run(mount).returncode == 0
    node.start_until_ready()
    yield state / "filler"
    node.stop_agent()
    assert programs.run(["umount", str(state)]).returncode == 0
    node.start_until_ready()


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_counting_goes_on_while_the_disk_is_full_and_the_time_to_durable_is_exported(
    world: World, node: LabNode, small_disk: Path
) -> None:
    sandbox = node.add("full", "team-full")
    spender = Spender(world, node, sandbox)
    fill(small_disk)
    sent = 0
    while node.snapshot()["durable"]:
        sent += spender.send(100)
    began = time.monotonic()
    sent += spender.send()
    assert spender.counted() == sent
    first = gaps(node)["not-durable"]
    time.sleep(0.3)
    second = gaps(node)["not-durable"]
    assert first[0] == second[0] == 1
    assert second[1] >= first[1] + 0.3
    shown = re.search(
        r'netmgr_accounting_gap_seconds_total\{reason="not-durable"\} (\S+)', node.scrape()
    )
    assert shown
    assert float(shown[1]) >= second[1]
    small_disk.unlink()
    sent += spender.send()
    assert spender.counted() == sent
    assert node.snapshot()["durable"]
    lasted = time.monotonic() - began
    node.restart_after_kill()
    assert spender.counted() == sent
    assert gaps(node)["not-durable"][0] == 1
    # The second look may have been durable already: SQLite finds room now and then.
    assert second[1] <= gaps(node)["not-durable"][1] <= lasted + 1.5
    node.runtime.delete(sandbox)
