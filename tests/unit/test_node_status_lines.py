"""What `netmgr node status` says is wrong with a node."""

from __future__ import annotations

import pytest

from netmgr.cli import node_tables
from tests.fakes.agent_socket import snapshot

POOL = {"family": "ipv4", "allocated": 5, "cooldown": 2, "free": 7}


def shown(**keys: object) -> str:
    return "\n".join(map(str, node_tables.status({**snapshot(2, 1), "pool": [POOL], **keys})))


@pytest.mark.parametrize(
    ("most", "is_shown"), [(110, True), (15, True), (14, False), (None, False)]
)
def test_more_pods_than_addresses_are_shown(most: int | None, *, is_shown: bool):
    text = shown() if most is None else shown(max_pods=most)
    assert (f"the kubelet takes {most} pods, and the ranges have 14 ipv4" in text) is is_shown


def test_people_see_result_files_where_there_is_no_pool():
    text = shown(pool=[], result_files=[{"state": "stale", "count": 3}])
    assert "3 stale" in text
    assert "cooldown" not in text


def test_every_fault_of_the_routes_is_shown():
    assert "no route to 10.244.2.0/24" in shown(route_faults=["no route to 10.244.2.0/24"])


@pytest.mark.parametrize("pod", ["job-1", ""])
def test_a_spent_quota_is_shown_and_others_are_not(pod: str):
    one = {"namespace": "batch", "pod": pod, "traffic": "internet-out", "period": "day"}
    amounts = {"budget": 10**10, "used": 10**10, "until": 1_700_006_400, "forecast": 10**10}
    owner = f"batch/{pod}" if pod else "batch"
    text = shown(quotas=[{**one, **amounts, "spent": True}])
    assert f"quota spent: internet-out of {owner}, " in text
    assert "of its day, until 2023-11-15T00:00Z" in text
    assert "quota spent" not in shown(quotas=[{**one, **amounts, "spent": False}])
