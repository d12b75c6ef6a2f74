"""Faults from outside on the real kernel: every byte is counted, or a gap tells of it and for how
long.

The agents here read and reconcile only when they are asked to or when a test says so, so that what
is lost is known to the byte.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.model import LINK_GROUP
from netmgr.prefixes import Address, Family
from tests.kernel import forging
from tests.kernel.common import (
    END,
    ONLY_NFTABLES,
    USE_UP,
    agent_kept_from_tables,
    agent_standing_still,
    counted,
    flushing,
    flushing_all,
    goes_on,
    grown,
    repairs,
    use_up_blocks,
)
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING, one_of
from tests.kernel.namespaces import inside
from tests.kernel.spending import HEADERS, IN, OUT, Spender, gaps, run, set_counter
from tests.lab import named_netns
from tests.lab.exchange import End, datagrams, open_socket
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET
from tests.waiting import eventually

pytestmark = pytest.mark.root

WORLD = {
    "nodes": 1,
    "settings": {
        "accounting": {"min_reading_seconds": 0, "reading_seconds": 300},
        "reconcile_seconds": 1,
    },
    "exporters": False,
}


backend = one_of(EVERY_WAY_OF_COUNTING)


def rules_alone(backend: Backend) -> list[list[str]]:
    if backend is Backend.LINKS:
        return [["tc", "filter", "del", "dev", "eth0", way] for way in ("ingress", "egress")]
    if backend is Backend.NFTABLES:
        chains = ("before_srcnat", "before_srcnat6")
        return [["nft", "flush", "chain", "inet", "netmgr", chain] for chain in chains]
    return [["iptables-legacy", "-t", "mangle", "-F"]]


def rules_off(backend: Backend) -> list[list[str]]:
    """All rules are there, and what counts pods is not in effect."""
    if backend is Backend.LINKS:
        return [["tc", "qdisc", "del", "dev", "eth0", "clsact"]]
    if backend is Backend.NFTABLES:
        return [["nft", "add", "table", "inet", "netmgr", "{ flags dormant; }"]]
    return [["iptables-legacy", "-t", "mangle", "-F", "POSTROUTING"]]


FAULTS = {
    "everything flushed": (flushing, False),
    "rules flushed, counters left": (rules_alone, True),
    "rules switched off": (rules_off, True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_lost_while_rules_are_gone_is_a_gap_as_long_as_it_was(
    node: LabNode, spender: Spender, backend: Backend, fault: str, tmp_path: Path
) -> None:
    commands, counters_stay = FAULTS[fault]
    counters_stay |= backend is Backend.LINKS
    began = time.monotonic()
    # Its passes may be late: this has it look, and see that all is well.
    node.restart_after_kill()
    kept = spender.send()
    assert spender.counted() == kept
    before, repaired = gaps(node)["removed"], repairs(node, "rules")
    # With the lock, which an agent that stands still would not let go of.
    with agent_kept_from_tables(tmp_path) as lock, agent_standing_still(node):
        unread = spender.send()
        for command in commands(backend):
            done = run(node, "env", lock, *command)
            assert done.returncode == 0, done.stderr
    missed = 0
    if not _is_back(node, backend):
        # The kernel drops what is on its way out by a link that gets a clsact (dev_deactivate).
        with suppress(TimeoutError) if backend is Backend.LINKS else nullcontext():
            spender.send()
        missed = unread
    eventually(lambda: repairs(node, "rules") > repaired)
    whole = time.monotonic() - began
    after = spender.send()
    assert spender.counted() in {
        kept + (unread if counters_stay else 0) + after + late for late in (0, missed)
    }
    times, seconds = grown(before, gaps(node)["removed"])
    assert times == 1
    assert 0 < seconds <= whole, "the gap tells of a longer time than there was since all was well"


ONLY_LEGACY = pytest.mark.parametrize("backend", [Backend.IPTABLES_LEGACY], indirect=True, ids=str)


@ONLY_LEGACY
@END
@pytest.mark.parametrize("chain", ["FORWARD", "POSTROUTING"])
def test_a_rule_before_ours_is_a_gap_until_it_comes_after_them(
    node: LabNode, spender: Spender, chain: str, end: Callable[[LabNode], None]
) -> None:
    kept = spender.send()
    assert spender.counted() == kept
    before = gaps(node)["removed"]
    with rule_before_ours(node, "mangle", chain, end) as put_right:
        spender.send()
        put_right()
        passed = spender.counted()
        assert passed + spender.send() == spender.counted()
        times, seconds = gaps(node)["removed"]
        assert times > before[0]
        assert seconds > before[1]


@ONLY_LEGACY
@END
def test_a_rule_before_ours_lets_no_forged_source_pass_once_it_comes_after_them(
    node: LabNode, spender: Spender, end: Callable[[LabNode], None]
) -> None:
    assert not passes_forged(spender)
    with rule_before_ours(node, "raw", "PREROUTING", end) as put_right:
        # An agent that runs may have put it right by now.
        assert end is goes_on or passes_forged(spender)
        put_right()
        assert not passes_forged(spender)


@contextmanager
def rule_before_ours(
    node: LabNode, table: str, chain: str, end: Callable[[LabNode], None]
) -> Iterator[Callable[[], None]]:
    """Another program's rule accepts everything before ours see it; the agent may have ended.

    The block gets what waits until the rule comes last, and the agent has told of that.
    """
    command = ["iptables-legacy", "-w", "-t", table]
    rule = [chain, "-j", "ACCEPT"]
    repaired, told = repairs(node, "rules"), told_of_others(node)

    def put_right() -> None:
        if end is goes_on:
            eventually(lambda: repairs(node, "rules") > repaired)
        else:
            node.start_until_ready()
        # Logged once it is counted.
        eventually(lambda: told_of_others(node) > told)
        assert run(node, *command, "-S", chain).stdout.splitlines()[-1] == " ".join(["-A", *rule])

    end(node)
    assert run(node, *command, "-I", *rule).returncode == 0
    try:
        yield put_right
    finally:
        assert run(node, *command, "-D", *rule).returncode == 0


def told_of_others(node: LabNode) -> int:
    """How often the log tells of a rule before ours; a start tells of it there alone."""
    log = (node.directory / "agent.log").read_text()
    return log.count("rule '-j ACCEPT, before ours' does not belong there")


def passes_forged(spender: Spender) -> bool:
    """Whether a datagram with another source than the pod's reaches the internet."""
    (block, *_) = (each for each in spender.node.node.ranges if each.family is Family.V4)
    forged, internet = Address(Family.V4, block.last - 1), INTERNET[Family.V4]
    own = spender.sandbox.address(Family.V4)
    with open_socket(spender.world.internet, Family.V4, socket.SOCK_DGRAM) as far:
        far.bind((str(internet), 0))
        port = far.getsockname()[1]
        frames = [
            forging.udp(source, internet, (9, port), data)
            for source, data in ((forged, b"forged"), (own, b"own"))
        ]
        # They stay in order, so nothing is waited for in vain.
        forging.send(spender.sandbox, frames, forging.Power.ALL)
        return far.recv(100) == b"forged"


