"""What the controller makes of exporters' answers about spent quotas."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from netmgr.api.client import MOST_SPENT, ask_report
from netmgr.kube.client.agent_pods import LONGEST_MESSAGE
from netmgr.kube.controller.events import LONGEST_NAME, MOST_EVENTS
from netmgr.kube.controller.node_reports import (
    LONGEST_ANSWER,
    NodeReport,
    Spent,
    parse,
    parse_body,
)
from netmgr.kube.controller.quota_events import notices
from tests.fakes.agent_socket import agent

SPENT = {
    "namespace": "research",
    "pod": "greedy",
    "uid": "6f2f9f8e-0000-4000-8000-000000000001",
    "traffic": "internet-out",
    "period": "day",
    "budget": 1_000_000,
    "slow": 0,
    "until": 1_800_000_000,
}


def answer(*quotas: object, status: str = "200 OK") -> bytes:
    return f"HTTP/1.0 {status}\r\nContent-Type: x\r\n\r\n{json.dumps({'spent': quotas})}".encode()


def spent(**changes: object) -> Spent:
    return Spent.model_validate(SPENT | changes)


def reported(*quotas: Spent) -> NodeReport:
    return NodeReport(spent=quotas)


def test_an_answer_is_read():
    assert parse(answer(SPENT)) == reported(spent())
    assert parse(answer()) == reported()
    # A later release may say more.
    assert parse(answer(SPENT | {"node": "x"})) == reported(spent())


@pytest.mark.parametrize(
    "changes",
    [
        {"namespace": "-", "pod": "A_container"},
        {"namespace": "../default"},
        {"namespace": "research\n"},
        {"namespace": "r" * 64},
        {"pod": "a" * 254},
        {"uid": "' or 1"},
        {"traffic": "training-in"},
        {"budget": -1},
        {"until": 10**12},
    ],
)
def test_a_quota_of_which_there_can_be_no_event_takes_nothing_else_along(
    changes: dict[str, object],
):
    assert parse(answer(SPENT | changes, SPENT)) == reported(spent())


def test_a_long_message_of_a_problem_is_cut():
    text = json.dumps({"problems": [{"reason": "RulesFailing", "message": "x" * 5000}]})
    (problem,) = parse_body(text.encode()).problems
    assert problem.message == "x" * LONGEST_MESSAGE


@pytest.mark.parametrize(
    "text", [b"", b"\x15\x03\x01", answer(status="401 Unauthorized"), b"HTTP/1.0 200 OK\r\n\r\n[]"]
)
def test_what_is_no_answer_is_refused(text: bytes):
    with pytest.raises(ValueError, match=r"with TLS|validation error"):
        parse(text)


def test_no_more_than_so_many_are_looked_at():
    many = [SPENT | {"pod": f"pod-{number}"} for number in range(2 * MOST_SPENT)]
    found = parse(answer(*many))
    assert len(found.spent) == MOST_SPENT
    others = reported(*(spent(pod=f"other-{number}") for number in range(900)))
    assert len(notices({"a": found, "b": others})) == MOST_EVENTS


def test_a_report_of_the_longest_names_is_read_as_a_whole(socket_path: Path):
    longest = {"namespace": "n" * 63, "pod": "p" * 253, "budget": 10**18, "slow": 10**12}
    quotas = [SPENT | longest] * (2 * MOST_SPENT)
    own = {"version": 1, "problems": [], "spent": quotas}
    with agent(socket_path, lambda _: json.dumps(own).encode()):
        report = json.dumps(ask_report(socket_path)).encode()
    assert len(report) < LONGEST_ANSWER / 2
    assert len(parse_body(report).spent) == MOST_SPENT


@pytest.mark.parametrize("cut", "-.")
def test_an_event_has_a_name_that_kubernetes_takes(cut: str):
    (notice,) = notices({"node-1": reported(spent(pod=f"{'p' * (LONGEST_NAME - 1)}{cut}longer"))})
    assert re.fullmatch(r"[a-z0-9]+(\.[a-z0-9]+)*", notice.event_name)


def test_a_namespace_has_one_event_for_all_its_nodes():
    shared = spent(pod="", uid="", period="month", slow=5_000_000)
    (one,) = notices({"node-2": reported(shared), "node-1": reported(shared)})
    assert (one.kind, one.namespace, one.name) == ("Namespace", "research", "research")
    words = "1000000 bytes of internet-out a month are used on node-1 and 1 other nodes: further"
    assert one.message.startswith(words)
    assert one.message.endswith(" at 5000000 bits a second until 2027-01-15T08:00+00:00")
    # The same Event, whichever nodes have spent it.
    (alone,) = notices({"node-2": reported(shared)})
    assert alone.event_name == one.event_name


def test_each_quota_of_a_pod_has_an_event_of_its_own_and_each_period_too():
    quotas = [spent(), spent(traffic="internet-in"), spent(period="month"), spent(until=1)]
    found = notices({"node-1": reported(*quotas)})
    assert {one.uid for one in found} == {SPENT["uid"]}
    assert len({one.event_name for one in found}) == len(quotas)
    assert all(len(one.event_name) < LONGEST_NAME for one in found)
