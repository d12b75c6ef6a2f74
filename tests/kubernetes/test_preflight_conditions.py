"""What the controller makes of preflights that fail, by what kubelets say of the agents' pods."""

from __future__ import annotations

import time

import pytest

from netmgr.kube.client.agent_pods import LONGEST_MESSAGE
from netmgr.kube.controller.node_conditions import CALM_SECONDS
from netmgr.kube.controller.nodes import STARTUP_TAINT
from tests.kubernetes.control_plane import ControlPlane, Object, free_ports
from tests.kubernetes.controllers import (
    AGENTS,
    MERGE,
    Start,
    add_nodes,
    add_pods,
    agent_pod,
    events_of,
    health,
    health_state,
    node,
    pod_status,
    set_ready,
    starts_up,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

LOST = "routes of 10.0.0.0/28 by peers: no answer; have the network deliver it\n"
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
WAITING = {"waiting": {"reason": "CrashLoopBackOff"}}


def ended(message: str, code: int = 1) -> Object:
    return {"terminated": {"exitCode": code, "message": message}}


def set_preflight(plane: ControlPlane, name: str, now: Object, last: Object | None = None) -> None:
    """Say of a pod's preflight how it is and how it ended last, as its kubelet does."""
    (status,) = pod_status(preflight=False)["status"]["containerStatuses"]
    found = {**status, "state": now, "lastState": last or {}}
    body: Object = {"status": {"initContainerStatuses": [found]}}
    plane.ask("PATCH", f"{AGENTS}/agent-{name}/status", body, kind=MERGE)


def add(plane: ControlPlane, *names: str) -> None:
    """Nodes with the startup taint, and an agent's pod with a preflight on each."""
    taint = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
    add_nodes(plane, [node(name, taints=[taint]) for name in names])
    pods = [agent_pod(f"agent-{name}", name) for name in names]
    for pod in pods:
        pod["spec"]["initContainers"] = [{"name": "preflight", "image": "netmgr"}]
    add_pods(plane, pods)


def test_the_startup_taint_stays_while_the_preflight_fails_and_goes_once_the_agent_serves(
    installed: ControlPlane, start: Start
) -> None:
    add(installed, "bad", "fresh")
    (port,) = free_ports(1)
    set_preflight(installed, "bad", ended(LOST))
    set_preflight(installed, "fresh", RUNNING)
    begun = time.monotonic()
    running = start(port=port)
    eventually(lambda: health_state(installed, "bad") == ("False", "PreflightFailed"))
    found = health(installed, "bad")
    assert found["message"].endswith(f"its preflight fails: {LOST.strip()}")
    line = "node-health node=bad healthy=False reason=PreflightFailed"
    eventually(lambda: line in running.said)
    assert events_of(installed, "bad")["PreflightFailed"]["message"] == LOST.strip()
    assert "netmgr_controller_preflight_failed 1.0" in running.figures()
    # It is tried again, in vain, and what fails is something else now.
    for now in (WAITING, RUNNING):
        set_preflight(installed, "bad", now, ended(LOST))
        assert health_state(installed, "bad") == ("False", "PreflightFailed")
    # However often it changes its mind, few writes follow.
    for number in range(20):
        set_preflight(installed, "bad", WAITING, ended(f"{number} of 20"))
    set_preflight(installed, "bad", WAITING, ended("dns of example.com: no answer"))
    assert running.said.count(line) <= 1 + (time.monotonic() - begun) / CALM_SECONDS
    eventually(lambda: "dns of example.com" in health(installed, "bad")["message"])
    assert health(installed, "bad")["lastTransitionTime"] == found["lastTransitionTime"]
    assert starts_up(installed, "bad")
    assert health_state(installed, "fresh") == ("", "")
    # A controller that comes later finds the same.
    running.end()
    running = start(port=port)
    # Passed, and the agent not there yet: neither the condition nor the taint changes.
    set_preflight(installed, "bad", ended("passed: 7 checks", 0))
    set_preflight(installed, "fresh", ended(LOST))
    eventually(lambda: health_state(installed, "fresh") == ("False", "PreflightFailed"))
    eventually(lambda: "netmgr_controller_preflight_failed 1.0" in running.figures())
    assert health_state(installed, "bad") == ("False", "PreflightFailed")
    assert starts_up(installed, "bad")
    set_ready(installed, "agent-bad", agent=True)
    eventually(lambda: not starts_up(installed, "bad"))
    eventually(lambda: health_state(installed, "bad") == ("True", "PreflightPassed"))
    assert events_of(installed, "bad").keys() == {"PreflightFailed"}


def test_whatever_a_kubelet_writes_is_bounded_and_safe_to_show(
    installed: ControlPlane, start: Start
) -> None:
    messages = {
        "huge": "x" * 500_000,
        "forged": "\x1b[2Jcleared\r\x00\nand a second line\n\n\u202e",
        "empty": "",
        "blank": "\n \n\t\n",
    }
    add(installed, *messages)
    for name, message in messages.items():
        set_preflight(installed, name, WAITING, ended(message, 137))
    start()
    for name in messages:
        eventually(lambda name=name: health_state(installed, name) == ("False", "PreflightFailed"))
    said = {name: health(installed, name)["message"].partition("fails: ")[2] for name in messages}
    assert said["huge"] == "x" * LONGEST_MESSAGE
    assert said["forged"].isprintable()
    assert "cleared" in said["forged"]
    assert "; and a second line" in said["forged"]
    for name in ("empty", "blank"):
        assert said[name] == "it ended with exit code 137, and said nothing"
    for name in messages:
        assert starts_up(installed, name)
