"""When counting was interrupted: what the accounting of a node calls a gap, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from netmgr.agent.accounting.accounts import Accounts
from netmgr.documents.node import Backend
from netmgr.errors import KernelError
from netmgr.kernel import links
from netmgr.kernel.links import Carried
from netmgr.ledger.history import SECONDS as HOUR
from netmgr.ledger.history import By, Period
from netmgr.model import REMOTE_PODS, Counter, Sample, Traffic
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.classifier import Classifier
from netmgr.rules.engine import Rules
from netmgr.rules.model import Hook
from netmgr.rules.policy import Policy
from netmgr.rules.protection import Protection
from tests.chaos.test_accounts_crashes import DB, INTERNET, POLICY, WEB
from tests.fakes.accounts_node import EVERY, OUT, Kernel, Node, TwoKernels
from tests.fakes.ledger_tools import counts, gap_seconds, opened
from tests.fakes.rules import Packet

HUB = Address.parse("10.200.0.1")
TO_HUB = Packet(WEB.addresses[0], HUB, iif="nm0", way_back="nm0", oif="eth0", length=700)
WITH_HUB = replace(POLICY, classifier=Classifier((("hub", (HUB.prefix,)),)))


def test_a_reboot_keeps_the_totals_and_every_counter_of_the_boot_before_ends(node: Node) -> None:
    node.start(WEB, DB)
    node.send(WEB, 1000)
    node.accounts.close()
    node.kernel = Kernel(node.clock)
    node.start(WEB, boot="boot-2")
    node.send(WEB, 5)
    node.accounts.read()
    assert node.totals == {"node": 1005, "web": 1005, "db": 0}
    assert counts(node.ledger.totals()) == {"reboot": 1}


def test_what_a_pod_sent_while_no_agent_ran_is_its_own(node: Node) -> None:
    node.start(WEB)
    node.accounts.close()
    node.send(WEB, 30)
    assert node.start(WEB) == []
    assert node.totals == {"node": 30, "web": 30}
    assert node.removed == (0, 0)


def test_a_pod_that_went_while_no_agent_ran_is_read_for_the_last_time(node: Node) -> None:
    node.start(WEB, DB)
    node.send(WEB, 30)
    node.start(DB, crashed=True)
    assert node.totals == {"node": 30, "web": 30, "db": 0}
    assert {counter.subject for counter in node.ledger.counters() if counter.is_pod} == {
        *DB.addresses
    }
    assert node.removed == (0, 0)


def test_a_pod_that_went_with_its_counter_while_no_agent_ran_is_a_gap(node: Node) -> None:
    node.start(WEB, DB)
    node.send(WEB, 30)
    node.accounts.read()
    node.rules.expel(WEB.addresses)
    node.start(DB, crashed=True)
    assert (node.removed[0], node.concerned) == (1, len(Traffic))
    assert node.totals == {"node": 30, "web": 30, "db": 0}


def test_a_pod_that_never_had_a_link_is_none(node: Node) -> None:
    """Its ADD was killed between the ledger and the kernel."""
    node.start(DB)
    node.ledger.begin(node.rules.counters(WEB.addresses), WEB.pod)
    node.start(DB, crashed=True)
    assert node.removed == (0, 0)
    assert node.totals == {"node": 0, "db": 0, "web": 0}


def test_flushed_counters_begin_again_and_are_a_gap_since_the_last_reading(node: Node) -> None:
    node.start(WEB)
    node.send(WEB, 1000)
    node.kernel.reading_seconds = 2
    node.accounts.read()
    node.kernel.reading_seconds = 0
    node.clock.time += 10
    node.flush()
    node.kernel.changing_seconds = 5
    assert node.accounts.reconcile() != []
    node.kernel.changing_seconds = 0
    # From just before that reading until the counters were there again.
    assert node.removed == (1, pytest.approx(2 + 10 + 5))
    assert node.concerned == EVERY
    node.send(WEB, 7)
    node.accounts.read()
    assert node.totals == {"node": 1007, "web": 1007}
    assert node.accounts.reconcile() == []
    assert node.removed == (1, pytest.approx(17))
    node.flush()
    node.accounts.reconcile()
    assert node.removed[0] == 2


def test_what_one_start_finds_removed_is_one_gap_of_running_and_of_gone_pods(node: Node) -> None:
    node.start(WEB, DB)
    node.accounts.read()
    node.clock.time += 10
    node.flush()
    node.start(DB, crashed=True)
    assert node.removed == (1, pytest.approx(10))
    assert node.concerned == EVERY + len(Traffic)


def test_a_pod_that_is_attached_when_the_rules_were_flushed_waits_for_nobody(node: Node) -> None:
    node.start(WEB)
    node.send(WEB, 5)
    node.accounts.read()
    node.flush()
    node.accounts.begin(DB)
    node.send(DB, 30)
    node.send(WEB, 7)
    node.accounts.read()
    assert node.totals == {"node": 42, "web": 12, "db": 30}
    assert (node.removed[0], node.concerned) == (1, EVERY)


@pytest.mark.parametrize("hook", [Hook.INPUT, Hook.OUTPUT, Hook.BEFORE_SRCNAT])
def test_a_chain_that_counted_nothing_for_a_while_is_a_gap_since_the_last_look(
    node: Node, hook: Hook
) -> None:
    node.start(WEB)
    node.clock.time += 3
    node.accounts.reconcile()
    node.clock.time += 10
    node.empty(hook)
    node.kernel.changing_seconds = 4
    node.accounts.reconcile()
    node.kernel.changing_seconds = 0
    assert node.removed == (1, pytest.approx(14))
    # The next one is since the look at which the former was found: its repair and the ledger's
    # mark took 4 seconds each.
    node.clock.time += 1
    node.empty(hook)
    node.accounts.reconcile()
    assert node.removed == (2, pytest.approx(14 + 9))


@pytest.mark.parametrize(
    ("lose", "counters"),
    [(lambda node: node.empty(Hook.BEFORE_SRCNAT), 0), (Node.flush, EVERY)],
    ids=["a chain", "everything"],
)
def test_a_gap_is_recorded_once_however_often_its_repair_is_tried(
    node: Node, lose: Callable[[Node], None], counters: int
) -> None:
    node.start(WEB)
    node.clock.time += 10
    lose(node)
    for _ in range(2):
        node.kernel.fault = KernelError("the lock is held")
        with pytest.raises(KernelError):
            node.accounts.reconcile()
        node.clock.time += 2
    node.kernel.fault = None
    node.accounts.reconcile()
    assert node.removed == (1, pytest.approx(14))
    assert node.concerned == counters


def fail_to_repair(node: Node) -> None:
    node.kernel.fault = KernelError("the lock is held")
    with pytest.raises(KernelError):
        node.accounts.reconcile()
    node.kernel.fault = None


@pytest.mark.parametrize("look_on", [lambda one: one.read(), lambda one: one.end(DB)])
@pytest.mark.parametrize(
    "lose", [lambda node: node.empty(Hook.BEFORE_SRCNAT), Node.flush], ids=["a chain", "everything"]
)
def test_while_repairs_fail_the_gap_is_written_down_and_the_next_agent_goes_on_from_there(
    node: Node, lose: Callable[[Node], None], look_on: Callable[[Accounts], None]
) -> None:
    node.start(WEB, DB)
    node.clock.time += 10
    lose(node)
    for hours in range(4):
        fail_to_repair(node)
        assert node.removed == (1, pytest.approx(10 + hours * HOUR))
        node.clock.time += HOUR
    look_on(node.accounts)
    node.clock.time += 5
    node.start(WEB, crashed=True)
    assert node.removed == (2, pytest.approx(10 + 4 * HOUR + 5))


def test_rows_of_every_hour_in_which_repairs_fail_may_lack_something(node: Node) -> None:
    node.clock.time -= node.clock.time % HOUR
    node.start(WEB)
    for number in range(6):
        node.send(WEB, 100)
        if number == 1:
            node.empty(Hook.INPUT)
        if number in range(1, 4):
            fail_to_repair(node)
        else:
            node.accounts.reconcile()
        node.accounts.read()
        node.clock.time += HOUR
    rows = node.ledger.usage(Period(0, 1 << 40), [By.HOUR])
    assert len(rows) == 6
    # The last look before was in the first of these hours, the repair in the last but one.
    assert {row["hour"] * HOUR for row in rows if row["missing"] == 0} == {node.clock.time - HOUR}


def test_what_goes_while_repairs_fail_is_part_of_the_same_gap(node: Node) -> None:
    node.start(WEB, DB)
    node.clock.time += 10
    node.kernel.state.sets["pod_out4"].elements.pop(WEB.addresses[0])
    fail_to_repair(node)
    node.clock.time += 5
    node.accounts.read()
    for _ in range(2):
        node.clock.time += 2
        fail_to_repair(node)
    node.kernel.state.sets["pod_out4"].elements.pop(DB.addresses[0])
    fail_to_repair(node)
    node.clock.time += 3
    node.accounts.reconcile()
    assert node.removed == (1, pytest.approx(10 + 5 + 2 + 2 + 3))


def test_a_reading_is_from_before_it_was_taken_since_it_takes_time(node: Node) -> None:
    node.start(WEB, DB)
    node.accounts.close()
    node.kernel.reading_seconds = 3
    before = node.clock.time
    node.start(WEB, DB)
    assert node.ledger.read_at == before
    before = node.clock.time
    node.accounts.end(DB)
    assert (node.ledger.read_at, node.clock.time) == (before, before + 3)
    node.accounts.change_policy(WITH_HUB)
    before = node.clock.time
    node.accounts.change_policy(POLICY)
    assert (node.ledger.read_at, node.clock.time) == (before, before + 3)


def test_a_class_that_comes_is_counted_for_each_pod_from_zero_and_is_no_gap(node: Node) -> None:
    node.start(WEB)
    node.accounts.change_policy(WITH_HUB)
    begun = {row["traffic"] for row in node.ledger.totals().pods}
    assert begun >= {"hub-out", "hub-in", "internal-out", "internal-in"}
    node.kernel.send(TO_HUB)
    node.accounts.read()
    found = {one["traffic"]: one["bytes"] for one in node.ledger.totals().pods}
    assert (found["hub-out"], found["internal-out"]) == (700, 0)
    assert node.removed == (0, 0)


def test_killed_before_the_rules_of_a_new_class_were_made_nothing_is_a_gap(node: Node) -> None:
    node.start(WEB)
    node.policy = WITH_HUB
    node.ledger.begin(Rules(node.rules.backend, WITH_HUB).counters(WEB.addresses), WEB.pod)
    node.start(WEB, crashed=True)
    assert node.removed == (0, 0)
    node.kernel.state.sets["pod_hub_out4"].elements.clear()
    node.accounts.reconcile()
    assert node.removed[0] == 1


def test_killed_in_its_very_first_start_an_agent_lost_nothing(node: Node) -> None:
    node.start()
    hooks = [counter for counter in node.ledger.counters() if not counter.is_pod]
    node.ledger.close()
    node.path, node.kernel = node.path.with_name("first.sqlite"), Kernel(node.clock)
    killed = opened(node.path, node.clock)
    killed.begin(hooks[:2], None)
    killed.close()
    node.start(WEB)
    assert node.removed == (0, 0)
    node.flush()
    node.accounts.reconcile()
    assert node.removed[0] == 1


@pytest.mark.parametrize(
    ("carried", "gaps"),
    [(Carried(0, 0, 0, 0), 0), (Carried(0, 0, 90, 1), 1)],
    ids=["nothing", "a packet"],
)
def test_killed_between_ledger_and_kernel_an_add_lost_at_most_what_its_link_carried(
    node: Node, monkeypatch: pytest.MonkeyPatch, carried: Carried, gaps: int
) -> None:
    node.start(DB)
    node.ledger.begin(node.rules.counters(WEB.addresses), WEB.pod)
    monkeypatch.setattr(links, "read_carried", lambda: {WEB.host_link: carried})
    node.start(WEB, DB, crashed=True)
    assert node.removed[0] == gaps


def test_killed_before_filters_hold_the_maps_of_its_first_start_an_agent_lost_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor has other maps, and so counters of another life."""
    sum_at_links = Counter(REMOTE_PODS, Family.V4, Traffic.INTERNET_IN)
    monkeypatch.setattr(node.kernel, "read", lambda _: [Sample(sum_at_links, 0, 0, life=1)])
    with monkeypatch.context() as killed:
        killed.setattr(node.kernel, "apply", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            node.start()
    monkeypatch.setattr(node.kernel, "read", lambda _: [Sample(sum_at_links, 0, 0, life=2)])
    node.start(crashed=True)
    assert counts(node.ledger.totals()) == {}


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [(WITH_HUB, WITH_HUB, "pod_hub_out4"), (POLICY, WITH_HUB, "pod_out4")],
    ids=["its class was counted before", "it is of no class"],
)
def test_a_counter_that_nobody_read_and_that_is_gone_is_a_gap(
    node: Node, before: Policy, after: Policy, gone: str
) -> None:
    node.policy = before
    node.start(DB)
    node.accounts.begin(WEB)
    node.kernel.state.sets[gone].elements.pop(WEB.addresses[0])
    node.policy = after
    node.start(WEB, DB, crashed=True)
    assert node.removed[0] == 1


