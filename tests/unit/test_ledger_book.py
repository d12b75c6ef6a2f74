"""What the book decides of counters that begin anew, close, change hands or change the backend."""

from __future__ import annotations

import pytest

from netmgr.ledger import audit
from netmgr.ledger.audit import Audit
from netmgr.ledger.book import GAP_AT, SEQUENCE, Book, Moment
from netmgr.ledger.tables import (
    NOTHING,
    WRAP,
    Account,
    Amount,
    Gap,
    LastGap,
    LiveCounter,
    Lost,
    Phase,
    Scope,
    Tracked,
)
from netmgr.model import PODS, REMOTE_PODS, UNATTRIBUTED, Counter, PodRef, Sample
from netmgr.prefixes import Family
from tests.fakes.ledger_tools import ADDRESS6, IN, OUT, WEB, counter, hook

DB = PodRef("team-a", "db-0", "uid-2")
ONE, OTHER = counter(), counter(OUT, ADDRESS6)
IN_FORWARD, OUT_FORWARD = hook("FORWARD", IN), hook("FORWARD", OUT)
SHOWN = Account(Scope.AUDIT, Audit.FORWARD, audit.MISSED, OUT)


def at(seconds: float) -> Moment:
    return Moment(1_000_000 + seconds, seconds)


def stored(
    facts: dict[str, str] | None = None, live: dict[Counter, LiveCounter] | None = None
) -> Book:
    """What a file has, not opened yet."""
    return Book(Tracked(facts or ()), Tracked(live or ()), Tracked(), Tracked(), Tracked())


@pytest.fixture
def book() -> Book:
    made = stored()
    made.open(at(0), "boot-1")
    return made


