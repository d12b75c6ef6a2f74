"""The Node's condition NetmgrHealthy: what is written to which Node, and when again; and of which
Nodes nothing was heard for too long.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from netmgr.errors import ApiError, ApiUnavailable
from netmgr.kube.client.agent_pods import AgentPod
from netmgr.kube.client.api import Api
from netmgr.kube.client.concurrency import Concurrency
from netmgr.kube.client.object_cache import ObjectCache
from netmgr.kube.controller import node_reports
from netmgr.kube.controller.health import Telemetry
from netmgr.kube.controller.node_conditions import (
    CALM_SECONDS,
    LONGEST_MESSAGE,
    NodeConditions,
    condition,
)
from netmgr.kube.controller.node_reports import (
    SILENT_SECONDS,
    NodeReport,
    NodeReports,
    ReportedProblem,
)
from netmgr.kube.controller.nodes import NodeView, node_view
from netmgr.kube.controller.reconciling import Leadership
from netmgr.kube.controller.shared_ranges import shared_ranges
from netmgr.prefixes import Prefix

Object = dict[str, Any]


class Cluster:
    """Nodes as an API server keeps them, whose conditions are merged by their type."""

    def __init__(self, *names: str, **reports: NodeReport) -> None:
        """Nodes that are only named report nothing."""
        made = {"creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "1"}
        self.objects: dict[str, Object] = {
            name: {
                "metadata": {"name": name, "uid": f"uid-{name}", **made},
                "spec": {},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }
            for name in sorted({*names, *reports})
        }
        self.writes: list[str] = []
        self.faults: dict[str, ApiError] = {}
        self.nodes = ObjectCache(node_view, threading.Event())
        self.nodes.replace(self.objects.values())
        self.pods: list[AgentPod] | None = []
        self.reports = reports
        self.silent: set[str] = set()
        self.events: list[Object] = []
        self.telemetry = Telemetry(cast(Api, self))
        self.concurrency: Any = Concurrency()
        self.leadership = SimpleNamespace(
            api=self,
            identity="controller-1",
            nodes=self.nodes,
            agents=SimpleNamespace(listed=lambda: self.pods),
            lost=threading.Event(),
            beat=lambda: None,
            concurrency=self.concurrency,
            generation=(0, 0),
        )

    def asked(self) -> dict[tuple[str, int], int]:
        return {}

    def create(self, path: str, body: Object) -> Object:
        assert path == "/api/v1/namespaces/default/events"
        self.events.append(body)
        return body

    def run_agent(self, node: str, *, is_ready: bool = False, failed: str = "") -> None:
        """The agent's pod on a Node, in place of the one before."""
        others = [pod for pod in self.pods or () if pod.node != node]
        made = AgentPod(f"agent-{node}", "", node, is_ready, ("", 0), None, failed)
        self.pods = [*others, made]

    def patch_by_key(self, path: str, body: Object) -> Object:
        name = path.removeprefix("/api/v1/nodes/").removesuffix("/status")
        self.writes.append(name)
        if name in self.faults:
            raise self.faults[name]
        metadata, conditions = self.objects[name]["metadata"], self.objects[name]["status"]
        assert body["metadata"] == {"uid": metadata["uid"]}
        (made,) = body["status"]["conditions"]
        others = [item for item in conditions["conditions"] if item["type"] != made["type"]]
        version = str(int(metadata["resourceVersion"]) + 1)
        self.objects[name] |= {
            "metadata": metadata | {"resourceVersion": version},
            "status": {"conditions": [*others, made]},
        }
        return self.objects[name]

    def writer(self, *, reads_reports: bool = True) -> NodeConditions:
        """What a controller that has just become the leader writes conditions with."""
        reports: Any = SimpleNamespace(by_node=self.reports, silent=lambda: frozenset(self.silent))
        leadership = cast(Leadership, self.leadership)
        return NodeConditions(leadership, reports if reads_reports else None, self.telemetry)

    def reconcile(self, writer: NodeConditions | None = None) -> tuple[bool, list[str]]:
        """Whether it is settled, and which Nodes were written to."""
        self.writes = []
        return (writer or self.writer()).reconcile(), sorted(self.writes)

    def condition(self, name: str) -> Object:
        conditions = self.objects[name]["status"]["conditions"]
        (found,) = (item for item in conditions if item["type"] == "NetmgrHealthy")
        return found

    def state(self, name: str) -> tuple[str, str, str]:
        written = self.condition(name)
        return written["status"], written["reason"], written["message"]


