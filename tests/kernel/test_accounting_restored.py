"""Counters that another program saved, took away and put back, zeroed or set: nothing is billed
twice, and what is lost is a gap, in bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import NamedTuple

import pytest

from netmgr.documents.node import Backend
from netmgr.rules.link_programs import PODS_MAP
from tests.kernel.common import agent_standing_still, flushing, repairs
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING, one_of
from tests.kernel.spending import OUT, Spender, held_at_links, run, set_counter, zero_sums
from tests.lab.nodes import LabNode
from tests.waiting import eventually

pytestmark = pytest.mark.root

WORLD = {
    "nodes": 1,
    "settings": {
        "accounting": {"min_reading_seconds": 0, "reading_seconds": 300},
        "reconcile_seconds": 300,
    },
    "exporters": False,
}
Disturb = Callable[[Callable[[], object]], None]


backend = one_of(EVERY_WAY_OF_COUNTING)


class Told(NamedTuple):
    count: int
    bytes: int


def gaps(node: LabNode) -> dict[str, Told]:
    return {one["reason"]: Told(one["count"], one["bytes"]) for one in node.snapshot()["gaps"]}


def more(before: dict[str, Told], after: dict[str, Told]) -> dict[str, Told]:
    grown = {
        reason: Told(told.count - before[reason].count, told.bytes - before[reason].bytes)
        for reason, told in after.items()
    }
    return {reason: told for reason, told in grown.items() if any(told)}


def save(node: LabNode, backend: Backend) -> None:
    """Keep the pods' counters."""
    if backend is Backend.LINKS:
        with held_at_links(node, PODS_MAP) as pods, (node.directory / "saved").open("wb") as file:
            pickle.dump(dict(pods.listed()), file)
        return
    shown = "nft list table inet netmgr" if backend is Backend.NFTABLES else "ipset save"
    done = run(node, "sh", "-ec", f"{shown} > {node.directory}/saved")
    assert done.returncode == 0, done.stderr


def put_back(node: LabNode, backend: Backend) -> None:
    """Have the pods' counters show what they showed when they were kept."""
    if backend is Backend.LINKS:
        with held_at_links(node, PODS_MAP) as pods:
            saved = pickle.loads((node.directory / "saved").read_bytes())  # noqa: S301  our own
            for key, element in saved.items():
                pods.put(key, element)
        return
    if backend is Backend.NFTABLES:
        saved = f"{{ echo delete table inet netmgr; cat {node.directory}/saved; }}"
        text = f"{saved} | nft -f -"
    else:
        text = f"grep ^add {node.directory}/saved | ipset -exist restore"
    done = run(node, "sh", "-ec", text)
    assert done.returncode == 0, done.stderr


def take_away(node: LabNode, backend: Backend) -> None:
    if backend is Backend.LINKS:
        with held_at_links(node, PODS_MAP) as pods:
            for key in dict(pods.listed()):
                pods.delete(key)
        return
    for command in flushing(backend):
        assert run(node, *command).returncode == 0


@pytest.fixture(params=["the agent runs", "it was stopped"])
def disturbed(request: pytest.FixtureRequest, node: LabNode) -> Disturb:
    """Disturb counters between two looks of an agent that runs, or while none does."""

    def disturb(act: Callable[[], object]) -> None:
        if request.param == "the agent runs":
            with agent_standing_still(node):
                act()
        else:
            node.kill_agent()
            act()
            node.start_until_ready()

    return disturb


def test_counters_that_are_put_back_are_not_counted_again(
    node: LabNode, spender: Spender, backend: Backend, disturbed: Disturb
) -> None:
    kept = spender.send() + spender.send(700)
    assert spender.counted() == kept
    save(node, backend)
    kept += spender.send(900)
    assert spender.counted() == kept
    before = gaps(node)
    disturbed(lambda: put_back(node, backend))
    assert spender.counted() == kept
    assert more(before, gaps(node))["restored"].count >= 1
    after = gaps(node)
    kept += spender.send(300)
    assert spender.counted() == kept
    assert gaps(node) == after


