"""What `netmgr connectivity-test` tests, and what it makes of answers, right ones and hostile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from netmgr.api.connectivity import (
    Answer,
    Ending,
    Probe,
    Result,
    Sent,
    Target,
    Task,
)
from netmgr.kube.cluster_status import AGENT, NodeState, PodState
from netmgr.kube.connectivity import (
    MOST_PEERS,
    Candidate,
    Check,
    Counted,
    NodeResult,
    Options,
    Planned,
    Server,
    State,
    conclude,
    expected,
    findings,
    plan,
    spread,
    usable,
)
from netmgr.kube.connectivity_objects import LONGEST_REASON, pod_now
from netmgr.kube.connectivity_run import counted
from netmgr.kube.nodes import node_view

SERVICE = ("10.96.0.9", "fd00:96::9")
OWN = ("10.1.0.3", "fd00:1::3")
NOTHING = Options()
OUTSIDE = Options(internet=(Target("203.0.113.1", 443),))


def candidate(name: str, pool: str = "", zone: str = "", *, ready: bool = True) -> Candidate:
    metadata = {"name": name, "uid": name, "creationTimestamp": ""}
    view = node_view({"metadata": metadata, "spec": {}}, "")
    agent: Any = PodState.__new__(PodState)  # only whether there is one matters
    return Candidate(NodeState(view, ready, AGENT), pool, zone, agent)


def server(number: int) -> Server:
    addresses = (f"10.1.{number}.2", f"fd00:{number}::2")
    return Server(f"n{number}", addresses, (f"10.64.0.{number}",))


def ending(result: Result = Result.OK, *seen: str, reason: str = "") -> Ending:
    return Ending(result=result, seen=seen, reason=reason)


def given(*planned: tuple[Planned, Ending], **more: Any) -> NodeResult:
    """A Node `n0` whose client gave these answers, and of which nothing was counted."""
    answer = Answer(probes=tuple(each for _, each in planned), **more)
    return NodeResult(
        "n0",
        addresses=OWN,
        planned=[each for each, _ in planned],
        answer=answer,
        counted=Counted(0, 0),
        server_counted=Counted(0, 0),
    )


def planned(check: Check, node: str = "n0", by: Any = "tcp", host: str = "10.1.0.2") -> Planned:
    return Planned(check, node, Probe(by=by, host=host))


def concluded(one: NodeResult, asked: Options = NOTHING) -> Mapping[Check, State]:
    conclude(one, SERVICE, asked)
    return {check: state for check, state in one.states.items() if state is not State.SKIPPED}


def messages(one: NodeResult) -> dict[str, str]:
    return {each.check: each.message for each in one.findings}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("example.com:443", Target("example.com", 443)),
        ("203.0.113.1:1", Target("203.0.113.1", 1)),
        ("[2001:db8::1]:65535", Target("2001:db8::1", 65535)),
    ],
)
def test_targets_are_read_and_written_alike(text: str, target: Target) -> None:
    assert Target.parse(text) == target
    assert str(target) == text


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "2001:db8::1", "[]:1"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Target.parse(text)


def test_nodes_are_spread_over_pools_and_zones_before_any_has_two() -> None:
    found = [candidate(f"a{number}", "cpu", "1") for number in range(9)]
    found += [candidate("b", "cpu", "2"), candidate("c", "gpu", "1")]
    assert [each.name for each in spread(found, 4)] == ["a0", "a1", "b", "c"]
    assert [each.name for each in spread(found, 2)] == ["a0", "b"]
    assert len(spread(found, 99)) == len(found)


def test_nodes_that_are_down_are_passed_over_unless_they_were_asked_for() -> None:
    nodes = [candidate("a", ready=False), candidate("b"), candidate("c")]
    chosen, absent = usable(nodes, 1)
    assert ([each.name for each in chosen], absent) == (["b"], [])
    chosen, absent = usable(nodes, 3)
    assert [each.name for each in chosen] == ["b", "c"]
    assert [each.objects for each in absent] == [("node/a",)]
    chosen, absent = usable([], 8)
    assert (chosen, [each.objects for each in absent]) == ([], [("cluster",)])


def test_each_node_probes_itself_and_as_many_others_as_probe_it() -> None:
    ring = [server(number) for number in range(30)]
    peers = {own.node: {each.node for each in plan(own, ring, (), NOTHING)} for own in ring}
    for node, found in peers.items():
        others = found - {node, ""}
        assert node in found
        assert len(others) == MOST_PEERS
        assert sum(node in each for name, each in peers.items() if name != node) == MOST_PEERS


def test_few_nodes_all_probe_each_other_in_the_families_they_have() -> None:
    ring = [server(0), Server("n1", ("10.1.1.2",), ())]
    asked = Options(host_port=80, internal=(Target("hub.example", 443),))
    found = plan(ring[0], ring, SERVICE, asked)
    assert [(each.check, each.probe.by, each.probe.host) for each in found] == [
        (Check.SAME_NODE, "tcp", "10.1.0.2"),
        (Check.SAME_NODE, "udp", "10.1.0.2"),
        (Check.SAME_NODE, "tcp", "fd00:0::2"),
        (Check.SAME_NODE, "udp", "fd00:0::2"),
        (Check.OTHER_NODES, "tcp", "10.1.1.2"),
        (Check.OTHER_NODES, "udp", "10.1.1.2"),
        (Check.SERVICE, "tcp", SERVICE[0]),
        (Check.SERVICE, "udp", SERVICE[0]),
        (Check.SERVICE, "tcp", SERVICE[1]),
        (Check.SERVICE, "udp", SERVICE[1]),
        (Check.HOST_PORT, "tcp", "10.64.0.0"),
        (Check.INTERNAL, "connect", "hub.example"),
        (Check.DNS, "dns", "netmgr-connectivity-test"),
    ]
    v4_only = plan(ring[1], ring, SERVICE, NOTHING)
    assert not [each for each in v4_only if ":" in each.probe.host]


def test_a_network_that_works_has_no_findings() -> None:
    one = given(
        (planned(Check.SAME_NODE), ending(Result.OK, OWN[0])),
        (planned(Check.OTHER_NODES, "n1"), ending(Result.OK, OWN[0])),
        (planned(Check.SERVICE, "", host=SERVICE[0]), ending(Result.OK, OWN[0])),
        (planned(Check.DNS, "", "dns", "x"), ending(Result.OK, *SERVICE)),
    )
    well = (Check.START, Check.SAME_NODE, Check.OTHER_NODES, Check.PATH_MTU)
    assert concluded(one) == dict.fromkeys(
        (*well, Check.OWN_ADDRESS, Check.SERVICE, Check.DNS, Check.COUNTED), State.OK
    )
    assert one.findings == []


@pytest.mark.parametrize(
    ("result", "words"),
    [(Result.NO_ANSWER, "no answer (silence)"), (Result.REFUSED, "refused (silence)")],
)
def test_a_server_that_is_not_reached_is_named_with_both_nodes(result: Result, words: str) -> None:
    one = given((planned(Check.OTHER_NODES, "n1"), ending(result, reason="silence")))
    assert concluded(one)[Check.OTHER_NODES] is State.FAILED
    (found,) = one.findings
    assert (found.message, found.objects) == (f"IPv4 TCP: {words}", ("node/n0 to node/n1",))
    assert "node/n1" in found.remedy


@pytest.mark.parametrize("host", ["hub.example", "fd00::1"])
def test_a_server_inside_that_refuses_is_named_and_one_that_answers_says_nothing_of_sizes(
    host: str,
) -> None:
    probe = Planned(Check.INTERNAL, "", Probe(by="connect", host=host, port=443))
    one = given((probe, ending(Result.REFUSED)))
    assert concluded(one)[Check.INTERNAL] is State.FAILED
    assert messages(one) == {Check.INTERNAL: f"{Target(host, 443)}: refused"}
    found = concluded(given((probe, ending(Result.OK, "10.64.0.4"))))
    assert (found[Check.INTERNAL], found.get(Check.PATH_MTU)) == (State.OK, None)


def test_large_packets_that_are_lost_are_a_matter_of_the_path_mtu_alone() -> None:
    one = given(
        (planned(Check.SAME_NODE), ending(Result.OK, OWN[0])),
        (planned(Check.OTHER_NODES, "n1"), ending(Result.STALLED)),
    )
    found = concluded(one)
    assert (found[Check.OTHER_NODES], found[Check.PATH_MTU]) == (State.OK, State.FAILED)
    assert messages(one).keys() == {Check.PATH_MTU}


@pytest.mark.parametrize("seen", [("10.64.0.1",), (), (OWN[0], "10.64.0.1")])
def test_another_source_than_the_pods_own_address_is_translation(seen: tuple[str, ...]) -> None:
    one = given((planned(Check.OTHER_NODES, "n1"), ending(Result.OK, *seen)))
    assert concluded(one)[Check.OWN_ADDRESS] is State.FAILED
    assert messages(one).keys() == {Check.OWN_ADDRESS}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ending(Result.NO_NAME, reason="Temporary failure"), "no such name (Temporary failure)"),
        (ending(Result.OK, "10.96.0.66"), "leads to 10.96.0.66"),
        (ending(Result.OK), "leads to"),
    ],
    ids=["unknown", "another", "none"],
)
def test_a_name_that_is_not_the_services_is_found(answer: Ending, words: str) -> None:
    one = given((planned(Check.DNS, "", "dns", "x"), answer))
    assert concluded(one)[Check.DNS] is State.FAILED
    assert words in messages(one)[Check.DNS]


@pytest.mark.parametrize(
    ("result", "words"),
    [(Result.OK, "it answers, and should not"), (Result.NO_NAME, "no such name")],
)
def test_an_address_that_should_not_answer_has_to_be_asked_and_silent(
    result: Result, words: str
) -> None:
    asked = Options(unreachable=(Target("10.65.0.1", 80), Target("10.65.0.2", 80)))
    one = given(unreachable=(ending(Result.NO_ANSWER), ending(result)))
    assert concluded(one, asked)[Check.UNREACHABLE] is State.FAILED
    assert messages(one) == {Check.UNREACHABLE: f"10.65.0.2:80: {words}"}


SENT = Sent(bytes_out=400, bytes_in=300)


@pytest.mark.parametrize(
    ("found", "server_found", "state"),
    [
        (Counted(400, 300), Counted(0, 0), State.OK),
        (Counted(399, 300), Counted(0, 0), State.FAILED),
        (Counted(400, 301), Counted(0, 0), State.FAILED),
        (Counted(0, 0), Counted(0, 0), State.FAILED),
        (Counted(400, 300), Counted(1, 0), State.FAILED),
    ],
)
def test_counts_have_to_be_what_was_exchanged_to_the_byte(
    found: Counted, server_found: Counted, state: State
) -> None:
    one = given(internet=(ending(),), to_internet=SENT)
    one.counted, one.server_counted = found, server_found
    assert concluded(one, OUTSIDE)[Check.COUNTED] is state


def test_internal_probes_may_not_be_counted_as_internet() -> None:
    one = given((planned(Check.SAME_NODE), ending(Result.OK, OWN[0])))
    one.counted = Counted(0, 60)
    assert concluded(one)[Check.COUNTED] is State.FAILED
    assert messages(one)[Check.COUNTED].startswith("internet-in of the client's pod: 60 bytes")


def test_tolerance_is_neighbour_discovery_and_what_may_be_dropped() -> None:
    sent = Sent(bytes_out=1000, bytes_in=900, icmpv6_out=1, icmpv6_in=2)
    maybe = Sent(bytes_out=180, bytes_in=40)
    answer = Answer(probes=(), internet=(ending(),), to_internet=sent, to_unreachable=maybe)
    assert expected(answer) == ((1000 - 256, 1180), (900 - 512, 940))
    # What an internet that does not answer was sent may be counted, or dropped before.
    lost = answer.model_copy(update={"internet": (ending(Result.NO_ANSWER),)})
    assert expected(lost) == ((0, 1180), (0, 940))


def test_counts_that_cannot_be_had_are_a_warning_and_no_failure() -> None:
    one = given()
    one.counted, one.uncounted = None, "its exporter does not answer: 403"
    assert Check.COUNTED not in concluded(one)
    (found,) = one.findings
    assert (found.severity, found.objects) == ("warning", ("node/n0",))
    assert "403" in found.message


@pytest.mark.parametrize("more", [1, -1])
def test_an_answer_to_another_task_is_none(more: int) -> None:
    one = given((planned(Check.SAME_NODE), ending()))
    one.planned = [planned(Check.SAME_NODE)] * (1 + more)
    assert concluded(one) == {Check.START: State.FAILED}


def test_one_cause_on_many_nodes_is_one_finding() -> None:
    many = []
    for number in range(5):
        one = given((planned(Check.OTHER_NODES, "n9"), ending(Result.NO_ANSWER)))
        one.node = f"n{number}"
        concluded(one)
        many.append(one)
    (found,) = findings(many, [])
    assert found.objects == tuple(f"node/n{number} to node/n9" for number in range(5))


OK: dict[str, Any] = {"result": "ok"}


@pytest.mark.parametrize(
    "printed",
    [
        {},
        {"probes": {}},
        {"probes": [], "more": 1},
        {"probes": [OK] * 257},
        {"probes": [OK | {"result": "fine"}]},
        {"probes": [OK | {"seen": "1.2.3.4"}]},
        {"probes": [OK | {"seen": ["\x1b[2J"]}]},
        {"probes": [OK | {"seen": ["1.2.3.4"] * 17}]},
        {"probes": [OK | {"reason": "x" * 201}]},
        {"probes": [], "to_internet": {"bytes_out": -1}},
        {"probes": [], "to_internet": {"bytes_out": 10**20}},
    ],
)
def test_hostile_answers_are_refused(printed: Any) -> None:
    with pytest.raises(ValidationError):
        Answer.model_validate_json(json.dumps(printed))


def test_tasks_pass_through_an_argument() -> None:
    task = Task(probes=(Probe(by="udp", host="fd00::1"),), internet=(Target("a", 1),))
    assert Task.model_validate_json(task.model_dump_json()) == task


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "server", "state": state}]}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"phase": "Pending"}, ""),
        (container(waiting={"reason": "ContainerCreating"}), ""),
        (container(waiting={"reason": "ErrImagePull", "message": "no"}), "ErrImagePull: no"),
        (container(waiting={"reason": "CrashLoopBackOff"}), "CrashLoopBackOff"),
        (
            container(terminated={"exitCode": 1, "message": "a\nNo module named x\n"}),
            "it ended with exit code 1: No module named x",
        ),
        (container(terminated={"exitCode": 0}), ""),
        ({"reason": "OutOfcpu", "message": "Node has none"}, "OutOfcpu: Node has none"),
        ({"reason": "Evicted"}, "Evicted"),
        (container(waiting={"reason": "X\x1b" * 999}), ("X\N{REPLACEMENT CHARACTER}" * 150)),
    ],
)
def test_why_a_pod_does_not_run_is_said_as_its_kubelet_does(
    status: dict[str, Any], reason: str
) -> None:
    found = pod_now({"status": status}).reason
    assert found == reason
    assert len(found) <= LONGEST_REASON


PAGE = """# TYPE netmgr_pod_traffic_bytes counter
netmgr_pod_traffic_bytes_total{namespace="t",pod="client-00",traffic="internet-out"} 7.0
netmgr_pod_traffic_bytes_total{namespace="t",pod="client-0",traffic="internet-in"} 1.234567e+06
netmgr_pod_traffic_bytes_total{namespace="t",pod="client-0",traffic="internet-out"} 60.0
netmgr_pod_traffic_bytes_total{namespace="t",pod="client-1",traffic="internet-in"} 5.0
netmgr_pod_traffic_bytes_total{namespace="t",pod="client-2",traffic="internet-in"} 1e+999
netmgr_pod_traffic_bytes_total{namespace="t",pod="client-2",traffic="internet-out"} ++..e
"""


@pytest.mark.parametrize(
    ("pod", "found"),
    [
        ("client-0", Counted(60, 1_234_567)),
        ("client-1", None),
        ("client-2", None),
        ("client-3", None),
    ],
)
def test_a_pods_bytes_are_found_on_an_exporters_page(pod: str, found: Counted | None) -> None:
    assert counted(PAGE, "t", pod) == found
