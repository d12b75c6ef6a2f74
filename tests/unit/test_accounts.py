"""The accounting of a node on a kernel of the tests' own: what begins, what is read, and how often.

Every step of it is killed in `tests/chaos/test_accounts_crashes.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from errno import EPERM

import pytest

from netmgr.errors import KernelError, NetmgrError, TryAgainLater
from netmgr.kernel import links
from netmgr.kernel.links import Carried
from netmgr.ledger.history import By, Period
from netmgr.ledger.ledger import Ledger
from netmgr.model import Counter, PodRef, Sender
from netmgr.prefixes import Prefix
from netmgr.rules.model import Ruleset
from netmgr.rules.observed import Observed
from netmgr.rules.protection import Protection
from tests.chaos.test_accounts_crashes import DB, INTERNET, NEXT, POLICY, WEB
from tests.fakes.accounts_node import HostPods, Node
from tests.fakes.ledger_tools import LINGER, counts
from tests.waiting import PATIENCE


def test_a_ledger_that_was_lost_begins_at_zero_and_goes_on_from_what_counters_show(
    node: Node,
) -> None:
    node.start(WEB)
    node.send(WEB, 1000)
    node.own(70)
    node.ledger.close()
    node.path.unlink()
    node.start(WEB)
    assert node.totals == {"node": 0, "web": 0}
    assert counts(node.ledger.totals()) == {"ledger-lost": 1}
    node.send(WEB, 30)
    node.own(4)
    node.accounts.begin(DB)
    node.send(DB, 5)
    node.accounts.read()
    assert node.totals == {"node": 39, "web": 30, "db": 5}


def test_the_kernel_is_read_no_more_often_than_that_however_often_it_is_asked(node: Node) -> None:
    node.start(WEB, min_seconds=0.5)
    node.accounts.read()
    node.send(WEB, 100)
    for later, is_read in ((0.0, False), (0.25, False), (0.25, True)):
        node.clock.time += later
        node.accounts.read()
        assert node.totals["web"] == 100 * is_read
    node.send(WEB, 10)
    node.accounts.read()
    assert node.totals["web"] == 100
    node.accounts.read(at_once=True)
    assert node.totals["web"] == 110
    node.send(WEB, 1)
    node.accounts.close()
    node.start(WEB)
    assert node.totals["web"] == 111


def test_what_is_read_after_the_last_packet_is_the_pods_though_another_has_the_address(
    node: Node,
) -> None:
    node.start()
    node.accounts.begin(WEB)
    node.send(WEB, 30)
    node.accounts.end(WEB)
    node.send(WEB, 7)
    node.accounts.read()
    assert node.totals == {"node": 37, "web": 30}
    assert not any(counter.is_pod for counter in node.ledger.counters())


def test_a_kernel_that_refuses_a_pod_refuses_its_attachment(node: Node) -> None:
    node.start(WEB)
    node.kernel.fault = KernelError("add elements", EPERM)
    with pytest.raises(KernelError, match="add elements"):
        node.accounts.begin(DB)


def test_excepted_namespaces_are_known_before_a_pod_is_counted_and_forgotten_after(
    node: Node,
) -> None:
    excepted = Protection((INTERNET.prefix,), excepted=frozenset({WEB.pod.namespace}))
    node.policy = replace(POLICY, protection=excepted)
    node.start(WEB)
    kept_away = "pod_protected_out4"
    assert WEB.addresses[0] not in node.kernel.state.sets[kept_away].elements
    node.accounts.end(WEB)
    node.accounts.begin(replace(NEXT, pod=replace(NEXT.pod, namespace="team-b")))
    assert WEB.addresses[0] in node.kernel.state.sets[kept_away].elements


def test_a_pod_s_link_is_known_as_long_as_the_pod_is_there(node: Node) -> None:
    node.start(WEB)
    node.accounts.begin(DB)
    members = node.kernel.state.sets["senders4"].elements
    assert set(members) == {Sender("nm0", one.addresses[0]) for one in (WEB, DB)}
    node.accounts.end(WEB)
    assert set(members) == {Sender("nm0", DB.addresses[0])}
    assert node.accounts.reconcile() == []


def test_a_last_reading_and_the_ledgers_mark_leave_the_kernel_in_one_step(node: Node) -> None:
    node.start(WEB)
    before = node.ledger.mark
    node.send(WEB, 30)
    node.accounts.end(WEB)
    assert node.ledger.mark != before
    assert node.rules.marks() == [node.ledger.mark.address]
    # Killed here, the successor finds the true books, and nothing that was lost.
    node.start(crashed=True)
    assert counts(node.ledger.totals()) == {}


def die_unless_empty(ledger: Ledger, counters: Collection[Counter]) -> None:
    del ledger
    if counters:
        raise KeyboardInterrupt


def test_a_start_that_is_killed_after_it_took_counters_away_is_no_gap(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start(WEB)
    node.send(WEB, 30)
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "end", die_unless_empty)
        with pytest.raises(KeyboardInterrupt):
            node.start(DB, crashed=True)
    assert not any(WEB.addresses[0] in held.elements for held in node.kernel.state.sets.values())
    node.start(DB, crashed=True)
    assert counts(node.ledger.totals()) == {}
    assert node.totals["web"] == 30


def test_a_pod_that_is_gone_is_never_planned_for_again(node: Node) -> None:
    node.start(WEB, DB)
    node.accounts.end(WEB)
    node.accounts.end(WEB)
    assert node.accounts.reconcile() == []
    assert node.accounts.check(DB) == []
    assert node.accounts.check(WEB) != []
    assert not any(WEB.addresses[0] in held.elements for held in node.kernel.state.sets.values())


def test_host_network_pods_are_posted_with_the_rules_and_looked_for(node: Node) -> None:
    pods = node.host_pods = HostPods()
    node.start(WEB)
    assert (pods.looks, pods.internal) == (1, list(POLICY.internal))
    node.ledger.begin([pods.counter], PodRef("kube-system", "proxy"))
    pods.bytes = 90
    node.accounts.read()
    assert node.totals["proxy"] == 90
    more = replace(POLICY, internal=(*POLICY.internal, Prefix.parse("203.0.113.128/25")))
    node.accounts.change_policy(more)
    assert (pods.looks, pods.internal) == (2, list(more.internal))
    for pods.fault in (KernelError("list cgroups"), TryAgainLater("all the time")):
        node.accounts.tidy()
    node.accounts.close()
    assert not pods.is_open
    assert pods.looks == 2


def test_the_audit_compares_what_was_counted_with_the_links(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = {"nm0": Carried(1000 + 14, 1, 0, 0), "eth0": Carried(9, 9, 9, 9)}
    monkeypatch.setattr(links, "read_carried", lambda: carried)
    node.start()
    node.accounts.begin(WEB)
    node.send(WEB, 1000)
    report = node.accounts.audit()
    rests = [(row["link"], row["direction"], row["rest"]) for row in report.links]
    assert rests == [("nm0", "in", 0), ("nm0", "out", 0)]
    assert report.totals == node.ledger.totals()
    assert node.accounts.ratios == []
    node.accounts.tidy()
    assert node.accounts.ratios == report.ratios()
    node.accounts.end(WEB)
    assert node.accounts.audit().links == []


def test_the_audit_compares_what_was_counted_with_the_uplinks_since_it_began(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = {"eth0": Carried(0, 0, 700, 0), "eth1": Carried(0, 0, 9, 0)}
    monkeypatch.setattr(links, "read_carried", lambda: carried)
    node.uplinks = ["eth0", "gone"]
    node.start(WEB)

    def passed() -> tuple[int, ...] | None:
        out = node.accounts.audit().uplinks.get("internet-out")
        return out and out[:2]

    assert passed() == (0, 0)
    node.send(WEB, 1000)
    carried["eth0"] = Carried(0, 0, 700 + 1000 + 400 + 3 * 14, 3)
    assert passed() == (1400, 1000)
    # The uplink was made anew.
    carried["eth0"] = Carried(0, 0, 0, 0)
    assert passed() is None
    carried["eth0"] = Carried(0, 0, 100, 0)
    assert passed() == (100, 0)


def test_tidying_drops_what_lingered_and_syncs_beside_other_work(node: Node) -> None:
    node.start(WEB)
    node.accounts.end(WEB)
    node.clock.time += LINGER + 1
    syncing, may_end, threads = threading.Event(), threading.Event(), []

    def sync() -> None:
        threads.append(threading.current_thread())
        syncing.set()
        assert may_end.wait(PATIENCE)

    checkpoint, node.ledger.checkpoint = node.ledger.checkpoint, sync
    node.accounts.tidy()
    assert syncing.wait(PATIENCE)
    assert node.totals == {"node": 0}
    node.accounts.tidy()
    may_end.set()
    threads[0].join()
    assert [(thread.name, thread.daemon) for thread in threads] == [("ledger-sync", True)]
    syncing.clear()
    node.accounts.tidy()
    assert syncing.wait(PATIENCE)
    node.ledger.checkpoint = checkpoint


@pytest.mark.parametrize("fault", [KernelError("list counters"), TryAgainLater("all the time")])
def test_history_is_up_to_now_and_up_to_the_last_reading_if_the_kernel_refuses(
    node: Node, fault: NetmgrError
) -> None:
    def usage() -> dict[str, int]:
        return {
            row["pod"]: row["bytes"] for row in node.accounts.usage(Period(0, 1 << 40), [By.POD])
        }

    node.start(WEB)
    node.send(WEB, 1000)
    assert usage() == {"web": 1000}
    node.send(WEB, 5)
    node.kernel.fault = fault
    assert usage() == {"web": 1000}


def test_whoever_awaits_their_turn_waits_for_a_repair(node: Node) -> None:
    node.start(WEB)
    repairing, may_end = threading.Event(), threading.Event()

    def observe(desired: Ruleset, observe: Callable[[Ruleset], Observed] = node.kernel.observe):
        repairing.set()
        assert may_end.wait(PATIENCE)
        return observe(desired)

    node.kernel.observe = observe
    repair = threading.Thread(target=node.accounts.reconcile)
    turn = threading.Thread(target=node.accounts.await_turn)
    repair.start()
    assert repairing.wait(PATIENCE)
    turn.start()
    turn.join(0.05)
    assert turn.is_alive()
    may_end.set()
    for thread in (repair, turn):
        thread.join(PATIENCE)
        assert not thread.is_alive()
