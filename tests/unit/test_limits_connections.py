"""What a node document may say about connections, and which rules follow from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from netmgr.limits import connections
from netmgr.limits.connections import FIRST, Owner, Wanted
from netmgr.rules import nft_chains
from netmgr.rules.nft_table import Listing
from tests.fakes.sites import document
from tests.unit.limit_cases import pod

POD = pod("team", "job-1", "nm1")
OWN, SHARED = Owner("team", "job-1"), Owner("team", "")


def wanted(*limits: dict) -> Wanted:
    return connections.wanted(document("node", limits=list(limits)).limits, [POD])


def limit(most: object, rate: object, **keys: str) -> dict:
    return {
        **(keys or {"pods": "team/*"}),
        "connections": {"at-once": most, "new-per-second": rate},
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"at-once": 5}, "new-per-second\n  Field required"),
        ({"at-once": 0, "new-per-second": 5}, "greater than or equal to 1"),
        ({"at-once": 5, "new-per-second": 2001}, "less than or equal to 2000"),
    ],
)
def test_connections_that_mean_nothing_are_refused(given: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        document("node", limits=[{"pods": "a/*", "connections": given}])


def test_the_lowest_bounds_that_match_are_in_force() -> None:
    drop = f'counter name "{OWN.chain}" drop'
    assert wanted(limit(9, 5), limit(7, 8), limit(1, 1, pods="other/*")).chains == {
        OWN: (f"limit rate over 5/second burst 5 packets {drop}", f"ct count over 7 {drop}")
    }


def test_a_pod_with_limits_goes_on_to_its_namespaces() -> None:
    found = wanted(limit(9, 9), limit(20, 20, namespaces="team"))
    assert found.links == {"nm1": OWN}
    assert found.chains[OWN][-1] == f"goto {SHARED.chain}"
    assert found.chains[SHARED][1].startswith("ct count over 20 ")
    assert wanted(limit(20, 20, namespaces="team")).links == {"nm1": SHARED}


def test_pods_without_limits_of_connections_have_no_rules() -> None:
    assert wanted({"pods": "*/*", "internet-in": "1M"}) == Wanted({}, {})
    assert wanted(limit(9, 9, pods="other/*")) == Wanted({}, {})


def listed(want: Wanted) -> Listing:
    """What the table has after this was put into it."""
    listing = Listing()
    base = {"type": "nat", "hook": "prerouting", "prio": -199, "policy": "accept"}
    listing.take("chain", {"name": FIRST, **base})
    for name, rules in {**want.rules, FIRST: want.first_rules}.items():
        listing.comments[name] = nft_chains.marks(name, rules)
    for name in want.rules:
        listing.take("chain", {"name": name})
        listing.take("counter", {"name": name})
    return listing


def test_a_chain_that_is_as_it_should_be_is_not_written_again() -> None:
    before, after = wanted(limit(9, 9)), wanted(limit(9, 9), limit(20, 20, namespaces="*"))
    present = listed(before)
    assert connections.holds(present, before)
    assert connections.to_write(before, present) == []
    assert connections.to_write(after, present) == sorted([OWN.chain, SHARED.chain])
    assert connections.to_write(before, present, new=OWN) == [OWN.chain]
    flush = f"flush chain inet netmgr_limits {OWN.chain}"
    assert flush not in connections.changes(before, present, [])
    assert flush in connections.changes(before, present, [OWN.chain])


OF_SHARED, OF_OWN = (f'counter name "{owner.chain}" drop' for owner in (SHARED, OWN))
BOTH = Wanted(
    {
        SHARED: (
            f"limit rate over 20/second burst 20 packets {OF_SHARED}",
            f"ct count over 20 {OF_SHARED}",
        ),
        OWN: (
            f"limit rate over 5/second burst 5 packets {OF_OWN}",
            f"ct count over 9 {OF_OWN}",
            f"goto {SHARED.chain}",
        ),
    },
    {"nm2": SHARED, "nm1": OWN},
)


def test_what_was_wanted_is_held_only_with_every_part_of_it() -> None:
    assert connections.holds(listed(BOTH), BOTH)
    for name in (OWN.chain, SHARED.chain, FIRST):
        listing = listed(BOTH)
        listing.comments[name] = [*listing.comments[name][:-1], "altered"]
        assert not connections.holds(listing, BOTH)
        listing.comments[name].pop()
        assert not connections.holds(listing, BOTH)
    for counters in ({OWN.chain}, {OWN.chain, SHARED.chain, "of_x"}):
        listing = listed(BOTH)
        listing.counters = counters
        assert not connections.holds(listing, BOTH)
    listing = listed(BOTH)
    listing.chains[FIRST] = {**listing.chains[FIRST], "policy": "drop"}
    assert not connections.holds(listing, BOTH)


def test_without_limits_there_is_no_table() -> None:
    assert connections.holds(Listing(), Wanted({}, {}))
    assert not connections.holds(listed(BOTH), Wanted({}, {}))


def test_pods_of_several_namespaces_have_their_own_chains() -> None:
    other = pod("other", "job-2", "nm2")
    linkless = replace(pod("third", "job-3"), host_link="")
    given = document("node", limits=[limit(9, 9, namespaces="*")]).limits
    found = connections.wanted(given, [POD, other, linkless])
    assert found.links == {"nm1": SHARED, "nm2": Owner("other", "")}
    assert found.chains.keys() == {SHARED, Owner("other", "")}
    (rate, _) = found.chains[SHARED]
    assert rate.startswith("limit rate over 9/second burst 9 packets counter")


def test_a_change_takes_links_away_first_and_leads_them_on_last() -> None:
    stale, kept = "of_stale", SHARED.chain
    present = listed(Wanted({SHARED: BOTH.chains[SHARED]}, {}))
    present.take("chain", {"name": stale})
    present.take("counter", {"name": stale})
    new = OWN.chain
    commands = connections.changes(BOTH, present, connections.to_write(BOTH, present))
    lines = commands.replace(" inet netmgr_limits", "").splitlines()
    base = "add chain beginning { type nat hook prerouting priority -199; policy accept; }"
    assert [line.partition(" comment ")[0] for line in lines] == [
        "add table",
        *(base, "flush chain beginning"),
        *(f"add chain {new}", f"flush chain {new}"),
        *(f"add chain {stale}", f"flush chain {stale}"),
        f"delete chain {stale}",
        f"delete counter {stale}",
        *(f"add counter {name}" for name in sorted([kept, new])),
        *(f"add chain {new}", f"flush chain {new}"),
        *(f"add rule {new} {rule}" for rule in BOTH.chains[OWN]),
        *(base, "flush chain beginning"),
        f'add rule beginning iifname vmap {{ "nm1" : goto {new}, "nm2" : goto {kept} }}',
    ]


def test_a_table_that_is_made_anew_has_everything() -> None:
    lines = connections.anew(BOTH).splitlines()
    assert lines[:2] == ["add table inet netmgr_limits", "delete table inet netmgr_limits"]
    made = [line for line in lines if line.startswith("add rule")]
    assert len(made) == sum(len(rules) for rules in BOTH.chains.values()) + 1
    assert not any(line.startswith(("delete chain", "delete counter")) for line in lines)


def test_a_trial_needs_what_limits_need_and_leaves_nothing() -> None:
    lines = connections.trial().splitlines()
    assert lines[0] == "add table inet netmgr_limits_trial"
    assert lines[2].endswith("limit rate over 1/second ct count over 1 drop")
    assert lines[-1] == "delete table inet netmgr_limits_trial"
