"""Of which Nodes nothing is heard for ten minutes, and that their condition is Unknown then."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from netmgr.kube import node_reports
from netmgr.kube.agent_pods import AgentPod
from netmgr.kube.concurrency import Threads
from netmgr.kube.health import Telemetry
from netmgr.kube.node_conditions import NodeConditions
from netmgr.kube.node_reports import SILENT_SECONDS, NodeReports, Report
from netmgr.kube.nodes import HEALTHY, ClusterNodes

TURN = 60.0


class Cluster:
    """Nodes as an API server keeps them, and the turns of a leader that asks their exporters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 5000.0
        self.conditions: dict[str, dict[str, str]] = {}
        self.pods: list[AgentPod] = []
        self.answering: set[str] = set()
        self._version = 1
        self._nodes = ClusterNodes("pool", threading.Event())
        # The modules' monotonic clock; other modules keep theirs.
        fake = SimpleNamespace(monotonic=lambda: self.now, time=time.time)
        monkeypatch.setattr(node_reports, "time", fake)
        concurrency: Any = Threads()
        concurrency.monotonic = fake.monotonic
        self.leadership: Any = SimpleNamespace(
            api=self,
            identity="leader",
            nodes=self._nodes,
            agents=SimpleNamespace(pods=lambda: self.pods),
            lost=threading.Event(),
            beat=lambda: None,
            concurrency=concurrency,
            # Each round looks; when none has to is in test_kube_idle_rounds.py.
            generation=object(),
        )
        self.reports = self._reports()
        telemetry: Any = SimpleNamespace(preflight_failed=SimpleNamespace(set=lambda _: None))
        self._telemetry: Telemetry = telemetry

    def _reports(self) -> NodeReports:
        """Reports whose own thread asks nobody, since it finds that its lead is lost."""
        self.leadership.lost.set()
        made = NodeReports(self.leadership, ())
        self.leadership.lost.clear()
        return made

    def add(self, name: str) -> None:
        self.conditions[name] = {}
        self._nodes.change(self._node(name))

    def _node(self, name: str) -> dict[str, Any]:
        self._version += 1
        metadata = {"name": name, "uid": name, "resourceVersion": str(self._version)}
        metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
        found = [self.conditions[name]] if self.conditions[name] else []
        return {"metadata": metadata, "spec": {}, "status": {"conditions": found}}

    def patch_by_key(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        name = path.split("/")[4]
        (self.conditions[name],) = body["status"]["conditions"]
        return self._node(name)

    def create(self, *_: object) -> None:
        """Events are of no interest here."""

    def turn(self, *, seconds: float = TURN) -> None:
        """Ask once, write by the answers, and let time pass until the next turn."""
        self.reports._reports = dict.fromkeys(self.answering, Report())
        self.reports._hear(self.pods)
        # Made anew, since one writes a Node's condition every ten seconds at most.
        NodeConditions(self.leadership, self.reports, self._telemetry).reconcile()
        self.now += seconds

    def turns(self, minutes: int) -> None:
        for _ in range(minutes):
            self.turn()

    def condition(self, name: str) -> tuple[str, str]:
        found = self.conditions[name]
        assert found.get("type") in (HEALTHY, None)
        return found.get("status", ""), found.get("reason", "")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def pod(node: str, *, is_ready: bool = True, failed: str = "") -> AgentPod:
    return AgentPod(f"agent-{node}", "u", "1", node, is_ready, ("10.0.0.1", 9119), None, failed)


def test_after_ten_silent_minutes_the_condition_is_unknown_until_the_next_answer(
    cluster: Cluster,
) -> None:
    cluster.add("n")
    cluster.pods, cluster.answering = [pod("n")], {"n"}
    cluster.turn()
    assert cluster.condition("n") == ("True", "NoProblems")
    cluster.answering = set()
    cluster.turns(10)
    assert cluster.condition("n") == ("True", "NoProblems")
    cluster.turn()
    assert cluster.condition("n") == ("Unknown", "NoReport")
    cluster.answering = {"n"}
    cluster.turn()
    assert cluster.condition("n") == ("True", "NoProblems")


def test_a_node_without_a_condition_gets_none_for_being_silent(cluster: Cluster) -> None:
    cluster.add("n")
    cluster.turns(20)
    assert cluster.condition("n") == ("", "")


def test_a_node_whose_agent_is_gone_is_silent_too(cluster: Cluster) -> None:
    cluster.add("n")
    cluster.pods, cluster.answering = [pod("n")], {"n"}
    cluster.turn()
    cluster.pods, cluster.answering = [], set()
    cluster.turns(11)
    assert cluster.condition("n") == ("Unknown", "NoReport")


def test_an_agent_that_is_replaced_while_nodes_are_asked_makes_no_node_silent(
    cluster: Cluster,
) -> None:
    cluster.add("n")
    cluster.pods, cluster.answering = [pod("n")], {"n"}
    cluster.turns(30)
    for pods in ([], [pod("n", is_ready=False)]):
        cluster.pods, cluster.answering = pods, set()
        cluster.turn()
        assert cluster.condition("n") == ("True", "NoProblems")


def test_a_preflight_that_passes_after_hours_is_followed_by_no_silence(cluster: Cluster) -> None:
    cluster.add("n")
    cluster.pods = [pod("n", is_ready=False, failed="dns of example.com: no answer")]
    cluster.turns(120)
    assert cluster.condition("n") == ("False", "PreflightFailed")
    cluster.pods = [pod("n")]
    for _ in range(9):
        cluster.turn()
        assert cluster.condition("n") == ("True", "PreflightPassed")


def test_another_leader_gives_every_node_ten_minutes(cluster: Cluster) -> None:
    cluster.add("n")
    cluster.pods, cluster.answering = [pod("n")], {"n"}
    cluster.turn()
    cluster.answering = set()
    cluster.turns(9)
    cluster.reports = cluster._reports()
    cluster.turns(10)
    assert cluster.reports.silent() == frozenset()
    cluster.now += 1
    assert cluster.reports.silent() == {"n"}


def test_what_was_heard_of_nodes_is_forgotten_with_them(cluster: Cluster) -> None:
    cluster.add("n")
    cluster.turn(seconds=SILENT_SECONDS + 1)
    assert cluster.reports.silent() == {"n"}
    cluster.leadership.nodes.delete({"metadata": {"name": "n", "uid": "n"}})
    cluster.turn()
    assert cluster.reports.silent() == frozenset()
