"""A controller and its parts in virtual time: what they do while a server is slow, away or out of
its mind, how often they ask, and that rounds in which nothing changes miss nothing that time
brings.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from netmgr.errors import ApiError
from netmgr.kube.client.api import GONE, Object
from netmgr.kube.client.reflector import Reflector
from netmgr.kube.controller import agent_ranges, assigner, node_conditions, tainting
from netmgr.kube.controller.allocations import NodeAllocations
from netmgr.kube.controller.election import Candidate, Term
from netmgr.kube.controller.events import AGAIN_SECONDS, MOST, Events, WarningEvent
from netmgr.kube.controller.health import ControllerHealth, Telemetry
from netmgr.kube.controller.node_taints import UnhealthyTaint
from netmgr.kube.controller.nodes import HEALTHY, UNHEALTHY_TAINT
from netmgr.kube.controller.plan_watch import PlanWatch
from tests.fakes.api_server import ApiServer
from tests.kubernetes.controllers import lock_of, write_plan
from tests.unit.virtual import POOL_LABEL, QUARANTINE_SECONDS, Virtual, virtual

NODES = "/api/v1/nodes"
TEN_MINUTES = 600
LEASES = "/apis/coordination.k8s.io/v1/namespaces/netmgr/leases"
LEASE = 15


@pytest.fixture
def cluster() -> Iterator[Virtual]:
    with virtual() as made:
        yield made


def follow(cluster: Virtual) -> Callable[[], set[str]]:
    """Follows Nodes; gives the names of those that are known."""
    nodes = cluster.leadership().nodes
    reflector = Reflector(cluster.api(), NODES, nodes, threading.Event(), concurrency=cluster.time)
    cluster.start(reflector.run)
    return lambda: {view.name for view in nodes.views()}


def add(cluster: Virtual, *names: str) -> None:
    for name in names:
        body = {"metadata": {"name": name, "labels": {POOL_LABEL: "gpu"}}}
        cluster.server.api("kubelet").create(NODES, body)


def lists(cluster: Virtual) -> int:
    return cluster.server.asked["tested", "LIST", "nodes"]


def test_a_server_that_refuses_each_version_it_has_listed_is_listed_ever_more_seldom(
    cluster: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Iterator[bytes]:
        raise ApiError("too old resource version", GONE)

    monkeypatch.setattr(ApiServer, "_watch", refuse)
    follow(cluster)
    cluster.time.run(10)
    soon = lists(cluster)
    cluster.time.run(TEN_MINUTES)
    assert 3 <= soon <= 8
    assert lists(cluster) - soon < TEN_MINUTES / 15


def test_a_version_that_is_refused_once_is_listed_anew_at_once(
    cluster: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = follow(cluster)
    add(cluster, "a")
    cluster.time.run(10)
    cluster.server.go_away()
    cluster.server.is_away = False
    serve = ApiServer._watch

    def refuse(*_: object) -> Iterator[bytes]:
        monkeypatch.setattr(ApiServer, "_watch", serve)
        raise ApiError("too old resource version", GONE)

    monkeypatch.setattr(ApiServer, "_watch", refuse)
    cluster.time.run(13)
    assert lists(cluster) == 2
    add(cluster, "b")
    cluster.time.run(13.1)
    assert known() == {"a", "b"}


def test_an_outage_is_followed_quickly_also_after_a_long_one(cluster: Virtual) -> None:
    known = follow(cluster)
    cluster.time.run(10)
    cluster.server.go_away()
    cluster.time.run(TEN_MINUTES)
    cluster.server.is_away = False
    add(cluster, "a")
    cluster.time.run(TEN_MINUTES + 40)
    assert known() == {"a"}
    cluster.server.go_away()
    cluster.server.is_away = False
    add(cluster, "b")
    cluster.time.run(TEN_MINUTES + 42)
    assert known() == {"a", "b"}


class Leader:
    """A candidate, and when it led."""

    def __init__(self, cluster: Virtual, name: str) -> None:
        self._time = cluster.time
        self.spans: list[tuple[float, float]] = []
        term = Term("netmgr", "lease", name, LEASE)
        health = ControllerHealth(cluster.time.monotonic)
        candidate = Candidate(
            cluster.api(name), term, self._lead, threading.Event(), health, cluster.time
        )
        cluster.start(candidate.run, name)

    def _lead(self, lost: threading.Event) -> None:
        began = self._time.monotonic()
        self._time.wait(lost)
        self.spans.append((began, self._time.monotonic()))


def test_a_follower_waits_ever_longer_and_by_chance_while_the_server_is_away(
    cluster: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []
    monkeypatch.setattr(
        ControllerHealth, "beat", lambda *_: attempts.append(cluster.time.monotonic())
    )
    cluster.server.is_away = True
    Leader(cluster, "a")
    cluster.time.run(TEN_MINUTES)
    waits = [after - before for before, after in pairwise(attempts)]
    longest = [LEASE / 8, LEASE / 4, LEASE / 2, *[LEASE] * (len(waits) - 3)]
    parts = [wait / most for wait, most in zip(waits, longest, strict=True)]
    assert all(0.49 < part < 1.01 for part in parts), parts
    assert len({round(part, 2) for part in parts}) > 1, "by chance"


SLOW: Mapping[str, Mapping[str, float]] = {
    "nothing is answered": {"GET": math.inf, "PUT": math.inf},
    "each renewal takes its full time": {"GET": 3.9, "PUT": math.inf},
    "the Lease cannot be written": {"PUT": math.inf},
}


@pytest.mark.parametrize("delays", SLOW.values(), ids=SLOW)
@pytest.mark.parametrize("begins", [60 + step / 4 for step in range(8)])
def test_a_leader_that_cannot_renew_works_no_longer_than_its_lease(
    cluster: Virtual, delays: Mapping[str, float], begins: float
) -> None:
    renewals: list[float] = []
    cluster.server.follow(LEASES, lambda *_: renewals.append(cluster.time.monotonic()))
    leader = Leader(cluster, "a")
    cluster.time.run(begins)
    cluster.server.delays = dict(delays)
    cluster.time.run(begins + 60)
    ((_, ended),) = leader.spans
    assert ended - renewals[-1] <= LEASE * 2 / 3 + 0.3


def test_another_leads_only_after_the_former_leader_has_stopped(cluster: Virtual) -> None:
    former = Leader(cluster, "a")
    cluster.time.run(10)
    other = Leader(cluster, "b")
    cluster.time.run(60)
    cluster.server.delays = {"PUT": math.inf}
    cluster.time.run(90)
    cluster.server.delays = {}
    cluster.time.run(120)
    cluster.time.kill("a")
    cluster.time.kill("b")
    assert former.spans
    assert all(began > former.spans[0][1] for began, _ in (*former.spans[1:], *other.spans))


def test_work_that_dies_of_a_bug_ends_its_thread_and_frees_the_lease(cluster: Virtual) -> None:
    def die(_lost: threading.Event) -> None:
        cluster.time.sleep(5)
        raise ZeroDivisionError

    ended = threading.Event()
    health = ControllerHealth(cluster.time.monotonic)
    term = Term("netmgr", "lease", "a", LEASE)
    candidate = Candidate(cluster.api("a"), term, die, ended, health, cluster.time)
    cluster.start(candidate.run, "a")
    with pytest.raises(ZeroDivisionError):
        cluster.time.run(10)
    assert not ended.is_set(), "the process ends with the thread, not in order"
    (lease,) = cluster.server.objects(LEASES).values()
    assert "holderIdentity" not in lease["spec"]


def notices(number: int) -> list[WarningEvent]:
    return [
        WarningEvent("Node", f"n{i}", f"uid-{i}", "NodePoolFull", "full") for i in range(number)
    ]


def events(cluster: Virtual) -> dict[str, Object]:
    return cluster.server.objects("/api/v1/namespaces/default/events")


def reports(cluster: Virtual, number: int, rounds: Iterable[float]) -> list[tuple[bool, int]]:
    """At these times: whether all was reported, and how many Events there are."""
    seen: list[tuple[bool, int]] = []
    reported = Events(cluster.leadership())

    def report() -> None:
        for seconds in rounds:
            cluster.time.sleep(seconds - cluster.time.monotonic())
            seen.append((reported.report(notices(number)), len(events(cluster))))

    cluster.start(report)
    cluster.time.run(2 * AGAIN_SECONDS)
    return seen


def test_thousands_of_refusals_are_reported_over_many_rounds(cluster: Virtual) -> None:
    number = 3 * MOST + 1
    seen = reports(cluster, number, range(1, 6))
    assert seen == [*((False, times * MOST) for times in (1, 2, 3)), (True, number), (True, number)]
    assert cluster.server.asked["tested", "POST", "events"] == number


def test_events_are_written_once_the_server_is_back(cluster: Virtual) -> None:
    cluster.server.is_away = True
    cluster.time.at(5, lambda: setattr(cluster.server, "is_away", False))
    assert reports(cluster, 3, (1, 2, 6, 7)) == [(False, 0), (False, 0), (True, 3), (True, 3)]


def test_what_lasts_is_reported_again_within_the_hour_that_an_event_lives(cluster: Virtual) -> None:
    seen = reports(cluster, 2, (1, AGAIN_SECONDS, AGAIN_SECONDS + 2))
    assert seen == [(True, 2)] * 3
    (again,) = {event["lastTimestamp"] for event in events(cluster).values()}
    (first,) = {event["firstTimestamp"] for event in events(cluster).values()}
    assert again > first
    assert cluster.server.asked["tested", "PATCH", "events"] == 2


CAPACITY = 2


@pytest.fixture
def led(cluster: Virtual, tmp_path: Path) -> Virtual:
    """The cluster with a leader, whose plan has room for two Nodes."""
    plan = write_plan(tmp_path, f"{{gpu: {{nodes: {CAPACITY}, surge: 0, pods_per_node: 4000}}}}")
    allocations = NodeAllocations(lock_of(plan), "train")
    assert allocations.capacity == {"gpu": CAPACITY}
    cluster.start_controller(PlanWatch(lambda: allocations, ()))
    cluster.time.run(1)
    return cluster


def delete(cluster: Virtual, name: str) -> None:
    cluster.server.answer("kubelet", "DELETE", f"{NODES}/{name}", None, "")


def ranges(cluster: Virtual, name: str) -> list[str]:
    return cluster.server.objects(NODES)[name]["spec"].get("podCIDRs", [])


def asked(cluster: Virtual) -> int:
    """Requests but those of the election."""
    return sum(n for (_, _, what), n in cluster.server.asked.items() if what != "leases")


def test_nothing_is_decided_or_asked_while_nothing_changes(
    led: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(led, "a")
    labels = {"app.kubernetes.io/name": "netmgr", "app.kubernetes.io/component": "agent"}
    pod = {
        "metadata": {"name": "agent-a", "labels": labels},
        "spec": {"nodeName": "a", "containers": []},
    }
    led.server.api("kubelet").create("/api/v1/namespaces/netmgr/pods", pod)
    led.time.run(30)
    assert ranges(led, "a")
    settled = asked(led)
    # One that is decided again ends in an error, and its controller with it.
    for module, name in (
        (assigner, "decide"),
        (agent_ranges, "wanted_ranges"),
        (node_conditions, "_wanted"),
        (tainting, "decide"),
    ):
        monkeypatch.setattr(module, name, None)
    led.time.run(200)
    assert asked(led) == settled
    add(led, "b")
    monkeypatch.undo()
    led.time.run(210)
    assert ranges(led, "b"), "the controller still works"


def test_an_allocation_is_given_out_when_its_cooldown_is_over(led: Virtual) -> None:
    add(led, "a", "b")
    led.time.run(10)
    former = ranges(led, "a")
    delete(led, "a")
    add(led, "c")
    led.time.run(10 + QUARANTINE_SECONDS - 1)
    assert not ranges(led, "c")
    led.time.run(10 + QUARANTINE_SECONDS + 5)
    assert ranges(led, "c") == former


def test_a_node_that_cannot_be_served_is_reported_for_as_long_as_that_lasts(led: Virtual) -> None:
    add(led, "a", "b", "c")
    led.time.run(10)
    (first,) = events(led).values()
    led.time.run(2 * AGAIN_SECONDS)
    (again,) = events(led).values()
    assert (again["reason"], again["involvedObject"]["name"]) == ("NodePoolFull", "c")
    assert again["lastTimestamp"] > first["lastTimestamp"]
    delete(led, "c")
    led.time.run(2 * AGAIN_SECONDS + 5)
    add(led, "d")
    led.time.run(2 * AGAIN_SECONDS + 10)
    assert len(events(led)) == 2


def test_a_node_is_tainted_when_time_alone_has_passed(cluster: Virtual) -> None:
    leadership, kubelet = cluster.leadership(), cluster.server.api("kubelet")
    for name, status in (("a", "True"), ("b", "False")):
        condition = {"type": HEALTHY, "status": status, "reason": "Tested"}
        body = {"metadata": {"name": name}, "status": {"conditions": [condition]}}
        leadership.nodes.change(kubelet.create(NODES, body))
    taint = UnhealthyTaint(leadership, Telemetry(cluster.api()), Fraction(1, 2), 60)

    def work() -> None:
        while True:
            taint.reconcile()
            cluster.time.sleep(2)

    cluster.start(work)
    cluster.time.run(59)
    assert not any(node["spec"].get("taints") for node in cluster.server.objects(NODES).values())
    cluster.time.run(65)
    node = cluster.server.objects(NODES)["b"]
    assert [taint["key"] for taint in node["spec"]["taints"]] == [UNHEALTHY_TAINT]
    assert not cluster.server.objects(NODES)["a"]["spec"].get("taints")
