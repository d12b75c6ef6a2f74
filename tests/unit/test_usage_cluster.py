"""A cluster's usage: rows of each node, and whose rows nobody has."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from netmgr.cli.output import show
from netmgr.cli.usage import as_csv, as_json, as_table, notes
from netmgr.errors import ApiError, ApiUnavailable
from netmgr.kube.controller.claim_store import LABEL, POOL
from netmgr.kube.diagnose import cluster_usage
from netmgr.ledger.history import By, Period, entire, usage_row, view
from netmgr.ledger.tables import Amount

START = 500_000
PERIOD = Period(START, START + 4)
CREATED = "2020-01-01T00:00:00Z"


def node(name: str, created: str = CREATED, *, ready: bool = True) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]}
    metadata = {"name": name, "uid": name, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {}, "status": status}


def pod(name: str) -> dict[str, Any]:
    exporter = {"name": "exporter", "ports": [{"name": "metrics", "containerPort": 9119}]}
    return {
        "metadata": {
            "name": f"agent-{name}",
            "uid": f"pod-{name}",
            "namespace": "netmgr",
            "labels": {"app.kubernetes.io/component": "agent"},
        },
        "spec": {"nodeName": name, "containers": [{"name": "agent", "image": "i"}, exporter]},
        "status": {"podIP": "10.0.0.1", "containerStatuses": [{"name": "agent", "ready": True}]},
    }


def claim(node: str, **more: str) -> str:
    return json.dumps({"node": node, "uid": "x", "ranges": ["10.1.0.0/27"], **more})


class Server:
    """An API server that lists these, and exporters behind it."""

    def __init__(self, *nodes: dict[str, Any], answers: dict[str, Any], **claims: str) -> None:
        shard = {
            "metadata": {"annotations": {POOL: "gpu"}},
            "data": {str(number): text for number, text in enumerate(claims.values())},
        }
        self.lists = {
            "/api/v1/nodes": list(nodes),
            "/api/v1/namespaces/netmgr/pods": [pod(each["metadata"]["name"]) for each in nodes],
            "/api/v1/namespaces/netmgr/configmaps": [shard],
        }
        self.answers = answers
        self.asked: list[tuple[str, dict[str, str]]] = []

    def get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        if path.endswith("configmaps"):
            assert query["labelSelector"] == LABEL
            if self.lists[path] == ["refused"]:
                raise ApiError("GET configmaps: 403: may not", 403)
        return {"metadata": {}, "items": self.lists[path]}

    def bounded(self, path: str, _seconds: float, _longest: int, query: dict[str, str]) -> bytes:
        name = path.split("agent-")[1].split(":", maxsplit=1)[0]
        assert path == f"/api/v1/namespaces/netmgr/pods/agent-{name}:9119/proxy/usage"
        self.asked.append((name, query))
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        first, end = (int(query[key]) // 3600 for key in ("since", "until"))
        held = [row for row in answer if first <= row["hour"] < end]
        if "hour" not in query["by"]:
            held = [{**row, "hour": 0} for row in held]
        return json.dumps(view(PERIOD, [], held) | {"left_out": 0}).encode()


def rows(*hours: int, namespace: str = "team-a", traffic: str = "internet-out") -> list[Any]:
    return [usage_row(START + hour, namespace, "", traffic, Amount(100, 1)) for hour in hours]


def read(server: Any, by: tuple[By, ...] = (By.HOUR, By.NAMESPACE), period: Period = PERIOD) -> Any:
    return cluster_usage.read(server, ("netmgr",), period, list(by), 60, str)


def by_node(answer: Any) -> dict[tuple[str, int], int]:
    return {(row["node"], row["hour"] - START): row["unread_nodes"] for row in answer["rows"]}


def iso(hour: float) -> str:
    return datetime.fromtimestamp((START + hour) * 3600, UTC).isoformat()


def test_every_nodes_rows_are_there_by_node() -> None:
    server = Server(node("b"), node("a"), answers={"a": rows(0, 1), "b": rows(1)})
    answer = read(server)
    assert by_node(answer) == {("a", 0): 0, ("a", 1): 0, ("b", 1): 0}
    assert (answer["nodes"], answer["unread"]) == (2, [])
    assert server.asked[0][1] == {
        "since": str(START * 3600),
        "until": str((START + 4) * 3600),
        "by": "hour,namespace",
    }


def test_pods_may_have_any_name_that_a_container_may_have() -> None:
    held = [usage_row(START, "-", name, "internet-out", Amount(100, 1)) for name in ("A_b.C-1", "")]
    answer = read(Server(node("a"), answers={"a": held}), (By.HOUR, By.POD))
    assert [row["pod"] for row in answer["rows"]] == ["A_b.C-1", ""]


def test_a_row_says_how_many_nodes_of_its_time_are_not_in_the_answer() -> None:
    server = Server(
        node("a"),
        node("silent", iso(1.5)),
        node("down", iso(3), ready=False),
        node("later", iso(9), ready=False),
        answers={"a": rows(0, 1, 2, 3), "silent": ApiUnavailable("GET x: no route", 0)},
        gone=claim("gone", released=iso(1)),
        held=claim("a"),
        before=claim("before", released=iso(-1)),
    )
    answer = read(server)
    assert by_node(answer) == {("a", 0): 1, ("a", 1): 1, ("a", 2): 1, ("a", 3): 2}
    reasons = {each["node"]: each["reason"] for each in answer["unread"]}
    assert reasons == {
        "silent": "no route",
        "down": "its agent or its kubelet is not ready",
        "gone": "it is gone, and its history with it",
    }
    summed = read(server, (By.NAMESPACE,))
    assert {row["unread_nodes"] for row in summed["rows"]} == {3}
    since_1970 = read(server, (By.NAMESPACE,), Period(0, START + 4))
    assert {row["unread_nodes"] for row in since_1970["rows"]} == {4}


def test_nodes_that_are_gone_and_cannot_be_read_are_not_taken_for_none() -> None:
    server = Server(node("a"), answers={"a": rows(0)})
    server.lists["/api/v1/namespaces/netmgr/configmaps"] = ["refused"]
    answer = read(server)
    assert by_node(answer) == {("a", 0): 1}
    assert answer["unread"][0]["reason"].startswith("which Nodes are gone cannot be read")


@pytest.mark.parametrize(
    "nonsense",
    [
        rows(0, namespace="\x1b[2J"),
        rows(0, traffic="=HYPERLINK()"),
        [row | {"measured": 101} for row in rows(0)],
        [{"hour": 0}],
        [5],
    ],
)
def test_what_a_node_answers_is_checked(nonsense: Any) -> None:
    server = Server(node("a"), node("b"), answers={"a": rows(0), "b": []})
    server.bounded = lambda path, *_: (  # type: ignore[method-assign]  an answer of its own
        json.dumps({"rows": nonsense if "agent-b" in path else rows(0), "left_out": 0}).encode()
    )
    answer = read(server)
    assert [row["node"] for row in answer["rows"]] == ["a"]
    assert [each["node"] for each in answer["unread"]] == ["b"]


def test_records_of_hours_are_asked_for_in_parts_until_none_is_left_out() -> None:
    asked = []

    def ask(period: Period) -> Any:
        asked.append(period)
        held = rows(*range(period.first - START, period.end - START))
        return view(period, [By.HOUR], held) | {"left_out": int(len(held) > 1)}

    assert [row["hour"] - START for row in entire(ask, PERIOD, [By.HOUR])["rows"]] == [0, 1, 2, 3]
    assert len(asked) == 7
    assert entire(ask, PERIOD, [By.NAMESPACE])["left_out"] == 1
    assert entire(ask, PERIOD, [By.HOUR])["left_out"] == 0


def test_every_format_says_what_is_not_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(
        node("a"),
        node("b"),
        answers={"a": rows(0, 1), "b": rows(0)},
        gone=claim("g", released=iso(1)),
    )
    answer = read(server)
    lines = list(csv.DictReader(io.StringIO(as_csv(answer))))
    assert [(line["node"], line["unread_nodes"]) for line in lines] == [
        ("a", "1"),
        ("a", "0"),
        ("b", "1"),
    ]
    document = json.loads(as_json(answer))
    assert document["nodes"] == 2
    assert document["unread"][0] | {"until": ""} == {
        "node": "g",
        "reason": "it is gone, and its history with it",
        "since": None,
        "until": "",
    }
    show(*as_table(answer), *notes(answer, None))
    shown = capsys.readouterr().out
    assert "without the rows of g (it is gone, and its history with it)" in shown
    assert shown.count("team-a") == 2, "of all nodes together, hour by hour"
