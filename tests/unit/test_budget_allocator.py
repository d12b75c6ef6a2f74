"""What the server of budgets lends, report by report."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from netmgr.budgets.allocator import BudgetAllocator
from netmgr.budgets.messages import Budget, BudgetReport, BudgetUse, Grant
from netmgr.budgets.overview import statuses
from netmgr.budgets.terms import AIM, DELETED, GRACE, HOLD, LEASE, OUTSTANDING, OVERLAP, PERIOD
from netmgr.model import Traffic

DAY = 20_000
RATE = 1_000_000_000
BUDGET = Budget("everyone", "", ("*",), Traffic.INTERNET_IN, RATE)
QUOTA = replace(BUDGET, per_day=10**12)
IDLE = BudgetUse(0, 0, 0, 0, DAY, 0, 0)
NOTHING_LENT = Grant(0, 0, 0, 0, DAY, 0)


class Cluster:
    """A leader and ten nodes that report every five seconds, each with what `uses` says."""

    def __init__(self, budget: Budget = BUDGET, ceilings: object = None) -> None:
        self.now = 100.0
        self.budget = budget
        self.nodes = [f"node-{number}" for number in range(10)]
        self.uses = defaultdict(lambda: IDLE)
        self.grants: dict[str, Grant] = {}
        self.sequence = 0
        self.take_over(1, ceilings)

    def take_over(self, epoch: int, ceilings: object = None) -> None:
        self.leader = BudgetAllocator(epoch, self.now, DAY, ceilings)
        self.leader.set_budgets([self.budget], "v", self.now, enforce=True)
        self.leader.set_nodes(dict.fromkeys(self.nodes, 30), self.now)

    def report(self, name: str, age: int = 0) -> Grant:
        self.sequence += 1
        report = BudgetReport(0, "boot", self.sequence, "v", {"everyone": self.uses[name]}, age)
        answer = self.leader.answer(name, report, self.now)
        assert (answer.epoch, answer.sequence) == (self.leader.epoch, self.sequence)
        self.grants[name] = answer.grants["everyone"]
        return self.grants[name]

    def use(self, name: str, waiting: int) -> None:
        """What its pods do; it has what it was lent."""
        grant = self.grants.get(name, NOTHING_LENT)
        rate = grant.rate if waiting else 0
        count = min(grant.allowance, self.uses[name].bytes + int(rate * PERIOD / 8))
        self.uses[name] = BudgetUse(grant.rate, rate, waiting, 0, DAY, count, grant.allowance)

    def go_on(self, seconds: float, waiting: int = 0, names: list[str] | None = None) -> None:
        end = self.now + seconds
        while self.now < end:
            for _ in range(int(PERIOD)):
                self.now += 1
                self.leader.tick(self.now, DAY)
                self.leader.keep(self.leader.ceilings())
            for name in names or self.nodes:
                self.use(name, waiting)
                self.report(name)


def busy(budget: Budget = BUDGET) -> Cluster:
    """One whose pods have waited for a minute."""
    cluster = Cluster(budget)
    cluster.go_on(60, waiting=3)
    return cluster


def test_pods_that_wait_have_the_same_level() -> None:
    cluster = Cluster()
    for _ in range(12):
        for _ in range(5):
            cluster.now += 1
            cluster.leader.tick(cluster.now, DAY)
        for number, name in enumerate(cluster.nodes):
            cluster.use(name, waiting=1 + number)
            cluster.report(name)
    level = AIM * RATE / 55
    for number, name in enumerate(cluster.nodes):
        assert cluster.grants[name].rate == pytest.approx((1 + number) * level, rel=0.02)
        assert cluster.grants[name].level == pytest.approx(level, rel=0.02)


def test_a_download_on_an_idle_node_grows_fourfold_with_each_report() -> None:
    cluster = Cluster()
    cluster.go_on(30)
    rates = []
    for _ in range(3):
        cluster.go_on(5, waiting=1, names=["node-3"])
        rates.append(cluster.grants["node-3"].rate)
    assert all(after >= min(4 * before, 0.98 * RATE) for before, after in pairwise(rates))


def test_a_pod_that_waits_on_an_idle_node_gets_a_part_of_the_budget_with_its_first_report() -> None:
    cluster = Cluster()
    cluster.leader.set_nodes({f"node-{number}": 30 for number in range(1000)}, cluster.now)
    cluster.report("node-0")
    for least in (RATE // 300, RATE // 60):
        cluster.use("node-0", waiting=1)
        assert cluster.report("node-0").rate >= least


def test_whoever_reports_and_gets_no_answer_is_reckoned_with_the_rate_that_it_takes_then() -> None:
    cluster = Cluster()
    cluster.go_on(60)
    deaf, heard = cluster.nodes[:5], cluster.nodes[5:]
    kept, answered = dict(cluster.grants), cluster.now
    while cluster.now < answered + LEASE + GRACE:
        cluster.go_on(PERIOD, waiting=3, names=heard)
        for name in deaf:
            cluster.use(name, waiting=0)
            cluster.report(name, age=int(cluster.now - answered))
            cluster.grants[name] = kept[name]
    taken = sum(kept[name].safe for name in deaf)
    assert taken + sum(cluster.grants[name].rate for name in heard) <= OUTSTANDING * RATE


def test_no_level_is_told_while_nobody_waits() -> None:
    cluster = Cluster()
    cluster.go_on(30)
    assert {grant.level for grant in cluster.grants.values()} == {0}


def test_the_first_leader_lends_at_once() -> None:
    assert Cluster().report("node-0").rate > RATE / 100
    cluster = Cluster(ceilings={})
    assert cluster.report("node-0").rate == 0


def test_a_new_leader_does_not_lend_what_unheard_nodes_may_hold() -> None:
    cluster = busy()
    cluster.take_over(2, {})
    heard = cluster.nodes[:5]
    held = sum(cluster.grants[name].rate for name in heard)
    cluster.go_on(LEASE - PERIOD, waiting=3, names=heard)
    assert sum(cluster.grants[name].rate for name in heard) <= held
    # Their leases have ended: they have their safe rates.
    cluster.go_on(60, waiting=3, names=heard)
    assert cluster.leader.rates["everyone"].outstanding <= OUTSTANDING * RATE
    level = (AIM * RATE - 5 * RATE / 10) / 15
    assert cluster.grants["node-0"].level == pytest.approx(level, rel=0.05)


def test_a_new_leader_leaves_their_safe_rates_to_nodes_that_it_never_hears() -> None:
    cluster = busy()
    cluster.take_over(2)
    # Nobody knows since when they are silent.
    cluster.go_on(HOLD + 4 * PERIOD, waiting=3, names=cluster.nodes[:5])
    assert sum(cluster.grants[name].rate for name in cluster.nodes[:5]) < 0.52 * RATE


def test_what_is_dropped_beyond_an_allowance_raises_none() -> None:
    cluster = Cluster(replace(BUDGET, per_day=10**8))
    for _ in range(60):
        cluster.go_on(PERIOD, waiting=3)
        for name, use in cluster.uses.items():
            # What came in and was dropped is in the ledger.
            cluster.uses[name] = replace(use, bytes=use.bytes + 10**7)
            cluster.report(name)
            cluster.uses[name] = use
    assert sum(grant.allowance for grant in cluster.grants.values()) <= 10**8


def test_what_a_silent_node_holds_is_lent_to_nobody_until_its_lease_has_ended() -> None:
    cluster = busy()
    gone = cluster.grants["node-9"].rate
    heard = cluster.nodes[:9]
    cluster.go_on(LEASE - PERIOD, waiting=3, names=heard)
    held = sum(cluster.grants[name].rate for name in heard)
    assert held <= 1.02 * RATE - gone
    assert cluster.leader.silent(cluster.now) == ["node-9"]


@pytest.mark.parametrize("is_new", [False, True], ids=["silent-for-long", "new-leader"])
def test_a_node_counts_with_its_safe_rate_until_it_is_known_to_have_an_answer(
    *, is_new: bool
) -> None:
    cluster = Cluster()
    cluster.go_on(LEASE)
    if is_new:
        cluster.take_over(2, {})
    cluster.go_on(LEASE + PERIOD, names=cluster.nodes[:9])
    before = cluster.leader.rates["everyone"].held
    # If it misses the answer, too, it takes the safe rate of the last one that it has.
    cluster.uses["node-9"] = replace(IDLE, held=10**6)
    cluster.report("node-9")
    assert cluster.leader.rates["everyone"].held == before + RATE // 10
    cluster.uses["node-9"] = replace(IDLE, held=10**6)
    cluster.report("node-9")
    assert cluster.leader.rates["everyone"].held < before + RATE // 10


def test_a_decrease_counts_when_it_is_reported() -> None:
    cluster = busy()
    held = cluster.leader.rates["everyone"].held
    rate = cluster.grants["node-9"].rate
    cluster.uses["node-9"] = replace(IDLE, held=rate)
    assert cluster.report("node-9").rate < rate / 2
    assert cluster.leader.rates["everyone"].held == held
    cluster.uses["node-9"] = replace(IDLE, held=cluster.grants["node-9"].rate)
    cluster.report("node-9")
    assert cluster.leader.rates["everyone"].held < held


def test_a_deleted_node_has_its_safe_rate_until_its_token_has_expired() -> None:
    cluster = busy()
    cluster.leader.set_nodes(dict.fromkeys(cluster.nodes[:9], 30), cluster.now)
    cluster.go_on(LEASE + 60, waiting=3, names=cluster.nodes[:9])
    assert cluster.grants["node-0"].safe == RATE // 10
    assert sum(cluster.grants[name].rate for name in cluster.nodes[:9]) < 0.92 * RATE
    cluster.go_on(DELETED - LEASE, waiting=3, names=cluster.nodes[:9])
    assert cluster.grants["node-0"].safe == RATE // 9
    assert sum(cluster.grants[name].rate for name in cluster.nodes[:9]) > 0.97 * RATE


def test_machines_of_deleted_nodes_and_the_others_have_no_more_than_the_most_without_a_server() -> (
    None
):
    cluster = busy()
    former = cluster.grants["node-9"].safe
    cluster.leader.set_nodes(dict.fromkeys(cluster.nodes[:4], 30), cluster.now)
    cluster.go_on(LEASE + 60, waiting=3, names=cluster.nodes[:4])
    assert 6 * former + sum(cluster.grants[name].safe for name in cluster.nodes[:4]) <= RATE


def test_nodes_that_are_removed_together_leave_the_others_what_is_not_theirs() -> None:
    cluster = busy()
    cluster.leader.set_nodes(dict.fromkeys(cluster.nodes[:4], 30), cluster.now)
    cluster.go_on(LEASE + 60, waiting=3, names=cluster.nodes[:4])
    # The six were told a tenth each, and nobody told them that a quarter is safe now.
    lent = sum(cluster.grants[name].rate for name in cluster.nodes[:4])
    assert lent == pytest.approx((AIM - 0.6) * RATE, rel=0.05)


def test_who_is_silent_has_the_safe_rate_of_when_it_was_told() -> None:
    cluster = busy()
    many = [*cluster.nodes, *(f"new-{number}" for number in range(90))]
    cluster.leader.set_nodes(dict.fromkeys(many, 30), cluster.now)
    cluster.go_on(LEASE + 5, names=many[9:])
    assert cluster.leader.rates["everyone"].safe == RATE // 100
    outstanding = cluster.leader.rates["everyone"].outstanding
    assert outstanding - cluster.leader.rates["everyone"].held == 9 * RATE // 10


def test_weight_is_no_more_than_the_pods_that_a_node_can_have() -> None:
    cluster = Cluster()
    for _ in range(12):
        cluster.go_on(5, waiting=30, names=cluster.nodes[1:])
        liar = BudgetUse(10**11, 10**11, 100_000, 10**11, DAY, 0, 0)
        held = cluster.grants.get("node-0", NOTHING_LENT).rate
        cluster.uses["node-0"] = replace(liar, held=held)
        cluster.report("node-0")
    assert cluster.grants["node-0"].rate == pytest.approx(RATE / 10, rel=0.1)


def test_who_says_that_more_is_in_force_keeps_it_from_others_only_after_another_leader() -> None:
    cluster = Cluster(QUOTA, ceilings={"everyone": {DAY: QUOTA.per_day // 2}})
    used = []
    for seconds in (OVERLAP + LEASE + 60, 100):
        for _ in range(int(seconds / PERIOD)):
            cluster.uses["node-0"] = BudgetUse(10**11, 0, 0, 0, DAY, 10**12, 10**12)
            cluster.report("node-0")
            cluster.go_on(PERIOD, waiting=30, names=cluster.nodes[1:])
        used.append(sum(cluster.uses[name].bytes for name in cluster.nodes[1:]))
    assert used[1] - used[0] == pytest.approx(AIM * 100 * RATE / 8, rel=0.05)


def test_nothing_of_a_quota_is_lent_before_a_ceiling_is_kept() -> None:
    cluster = Cluster(QUOTA)
    for name in cluster.nodes:
        cluster.uses[name] = replace(IDLE, held=RATE // 10)
        assert cluster.report(name).allowance == 0
    cluster.leader.keep(cluster.leader.ceilings())
    assert cluster.report("node-0").allowance > 0
    day = cluster.leader.days["everyone"]
    assert day.charged <= day.ceiling


def test_a_quota_is_used_up_and_never_exceeded() -> None:
    small = replace(BUDGET, per_day=10**10)
    cluster = Cluster(small)
    for _ in range(60):
        cluster.go_on(5, waiting=3)
        assert sum(grant.allowance for grant in cluster.grants.values()) <= 10**10
    assert sum(use.bytes for use in cluster.uses.values()) > 0.99 * 10**10


def test_an_allowance_is_taken_back_when_the_node_says_so() -> None:
    cluster = busy(QUOTA)
    cluster.uses["node-9"] = replace(
        cluster.uses["node-9"], allowance=cluster.grants["node-9"].allowance, held=0, waiting=0
    )
    charged = cluster.leader.days["everyone"].charged
    lower = cluster.report("node-9").allowance
    assert lower < cluster.uses["node-9"].allowance
    assert cluster.leader.days["everyone"].charged >= charged
    cluster.uses["node-9"] = replace(cluster.uses["node-9"], allowance=lower)
    cluster.report("node-9")
    assert cluster.leader.days["everyone"].charged < charged


def test_a_node_that_lost_its_count_is_charged_with_all_it_may_have_passed() -> None:
    cluster = busy(QUOTA)
    node = cluster.uses["node-9"]
    allowance = cluster.grants["node-9"].allowance
    cluster.uses["node-9"] = replace(node, bytes=0, allowance=0)
    before = cluster.leader.days["everyone"].used
    cluster.report("node-9")
    assert cluster.leader.days["everyone"].used == before + allowance - node.bytes


def test_a_node_that_lost_all_it_knew_is_charged_with_what_it_was_lent() -> None:
    cluster = Cluster(QUOTA)
    cluster.go_on(20)
    lent = cluster.report("node-0").allowance
    assert lent
    charged = cluster.leader.days["everyone"].charged
    cluster.uses["node-0"] = BudgetUse(0, 0, 0, 0, 0, 0, 0)
    anew = cluster.report("node-0").allowance
    assert cluster.leader.days["everyone"].charged == charged + anew


def test_a_new_leader_reserves_what_the_former_may_have_lent() -> None:
    cluster = busy(QUOTA)
    ceilings = cluster.leader.ceilings()
    ceiling = ceilings["everyone"][DAY]
    cluster.take_over(2, ceilings)
    cluster.report("node-0")
    day = cluster.leader.days["everyone"]
    assert day.charged + day.reserved == ceiling
    for name in cluster.nodes[1:]:
        cluster.report(name)
    assert day.charged + day.reserved == ceiling


def test_a_quota_that_is_added_charges_nobody_for_having_had_none() -> None:
    cluster = busy()
    # For want of state, this leader believes what nodes may have been lent of a quota.
    cluster.leader.set_budgets([QUOTA], "w", cluster.now, enforce=True)
    for name in cluster.nodes:
        assert cluster.grants[name].allowance == 10**18
        cluster.uses[name] = replace(IDLE, allowance=10**18)
        cluster.report(name)
    assert cluster.leader.days["everyone"].charged == 0


@pytest.mark.parametrize("since", ["it was added", "midnight", "a change of the leader"])
def test_who_claims_an_allowance_that_nobody_lent_withholds_nothing(since: str) -> None:
    cluster = busy(QUOTA)
    ceilings = cluster.leader.ceilings()
    most = ceilings["everyone"][DAY]
    if since == "midnight":
        cluster.leader.tick(cluster.now, DAY + 1)
        # Half of what is kept is lent to those that say what they have.
        most = cluster.leader.days["everyone"].step // 2
    elif since == "it was added":
        cluster.take_over(2, {})
        most = 0
    else:
        cluster.take_over(2, ceilings)
    for day in (cluster.report("node-1").day, 0, 0):
        cluster.uses["node-0"] = replace(IDLE, day=day, allowance=10**12)
        cluster.report("node-0")
        bytes_ = cluster.leader.days["everyone"]
        assert bytes_.charged + bytes_.reserved <= most


def test_who_claims_more_than_it_was_lent_gets_no_more_for_it_later_on_a_day() -> None:
    cluster = busy(QUOTA)
    cluster.go_on(OVERLAP + LEASE, names=cluster.nodes[1:])
    cluster.uses["node-0"] = replace(IDLE, allowance=10**12)
    cluster.report("node-0")
    assert cluster.leader.days["everyone"].charged < QUOTA.per_day // 2


def test_a_leader_that_lost_what_was_kept_believes_what_nodes_hold_until_the_day_ends() -> None:
    cluster = busy(QUOTA)
    allowance = cluster.grants["node-0"].allowance
    cluster.take_over(2)
    cluster.use("node-0", waiting=0)
    cluster.report("node-0")
    assert cluster.leader.days["everyone"].charged == allowance
    cluster.leader.tick(cluster.now, DAY + 1)
    cluster.uses["node-0"] = replace(cluster.uses["node-0"], day=DAY + 1)
    cluster.report("node-0")
    assert cluster.leader.days["everyone"].charged == 0


@pytest.mark.parametrize("is_object", [True, False], ids=["by its Node", "by its report"])
def test_a_node_that_is_back_after_it_was_given_up_is_charged_its_day_once(
    *, is_object: bool
) -> None:
    cluster = busy(QUOTA)
    passed = cluster.uses["node-9"].bytes
    before = cluster.leader.days["everyone"].used
    cluster.leader.set_nodes(dict.fromkeys(cluster.nodes[:9], 30), cluster.now)
    cluster.go_on(DELETED + 60, names=cluster.nodes[:9])
    charged = cluster.leader.days["everyone"].charged
    assert not cluster.leader.silent(cluster.now)
    if is_object:
        cluster.leader.set_nodes(dict.fromkeys(cluster.nodes, 30), cluster.now)
    cluster.use("node-9", waiting=0)
    cluster.report("node-9")
    assert cluster.uses["node-9"].bytes == passed > 0
    assert cluster.leader.days["everyone"].used == before
    # What it has left to pass may be a little more than before.
    assert cluster.leader.days["everyone"].charged < charged + passed / 2


@pytest.mark.parametrize("change", ["midnight", "another document"])
def test_what_a_node_was_charged_before_it_was_given_up_ends(change: str) -> None:
    cluster = busy(QUOTA)
    cluster.leader.set_nodes(dict.fromkeys(cluster.nodes[:9], 30), cluster.now)
    cluster.go_on(DELETED + 60, names=cluster.nodes[:9])
    if change == "midnight":
        cluster.leader.tick(cluster.now, DAY + 1)
    else:
        for budgets in ([], [QUOTA]):
            cluster.leader.set_budgets(budgets, "w", cluster.now, enforce=True)
    cluster.uses["node-9"] = replace(IDLE, day=0)
    cluster.report("node-9")
    assert cluster.leader.days["everyone"].used == 0


def test_what_a_node_holds_of_a_budget_that_was_removed_is_charged_when_it_is_back() -> None:
    cluster = Cluster(QUOTA, ceilings={})
    cluster.go_on(OVERLAP + LEASE + 60, waiting=3)
    allowance = cluster.grants["node-9"].allowance
    for budgets in ([], [QUOTA]):
        cluster.leader.set_budgets(budgets, "w", cluster.now, enforce=True)
    # It did not hear of that.
    cluster.use("node-9", waiting=0)
    cluster.report("node-9")
    assert cluster.leader.days["everyone"].charged >= allowance > 0


def test_what_is_left_to_nobody_after_a_change_of_leaders_counts_as_used() -> None:
    small = replace(BUDGET, per_day=10**9)
    cluster = Cluster(small)
    cluster.go_on(30, waiting=1)
    cluster.take_over(2, cluster.leader.ceilings())

    def used() -> int:
        (status,) = statuses(cluster.leader, [small], cluster.now)
        return int(status["used"])

    reported = sum(use.bytes for use in cluster.uses.values())
    for name in cluster.nodes[:5]:
        cluster.report(name)
    # The others are well, and are heard in a moment.
    assert used() < reported
    cluster.go_on(600, waiting=1)
    assert cluster.leader.days["everyone"].used < 0.95 * small.per_day
    assert 0.99 * small.per_day < used() <= small.per_day


def test_a_day_begins_with_what_was_kept_for_it() -> None:
    cluster = busy(QUOTA)
    cluster.leader.tick(cluster.now, DAY + 1)
    grant = cluster.report("node-0")
    assert grant.day == DAY + 1
    assert 0 < grant.allowance <= cluster.leader.days["everyone"].step


def test_a_clock_that_is_set_back_begins_no_day() -> None:
    cluster = Cluster(QUOTA)
    cluster.go_on(10)
    cluster.leader.tick(cluster.now, DAY - 1)
    assert cluster.report("node-0").day == DAY
    cluster.leader = BudgetAllocator(2, cluster.now, DAY - 1, cluster.leader.ceilings())
    cluster.leader.set_budgets([QUOTA], "v", cluster.now, enforce=True)
    assert cluster.report("node-0").day == DAY
