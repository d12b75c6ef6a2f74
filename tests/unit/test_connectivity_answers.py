"""Targets, tasks and answers of `netmgr connectivity-test` as text, right ones and hostile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from netmgr.api.connectivity import Answer, Probe, Target, Task
from netmgr.kube.connectivity import Counted
from netmgr.kube.connectivity_objects import LONGEST_REASON, pod_now
from netmgr.kube.connectivity_run import counted


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("example.com:443", Target("example.com", 443)),
        ("203.0.113.1:1", Target("203.0.113.1", 1)),
        ("[2001:db8::1]:65535", Target("2001:db8::1", 65535)),
    ],
)
def test_targets_are_read_and_written_alike(text: str, target: Target) -> None:
    assert Target.parse(text) == target
    assert str(target) == text


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "2001:db8::1", "[]:1"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Target.parse(text)


OK: dict[str, Any] = {"result": "ok"}


@pytest.mark.parametrize(
    "printed",
    [
        *({}, {"probes": {}}, {"probes": [], "more": 1}, {"probes": [OK] * 257}),
        *({"probes": [OK | {"seen": seen}]} for seen in ("1.2.3.4", ["\x1b[2J"], ["1.2.3.4"] * 17)),
        *({"probes": [OK | odd]} for odd in ({"result": "fine"}, {"reason": "x" * 201})),
        *({"probes": [], "to_internet": {"bytes_out": size}} for size in (-1, 10**20)),
    ],
)
def test_hostile_answers_are_refused(printed: Any) -> None:
    with pytest.raises(ValidationError):
        Answer.model_validate_json(json.dumps(printed))


def test_tasks_pass_through_an_argument() -> None:
    task = Task(probes=(Probe(by="udp", host="fd00::1"),), internet=(Target("a", 1),))
    assert Task.model_validate_json(task.model_dump_json()) == task


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "server", "state": state}]}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"phase": "Pending"}, ""),
        (container(waiting={"reason": "ContainerCreating"}), ""),
        (container(waiting={"reason": "ErrImagePull", "message": "no"}), "ErrImagePull: no"),
        (container(waiting={"reason": "CrashLoopBackOff"}), "CrashLoopBackOff"),
        (
            container(terminated={"exitCode": 1, "message": "a\nNo module named x\n"}),
            "it ended with exit code 1: No module named x",
        ),
        (container(terminated={"exitCode": 0}), ""),
        ({"reason": "OutOfcpu", "message": "Node has none"}, "OutOfcpu: Node has none"),
        ({"reason": "Evicted"}, "Evicted"),
        (container(waiting={"reason": "X\x1b" * 999}), ("X\N{REPLACEMENT CHARACTER}" * 150)),
    ],
)
def test_why_a_pod_does_not_run_is_said_as_its_kubelet_does(
    status: dict[str, Any], reason: str
) -> None:
    assert len(reason) <= LONGEST_REASON
    assert pod_now({"status": status}).reason == reason


PAGE = "# TYPE netmgr_pod_traffic_bytes counter\n" + "".join(
    f'netmgr_pod_traffic_bytes_total{{namespace="t",pod="{pod}",traffic="internet-{way}"}} {size}\n'
    for pod, way, size in (
        *(("client-00", "out", "7.0"), ("client-0", "in", "1.234567e+06")),
        *(("client-0", "out", "60.0"), ("client-1", "in", "5.0")),
        *(("client-2", "in", "1e+999"), ("client-2", "out", "++..e")),
    )
)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ("client-0", Counted(60, 1_234_567)),
        *((f"client-{number}", None) for number in (1, 2, 3)),
    ],
)
def test_a_pods_bytes_are_read_on_an_exporters_page(pod: str, expected: Counted | None) -> None:
    assert counted(PAGE, "t", pod) == expected