@pytest.mark.parametrize(
    "name", ["pod_hub_out4", "pod_protected_out4", "pod_out4"], ids=["class", "kept away", "sum"]
)
def test_a_pod_that_ends_after_another_program_took_its_counter_away_is_a_gap(
    node: Node, name: str
) -> None:
    node.policy = replace(WITH_HUB, protection=Protection((INTERNET.prefix,)))
    node.start(WEB, DB)
    node.accounts.read()
    node.clock.time += 10
    node.kernel.state.sets[name].elements.pop(WEB.addresses[0])
    node.accounts.end(WEB)
    assert (*node.removed, node.concerned) == (1, pytest.approx(10), 1)
    rows = node.ledger.totals().pods
    assert {row["live"] for row in rows if row["pod"] == "web"} == {False}
    # Killed here, the successor finds the true books, and nothing else that was lost.
    node.start(DB, crashed=True)
    assert counts(node.ledger.totals()) == {"removed": 1}


def test_a_pod_that_ends_without_ever_having_been_counted_is_none(node: Node) -> None:
    """Its ADD failed between the ledger and the kernel, or it ends a second time."""
    node.start(WEB)
    node.ledger.begin(node.rules.counters(DB.addresses), DB.pod)
    node.accounts.end(DB)
    node.accounts.end(DB)
    node.accounts.end(WEB)
    assert counts(node.ledger.totals()) == {}