@pytest.mark.parametrize(
    "fault",
    [
        flushing_all,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (rules_alone, rules_off)),
    ],
    ids=lambda fault: fault.__name__,
)
def test_rules_that_were_lost_while_no_agent_was_there_are_a_gap_too(
    node: LabNode, spender: Spender, backend: Backend, fault: Callable[[Backend], list[list[str]]]
) -> None:
    kept = spender.send()
    read_at = time.monotonic()
    assert spender.counted() == kept
    before = gaps(node)["removed"]
    node.kill_agent()
    for command in fault(backend):
        assert run(node, *command).returncode == 0
    spender.send()
    node.start_until_ready()
    assert spender.counted() == kept
    times, seconds = grown(before, gaps(node)["removed"])
    assert times == 1
    assert 0.1 < seconds <= time.monotonic() - read_at + 1.1
    kept += spender.send()
    assert spender.counted() == kept
    calm = gaps(node)
    node.restart_after_kill()
    assert gaps(node) == calm


def test_a_pod_that_went_with_its_rules_while_no_agent_was_there_is_a_gap(
    node: LabNode, new_spender: Callable[[], Spender], backend: Backend
) -> None:
    spender = new_spender()
    sent = spender.send()
    assert spender.counted() == sent
    before = gaps(node)["removed"][0]
    node.kill_agent()
    spender.send()
    for command in flushing(backend):
        assert run(node, *command).returncode == 0
    named_netns.delete(spender.sandbox.netns)
    node.start_until_ready()
    # At links, too: with the last link that has a program its map goes.
    assert spender.counted() == sent
    assert gaps(node)["removed"][0] == before + 1
    (gap,) = (one for one in node.snapshot()["gaps"] if one["reason"] == "removed")
    assert gap["concerned"] > 8, "the hooks' and the pod's"


