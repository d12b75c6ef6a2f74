"""What a node document may say about connections, and which rules follow from it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from netmgr.limits import connections
from netmgr.limits.connections import Listing, Owner, Wanted
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address
from tests.fakes.sites import document

POD = Attachment(
    AttachmentKey("one", "eth0"), PodRef("team", "job-1"), (Address.parse("10.0.0.1"),), "nm1", ""
)
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
        ({"new-per-second": 5}, "at-once\n  Field required"),
        ({"at-once": 0, "new-per-second": 5}, "greater than or equal to 1"),
        ({"at-once": 5, "new-per-second": 2001}, "less than or equal to 2000"),
        ({"at-once": "5k", "new-per-second": 5}, "valid integer"),
    ],
)
def test_connections_that_mean_nothing_are_refused(given: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        document("node", limits=[{"pods": "a/*", "connections": given}])


def test_the_lowest_bounds_that_match_are_in_force() -> None:
    drop = f'counter name "{OWN.chain}" drop'
    assert wanted(limit(9, 5), limit(7, 8), limit(1, 1, pods="other/*")).chains == {
        OWN: (f"limit rate over 5/second {drop}", f"ct count over 7 {drop}")
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


def test_a_chain_that_is_as_it_should_be_is_not_written_again() -> None:
    before, after = wanted(limit(9, 9)), wanted(limit(9, 9), limit(20, 20, namespaces="*"))
    chains = {owner.chain: rules for owner, rules in before.chains.items()}
    present = Listing("", chains, {"nm1": OWN.chain}, dict.fromkeys(chains, 3))
    assert present.holds(before)
    assert f"flush chain inet netmgr_limits {OWN.chain}" not in connections.changes(before, present)
    assert f"flush chain inet netmgr_limits {OWN.chain}" in connections.changes(after, present)
    assert f"flush chain inet netmgr_limits {OWN.chain}" in connections.changes(
        before, present.without(OWN)
    )