def test_a_set_that_says_what_is_internal_is_part_of_counting(node: Node) -> None:
    prefixes = tuple(Prefix(Family.V4, number << 16, 24) for number in range(256, 300))
    node.policy = replace(POLICY, internal=(*POLICY.internal, *prefixes))
    node.start(WEB)
    node.clock.time += 10
    node.kernel.state.sets["internal4"].elements.popitem()
    node.accounts.reconcile()
    assert node.removed == (1, pytest.approx(10))


def test_what_decides_nothing_about_counting_may_be_altered_without_a_gap(node: Node) -> None:
    node.start(WEB)
    node.empty(Hook.PREROUTING)
    assert node.accounts.reconcile() != []
    node.kernel.state.sets["ranges4"].elements.popitem()
    assert node.accounts.reconcile() != []
    assert node.removed == (0, 0)


def test_rules_altered_while_no_agent_ran_are_a_gap_unless_they_were_to_change(node: Node) -> None:
    node.start(WEB)
    node.clock.time += 5
    node.accounts.read()
    node.clock.time += 10
    node.empty(Hook.BEFORE_SRCNAT)
    assert node.start(WEB, crashed=True) != []
    assert node.removed == (1, pytest.approx(10))
    node.empty(Hook.BEFORE_SRCNAT)
    node.policy = replace(POLICY, masquerade=False)
    assert node.start(WEB, crashed=True) != []
    assert node.removed == (1, pytest.approx(10))