def _is_back(node: LabNode, backend: Backend) -> bool:
    command, words = {
        Backend.LINKS: ("tc filter show dev eth0 egress", "netmgr"),
        Backend.NFTABLES: ("nft list table inet netmgr", "pod_out4"),
        Backend.IPTABLES_LEGACY: ("ipset list -n", "pod-out4"),
    }[backend]
    return words in run(node, *command.split()).stdout


def test_an_uplink_in_the_pods_link_group_is_counted_as_any_other(
    node: LabNode, spender: Spender
) -> None:
    pod = spender.sandbox.pod.name
    before = counted(node, pod)
    inside(node.namespace, "ip", "link", "set", node.node.uplink, "group", str(LINK_GROUP))
    try:
        far = End(spender.world.internet, INTERNET[Family.V4])
        datagrams(End(spender.sandbox.netns, spender.sandbox.address(Family.V4)), far, [500], [700])
        sizes = {OUT: 500 + HEADERS, IN: 700 + HEADERS}
        assert counted(node, pod) == {way: before[way] + size for way, size in sizes.items()}
    finally:
        run(node, "ip", "link", "set", node.node.uplink, "group", "default")


def test_zeroed_counters_are_a_gap_and_what_they_show_since_counts(
    node: LabNode, spender: Spender, backend: Backend
) -> None:
    kept = spender.send()
    assert spender.counted() == kept
    before = gaps(node)["reset"]
    lost = spender.send()
    set_counter(spender, backend)
    after = spender.send(500)
    # A reading that happened to come before the reset has counted what would be lost.
    assert spender.counted() - kept - after in (0, lost)
    times, seconds = grown(before, gaps(node)["reset"])
    assert times == 1
    assert seconds > 0


@ONLY_NFTABLES
@USE_UP
@END
def test_what_is_exchanged_while_the_disk_is_full_is_counted_by_whoever_reads_next(
    node: LabNode,
    small_disk: Path,
    spender: Spender,
    use_up: Callable[[Path], None],
    end: Callable[[LabNode], None],
) -> None:
    use_up(small_disk)
    sent = spender.send()
    end(node)
    use_up(small_disk)
    sent += spender.send()
    if end is not goes_on:
        node.start_until_ready()
    sent += spender.send()
    assert spender.counted() == sent


def losses_of_durability(node: LabNode) -> int:
    return (node.directory / "agent.log").read_text().count("ledger-not-durable")


@ONLY_NFTABLES
def test_counting_goes_on_while_the_disk_is_full_and_the_time_to_durable_is_told(
    node: LabNode, small_disk: Path, spender: Spender
) -> None:
    sent, before, began = 0, losses_of_durability(node), time.monotonic()
    use_up_blocks(small_disk)
    while True:
        while "TotalsNotDurable" not in node.problems():
            sent += spender.send(100)
        sent += spender.send()
        assert spender.counted() == sent
        first = gaps(node)["not-durable"]
        time.sleep(0.3)
        told = losses_of_durability(node) - before
        second = gaps(node)["not-durable"]
        # SQLite finds room now and then, in its log's older part: each time lost anew is an event.
        if not node.snapshot()["durable"] and first[0] == second[0]:
            break
    assert second[0] == told >= 1
    assert second[1] >= first[1] + 0.3
    shutil.rmtree(small_disk)
    sent += spender.send()
    assert spender.counted() == sent
    assert node.snapshot()["durable"]
    lasted = time.monotonic() - began
    node.restart_after_kill()
    assert spender.counted() == sent
    assert gaps(node)["not-durable"][0] == losses_of_durability(node) - before
    assert second[1] <= gaps(node)["not-durable"][1] <= lasted
