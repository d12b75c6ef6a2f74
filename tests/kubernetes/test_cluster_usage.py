"""`netmgr usage --cluster` against a real API server, which passes on what exporters answer."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.kube.controller.claim_store import LABEL, POOL
from netmgr.ledger.history import Period, usage_row, view
from netmgr.ledger.tables import Amount
from tests.builders import PRICES
from tests.kubernetes.clusters import Cluster, condition

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

CLAIMS = "/api/v1/namespaces/netmgr-claims/configmaps"
HOUR = int(time.time()) // 3600 - 1


@pytest.fixture
def cluster(cluster: Cluster) -> Iterator[Cluster]:
    yield replace(cluster, command=("usage", "--cluster"))
    cluster.plane.ask("DELETE", CLAIMS)


def claims(cluster: Cluster, node: str, released: float) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(released))
    claim = {"node": node, "uid": "u", "ranges": ["10.9.0.0/27"], "released": at}
    metadata = {
        "name": "netmgr-claims-a-gpu-0",
        "labels": {LABEL: "a"},
        "annotations": {POOL: "gpu"},
    }
    kind = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    cluster.plane.ask("POST", CLAIMS, kind | {"data": {"0": json.dumps(claim)}})


def test_records_of_all_nodes_say_which_are_not_among_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.add("a", "b")
    cluster.add("down")
    cluster.set_conditions("down", condition("Ready", "Unknown"))
    claims(cluster, "gone", (HOUR + 1) * 3600 - 60)
    rows = [usage_row(HOUR, "team-a", "web-0", "internet-out", Amount(2_000_000_000, 9))]
    answer = json.dumps(view(Period(HOUR, HOUR + 1), [], rows)).encode()
    cluster.exporter.pieces = lambda: iter([answer])
    (tmp_path / "prices.yaml").write_text(PRICES)
    since = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(HOUR * 3600))
    ended = cluster.run("-o", "focus", "--prices", str(tmp_path / "prices.yaml"), "--since", since)
    assert ended.returncode == 0
    records = list(csv.DictReader(io.StringIO(ended.stdout)))
    assert [(one["x_Node"], one["BilledCost"]) for one in records] == [("a", "0.18"), ("b", "0.18")]
    # In this hour there was one more, and another one that is new: it was made just now.
    assert {one["x_UnreadNodes"] for one in records} == {"1"}
    assert "gone (it is gone, and its history with it)" in ended.stderr
    assert "down (its agent or its kubelet is not ready)" in ended.stderr


def test_exporters_that_cannot_be_asked_are_named(cluster: Cluster) -> None:
    cluster.add("a")
    cluster.exporter.status = b"401 Unauthorized"
    ended = cluster.run("-o", "json")
    answer = json.loads(ended.stdout)
    assert (answer["nodes"], answer["rows"]) == (0, [])
    assert [one["node"] for one in answer["unread"]] == ["a"]
    assert answer["unread"][0]["reason"].startswith("401")