def post(book: Book, seconds: float, **read: int) -> None:
    """Readings of `ONE` and the two hooks, of a tenth as many packets."""
    of = {"one": ONE, "other": OTHER, "hook_in": IN_FORWARD, "hook_out": OUT_FORWARD}
    book.post(
        [Sample(of[name], octets, octets // 10) for name, octets in read.items()], at(seconds)
    )


def sequence(book: Book) -> int:
    return int(book.facts.get(SEQUENCE, "0"))


def lost(book: Book, gap: Gap) -> Lost:
    return book.gaps.get(gap, Lost())


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"books": "0fg"}, "0fg"),
        ({"sequence": "many"}, "many"),
        ({GAP_AT + "reset": "- 0 0 "}, "'-'"),
        ({"zeroed_at": "once"}, "once"),
    ],
)
def test_a_fact_that_is_no_number_is_found_at_once(facts: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        stored(facts).open(at(0), "boot-1")


@pytest.mark.parametrize("pause", [{}, {"longest_pause": "7.5"}])
def test_a_reboot_may_have_lost_what_passed_in_the_longest_pause(pause: dict[str, str]) -> None:
    facts = {"boot_id": "boot-1", "read_at_steady": "5000", **pause}
    rebooted = stored(facts, {ONE: LiveCounter(WEB)})
    rebooted.open(at(40), "boot-2")
    assert lost(rebooted, Gap.REBOOT) == Lost(1, 40 + float(pause.get("longest_pause", 0)))
    assert rebooted.last_reading.wall == at(40).wall


def test_a_counter_without_its_owner_is_refused_and_leaves_no_trace(book: Book) -> None:
    with pytest.raises(ValueError, match="counters of the node belong to someone else"):
        book.begin([ONE], None, at(0))
    with pytest.raises(ValueError, match=r"counters of .*web-0.* belong to someone else"):
        book.begin([OUT_FORWARD], WEB, at(0))
    assert not book.counters


def test_a_counter_that_changes_hands_unended_may_have_lost_something(book: Book) -> None:
    book.begin([ONE], WEB, at(0))
    post(book, 10, one=1000)
    book.begin([ONE], DB, at(25))
    assert lost(book, Gap.REMOVED) == Lost(1, 15)
    # Read or not, it is the new owner's from then on.
    book.restart([ONE], at(27))
    assert lost(book, Gap.REMOVED) == Lost(2, 17)


@pytest.mark.parametrize(
    ("phase", "is_unmade", "is_lost"),
    [
        (Phase.BEGUN, True, False),
        (Phase.BEGUN, False, True),
        (Phase.COUNTING, True, True),
        (Phase.COUNTING, False, True),
        (Phase.ENDING, False, False),
        (Phase.ENDING, True, False),
    ],
)
def test_what_is_begun_anew_lost_something_unless_it_cannot_have(
    book: Book, phase: Phase, *, is_unmade: bool, is_lost: bool
) -> None:
    book.begin([ONE], WEB, at(2))
    if phase is not Phase.BEGUN:
        post(book, 2, one=1000)
    if phase is Phase.ENDING:
        book.close([ONE, OTHER])
    assert book.counters[ONE].phase is phase
    before = sequence(book)
    assert book.restart([ONE, OTHER], at(5), unmade=[ONE] if is_unmade else []) is is_lost
    assert lost(book, Gap.REMOVED) == (Lost(1, 3) if is_lost else Lost())
    # Once for what the kernel will not show again, and once for a gap.
    assert sequence(book) == before + 1 + is_lost
    assert book.counters == {ONE: LiveCounter(WEB)}


def test_whose_last_reading_was_posted_ends_without_counting_on(book: Book) -> None:
    book.begin([ONE, OTHER], WEB, at(0))
    begun = sequence(book)
    book.close([ONE])
    assert sequence(book) == begun + 1
    book.end([ONE], at(1))
    assert sequence(book) == begun + 1
    book.end([OTHER], at(1))
    assert sequence(book) == begun + 2
    assert not book.counters
    assert not book.read_at


def test_counters_go_on_from_what_another_backend_shows(book: Book) -> None:
    book.begin([ONE], WEB, at(0))
    post(book, 1, one=1000)
    before = sequence(book)
    book.rebase([Sample(OTHER, 7, 7), Sample(ONE, WRAP + 300, WRAP + 3)], at(4))
    assert book.counters == {ONE: LiveCounter(WEB, Amount(300, 3), Phase.COUNTING)}
    assert sequence(book) == before + 1
    book.post([Sample(ONE, 500, 5)], at(6))
    assert book.totals[Account(Scope.POD, "team-a", "web-0", OUT)] == Amount(1200, 102)
    # It was read when it was rebased.
    book.rebase([Sample(ONE, 500, 5)], at(9))
    book.restart([ONE], at(10))
    assert lost(book, Gap.REMOVED) == Lost(1, 1)
    book.rebase([Sample(ONE, 300, 3)], at(11))
    assert book.counters[ONE].phase is Phase.COUNTING


def test_a_series_that_ended_at_this_instant_lingers_its_whole_time(book: Book) -> None:
    book.begin([ONE], WEB, at(0))
    book.end([ONE], at(3))
    book.sweep(at(3), 10)
    book.sweep(at(12.9), 10)
    assert book.ended == {("team-a", "web-0"): at(3).wall}
    book.sweep(at(13), 10)
    assert not book.ended
    # Where none lingers, it goes at once.
    book.begin([ONE], WEB, at(20))
    book.end([ONE], at(20))
    book.sweep(at(20), 0)
    assert not book.ended


@pytest.mark.parametrize(("fell", "is_wrapped"), [(WRAP // 2, False), (WRAP // 2 + 1, True)])
def test_a_reading_that_fell_far_has_wrapped(book: Book, fell: int, *, is_wrapped: bool) -> None:
    book.begin([ONE], WEB, at(0))
    book.post([Sample(ONE, WRAP - 1, 1)], at(1))
    book.post([Sample(ONE, WRAP - 1 - fell, 2)], at(2))
    assert lost(book, Gap.RESET).times == (0 if is_wrapped else 1)


def test_hooks_alone_show_what_they_count_at_once(book: Book) -> None:
    book.begin([OUT_FORWARD, IN_FORWARD], None, at(0))
    post(book, 1, hook_out=1000, hook_in=70)
    assert audit.missed(book.totals, Audit.FORWARD, OUT) == Amount(1000, 100)
    assert audit.missed(book.totals, Audit.FORWARD, IN) == Amount(70, 7)
    assert audit.missed(book.totals, Audit.LOCAL, OUT) == NOTHING


def test_owners_are_compared_with_what_hooks_had_counted_before(book: Book) -> None:
    book.begin([OUT_FORWARD], None, at(0))
    book.begin([ONE], WEB, at(0))
    post(book, 1, hook_out=1000, one=600)
    assert SHOWN not in book.totals
    post(book, 2, hook_out=3000, one=700)
    assert book.totals[SHOWN] == Amount(300, 30)
    # Never falling, in either unit.
    post(book, 3, hook_out=3000, one=2900)
    assert book.totals[SHOWN] == Amount(300, 30)


@pytest.mark.parametrize(
    ("lost_by_zeroing", "shown", "at_the_end"), [(0, 1500, 2750), (1500, 600, 600 + 1000)]
)
def test_a_zeroed_hook_hides_what_it_lost_or_an_interval(
    book: Book, lost_by_zeroing: int, shown: int, at_the_end: int
) -> None:
    book.begin([OUT_FORWARD, IN_FORWARD], None, at(0))
    book.begin([ONE], WEB, at(0))
    post(book, 1, hook_out=1000, hook_in=500, one=400)
    post(book, 2, hook_out=2000, hook_in=500, one=400)
    assert book.totals[SHOWN] == Amount(600, 60)
    # Some of the pod's, zeroed, and then 100 of the pod's, and 50 for others.
    pods = 500 + lost_by_zeroing
    post(book, 3, hook_out=150, hook_in=600, one=pods)
    assert lost(book, Gap.RESET).times == 1
    assert book.totals[SHOWN].bytes == shown
    post(book, 4, hook_out=250, hook_in=700, one=pods)
    post(book, 5, hook_out=1250, hook_in=800, one=pods)
    post(book, 6, hook_out=1250, hook_in=900, one=pods)
    assert book.totals[SHOWN].bytes == at_the_end
    assert book.totals[SHOWN].packets == book.totals[SHOWN].bytes // 10


def test_a_sum_that_is_put_back_says_of_no_pod_that_it_lost_something(book: Book) -> None:
    """`iptables-restore -c`: the sum and FORWARD are both rules of one table."""
    of_sum, mega = Counter(PODS, Family.V4, OUT), 1_000_000
    book.begin([of_sum, OUT_FORWARD], None, at(0))
    book.begin([ONE], WEB, at(0))
    for second, (rules, pod) in enumerate([(20, 20), (25, 25), (30, 30), (25, 30), (26, 31)]):
        shown = {of_sum: rules, OUT_FORWARD: rules, ONE: pod}
        samples = [Sample(one, size * mega, size * 1000) for one, size in shown.items()]
        book.post(samples, at(second))
    assert audit.lost(book.totals) == {IN: 0, OUT: 0}
    assert lost(book, Gap.RESET) == Lost(1, 1.0)
    assert [gap for gap, one in book.gaps.items() if one.bytes] == []


@pytest.mark.parametrize("family", Family)
def test_where_traffic_of_nobody_is_counted_nothing_is_compared(book: Book, family: Family) -> None:
    everything = Counter(UNATTRIBUTED, family, OUT)
    book.begin([OUT_FORWARD, IN_FORWARD, everything], None, at(0))
    book.post(
        [Sample(everything, 70, 7), Sample(OUT_FORWARD, 1000, 9), Sample(IN_FORWARD, 50, 5)], at(1)
    )
    assert book.totals[SHOWN] == Amount(70, 7)
    # The other direction has no such counter.
    assert audit.missed(book.totals, Audit.FORWARD, IN) == Amount(50, 5)


def test_the_nodes_own_hooks_are_compared_with_host_network_pods(book: Book) -> None:
    of_host_pod = Counter("cgroup 7", Family.V4, OUT)
    out, everything = hook("OUTPUT", OUT), Counter(UNATTRIBUTED, Family.V4, OUT)
    book.begin([out, everything], None, at(0))
    book.begin([of_host_pod], WEB, at(0))
    for seconds, octets in enumerate((1000, 1000), 1):
        book.post([Sample(of_host_pod, 400, 40), Sample(out, octets, 100)], at(seconds))
    assert audit.missed(book.totals, Audit.LOCAL, OUT) == Amount(600, 60)
    assert SHOWN in book.totals
    assert book.totals[SHOWN] == NOTHING


def test_a_counter_is_audited_by_its_hook_and_no_other_is() -> None:
    assert audit.audited_by(OUT_FORWARD) == (Audit.FORWARD, OUT)
    assert audit.audited_by(hook("INPUT", IN)) == (Audit.LOCAL, IN)
    for subject in ("cgroup 7", REMOTE_PODS):
        assert audit.audited_by(Counter(subject, Family.V4, OUT)) is None
    assert audit.audited_by(ONE) is None


def test_a_counter_that_is_lost_twice_is_unread_since_it_was_lost_first(book: Book) -> None:
    book.begin([ONE], WEB, at(0))
    post(book, 1, one=100)
    book.restart([ONE], at(5))
    book.restart([ONE], at(7))
    assert lost(book, Gap.REMOVED) == Lost(2, 4 + 2)


@pytest.mark.parametrize(
    ("first", "later", "seconds"), [(ONE, OTHER, 5 - 1 + 2), (OTHER, ONE, 5 - 3 + 2 + 2)]
)
def test_what_nobody_had_read_since_a_gap_began_belongs_to_it(
    book: Book, first: Counter, later: Counter, seconds: float
) -> None:
    book.begin([ONE, OTHER], WEB, at(0))
    post(book, 1, one=100)
    post(book, 3, other=100)
    book.restart([first], at(5))
    book.restart([later], at(7))
    assert lost(book, Gap.REMOVED) == Lost(1, seconds)
    assert book.last_gap(Gap.REMOVED) == LastGap(
        at(1).wall, at(7).wall, 2, tuple(f"{one.subject} {OUT}" for one in (first, later))
    )
    # Read since then, so that it is another one.
    post(book, 8, one=1, other=1)
    book.restart([ONE, OTHER], at(9))
    assert lost(book, Gap.REMOVED) == Lost(2, seconds + 1)


def test_what_a_counter_lost_while_another_gap_went_on_is_the_same_time(book: Book) -> None:
    book.begin([ONE], WEB, at(0))
    post(book, 1, one=100)
    book.note(Gap.REMOVED, at(2).steady, at(4))
    book.restart([ONE], at(7))
    book.prolong(Gap.REMOVED, at(4).steady, at(9))
    assert lost(book, Gap.REMOVED) == Lost(2, (4 - 2) + (7 - 1) + (9 - 7))


def test_two_reasons_at_once_are_two_gaps_of_one_stretch_of_time(book: Book) -> None:
    book.begin([ONE, OTHER], WEB, at(0))
    book.post([Sample(ONE, 100, 1, 5), Sample(OTHER, 100, 1, 5)], at(1))
    book.post([Sample(ONE, 40, 1, 4), Sample(OTHER, 40, 1)], at(4))
    assert book.gaps == {Gap.RESTORED: Lost(1, 3.0), Gap.RESET: Lost(1, 0.0)}
    for gap, of in ((Gap.RESTORED, ONE), (Gap.RESET, OTHER)):
        names = (f"{of.subject} {of.traffic}",)
        assert book.last_gap(gap) == LastGap(at(1).wall, at(4).wall, 1, names)


def test_the_nodes_counters_that_begin_twice_keep_their_readings(book: Book) -> None:
    for seconds in (0, 2):
        book.begin([OUT_FORWARD], None, at(seconds))
        post(book, seconds, hook_out=1000)
    assert book.counters[OUT_FORWARD].reading == Amount(1000, 100)
    assert not book.gaps


@pytest.mark.parametrize(
    ("counter", "former", "owner"), [(ONE, None, WEB), (OUT_FORWARD, WEB, None)]
)
def test_a_counter_that_a_damaged_file_gives_to_another_kind_of_owner_is_taken_over(
    counter: Counter, former: PodRef | None, owner: PodRef | None
) -> None:
    damaged = stored(live={counter: LiveCounter(former, Amount(7, 7))})
    damaged.begin([counter], owner, at(5))
    assert damaged.counters == {counter: LiveCounter(owner)}
    assert lost(damaged, Gap.REMOVED).times == 1


def test_accounts_that_the_file_lacks_begin_at_nothing() -> None:
    """As those of a release that had fewer, while its counters go on."""
    former = stored(live={ONE: LiveCounter(WEB), OUT_FORWARD: LiveCounter(None)})
    former.open(at(0), "boot-1")
    post(former, 1, one=400, hook_out=1000)
    assert former.totals[Account(Scope.POD, "team-a", "web-0", OUT)] == Amount(400, 40)
    # There is no reading of the hook before this one to compare with.
    assert SHOWN not in former.totals
    post(former, 2, one=400, hook_out=1000)
    assert former.totals[SHOWN] == Amount(600, 60)


def test_what_is_written_down_already_is_not_written_again(book: Book) -> None:
    book.begin([ONE], WEB, at(0))
    post(book, 1, one=100)
    book.write_down_reading()
    book.written()
    book.write_down_reading()
    assert not book.dirty


def test_an_hour_before_the_epoch_is_one_of_its_own(book: Book) -> None:
    book.begin([ONE], WEB, at(0))
    for wall in (-1.0, 1.0):
        book.post([Sample(ONE, int(10 + wall), 1)], Moment(wall, 1.0))
    hours = {bucket.hour: amount for bucket, amount in book.hours.items()}
    assert hours == {-1: Amount(9, 1), 0: Amount(2, 0)}


def test_every_byte_of_a_pod_is_its_namespaces_as_well(book: Book) -> None:
    book.begin([ONE], WEB, at(0))
    post(book, 1, one=100)
    assert {account: amount.bytes for account, amount in book.totals.items()} == {
        Account(Scope.POD, "team-a", "web-0", OUT): 100,
        Account(Scope.NAMESPACE, "team-a", "", OUT): 100,
        Account(Scope.AUDIT, Audit.FORWARD, audit.COUNTED, OUT): 100,
        Account(Scope.AUDIT, Audit.PODS, audit.COUNTED, OUT): 100,
    }


def test_both_directions_are_compared_whatever_comes_of_the_first(book: Book) -> None:
    """One is counted by itself and one is measured anew: each goes on to the next."""
    out, into = (hook(chain, OUT) for chain in ("FORWARD", "OUTPUT"))
    everything = Counter(UNATTRIBUTED, Family.V4, OUT)
    book.begin([out, into, everything], None, at(0))
    book.begin([ONE], WEB, at(0))
    for seconds in (1, 2):
        book.post([Sample(chain, 100 * seconds, seconds) for chain in (out, into)], at(seconds))
    # In any order: of the node's own nothing was counted for anybody.
    assert audit.missed(book.totals, Audit.LOCAL, OUT) == Amount(200, 2)
    assert audit.missed(book.totals, Audit.FORWARD, OUT) == NOTHING


def test_hooks_of_which_one_is_measured_anew_are_compared_all_the_same(book: Book) -> None:
    book.begin([OUT_FORWARD, IN_FORWARD], None, at(0))
    book.begin([ONE], WEB, at(0))
    post(book, 1, hook_in=100, hook_out=100)
    # The first of both is zeroed, and so has a new base with the reading after.
    post(book, 2, hook_in=10, hook_out=200)
    post(book, 3, hook_in=20, hook_out=900)
    assert book.totals[SHOWN].bytes == 200
    post(book, 4, hook_in=20, hook_out=900)
    assert book.totals[SHOWN].bytes == 900
