"""What netmgr relies on of an API server: the same of the real one and of the one in memory.

Both are asked through netmgr's own client. The real one is that of tests/kubernetes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count, islice, zip_longest
from pathlib import Path
from typing import Any

import pytest

from netmgr.errors import ApiError
from netmgr.kube.client import api
from netmgr.kube.client.agent_pods import SELECTOR
from netmgr.kube.client.api import (
    CONFLICT,
    GONE,
    INVALID,
    NOT_FOUND,
    Api,
    Object,
    connect,
    is_outdated,
)
from netmgr.kube.client.concurrency import THREADS, Concurrency
from netmgr.kube.controller import election
from netmgr.kube.controller.election import Candidate, Lease, Term
from netmgr.kube.controller.health import ControllerHealth
from tests.fakes.api_server import Answer, ApiServer
from tests.kubernetes import programs
from tests.kubernetes.control_plane import ControlPlane
from tests.waiting import PATIENCE, eventually

NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/contract/pods"
CLAIMS = "/api/v1/namespaces/contract/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/contract/leases"

Delete = Callable[[str], object]
_numbers = count()


class Server:
    """A server of either kind, how an administrator asks it, and how it forgets old versions."""

    def __init__(self, client: Api, delete: Delete, forget: Callable[[], None]) -> None:
        self.api = client
        self.delete = delete
        self.forget = forget

    def events(
        self, path: str, since: str, seconds: float = PATIENCE, **query: str
    ) -> Iterator[Object]:
        """What a watch from a version on says, for so long at most."""
        longest = {"timeoutSeconds": int(seconds)}
        asked = {"watch": "true", "resourceVersion": since, **longest, **query}
        return self.api.stream(path, asked)

    def first_events(
        self, number: int, path: str, since: str, of: str, **query: str
    ) -> list[Object]:
        """So many events of objects whose names begin so, as soon as they are there."""
        with closing(self.events(path, since, **query)) as events:
            ours = (each for each in events if each["object"]["metadata"]["name"].startswith(of))
            return list(islice(ours, number))


def in_memory() -> Server:
    server = ApiServer(THREADS)
    answer, one_at_a_time = server.answer, threading.Lock()

    def answered(*request: Any) -> Answer:
        # In virtual time one thread runs at a time; here two candidates ask at once.
        with one_at_a_time:
            return answer(*request)

    server.answer = answered  # type: ignore[method-assign]  # for the test alone

    def delete(path: str) -> None:
        server.answer("tested", "DELETE", path, None, "")

    return Server(server.api("tested"), delete, lambda: None)


def real(plane: ControlPlane, folder: Path) -> Server:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "contract"}}
    plane.answer("POST", "/api/v1/namespaces", body)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    plane.answer("POST", "/api/v1/namespaces/contract/serviceaccounts", account)
    path = plane.write_kubeconfig(folder / "kubeconfig", admin=plane.admin)

    def delete(path: str) -> None:
        plane.ask("DELETE", path, {"gracePeriodSeconds": 0})

    def forget() -> None:
        # Its watch cache still has what etcd forgets: a new server has neither.
        plane.stop_server()
        plane.compact()
        plane.start_server()

    return Server(connect(path, folder, {}), delete, forget)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real one of this module's own, since its versions are to be few."""
    if reason := programs.missing():
        pytest.skip(reason)
    with ControlPlane(tmp_path_factory.mktemp("contract")).running() as made:
        yield made


