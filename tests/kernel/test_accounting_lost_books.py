"""The ledger's file lost, cut, or replaced: totals begin at zero, a gap tells of the loss."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from netmgr.agent.core.recovery import boot_id
from netmgr.agent.main import SystemClock
from netmgr.dataplane import desired
from netmgr.documents.node import Backend
from netmgr.ipam.store import LeaseStore
from netmgr.ledger.ledger import MARK_FILE, Ledger
from netmgr.ledger.store import LedgerStore
from netmgr.model import Attachment, AttachmentKey, Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family
from tests.kernel.common import ONLY_NFTABLES, repairs
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING, one_of
from tests.kernel.spending import OUT, Spender, gaps
from tests.lab.nodes import LabNode
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
NewSpender = Callable[[], Spender]
_numbers = count(1)


backend = one_of(EVERY_WAY_OF_COUNTING)


def ledger_of(node: LabNode) -> Path:
    return node.directory / "state" / "ledger.sqlite"


def remove(path: Path) -> None:
    remove_log(path)
    path.unlink(missing_ok=True)


def remove_log(path: Path) -> None:
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def cut_to_nothing(path: Path) -> None:
    remove(path)
    path.touch()


def write_into_the_middle(path: Path) -> None:
    remove_log(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 8192))


def replace_by_another_machines(path: Path) -> None:
    remove(path)
    elsewhere = path.with_name("elsewhere") / path.name
    elsewhere.parent.mkdir()
    other = Ledger(
        LedgerStore(elsewhere), clock=SystemClock(), linger_seconds=900, boot_id="another"
    )
    other.examine([], has_counters=False)
    mine = Counter.of_pod(Address.parse("10.9.8.7"), Traffic.INTERNET_OUT)
    other.begin([mine], PodRef("elsewhere", "web", "uid"))
    other.post([Sample(mine, 10**12, 1)])
    other.close()
    elsewhere.rename(path)
    shutil.rmtree(elsewhere.parent)


def node_total(node: LabNode) -> int:
    (size,) = [row["bytes"] for row in node.snapshot()["node_totals"] if row["traffic"] == OUT]
    return size


def namespaces(node: LabNode) -> dict[str, int]:
    rows = node.snapshot()["namespaces"]
    return {row["namespace"]: row["bytes"] for row in rows if row["traffic"] == OUT}


Gaps = dict[str, tuple[int, float]]


def changed(before: Gaps, after: Gaps) -> dict[str, int]:
    return {
        reason: times - before[reason][0]
        for reason, (times, seconds) in after.items()
        if (times, seconds) != before[reason]
    }


@pytest.mark.parametrize(
    ("backend", "harm"),
    [
        pytest.param(Backend.LINKS, remove, marks=pytest.mark.slow),
        (Backend.NFTABLES, remove),
        (Backend.NFTABLES, cut_to_nothing),
        (Backend.NFTABLES, write_into_the_middle),
        (Backend.NFTABLES, replace_by_another_machines),
    ],
    indirect=["backend"],
)
def test_books_that_were_lost_begin_at_zero_and_every_loss_is_reported(
    node: LabNode, spender: Spender, new_spender: NewSpender, harm: Callable[[Path], None]
) -> None:
    gone = new_spender()
    spender.send()
    lost = gone.send()
    node.runtime.delete(gone.sandbox)
    assert namespaces(node)[gone.sandbox.pod.namespace] == lost
    spender.send()
    before = {reason: times for reason, (times, _) in gaps(node).items() if times}
    for times in (1, 2):
        node.kill_agent()
        harm(ledger_of(node))
        spender.send()
        node.start_until_ready()
        assert spender.counted() == node_total(node) == 0, (
            "whoever takes rates would count a smaller total once more"
        )
        sent = spender.send()
        assert spender.counted() == node_total(node) == sent
        assert gone.sandbox.pod.namespace not in namespaces(node)
        assert "elsewhere" not in namespaces(node)
        found = gaps(node)
        reasons = {reason: times for reason, (times, _) in found.items() if times}
        assert reasons == before | {"ledger-lost": before.get("ledger-lost", 0) + times}
        assert found["ledger-lost"][1] > 0
        assert node.snapshot()["state_rebuilds"] == 1
    assert "kind=ledger-lost path=" in (node.directory / "agent.log").read_text()
    node.restart_after_kill()
    assert (spender.counted(), gaps(node)) == (sent, found)


@pytest.mark.parametrize("alone", [True, False], ids=["the ledger alone", "the whole state"])
def test_an_older_copy_is_recognised_by_the_kernel_and_begins_at_zero(
    node: LabNode, spender: Spender, new_spender: NewSpender, *, alone: bool
) -> None:
    sent = spender.send()
    assert spender.counted() == sent
    state, copy = ledger_of(node).parent, node.directory / f"copy-{next(_numbers)}"
    node.stop_agent()
    shutil.copytree(state, copy)
    node.start_until_ready()
    before = gaps(node)
    gone = new_spender()
    gone.send()
    node.runtime.delete(gone.sandbox)
    spender.send()
    node.kill_agent()
    names = ["ledger.sqlite"] if alone else ["ledger.sqlite", "ipam.sqlite", MARK_FILE]
    for name in names:
        remove(state / name)
        shutil.copy(copy / name, state / name)
    spender.send()
    node.start_until_ready()
    assert spender.counted() == node_total(node) == 0
    assert spender.send() == spender.counted() == node_total(node)
    assert gone.sandbox.pod.namespace not in namespaces(node)
    after = gaps(node)
    assert changed(before, after) == {"ledger-older": 1}
    assert after["ledger-older"][1] > 0
    assert node.snapshot()["state_rebuilds"] == 1


@pytest.mark.slow
def test_a_log_that_was_removed_makes_an_older_copy_too(
    node: LabNode, spender: Spender, new_spender: NewSpender
) -> None:
    gone = new_spender()
    gone.send()
    before = gaps(node)
    with closing(sqlite3.connect(f"{ledger_of(node).as_uri()}?mode=ro", uri=True)) as reader:
        # What a reader does not see yet stays in the log, whenever it is written back.
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM counter").fetchone()
        node.runtime.delete(gone.sandbox)
        node.kill_agent()
    remove_log(ledger_of(node))
    node.start_until_ready()
    assert changed(before, gaps(node)) == {"ledger-older": 1}
    assert spender.counted() == 0


def replaced_now(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.replace(path)


def cut_now(path: Path) -> None:
    path.open("r+b").truncate(0)


@pytest.mark.slow
@ONLY_NFTABLES
@pytest.mark.parametrize("harm", [replaced_now, cut_now])
def test_a_file_that_is_harmed_under_a_running_agent_is_written_again(
    node: LabNode, spender: Spender, harm: Callable[[Path], None]
) -> None:
    sent = spender.send()
    assert spender.counted() == sent
    before, path = gaps(node), ledger_of(node)
    known = repairs(node, "files")
    harm(path)
    sent += spender.send()
    assert spender.counted() == sent
    eventually(lambda: repairs(node, "files") > known)
    sent += spender.send()
    assert spender.counted() == sent
    node.restart_after_kill()
    assert (spender.counted(), gaps(node)) == (sent, before)


@pytest.mark.slow
def test_a_pod_that_an_agent_was_killed_before_it_counted_is_no_gap(
    node: LabNode, spender: Spender
) -> None:
    """Its counters are in the books, and neither they nor a link are in the kernel."""
    before = gaps(node)
    node.kill_agent()
    pod = PodRef(f"team-{next(_numbers)}", "unborn", "uid-unborn")
    addresses = tuple(neighbour(spender.sandbox.address(family)) for family in Family)
    key = AttachmentKey(pod.name, "eth0")
    memory = LeaseStore(node.directory / "state" / "ipam.sqlite")
    memory.hold(
        Attachment(key, pod, addresses, desired.host_link_name(key), "/run/netns/none", 1.0)
    )
    memory.close()
    books = Ledger(
        LedgerStore(ledger_of(node)), clock=SystemClock(), linger_seconds=900, boot_id=boot_id()
    )
    books.begin([Counter.of_pod(address, way) for address in addresses for way in Traffic], pod)
    books.close()
    node.start_until_ready()
    assert gaps(node) == before
    assert spender.counted() == 0


def neighbour(address: Address) -> Address:
    return Address(address.family, address.value + 20)