def test_a_change_of_policy_is_no_gap_and_later_ones_of_others_are(node: Node) -> None:
    node.start(WEB)
    more = (*POLICY.internal, Prefix.parse("203.0.113.128/25"))
    assert node.accounts.change_policy(replace(POLICY, internal=more)) != []
    assert node.removed == (0, 0)
    node.clock.time += 10
    node.empty(Hook.BEFORE_SRCNAT)
    node.accounts.reconcile()
    assert node.removed == (1, pytest.approx(10))


def test_a_class_that_is_no_longer_counted_is_read_for_the_last_time(node: Node) -> None:
    node.policy = WITH_HUB
    node.start(WEB)
    node.kernel.send(TO_HUB)
    node.accounts.change_policy(POLICY)
    found = {one["traffic"]: one["bytes"] for one in node.ledger.totals().pods}
    assert found["hub-out"] == 700
    assert {counter.traffic for counter in node.ledger.counters() if counter.is_pod} == {*Traffic}
    assert node.removed == (0, 0)


def test_a_change_of_backend_costs_no_byte_and_is_no_gap(tmp_path: Path) -> None:
    node = TwoKernels(tmp_path)
    node.start(Backend.NFTABLES)
    node.send(1000)
    for size, name in ((30, Backend.IPTABLES_LEGACY), (4, Backend.NFTABLES)):
        node.accounts.close()
        node.start(name)
        node.send(size)
        assert [kernel for kernel, held in node.kernels.items() if held.state.sets] == [name]
    node.accounts.read()
    totals = node.ledger.totals()
    assert [one["bytes"] for one in totals.pods if one["traffic"] == OUT] == [1034]
    assert [one["bytes"] for one in totals.node if one["traffic"] == OUT] == [1034]
    assert counts(totals) == {}
    # From then on classes that end are read again.
    node.accounts.change_policy(WITH_HUB)
    node.accounts.change_policy(POLICY)
    assert {counter.traffic for counter in node.ledger.counters() if counter.is_pod} == {*Traffic}
    assert node.accounts.reconcile() == []
    node.clock.time += 10
    node.kernels[Backend.NFTABLES].state.chains[Hook.BEFORE_SRCNAT] = []
    node.accounts.reconcile()
    assert counts(node.ledger.totals()) == {"removed": 1}
    assert gap_seconds(node.ledger, "removed") == pytest.approx(10)
    node.ledger.close()


@pytest.mark.parametrize(
    ("backend", "step"), [(Backend.IPTABLES_LEGACY, "apply"), (Backend.NFTABLES, "remove")]
)
def test_a_change_of_backend_that_is_refused_halfway_costs_no_byte_and_is_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Backend, step: str
) -> None:
    node = TwoKernels(tmp_path)
    node.start(Backend.NFTABLES)
    node.send(1000)
    node.accounts.close()
    apply = node.kernels[backend].apply

    def refuse(*operations: Any) -> None:
        if step == "apply":
            apply(*operations)
        raise KernelError(step)

    with monkeypatch.context() as patch:
        patch.setattr(node.kernels[backend], step, refuse)
        with pytest.raises(KernelError):
            node.start(Backend.IPTABLES_LEGACY)
    node.send(30)
    node.accounts.close()
    node.send(4)
    node.start(Backend.IPTABLES_LEGACY)
    totals = node.ledger.totals()
    assert [one["bytes"] for one in totals.pods if one["traffic"] == OUT] == [1034]
    assert counts(totals) == {}
    node.ledger.close()
