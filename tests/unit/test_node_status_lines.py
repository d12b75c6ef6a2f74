"""What `netmgr node status` says is wrong with a node."""

from __future__ import annotations

import click
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


def test_the_busiest_pods_are_shown_with_their_limits_and_fullest_quotas():
    before, now = snapshot(2, 1), snapshot(2, 1)
    now["taken_at"] = before["taken_at"] + 2
    names = sorted({(one["namespace"], one["pod"]) for one in now["pods"]})
    (namespace, pod), (_, other) = names
    for one in now["pods"]:
        one["bytes"] += 4000 if one["pod"] == pod else 2000
    rate = {"bytes": 0, "packets": 0, "delays": 0, "dropped_packets": 0, "backlog": 0}
    limit = {"namespace": namespace, "pod": pod, "traffic": "internet-out", "rate": 8_000_000}
    now["limits"] = [limit | rate]
    quota = {"namespace": namespace, "pod": other, "traffic": "internet-in", "budget": 1000}
    quota |= {"until": 0, "spent": False, "forecast": 0}
    now["quotas"] = [
        quota | {"period": "month", "used": 250},
        quota | {"period": "day", "used": 100},
        quota | {"pod": "", "period": "day", "used": 900},
    ]
    text = click.unstyle(str(node_tables.busiest(before, now, 2)))
    title, head, first, second = text.splitlines()[:4]
    assert title.endswith("internet traffic")
    assert head.split("  ")[-1].strip() == "quota"
    assert first.split() == [namespace, pod, "2.0", "kB", "2.0", "kB", "1.0", "MB/s"]
    assert second.endswith("25% of internet-in a month")
    # Without any of them there are no columns for them.
    plain = str(node_tables.busiest(before, before | {"limits": [], "quotas": []}, 2))
    assert "quota" not in plain
    assert "at most" not in plain
