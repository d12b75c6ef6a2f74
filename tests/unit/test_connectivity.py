"""What `netmgr connectivity-test` tests, what it makes of the answers, and which it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from netmgr.api.connectivity import PORT, Ending, Probe, ProbeAnswer, ProbeTarget, Result, Sent
from netmgr.documents.diagnostics import Severity
from netmgr.findings import Finding
from netmgr.kube.client.agent_pods import AgentPod
from netmgr.kube.controller.claim_store import POOL
from netmgr.kube.controller.nodes import node_view
from netmgr.kube.diagnose.cluster_status import AGENT, NodeState, PodState, node_state
from netmgr.kube.diagnose.connectivity import (
    MOST_PEERS,
    ZONE,
    Check,
    CheckState,
    CountedBytes,
    NodeCandidate,
    NodeResult,
    Options,
    PlannedProbe,
    ProbeServer,
    candidates,
    conclude,
    expected,
    findings,
    is_as_expected,
    plan,
    spread,
    usable,
)
from netmgr.kube.diagnose.connectivity_objects import LONGEST_REASON, pod_now
from netmgr.kube.diagnose.connectivity_run import counted

SERVICE = ("10.96.0.9", "fd00:96::9")
OWN = ("10.1.0.3", "fd00:1::3")
NOTHING = Options()
OUTSIDE = Options(internet=(ProbeTarget("203.0.113.1", 443),))


def candidate(name: str, pool: str = "", zone: str = "", *, ready: bool = True) -> NodeCandidate:
    metadata = {"name": name, "uid": name, "creationTimestamp": ""}
    view = node_view({"metadata": metadata, "spec": {}})
    agent: Any = PodState.__new__(PodState)  # only whether there is one matters
    return NodeCandidate(NodeState(view, ready, AGENT), pool, zone, agent)


def server(number: int) -> ProbeServer:
    addresses = (f"10.1.{number}.2", f"fd00:{number}::2")
    return ProbeServer(f"n{number}", addresses, (f"10.64.0.{number}",))


def ending(result: Result = Result.OK, *seen: str, reason: str = "") -> Ending:
    return Ending(result=result, seen=seen, reason=reason)


def given(*planned: tuple[PlannedProbe, Ending], **more: Any) -> NodeResult:
    """A Node `n0` whose client gave these answers, and of which nothing was counted."""
    answer = ProbeAnswer(probes=tuple(each for _, each in planned), **more)
    return NodeResult(
        "n0",
        addresses=OWN,
        planned=[each for each, _ in planned],
        answer=answer,
        counted=CountedBytes(0, 0),
        server_counted=CountedBytes(0, 0),
    )


def planned(
    check: Check, node: str = "n0", by: Any = "tcp", host: str = "10.1.0.2"
) -> PlannedProbe:
    return PlannedProbe(check, node, Probe(by=by, host=host))


def concluded(one: NodeResult, asked: Options = NOTHING) -> Mapping[Check, CheckState]:
    conclude(one, SERVICE, asked)
    return {check: state for check, state in one.states.items() if state is not CheckState.SKIPPED}


def failed(one: NodeResult, asked: Options = NOTHING) -> tuple[Check, list[Finding]]:
    """The only check that failed, and what is said of it."""
    (check,) = [
        check for check, state in concluded(one, asked).items() if state is CheckState.FAILED
    ]
    return check, one.findings


def error(
    check: Check, message: str, remedy: str, about: str = "node/n0"
) -> tuple[Check, list[Finding]]:
    return check, [Finding(Severity.ERROR, message, remedy, check, (about,))]


def agent(node: str, name: str, *, is_ready: bool = True) -> PodState:
    pod = AgentPod(name, "", node, is_ready, ("", 0), None)
    return PodState(pod, "netmgr", "", "", "", AGENT)


def test_nodes_that_serve_pods_are_candidates_with_their_agents() -> None:
    nodes: list[dict[str, Any]] = [
        {"metadata": {"name": name, "uid": name, "creationTimestamp": ""}, "spec": {}}
        for name in ("a", "windows", "b")
    ]
    nodes[0]["metadata"]["labels"] = {POOL: "gpu", ZONE: "1"}
    nodes[1]["metadata"]["labels"] = {"kubernetes.io/os": "windows"}
    pods = [agent("a", "new"), agent("a", "old", is_ready=False), agent("c", "other")]
    expected_ones = [
        NodeCandidate(node_state(nodes[0]), "gpu", "1", pods[0]),
        NodeCandidate(node_state(nodes[2]), "", "", None),
    ]
    assert candidates(nodes, pods) == expected_ones
    assert candidates(nodes, pods[::-1]) == expected_ones


def test_nodes_are_spread_over_pools_and_zones_before_any_has_two() -> None:
    found = [candidate(f"a{number}", "cpu", "1") for number in range(9)]
    found += [candidate("b", "cpu", "2"), candidate("c", "gpu", "1")]
    assert [each.name for each in spread(found, 4)] == ["a0", "a1", "b", "c"]
    assert [each.name for each in spread(found, 2)] == ["a0", "b"]
    assert len(spread(found, 99)) == len(found)


def test_nodes_that_are_down_are_passed_over_unless_they_were_asked_for() -> None:
    down, *ready = nodes = [candidate("a", ready=False), candidate("b"), candidate("c")]
    status = "netmgr status --cluster"
    _, absent = error(Check.START, "not tested: the Node is not Ready", status, "node/a")
    assert usable(nodes, 1) == (ready[:1], [])
    assert usable(nodes, 3) == (ready, absent)
    assert usable([down], 0) == ([], absent)
    bare = replace(candidate("a"), agent=None)
    _, absent = error(Check.START, "not tested: no agent's pod is on it", status, "node/a")
    assert usable([bare], 1) == ([], absent)
    none = "there is no Node on which netmgr's agents serve pods"
    assert usable([], 8) == ([], error(Check.START, none, status, "cluster")[1])


def test_each_node_probes_itself_and_as_many_others_as_probe_it() -> None:
    ring = [server(number) for number in range(30)]
    peers = {own.node: {each.node for each in plan(own, ring, (), NOTHING)} for own in ring}
    for node, found in peers.items():
        others = found - {node, ""}
        assert node in found
        assert len(others) == MOST_PEERS
        assert sum(node in each for name, each in peers.items() if name != node) == MOST_PEERS
    following = {server(number % 30).node for number in range(28, 28 + MOST_PEERS + 1)}
    assert peers["n28"] - {""} == following


def test_few_nodes_all_probe_each_other_in_the_families_they_have() -> None:
    ring = [server(0), ProbeServer("n1", ("10.1.1.2",), ())]
    asked = Options(host_port=80, internal=(ProbeTarget("hub.example", 443),))
    found = plan(ring[0], ring, SERVICE, asked)
    servers = (
        *((Check.SAME_NODE, "n0", "10.1.0.2"), (Check.SAME_NODE, "n0", "fd00:0::2")),
        (Check.OTHER_NODES, "n1", "10.1.1.2"),
        *((Check.SERVICE, "", host) for host in SERVICE),
    )
    assert [(each.check, each.node, *each.probe.model_dump().values()) for each in found] == [
        *((check, node, by, host, PORT) for check, node, host in servers for by in ("tcp", "udp")),
        (Check.HOST_PORT, "n0", "tcp", "10.64.0.0", 80),
        (Check.INTERNAL, "", "connect", "hub.example", 443),
        (Check.DNS, "", "dns", "netmgr-connectivity-test", PORT),
    ]
    v4_only = plan(ring[1], ring, SERVICE, NOTHING)
    assert not [each for each in v4_only if ":" in each.probe.host]


def test_a_network_that_works_has_no_findings() -> None:
    one = given(
        (planned(Check.SAME_NODE), ending(Result.OK, *OWN)),
        (planned(Check.OTHER_NODES, "n1"), ending(Result.OK, OWN[0])),
        (planned(Check.SERVICE, "", host=SERVICE[0]), ending(Result.OK, OWN[0])),
        (planned(Check.DNS, "", "dns", "x"), ending(Result.OK, *SERVICE)),
    )
    well = (Check.START, Check.SAME_NODE, Check.OTHER_NODES, Check.PATH_MTU)
    assert concluded(one) == dict.fromkeys(
        (*well, Check.OWN_ADDRESS, Check.SERVICE, Check.DNS, Check.COUNTED), CheckState.OK
    )
    assert one.findings == []


DELIVER = "kubectl describe node/n1, and see that the network delivers its podCIDRs to it"
COMPARE = "compare the MTU of the nodes' interfaces, of the pods' (ip link) and of the network"
LARGE = "small packets come through, large ones do not"


@pytest.mark.parametrize(
    ("answer", "check", "message", "remedy"),
    [
        (ending(Result.NO_ANSWER, reason="x"), Check.OTHER_NODES, "no answer (x)", DELIVER),
        (ending(Result.REFUSED, reason="x"), Check.OTHER_NODES, "refused (x)", DELIVER),
        # A matter of the path MTU alone.
        (ending(Result.STALLED), Check.PATH_MTU, LARGE, COMPARE),
        (ending(Result.STALLED, reason="x"), Check.PATH_MTU, f"{LARGE} (x)", COMPARE),
        *(
            (
                ending(Result.OK, *seen),
                Check.OWN_ADDRESS,
                f"the server saw {shown}, which is not the pod's own address",
                "netmgr node explain 10.1.0.2, on the node",
            )
            for seen, shown in (
                *((("10.64.0.1",), "10.64.0.1"), ((OWN[0], "10.64.0.1"), f"{OWN[0]}, 10.64.0.1")),
                *(((), "no address"), (("",), "(empty)")),
            )
        ),
    ],
)
def test_what_is_wrong_between_two_nodes_is_named_with_both(
    answer: Ending, check: Check, message: str, remedy: str
) -> None:
    one = given((planned(Check.OTHER_NODES, "n1"), answer))
    assert failed(one) == error(check, f"IPv4 TCP: {message}", remedy, "node/n0 to node/n1")


def test_what_gets_no_answer_on_its_own_node_has_a_remedy_of_its_kind() -> None:
    of_pods = planned(Check.SAME_NODE, by="udp", host="fd00:0::2")
    service, port = planned(Check.SERVICE, "", host=SERVICE[0]), planned(Check.HOST_PORT)
    for probe, family, remedy in (
        (of_pods, "IPv6 UDP", "netmgr node explain fd00:0::2, on the node"),
        (service, "IPv4 TCP", "kubectl -n kube-system get pods -l k8s-app=kube-proxy -o wide"),
        (port, "IPv4 TCP", "the plugin portmap has to be in the chain: components/host-ports"),
    ):
        one = given((probe, ending(Result.NO_ANSWER)))
        assert failed(one) == error(probe.check, f"{family}: no answer", remedy)


@pytest.mark.parametrize("host", ["hub.example", "fd00::1"])
def test_a_server_inside_that_refuses_is_named_and_one_that_answers_says_nothing_of_sizes(
    host: str,
) -> None:
    probe = PlannedProbe(Check.INTERNAL, "", Probe(by="connect", host=host, port=443))
    one = given((probe, ending(Result.REFUSED)))
    way_back = "if it is native, it needs a way back to the pods' addresses"
    remedy = f"netmgr node explain {host}, on the node: {way_back}"
    assert failed(one) == error(Check.INTERNAL, f"{ProbeTarget(host, 443)}: refused", remedy)
    found = concluded(given((probe, ending(Result.OK, "10.64.0.4"))))
    assert (found[Check.INTERNAL], found.get(Check.PATH_MTU)) == (CheckState.OK, None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ending(Result.NO_NAME, reason="Temporary failure"), ": no such name (Temporary failure)"),
        (
            ending(Result.OK, "10.96.0.66", "10.96.0.67"),
            " leads to 10.96.0.66, 10.96.0.67, which it does not have",
        ),
        (ending(Result.OK), " leads to no address, which it does not have"),
    ],
    ids=["unknown", "another", "none"],
)
def test_a_name_that_is_not_the_services_is_found(answer: Ending, words: str) -> None:
    one = given((planned(Check.DNS, "", "dns", "x"), answer))
    remedy = "kubectl -n kube-system get pods -l k8s-app=kube-dns -o wide"
    assert failed(one) == error(Check.DNS, f"the Service's name{words}", remedy)


@pytest.mark.parametrize(
    ("result", "words"),
    [(Result.OK, "it answers, and should not"), (Result.NO_NAME, "no such name")],
)
def test_an_address_that_should_not_answer_has_to_be_asked_and_silent(
    result: Result, words: str
) -> None:
    asked = Options(unreachable=(ProbeTarget("10.65.0.1", 80), ProbeTarget("10.65.0.2", 80)))
    one = given(unreachable=(ending(Result.NO_ANSWER), ending(result)))
    remedy = "netmgr node explain 10.65.0.2, on the node"
    assert failed(one, asked) == error(Check.UNREACHABLE, f"10.65.0.2:80: {words}", remedy)


def test_a_server_in_the_internet_has_to_answer_in_full() -> None:
    one = given(internet=(ending(Result.STALLED),))
    remedy = "netmgr node explain 203.0.113.1, on the node"
    assert failed(one, OUTSIDE) == error(Check.INTERNET, "203.0.113.1:443: broke off", remedy)


SENT = Sent(bytes_out=400, bytes_in=300)


@pytest.mark.parametrize(
    ("of_client", "of_server"),
    [
        *((wrong, (0, 0)) for wrong in ((399, 300), (400, 301), (0, 0))),
        *(((400, 300), wrong) for wrong in ((1, 0), (0, 1))),
    ],
)
def test_counts_have_to_be_what_was_exchanged_to_the_byte(
    of_client: tuple[int, int], of_server: tuple[int, int]
) -> None:
    one = given(internet=(ending(),), to_internet=SENT)
    one.counted, one.server_counted = CountedBytes(400, 300), CountedBytes(0, 0)
    assert concluded(one, OUTSIDE)[Check.COUNTED] is CheckState.OK
    assert is_as_expected(one)
    one.counted, one.server_counted = CountedBytes(*of_client), CountedBytes(*of_server)
    assert concluded(one, OUTSIDE)[Check.COUNTED] is CheckState.FAILED
    assert not is_as_expected(one)


@pytest.mark.parametrize("absent", ["answer", "counted", "server_counted"])
def test_counts_that_are_not_there_are_not_as_expected(absent: str) -> None:
    one = given()
    assert is_as_expected(one)
    setattr(one, absent, None)
    assert not is_as_expected(one)


def test_counts_that_are_wrong_are_named_with_what_was_exchanged() -> None:
    one = given(internet=(ending(),), to_internet=SENT, to_unreachable=Sent(bytes_in=1700))
    one.counted, one.server_counted = CountedBytes(1399, 2001), CountedBytes(0, 7)
    check, expected = error(Check.COUNTED, "", "netmgr node audit, on the node")
    said = "internet-{} of the {}'s pod: {} bytes were counted, and it exchanged {}".format
    exchanged = (
        ("out", "client", "1,399", "400"),
        ("in", "client", "2,001", "300 to 2,000"),
        ("in", "server", "7", "0"),
    )
    messages = [said(*words) for words in exchanged]
    assert failed(one, OUTSIDE) == (
        check,
        [replace(expected[0], message=message) for message in messages],
    )


def test_internal_probes_may_not_be_counted_as_internet() -> None:
    one = given((planned(Check.SAME_NODE), ending(Result.OK, OWN[0])))
    one.counted = CountedBytes(0, 60)
    message = "internet-in of the client's pod: 60 bytes were counted, and it exchanged 0"
    assert failed(one) == error(Check.COUNTED, message, "netmgr node audit, on the node")


def test_tolerance_is_neighbour_discovery_and_what_may_be_dropped() -> None:
    sent = Sent(bytes_out=1000, bytes_in=900, icmpv6_out=1, icmpv6_in=2)
    maybe = Sent(bytes_out=180, bytes_in=40)
    answer = ProbeAnswer(probes=(), internet=(ending(),), to_internet=sent, to_unreachable=maybe)
    assert expected(answer) == ((1000 - 256, 1180), (900 - 512, 940))
    # What an internet that does not answer was sent may be counted, or dropped before.
    lost = answer.model_copy(update={"internet": (ending(Result.NO_ANSWER),)})
    assert expected(lost) == ((0, 1180), (0, 940))


def test_counts_that_cannot_be_had_are_a_warning_and_no_failure() -> None:
    one = given()
    one.counted, one.uncounted = None, "its exporter does not answer: 403"
    assert Check.COUNTED not in concluded(one)
    message = "the counts cannot be compared: its exporter does not answer: 403"
    about = message, "netmgr node audit, on the node", Check.COUNTED, ("node/n0",)
    assert one.findings == [Finding(Severity.WARNING, *about)]


@pytest.mark.parametrize("more", [1, -1])
def test_an_answer_to_another_task_is_none(more: int) -> None:
    one = given((planned(Check.SAME_NODE), ending()))
    one.planned = [planned(Check.SAME_NODE)] * (1 + more)
    message = "its client's answer is not to its task"
    assert failed(one) == error(Check.START, message, "kubectl describe node/n0")


def test_a_node_whose_pods_do_not_start_is_named_with_the_reason() -> None:
    message = "its server does not start: ErrImagePull"
    one = NodeResult("n0", trouble=message)
    assert concluded(one) == {Check.START: CheckState.FAILED}
    assert one.findings == error(Check.START, message, "kubectl describe node/n0")[1]


def test_one_cause_on_many_nodes_is_one_finding() -> None:
    many = []
    for number in range(5):
        one = given((planned(Check.OTHER_NODES, "n9"), ending(Result.NO_ANSWER)))
        one.node = f"n{number}"
        concluded(one)
        many.append(one)
    (found,) = findings(many, [])
    assert found.objects == tuple(f"node/n{number} to node/n9" for number in range(5))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("example.com:443", ProbeTarget("example.com", 443)),
        ("203.0.113.1:1", ProbeTarget("203.0.113.1", 1)),
        ("[2001:db8::1]:65535", ProbeTarget("2001:db8::1", 65535)),
    ],
)
def test_targets_are_read_and_written_alike(text: str, target: ProbeTarget) -> None:
    assert ProbeTarget.parse(text) == target
    assert str(target) == text


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "2001:db8::1", "[]:1"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        ProbeTarget.parse(text)


OK: dict[str, Any] = {"result": "ok"}


@pytest.mark.parametrize(
    "printed",
    [
        *({}, {"probes": {}}, {"probes": [], "more": 1}, {"probes": [OK] * 257}),
        *({"probes": [OK | {"seen": seen}]} for seen in ("1.2.3.4", ["\x1b[2J"], ["1.2.3.4"] * 17)),
        *({"probes": [OK | odd]} for odd in ({"result": "fine"}, {"reason": "x" * 201})),
        *({"probes": [], "to_internet": {"bytes_out": size}} for size in (-1, 10**20)),
    ],
)
def test_hostile_answers_are_refused(printed: Any) -> None:
    with pytest.raises(ValidationError):
        ProbeAnswer.model_validate_json(json.dumps(printed))


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
    assert len(reason) <= LONGEST_REASON
    assert pod_now({"status": status}).reason == reason


PAGE = "# TYPE netmgr_pod_traffic_bytes counter\n" + "".join(
    f'netmgr_pod_traffic_bytes_total{{namespace="t",pod="{pod}",traffic="internet-{way}"}} {size}\n'
    for pod, way, size in (
        *(("client-00", "out", "7.0"), ("client-0", "in", "1.234567e+06")),
        *(("client-0", "out", "60.0"), ("client-1", "in", "5.0")),
        *(("client-2", "in", "1e+999"), ("client-2", "out", "++..e")),
    )
)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ("client-0", CountedBytes(60, 1_234_567)),
        *((f"client-{number}", None) for number in (1, 2, 3)),
    ],
)
def test_a_pods_bytes_are_read_on_an_exporters_page(
    pod: str, expected: CountedBytes | None
) -> None:
    assert counted(PAGE, "t", pod) == expected