@pytest.fixture(
    params=["in memory", pytest.param("real", marks=[pytest.mark.kubernetes, pytest.mark.programs])]
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Server:
    if request.param == "in memory":
        return in_memory()
    return real(request.getfixturevalue("plane"), tmp_path)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on a busy machine takes longer than a controller would wait."""
    monkeypatch.setattr(election, "REQUEST_SECONDS", PATIENCE)
    monkeypatch.setattr(api, "CONNECT_SECONDS", PATIENCE)


@pytest.fixture
def name() -> str:
    return f"n{next(_numbers)}"


def node(name: str, **spec: object) -> Object:
    metadata = {"name": name, "labels": {"pool": "gpu"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}


def pod(name: str, component: str = "agent") -> Object:
    labels = {"app.kubernetes.io/name": "netmgr", "app.kubernetes.io/component": component}
    metadata = {"name": name, "labels": labels}
    spec: Object = {"nodeName": "somewhere", "automountServiceAccountToken": False}
    spec["containers"] = [{"name": "agent", "image": "netmgr"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claim(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def version(found: Object) -> int:
    return int(found["metadata"]["resourceVersion"])


def refused(status: int, ask: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask()
    assert caught.value.status == status, caught.value.message
    return caught.value


def test_what_is_created_has_an_identity_and_is_read_back(server: Server, name: str) -> None:
    made = server.api.create(NODES, node(name))
    again = server.api.get(f"{NODES}/{name}")
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert again["metadata"]["labels"]["pool"] == "gpu"
    assert (again["metadata"]["uid"], version(again)) == (made["metadata"]["uid"], version(made))
    refused(CONFLICT, lambda: server.api.create(NODES, node(name)))


@pytest.mark.parametrize("path", [f"{NODES}/nobody", f"{LEASES}/nobody"])
def test_what_is_not_there_is_not_found(server: Server, path: str) -> None:
    refused(NOT_FOUND, lambda: server.api.get(path))
    refused(NOT_FOUND, lambda: server.api.patch(path, {"metadata": {"labels": {"a": "b"}}}))


def test_a_merge_patch_replaces_lists_and_removes_by_null(server: Server, name: str) -> None:
    taints = [{"key": key, "effect": "NoSchedule"} for key in ("a", "b")]
    made = server.api.create(NODES, node(name, taints=taints))
    body: Object = {
        "metadata": {"labels": {"pool": None, "new": "1"}},
        "spec": {"taints": taints[1:]},
    }
    found = server.api.patch(f"{NODES}/{name}", body)
    assert found["metadata"]["labels"] == {"new": "1"}
    assert [each["key"] for each in found["spec"]["taints"]] == ["b"]
    assert version(found) > version(made)


def test_a_patch_that_changes_nothing_makes_no_version(server: Server, name: str) -> None:
    made = server.api.create(NODES, node(name))
    found = server.api.patch(f"{NODES}/{name}", {"metadata": {"labels": {"pool": "gpu"}}})
    assert version(found) == version(made)
    selector = f"metadata.name={name}"
    assert not list(server.events(NODES, str(version(made)), 1, fieldSelector=selector))


@pytest.mark.parametrize(
    ("keys", "status"),
    [(("uid",), INVALID), (("resourceVersion",), CONFLICT), (("uid", "resourceVersion"), CONFLICT)],
)
@pytest.mark.parametrize("by_key", [False, True])
def test_a_patch_of_a_former_object_of_the_name_is_outdated(
    server: Server, name: str, keys: tuple[str, ...], status: int, *, by_key: bool
) -> None:
    former = server.api.create(NODES, node(name))
    server.delete(f"{NODES}/{name}")
    current = server.api.create(NODES, node(name))
    patch, path = server.api.patch, f"{NODES}/{name}"
    if by_key:
        patch, path = server.api.patch_by_key, f"{path}/status"

    def label(of: Object) -> Object:
        metadata = {key: of["metadata"][key] for key in keys}
        return patch(path, {"metadata": metadata | {"labels": {"a": "b"}}})

    assert is_outdated(refused(status, lambda: label(former)))
    assert label(current)["metadata"]["labels"]["a"] == "b"


def test_pod_cidrs_are_set_once(server: Server, name: str) -> None:
    server.api.create(NODES, node(name))

    def assign(cidr: str) -> Object:
        body = {"spec": {"podCIDR": cidr, "podCIDRs": [cidr]}}
        return server.api.patch(f"{NODES}/{name}", body)

    assert assign("10.1.0.0/24")["spec"]["podCIDRs"] == ["10.1.0.0/24"]
    assert not is_outdated(refused(INVALID, lambda: assign("10.2.0.0/24")))
    assert server.api.get(f"{NODES}/{name}")["spec"]["podCIDRs"] == ["10.1.0.0/24"]


def condition(kind: str, status: str, reason: str) -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": ""}


def test_conditions_are_merged_by_type_through_the_status_alone(server: Server, name: str) -> None:
    server.api.create(NODES, node(name))
    path = f"{NODES}/{name}/status"
    for kind, status in (("One", "True"), ("Other", "True"), ("One", "False")):
        body: Object = {"status": {"conditions": [condition(kind, status, "Because")]}}
        server.api.patch_by_key(path, body | {"spec": {"unschedulable": True}})
    found = server.api.get(f"{NODES}/{name}")
    shown = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert shown == {"One": "False", "Other": "True"}
    assert not found["spec"].get("unschedulable")
    server.api.patch(f"{NODES}/{name}", {"status": {"conditions": []}})
    assert len(server.api.get(f"{NODES}/{name}")["status"]["conditions"]) == 2


def test_a_pods_annotation_is_written_through_its_status(server: Server, name: str) -> None:
    server.api.create(PODS, pod(name))
    body: Object = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "agent", "image": "other"}]},
    }
    found = server.api.patch(f"{PODS}/{name}/status", body)
    assert found["metadata"]["annotations"]["a"] == "b"
    assert found["spec"]["containers"][0]["image"] == "netmgr"
    assert found["metadata"]["namespace"] == "contract"


def test_a_list_has_pages_of_one_version(server: Server) -> None:
    label = f"pages-{next(_numbers)}"
    names = [f"{label}-{number}" for number in range(5)]
    for each in names:
        body = claim(each)
        body["metadata"]["labels"] = {"of": label}
        server.api.create(CLAIMS, body)
    query = {"labelSelector": f"of={label}", "limit": 2}
    page = server.api.get(CLAIMS, query)
    first = version(page)
    found = [each["metadata"]["name"] for each in page["items"]]
    server.delete(f"{CLAIMS}/{names[4]}")
    while token := page["metadata"].get("continue"):
        page = server.api.get(CLAIMS, query | {"continue": token})
        found += [each["metadata"]["name"] for each in page["items"]]
        assert len(page["items"]) <= 2
    assert found == names, "as they were when the first page was read"
    assert version(page) == first


def test_a_page_that_nobody_knows_is_refused(server: Server) -> None:
    with pytest.raises(ApiError) as caught:
        server.api.get(CLAIMS, {"limit": 1, "continue": "bm9uc2Vuc2U"})
    assert caught.value.status in (400, GONE)


def test_a_watch_tells_every_change_since_a_version_in_order(server: Server, name: str) -> None:
    since = str(version(server.api.get(NODES)))
    server.api.create(NODES, node(name))
    server.api.patch(f"{NODES}/{name}", {"metadata": {"labels": {"a": "1"}}})
    server.delete(f"{NODES}/{name}")
    found = server.first_events(3, NODES, since, name)
    assert [each["type"] for each in found] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [version(each["object"]) for each in found]
    assert versions == sorted(set(versions)), "a deletion has a version of its own"
    assert found[-1]["object"]["metadata"]["labels"]["a"] == "1"


def test_a_watch_goes_on_with_what_comes_later_and_ends_in_time(server: Server, name: str) -> None:
    since = str(version(server.api.get(NODES)))
    names = [f"{name}-{number}" for number in range(3)]
    server.api.create(NODES, node(names[0]))
    with closing(server.events(NODES, since)) as events:
        for expected, later in zip_longest(names, names[1:]):
            added = next(event for event in events if event["type"] == "ADDED")
            assert added["object"]["metadata"]["name"] == expected
            if later:
                server.api.create(NODES, node(later))
    began = time.monotonic()
    list(server.events(LEASES, since, 2))
    assert 1.5 < time.monotonic() - began < PATIENCE


def test_lists_and_watches_select_agents_pods(server: Server, name: str) -> None:
    since = str(version(server.api.get(PODS)))
    for component in ("controller", "agent", "nat-host"):
        server.api.create(PODS, pod(f"{name}-{component}", component))
    query = {"labelSelector": SELECTOR}
    wanted = {f"{name}-agent", f"{name}-nat-host"}
    listed = {each["metadata"]["name"] for each in server.api.get(PODS, query)["items"]}
    events = server.first_events(2, PODS, since, f"{name}-", **query)
    assert {each for each in listed if each.startswith(f"{name}-")} == wanted
    assert {each["object"]["metadata"]["name"] for each in events} == wanted


def status_of_a_watch(server: Server, since: str, seconds: float) -> int:
    """How a watch is refused: at once, or by its first event."""
    try:
        with closing(server.events(NODES, since, seconds)) as events:
            first = next(events, {"type": ""})
    except ApiError as error:
        return error.status
    return int(first["object"]["code"]) if first["type"] == "ERROR" else 200


def test_a_version_that_the_server_does_not_know_any_more_is_gone(
    server: Server, name: str
) -> None:
    server.api.create(NODES, node(name))
    server.forget()
    current = server.api.get(NODES)["metadata"]["resourceVersion"]
    assert status_of_a_watch(server, "2", PATIENCE) == GONE
    assert status_of_a_watch(server, current, 1) == 200


def test_a_null_removes_a_claim_and_a_former_version_is_a_conflict(
    server: Server, name: str
) -> None:
    made = server.api.create(CLAIMS, claim(name, a="1", b="2"))
    path, based = f"{CLAIMS}/{name}", {"resourceVersion": made["metadata"]["resourceVersion"]}
    found = server.api.patch(path, {"metadata": based, "data": {"a": None, "c": "3"}})
    assert found["data"] == {"b": "2", "c": "3"}
    refused(CONFLICT, lambda: server.api.patch(path, {"metadata": based, "data": {"d": "4"}}))


def test_one_of_two_leads_and_the_other_when_it_gave_up(server: Server, name: str) -> None:
    leading: list[str] = []
    candidates = {}
    for who in ("a", "b"):
        # So long that a busy machine does not lose it.
        term = Term("contract", name, who, lease=60)

        def lead(lost: threading.Event, who: str = who) -> None:
            leading.append(who)
            lost.wait()

        candidates[who] = Candidate(server.api, term, lead, threading.Event(), ControllerHealth())
        threading.Thread(target=candidates[who].run, daemon=True).start()
    eventually(lambda: leading)
    time.sleep(1.5)
    (first,) = leading
    candidates[first].withdraw()
    eventually(lambda: len(leading) == 2)
    other = leading[1]
    assert other != first
    assert server.api.get(f"{LEASES}/{name}")["spec"]["holderIdentity"] == other
    candidates[other].withdraw()


class WholeSecond(Concurrency):
    def now(self) -> float:
        return 1_767_225_600


def test_a_lease_may_be_taken_at_a_whole_second(server: Server, name: str) -> None:
    assert Lease(
        server.api, Term("contract", name, "a"), ControllerHealth(), WholeSecond()
    ).attempt()
    spec = server.api.get(f"{LEASES}/{name}")["spec"]
    for key in ("acquireTime", "renewTime"):
        assert spec[key] == "2026-01-01T00:00:00.000000Z"
