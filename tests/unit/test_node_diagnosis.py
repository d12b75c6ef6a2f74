"""Which problems follow from a node's figures of the last minutes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmgr.agent.health import diagnosis
from netmgr.agent.health.diagnosis import NodeFigures
from netmgr.api.snapshot import Fault
from netmgr.kernel.links import Carried
from tests.fakes.agent_socket import snapshot

MINUTE = 60.0


def looks(many: int = 11, **steps: int) -> list[NodeFigures]:
    """One a minute; each of `steps` grows by so much from one to the next."""
    return [
        NodeFigures(at=number * MINUTE, **{name: number * step for name, step in steps.items()})
        for number in range(many)
    ]


def reasons(found: list[NodeFigures]) -> list[str]:
    return [one["reason"] for one in diagnosis.problems(found)]


def test_a_node_without_faults_has_no_problems():
    assert reasons(looks(packets=1_000_000)) == []
    assert reasons(looks(1)) == []


@pytest.mark.parametrize(
    ("name", "fault"), [("tracked", Fault.CONNECTIONS_FULL), ("ports", Fault.PORTS_FULL)]
)
def test_what_is_full_has_to_stay_so(name: str, fault: Fault):
    full = [replace(look, **{name: 0.96}) for look in looks(3)]
    assert reasons(full) == [fault]
    assert reasons(full[1:]) == []
    assert reasons([*full, replace(full[-1], **{name: 0.94})]) == []


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ({"packets": 99_000, "errors": 100}, [Fault.LINK_ERRORS]),
        # Too few, or too small a share.
        ({"packets": 99_000, "errors": 9}, []),
        ({"packets": 1_000_000, "errors": 100}, []),
        ({"packets": 90_000, "lost": 1000}, [Fault.LINK_DROPS]),
        ({"packets": 90_000, "lost": 99}, []),
        ({"packets": 1_000_000, "lost": 1000}, []),
        ({"forwarded": 200_000_000, "unattributed": 2_000_000}, [Fault.UNATTRIBUTED]),
        ({"forwarded": 2_000_000, "unattributed": 2_000_000}, [Fault.UNATTRIBUTED]),
        ({"forwarded": 1_000_000, "unattributed": 1_000_000}, []),
        ({"forwarded": 201_000_000, "unattributed": 2_000_000}, []),
    ],
)
def test_much_has_to_be_lost_and_a_share_of_all(steps: dict[str, int], found: list[Fault]):
    assert reasons(looks(**steps)) == found


@pytest.mark.parametrize(("lost", "found"), [(0, [Fault.UNATTRIBUTED]), (1, [])])
def test_just_as_much_as_is_much_is_a_problem(lost: int, found: list[Fault]):
    quarter = diagnosis.LEAST_UNATTRIBUTED // 4
    seen = looks(5, forwarded=quarter, unattributed=quarter)
    seen[-1] = replace(seen[-1], unattributed=seen[-1].unattributed - lost)
    assert reasons(seen) == found


@pytest.mark.parametrize(("name", "many"), [("errors", 10_000), ("unattributed", 10**9)])
def test_one_burst_is_no_problem(name: str, many: int):
    burst = [replace(look, **{name: many * (look.at > MINUTE)}) for look in looks(packets=1000)]
    assert reasons(burst) == []


def test_what_comes_back_is_a_problem_and_what_happened_once_is_not():
    once = [replace(look, repairs={"rules": 7 * (look.at > MINUTE)}) for look in looks()]
    assert reasons(once) == []
    again = [
        replace(look, at=1000.0 + look.at, repairs={"rules": int(look.at), "routes": 1})
        for look in looks(4)
    ]
    assert reasons(again) == [Fault.DRIFT]
    (problem,) = diagnosis.problems(again)
    assert "(rules 3 times in 180 s)" in problem["message"]
    assert reasons(looks(4, gaps=1)) == [Fault.GAPS]
    assert reasons(looks(3, gaps=1)) == []


def test_counters_that_begin_anew_are_no_problem():
    later = [replace(look, at=look.at + 400) for look in looks(3)]
    assert reasons([*looks(5, packets=1000, errors=1), *later]) == []


def test_only_the_last_minutes_count():
    seen = [replace(look, gaps=min(look.gaps, 5)) for look in looks(30, gaps=1)]
    recent = diagnosis.recent(seen)
    assert recent == seen[-diagnosis.WINDOW - 1 :]
    assert (reasons(seen), reasons(recent)) == ([Fault.GAPS], [])


def test_each_problem_says_how_much_and_what_to_do():
    newest = {"at": 180.0, "tracked": 0.97, "ports": 0.99, "gaps": 4}
    newest |= {"repairs": {"routes": 5, "rules": 7}, "packets": 9000, "errors": 300, "lost": 3000}
    newest |= {"forwarded": 90_000_000, "unattributed": 30_000_000}
    seen = [
        NodeFigures(0.0, 0.95, 0.95),
        NodeFigures(60.0, 0.95, 0.95, 3000, 100, 1000, {"routes": 1, "rules": 1}, 1, 10**7, 10**7),
        NodeFigures(
            120.0, 0.96, 0.96, 6000, 200, 2000, {"routes": 2, "rules": 3}, 2, 2 * 10**7, 2 * 10**7
        ),
        NodeFigures(**newest),
    ]
    said = {problem["reason"]: problem["message"] for problem in diagnosis.problems(seen)}
    figures = {
        Fault.CONNECTIONS_FULL: "the connection table is 97% full, and",
        Fault.PORTS_FULL: "99% of the NAT host's ports toward one endpoint are in use; give it",
        Fault.LINK_ERRORS: "300 packets of the uplinks failed in the last minutes, beside 9000 ",
        Fault.LINK_DROPS: "3000 packets of the uplinks were dropped in the last minutes, "
        "beside 9000 others",
        Fault.DRIFT: "other programs keep changing what the agent repairs (routes 3 times, rules 3 "
        "times in 180 s); its log says",
        Fault.GAPS: "counters keep losing their past, so traffic is missing in the totals",
        Fault.UNATTRIBUTED: "30000000 of 90000000 bytes that were forwarded from or to ",
    }
    assert said.keys() == figures.keys()
    assert all(said[fault].startswith(text) for fault, text in figures.items())


def test_a_link_that_was_seen_once_is_told_until_the_window_has_passed():
    seen = looks(diagnosis.WINDOW + 2)
    seen[1] = replace(seen[1], taps=["b", "a"], missing=["eth1", "eth0"])
    seen[2] = replace(seen[2], taps=["a", "c", "d"], missing=["eth0"])
    assert reasons(diagnosis.recent(seen[:2])) == [Fault.UPLINK_MISSING, Fault.LINK_TAPPED]
    missing, tapped = (one["message"] for one in diagnosis.problems(seen))
    assert missing.startswith("uplink eth0, eth1 is or was gone; ")
    assert tapped.startswith("a, b, c and 1 more: what is sent or read there ")
    three = diagnosis.problems(seen[:2])[1]["message"]
    assert three.startswith("a, b: ")
    assert reasons(seen[3:]) == []


def test_a_link_of_a_running_pod_that_was_deleted_is_a_problem_at_once():
    seen = looks(4)
    seen[2:] = [replace(look, repairs={diagnosis.DELETED_LINKS: 2}) for look in seen[2:]]
    assert reasons(seen[:2]) == []
    (found,) = diagnosis.problems(seen)
    assert found["reason"] == Fault.POD_LINK_DELETED
    assert found["message"].startswith("2 links of running pods were deleted ")
    # An agent's first look has what was noticed since its start.
    assert reasons(seen[2:]) == [Fault.POD_LINK_DELETED]
    assert reasons(seen[2:3] * (diagnosis.WINDOW + 1)) == []


def test_the_bounds_of_errors_are_a_count_and_a_share():
    for packets, errors, many in ((99_900, 100, 1), (99_901, 100, 0), (0, 99, 0), (0, 100, 1)):
        seen = [
            NodeFigures(number * MINUTE, packets=packets * (number > 0), errors=size)
            for number, size in enumerate((0, errors - 2, errors - 1, errors))
        ]
        assert reasons(seen) == [Fault.LINK_ERRORS] * many
        assert reasons(seen[:3]) == []


def test_a_look_is_at_the_whole_snapshot():
    given = snapshot(2, 1)
    given["drift_repaired"] = [{"reason": "rules", "count": 3}]
    given["gaps"] = [{"reason": "reboot", "count": 2, "seconds": 1.0}]
    given["tracking"] = {"connections": 96, "most": 100, "pods": []}
    uplink = Carried(1000, 10, 2000, 20, errors=3, lost=4)
    found = diagnosis.look_at(given, [uplink, uplink], 5.0)
    used = max(ports["used"] / ports["budget"] for ports in given["nat"]["ports"])
    both, missed = (
        sum(total[key] for total in given["unattributed"]) for key in ("forwarded", "bytes")
    )
    assert found == NodeFigures(5.0, 0.96, used, 60, 6, 8, {"rules": 3}, 2, both, missed)
    del given["tracking"], given["nat"]
    given["unattributed"] = []
    assert diagnosis.look_at(given, [], 5.0) == NodeFigures(5.0, repairs={"rules": 3}, gaps=2)


def test_what_passes_to_other_nodes_pods_is_no_fault_where_nobody_counts_it():
    given = snapshot(2, 1)
    assert diagnosis.look_at(given, [], 5.0).unattributed > 0
    given["origins"] = [one for one in given["origins"] if one["origin"] != "remote-pods"]
    found = diagnosis.look_at(given, [], 5.0)
    assert (found.unattributed, found.forwarded > 0) == (0, True)
