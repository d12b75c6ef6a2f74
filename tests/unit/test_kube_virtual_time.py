"""A controller's parts in virtual time: what they do while a server is slow, away or out of its
mind, and how often they ask.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace

import pytest

from netmgr.errors import ApiError
from netmgr.kube.api import GONE, Object
from netmgr.kube.election import Candidate, Term
from netmgr.kube.events import AGAIN_SECONDS, MOST, Events, Notice
from netmgr.kube.health import Health, Telemetry
from netmgr.kube.node_conditions import NodeConditions
from netmgr.kube.node_reports import Report
from netmgr.kube.reflector import Reflector
from tests.fakes.api_server import ApiServer
from tests.unit.virtual import Virtual, virtual

NODES = "/api/v1/nodes"
TEN_MINUTES = 600
LEASES = "/apis/coordination.k8s.io/v1/namespaces/netmgr/leases"
LEASE = 15


class Follower:
    def __init__(self) -> None:
        self.known: dict[str, Object] = {}

    def replace(self, objects: Iterable[Object]) -> None:
        self.known = {each["metadata"]["name"]: each for each in objects}

    def change(self, found: Object) -> None:
        self.known[found["metadata"]["name"]] = found

    def delete(self, found: Object) -> None:
        del self.known[found["metadata"]["name"]]


@pytest.fixture
def found() -> Iterator[Virtual]:
    with virtual() as made:
        yield made


def follow(found: Virtual) -> Follower:
    follower = Follower()
    reflector = Reflector(found.api(), NODES, follower, threading.Event(), concurrency=found.time)
    found.start(reflector.run)
    return follower


def add(found: Virtual, *names: str) -> None:
    for name in names:
        found.server.api("kubelet").create(NODES, {"metadata": {"name": name}})


def lists(found: Virtual) -> int:
    return found.server.asked["tested", "LIST", "nodes"]


def test_a_server_that_refuses_each_version_it_has_listed_is_listed_ever_more_seldom(
    found: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Iterator[bytes]:
        raise ApiError("too old resource version", GONE)

    monkeypatch.setattr(ApiServer, "_watch", refuse)
    follow(found)
    found.time.run(10)
    soon = lists(found)
    found.time.run(TEN_MINUTES)
    assert 3 <= soon <= 8
    assert lists(found) - soon < TEN_MINUTES / 15


def test_a_version_that_is_refused_once_is_listed_anew_at_once(
    found: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = follow(found)
    add(found, "a")
    found.time.run(10)
    found.server.go_away()
    found.server.is_away = False
    serve = ApiServer._watch

    def refuse(*_: object) -> Iterator[bytes]:
        monkeypatch.setattr(ApiServer, "_watch", serve)
        raise ApiError("too old resource version", GONE)

    monkeypatch.setattr(ApiServer, "_watch", refuse)
    found.time.run(13)
    assert lists(found) == 2
    add(found, "b")
    found.time.run(13.1)
    assert follower.known.keys() == {"a", "b"}


def test_an_outage_is_followed_quickly_although_there_was_a_long_one_before(found: Virtual) -> None:
    follower = follow(found)
    found.time.run(10)
    found.server.go_away()
    found.time.run(TEN_MINUTES)
    found.server.is_away = False
    add(found, "a")
    found.time.run(TEN_MINUTES + 40)
    assert follower.known.keys() == {"a"}
    found.server.go_away()
    found.server.is_away = False
    add(found, "b")
    found.time.run(TEN_MINUTES + 42)
    assert follower.known.keys() == {"a", "b"}


class Leader:
    """A candidate, and when it led."""

    def __init__(self, found: Virtual, name: str) -> None:
        self._time = found.time
        self.spans: list[tuple[float, float]] = []
        term = Term("netmgr", "lease", name, LEASE)
        health = Health(found.time.monotonic)
        candidate = Candidate(
            found.api(name), term, self._lead, threading.Event(), health, found.time
        )
        found.start(candidate.run, name)

    def _lead(self, lost: threading.Event) -> None:
        began = self._time.monotonic()
        self._time.wait(lost)
        self.spans.append((began, self._time.monotonic()))


SLOW: Mapping[str, Mapping[str, float]] = {
    "nothing is answered": {"GET": math.inf, "PUT": math.inf},
    "each renewal takes its full time": {"GET": 3.9, "PUT": math.inf},
    "the Lease cannot be written": {"PUT": math.inf},
}


@pytest.mark.parametrize("delays", SLOW.values(), ids=SLOW)
@pytest.mark.parametrize("begins", [60 + step / 4 for step in range(8)])
def test_a_leader_that_cannot_renew_works_no_longer_than_its_lease(
    found: Virtual, delays: Mapping[str, float], begins: float
) -> None:
    renewals: list[float] = []
    found.server.follow(LEASES, lambda *_: renewals.append(found.time.monotonic()))
    leader = Leader(found, "a")
    found.time.run(begins)
    found.server.delays = dict(delays)
    found.time.run(begins + 60)
    ((_, ended),) = leader.spans
    assert ended - renewals[-1] <= LEASE * 2 / 3 + 0.3


def test_another_leads_only_after_the_former_leader_has_stopped(found: Virtual) -> None:
    former = Leader(found, "a")
    found.time.run(10)
    other = Leader(found, "b")
    found.time.run(60)
    found.server.delays = {"PUT": math.inf}
    found.time.run(90)
    found.server.delays = {}
    found.time.run(120)
    found.time.kill("a")
    found.time.kill("b")
    assert former.spans
    assert all(began > former.spans[0][1] for began, _ in (*former.spans[1:], *other.spans))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_work_that_dies_of_a_bug_ends_its_thread_and_frees_the_lease(found: Virtual) -> None:
    def die(_lost: threading.Event) -> None:
        found.time.sleep(5)
        raise ZeroDivisionError

    ended = threading.Event()
    health = Health(found.time.monotonic)
    term = Term("netmgr", "lease", "a", LEASE)
    candidate = Candidate(found.api("a"), term, die, ended, health, found.time)
    found.start(candidate.run, "a")
    with pytest.raises(ZeroDivisionError):
        found.time.run(10)
    assert not ended.is_set(), "the process ends with the thread, not in order"
    (lease,) = found.server.objects(LEASES).values()
    assert "holderIdentity" not in lease["spec"]


def notices(number: int) -> list[Notice]:
    return [
        Notice("Node", f"n{each}", f"uid-{each}", "NodePoolFull", "full") for each in range(number)
    ]


def events(found: Virtual) -> dict[str, Object]:
    return found.server.objects("/api/v1/namespaces/default/events")


def reports(found: Virtual, number: int, rounds: Iterable[float]) -> list[tuple[bool, int]]:
    """At these times: whether all was reported, and how many Events there are."""
    seen: list[tuple[bool, int]] = []
    reported = Events(found.leadership())

    def report() -> None:
        for seconds in rounds:
            found.time.sleep(seconds - found.time.monotonic())
            seen.append((reported.report(notices(number)), len(events(found))))

    found.start(report)
    found.time.run(2 * AGAIN_SECONDS)
    return seen


def test_thousands_of_refusals_are_reported_over_many_rounds(found: Virtual) -> None:
    number = 3 * MOST + 1
    seen = reports(found, number, range(1, 6))
    assert seen == [*((False, times * MOST) for times in (1, 2, 3)), (True, number), (True, number)]
    assert found.server.asked["tested", "POST", "events"] == number


def test_events_that_could_not_be_written_are_written_once_the_server_is_back(
    found: Virtual,
) -> None:
    found.server.is_away = True
    found.time.at(5, lambda: setattr(found.server, "is_away", False))
    assert reports(found, 3, (1, 2, 6, 7)) == [(False, 0), (False, 0), (True, 3), (True, 3)]


def test_what_lasts_is_reported_again_within_the_hour_that_an_event_lives(found: Virtual) -> None:
    seen = reports(found, 2, (1, AGAIN_SECONDS, AGAIN_SECONDS + 2))
    assert seen == [(True, 2)] * 3
    (again,) = {each["lastTimestamp"] for each in events(found).values()}
    (first,) = {each["firstTimestamp"] for each in events(found).values()}
    assert again > first
    assert found.server.asked["tested", "PATCH", "events"] == 2


def test_a_node_that_was_registered_anew_meanwhile_is_left_for_the_next_round(
    found: Virtual,
) -> None:
    leadership = found.leadership()
    kubelet, body = found.server.api("kubelet"), {"metadata": {"name": "a"}}
    leadership.nodes.change(kubelet.create(NODES, body))
    found.server.answer("kubelet", "DELETE", f"{NODES}/a", None, "")
    kubelet.create(NODES, body)
    leadership.agents.replace(())
    reports = SimpleNamespace(by_node={"a": Report()}, silent=frozenset)
    conditions = NodeConditions(leadership, reports, Telemetry(leadership.api))
    outcome: list[bool] = []
    found.start(lambda: outcome.append(conditions.reconcile()))
    found.time.run(1)
    assert outcome == [False]
    assert "status" not in found.server.objects(NODES)["a"]
