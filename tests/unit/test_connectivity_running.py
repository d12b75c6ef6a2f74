"""Pods that ran before `netmgr connectivity-test` are probed, too."""

from __future__ import annotations

from typing import Any

from netmgr.api.connectivity import Ending, Probe, ProbeAnswer, Result
from netmgr.kube.diagnose.connectivity import (
    Check,
    CheckState,
    NodeResult,
    Options,
    PlannedProbe,
    ProbeServer,
    conclude,
    plan,
    running_pods,
)


def server(number: int) -> ProbeServer:
    return ProbeServer(f"n{number}", (f"10.1.{number}.2", f"fd00:{number}::2"), ())


def running_pod(name: str, node: str, hour: int, *addresses: str, **spec: Any) -> dict[str, Any]:
    """A pod that is ready since an hour of the day."""
    return {
        "metadata": {"namespace": "web", "name": name},
        "spec": {"nodeName": node} | spec,
        "status": {
            "startTime": f"2027-01-15T{hour:02}:00:00Z",
            "podIPs": [{"ip": each} for each in addresses],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def test_the_oldest_ready_pods_of_a_node_are_probed_from_it_and_from_another() -> None:
    pods = [running_pod(f"p{hour}", "n0", hour, f"10.1.0.{hour}") for hour in range(9, 2, -1)]
    pods += [running_pod("agent", "n0", 0, "10.64.0.1", hostNetwork=True)]
    pods += [running_pod("both", "n1", 5, "10.1.1.9", "fd00:1::9")]
    for change in (
        {"metadata": {"namespace": "shielded", "name": "x"}},
        {"metadata": {"namespace": "web", "name": "x", "deletionTimestamp": "now"}},
        {"status": {"podIPs": [{"ip": "10.1.0.99"}]}},
    ):
        pods.append(running_pod("x", "n0", 1, "10.1.0.99") | change)
    running = running_pods(pods, {"shielded"})
    ring = [server(number) for number in range(3)]
    probed = {
        own.node: [
            (each.node, each.pod, each.probe.by, each.probe.host)
            for each in plan(own, ring, (), Options(), running)
            if each.check is Check.RUNNING_PODS
        ]
        for own in ring
    }
    of_n0 = [("n0", f"web/p{hour}", "reach", f"10.1.0.{hour}") for hour in (3, 4, 5, 6)]
    of_n1 = [("n1", "web/both", "reach", host) for host in ("10.1.1.9", "fd00:1::9")]
    assert probed == {"n0": of_n0 + of_n1, "n1": of_n1, "n2": of_n0}


def test_a_running_pod_that_no_packet_reaches_fails_although_new_ones_are_reached() -> None:
    old = PlannedProbe(Check.RUNNING_PODS, "n1", Probe(by="reach", host="10.1.1.9"), "web/old")
    probes = (Ending(result=Result.NO_ANSWER),)
    tested = NodeResult(
        "n0", addresses=("10.1.0.3",), planned=[old], answer=ProbeAnswer(probes=probes)
    )
    conclude(tested, (), Options())
    assert tested.states[Check.RUNNING_PODS] is CheckState.FAILED
    finding = next(finding for finding in tested.findings if finding.check == Check.RUNNING_PODS)
    assert finding.message == "the pod web/old at 10.1.1.9: no answer"
    assert "if the pod's address was withdrawn, delete the pod" in finding.remedy
    assert finding.objects == ("node/n0 to node/n1",)