def report(*problems: tuple[str, str]) -> NodeReport:
    return NodeReport(
        problems=tuple(
            ReportedProblem(reason=reason, message=message) for reason, message in problems
        )
    )


SOUND = report()
FULL = report(("ConnectionTableFull", "used: 99 %"))


def test_a_report_without_problems_is_healthy_and_the_first_problem_by_name_is_the_reason() -> None:
    healthy = "the agent of netmgr finds no problem that lasts"
    assert condition(SOUND) == ("True", "NoProblems", healthy)
    several = report(("B", "b is wrong"), ("A", "a is wrong"), ("C", "c is wrong"))
    assert condition(several) == ("False", "A", "a is wrong; b is wrong; c is wrong")


def test_each_node_that_reports_gets_its_condition_beside_the_others_it_has() -> None:
    cluster = Cluster("a", b=FULL, c=SOUND)
    cluster.pods = None
    assert cluster.reconcile() == (True, []), "which agents fail is not known yet"
    cluster.pods = []
    before = datetime.now(UTC).replace(microsecond=0)
    assert cluster.reconcile() == (True, ["b", "c"])
    found = cluster.condition("b")
    (at,) = {found.pop("lastHeartbeatTime"), found.pop("lastTransitionTime")}
    assert before <= datetime.strptime(at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    reason = {"reason": "ConnectionTableFull", "message": "used: 99 %"}
    assert found == {"type": "NetmgrHealthy", "status": "False", **reason}
    assert cluster.condition("c")["status"] == "True"
    assert len(cluster.objects["c"]["status"]["conditions"]) == 2


def test_a_condition_is_written_again_for_another_reason_and_not_for_other_figures() -> None:
    cluster = Cluster(a=FULL)
    cluster.reconcile()
    cluster.reports = {"a": report(("ConnectionTableFull", "used: 98 %"))}
    assert cluster.reconcile() == (True, [])
    cluster.reports = {"a": report(*(("NatPortsFull", "x" * 1000) for _ in range(5)))}
    assert cluster.reconcile() == (True, ["a"])
    assert len(cluster.condition("a")["message"]) == LONGEST_MESSAGE


def test_a_node_that_fell_silent_is_unknown_if_it_ever_reported() -> None:
    cluster = Cluster("b", a=SOUND)
    cluster.reconcile()
    cluster.reports, cluster.silent = {}, {"a", "b"}
    assert cluster.reconcile() == (True, ["a"])
    unknown = ("Unknown", "NoReport", "its exporter has not answered for a while")
    assert cluster.state("a") == unknown
    assert cluster.reconcile() == (True, [])
    # One that neither reports nor is silent keeps what it has.
    cluster.silent = set()
    assert cluster.reconcile() == (True, [])


def test_a_failed_preflight_outweighs_a_report_until_the_agent_serves() -> None:
    cluster = Cluster(a=SOUND, b=SOUND)
    cluster.run_agent("a", failed="no route to the hub")
    assert cluster.reconcile() == (True, ["a", "b"])
    status, reason, message = cluster.state("a")
    assert (status, reason) == ("False", "PreflightFailed")
    assert message.endswith(": no route to the hub")
    assert cluster.condition("b")["status"] == "True"
    assert cluster.telemetry.registry.get_sample_value("netmgr_controller_preflight_failed") == 1
    (event,) = cluster.events
    about = {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "uid-a"}
    assert event["involvedObject"] == about
    assert (event["reason"], event["message"]) == ("PreflightFailed", "no route to the hub")

    # What it fails for is told as it changes.
    assert cluster.reconcile() == (True, [])
    cluster.run_agent("a", failed="no name server answers")
    assert cluster.reconcile() == (True, ["a"])
    assert cluster.condition("a")["message"].endswith(": no name server answers")
    assert len({event["metadata"]["name"] for event in cluster.events}) == 1

    # A pod that was just made has not failed yet, and proves nothing.
    cluster.reports = {}
    cluster.run_agent("a")
    assert cluster.reconcile() == (True, [])
    cluster.run_agent("a", is_ready=True)
    assert cluster.reconcile() == (True, ["a"])
    assert cluster.state("a") == ("True", "PreflightPassed", "its agent serves")
    assert cluster.telemetry.registry.get_sample_value("netmgr_controller_preflight_failed") == 0


@pytest.mark.parametrize("reads_reports", [True, False])
def test_the_younger_of_two_nodes_with_one_range_is_unhealthy_until_the_other_is_gone(
    *, reads_reports: bool
) -> None:
    cluster = Cluster("a", "b", "c")
    for name, created, cidr in (
        ("a", "2026-01-03T00:00:00Z", "10.0.0.0/24"),
        ("b", "2026-01-02T00:00:00Z", "10.0.0.0/16"),
        ("c", "2026-01-01T00:00:00Z", "10.1.0.0/24"),
    ):
        cluster.objects[name]["metadata"]["creationTimestamp"] = created
        cluster.objects[name]["spec"] = {"podCIDRs": [cidr]}
    cluster.nodes.replace(cluster.objects.values())
    if reads_reports:
        cluster.reports = {"a": SOUND}
    assert cluster.reconcile(cluster.writer(reads_reports=reads_reports)) == (True, ["a"])
    status, reason, message = cluster.state("a")
    assert (status, reason) == ("False", "RangesShared")
    assert "those of Node b have the same addresses, of 10.0.0.0/24; if there is no" in message
    sample = "netmgr_controller_nodes_sharing_ranges"
    assert cluster.telemetry.registry.get_sample_value(sample) == 1

    cluster.objects.pop("b")
    cluster.nodes.replace(cluster.objects.values())
    assert cluster.reconcile(cluster.writer(reads_reports=reads_reports)) == (True, ["a"])
    assert cluster.condition("a")["status"] == "True"
    assert cluster.telemetry.registry.get_sample_value(sample) == 0


@pytest.mark.parametrize(
    ("cidrs", "at_fault"),
    [
        ({"c": "10.0.1.0/24", "d": "10.0.1.0/24", "a": "10.0.0.0/16"}, {"d", "a"}),
        ({"c": "10.0.1.0/24", "b": "10.0.0.0/20", "a": "10.0.0.0/16"}, {"b", "a"}),
        ({"c": "10.0.1.0/24", "b": "10.0.2.0/24", "a": "10.0.0.0/16", "d": "10.0.1.0/26"}, "ad"),
        ({"c": "10.0.0.0/16", "b": "10.0.2.0/24", "a": "10.0.2.0/26"}, {"b", "a"}),
        ({"c": "10.0.1.0/24", "b": "10.0.2.0/24"}, ()),
    ],
)
def test_every_node_that_overlaps_an_older_one_is_at_fault(
    cidrs: dict[str, str], at_fault: Collection[str]
) -> None:
    """They are given from the oldest to the youngest."""
    views = [
        NodeView(name, f"uid-{name}", str(age), None, cidrs=(Prefix.parse(cidr),))
        for age, (name, cidr) in enumerate(cidrs.items())
    ]
    assert {shared.younger for shared in shared_ranges(views)} == set(at_fault)


def test_without_reports_nothing_is_looked_at_again_until_a_node_or_a_pod_changes() -> None:
    cluster, now = Cluster("a", b=FULL), 1000.0
    cluster.concurrency.monotonic = lambda: now
    cluster.silent = {"b"}
    writer = cluster.writer(reads_reports=False)
    cluster.run_agent("a", failed="no route to the hub")
    assert cluster.reconcile(writer) == (True, ["a"])
    # What changes too soon after a write is written later, though nothing changes any more then.
    cluster.run_agent("a", failed="no name server answers")
    cluster.leadership.generation = (0, 1)
    assert cluster.reconcile(writer) == (True, [])
    now += CALM_SECONDS
    assert cluster.reconcile(writer) == (True, ["a"])
    assert cluster.condition("a")["message"].endswith(": no name server answers")

    now += CALM_SECONDS
    assert cluster.reconcile(writer) == (True, [])
    cluster.run_agent("a", failed="no route to the hub")
    assert cluster.reconcile(writer) == (True, [])
    cluster.leadership.generation = (0, 2)
    assert cluster.reconcile(writer) == (True, ["a"])


def test_a_node_that_becomes_unhealthy_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(a=SOUND, b=FULL)
    with caplog.at_level(logging.INFO, "netmgr.kube.controller.node_conditions"):
        cluster.reconcile()
    levels = {record.args[0]: record.levelname for record in caplog.records if record.args}
    assert levels == {"a": "INFO", "b": "WARNING"}


def test_a_node_that_changes_its_mind_all_the_time_is_written_once_in_a_while() -> None:
    cluster, now = Cluster("b", a=SOUND), 1000.0
    cluster.concurrency.monotonic = lambda: now
    writer = cluster.writer()
    assert cluster.reconcile(writer) == (True, ["a"])
    cluster.reports.update(a=FULL, b=FULL)
    now += CALM_SECONDS - 1
    assert cluster.reconcile(writer) == (True, ["b"])
    now += 1
    assert cluster.reconcile(writer) == (True, ["a"])


def test_the_time_of_a_transition_stays_while_the_status_does() -> None:
    cluster = Cluster(a=FULL)
    cluster.reconcile()
    long_ago = "2026-01-02T03:04:05Z"
    cluster.condition("a")["lastTransitionTime"] = long_ago
    cluster.nodes.replace(cluster.objects.values())
    cluster.reports = {"a": report(("NatPortsFull", "used: 98 %"))}
    assert cluster.reconcile() == (True, ["a"])
    assert cluster.condition("a")["lastTransitionTime"] == long_ago
    assert cluster.condition("a")["lastHeartbeatTime"] > long_ago
    cluster.reports = {"a": SOUND}
    assert cluster.reconcile() == (True, ["a"])
    assert cluster.condition("a")["lastTransitionTime"] > long_ago


@pytest.mark.parametrize("status", [404, 409])
def test_a_node_that_is_gone_or_changed_is_tried_again_and_delays_no_other(status: int) -> None:
    cluster = Cluster(a=SOUND, b=SOUND)
    cluster.faults = {"a": ApiError("refused", status)}
    assert cluster.reconcile() == (False, ["a", "b"])
    cluster.faults = {}
    assert cluster.reconcile() == (True, ["a"])


@pytest.mark.parametrize("fault", [ApiError("forbidden", 403), ApiUnavailable("away", 503)])
def test_any_other_refusal_is_raised(fault: ApiError) -> None:
    cluster = Cluster(a=SOUND, b=SOUND)
    cluster.faults = {"a": fault}
    with pytest.raises(ApiError, match=str(fault)):
        cluster.reconcile()
    assert isinstance(fault, ApiUnavailable) or cluster.condition("b")["status"] == "True"


class Listener:
    """The turns of a leader that asks exporters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster, self.now = Cluster("n"), 5000.0
        # The module's monotonic clock; other modules keep theirs.
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(node_reports, "time", clock)
        # The reports' own thread asks nobody, since it finds that its lead is lost.
        self.cluster.leadership.lost.set()
        self.lead()

    def lead(self) -> None:
        """Begin as a new leader."""
        self.reports = NodeReports(cast(Leadership, self.cluster.leadership))

    def turn(self, *answering: str, seconds: float = 60.0) -> frozenset[str]:
        """Ask once, and let time pass until the next turn; who is silent then."""
        self.reports.by_node = dict.fromkeys(answering, SOUND)
        self.reports._hear(self.cluster.pods or ())
        self.now += seconds
        return self.reports.silent()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    return Listener(monkeypatch)


def test_a_node_is_silent_after_ten_minutes_until_it_answers(listener: Listener) -> None:
    listener.turn("n")
    assert not any(listener.turn() for _ in range(9))
    assert listener.turn() == {"n"}
    assert not listener.turn("n")


def test_a_preflight_that_fails_for_hours_is_no_silence(listener: Listener) -> None:
    listener.cluster.run_agent("n", failed="dns of example.com: no answer")
    assert not any(listener.turn() for _ in range(120))
    listener.cluster.run_agent("n", is_ready=True)
    assert not any(listener.turn() for _ in range(9))


def test_another_leader_gives_every_node_ten_minutes(listener: Listener) -> None:
    listener.turn("n", seconds=SILENT_SECONDS)
    listener.lead()
    assert not listener.turn(seconds=SILENT_SECONDS)
    listener.now += 1
    assert listener.reports.silent() == {"n"}


def test_what_was_heard_of_nodes_is_forgotten_with_them(listener: Listener) -> None:
    assert listener.turn(seconds=SILENT_SECONDS + 1) == {"n"}
    listener.cluster.nodes.delete({"metadata": {"name": "n", "uid": "uid-n"}})
    assert not listener.turn()