def test_what_passed_until_they_were_put_back_is_lost_and_told(
    node: LabNode, spender: Spender, backend: Backend, disturbed: Disturb
) -> None:
    kept = spender.send(1400)
    assert spender.counted() == kept
    save(node, backend)
    before = gaps(node)
    lost = 700
    disturbed(lambda: (spender.send(lost), put_back(node, backend)))
    kept += spender.send(500)
    assert spender.counted() in {kept, kept - 500}
    told = more(before, gaps(node))
    assert set(told) <= {"restored", "reset"}
    assert told
    if backend is not Backend.NFTABLES:
        # The sum of the pods' counters is in a table of iptables.
        assert sum(one.bytes for one in told.values()) == lost


def test_a_counter_of_a_former_life_is_not_taken_for_traffic(
    node: LabNode, spender: Spender, backend: Backend
) -> None:
    kept = sum(spender.send(1400) for _ in range(4))
    assert spender.counted() == kept
    save(node, backend)
    before, repaired = gaps(node), repairs(node, "rules")
    take_away(node, backend)
    node.restart_after_kill()
    eventually(lambda: repairs(node, "rules") >= repaired)
    kept += spender.send(300)
    assert spender.counted() == kept
    put_back(node, backend)
    assert spender.counted() == kept
    assert more(before, gaps(node))["restored"].count >= 1


def test_a_counter_that_is_zeroed_again_and_again_tells_every_byte_it_lost(
    node: LabNode, spender: Spender, backend: Backend, disturbed: Disturb
) -> None:
    sent = spender.send(100)
    # Read once more, with nothing between: what a sum once lost hides no more than an interval.
    assert spender.counted() == spender.counted() == sent
    before = gaps(node)
    for size in (400, 900, 1200, 1400):
        sent += spender.send(size)
        disturbed(lambda: set_counter(spender, backend))
        sent += spender.send(size + 100)
        spender.counted()
    told = more(before, gaps(node))
    assert set(told) == {"reset"}
    assert told["reset"].count == 4
    assert spender.counted() + told["reset"].bytes == sent
    rows, asked = node.ask("audit")["ratios"], ("forward", OUT)
    (ratio,) = [row["ratio"] for row in rows if (row["against"], row["traffic"]) == asked]
    assert ratio < 1


def test_a_sum_that_is_zeroed_accuses_no_pod(
    node: LabNode, spender: Spender, backend: Backend, disturbed: Disturb
) -> None:
    kept = spender.send(100)
    assert spender.counted() == kept
    before = gaps(node)
    for size in (50, 1000, 60):
        kept += spender.send(size)
        disturbed(lambda: zero_sums(node, backend))
        kept += spender.send(900)
        assert spender.counted() == kept
    assert not any(one.bytes for one in more(before, gaps(node)).values())
    assert "restored" not in more(before, gaps(node))


@pytest.mark.parametrize("backend", [Backend.IPTABLES_LEGACY], indirect=True, ids=str)
def test_a_sum_that_is_put_back_with_its_rules_accuses_no_pod(
    node: LabNode, spender: Spender, disturbed: Disturb
) -> None:
    saved = node.directory / "saved"
    kept = spender.send(1400)
    assert spender.counted() == kept
    assert run(node, "sh", "-c", f"iptables-legacy-save -c -t mangle > {saved}").returncode == 0
    kept += spender.send(700)
    assert spender.counted() == kept
    before = gaps(node)
    disturbed(lambda: run(node, "iptables-legacy-restore", "-c", str(saved)))
    for size in (300, 400, 500):
        assert spender.counted() == kept
        kept += spender.send(size)
    assert spender.counted() == kept
    told = more(before, gaps(node))
    assert set(told) == {"reset"}
    assert told["reset"].bytes == 0
