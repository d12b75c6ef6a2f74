"""What matters about the agents' pods."""

from __future__ import annotations

from dataclasses import dataclass

from netmgr.kube.client.api import Object
from netmgr.printable import plain
from netmgr.ranges.assigned import NODE_RANGES, AssignedRanges

SELECTOR = "app.kubernetes.io/name=netmgr,app.kubernetes.io/component in (agent,nat-host)"
"""Labels of the agents' pods, in the manifests' DaemonSets."""

CONTAINER = "agent"

PREFLIGHT = "preflight"
"""The init container that probes the network of a Node before its agent starts."""

LONGEST_MESSAGE = 1024
"""Characters kept of a message from a node: a kubelet may write anything there."""

EXPORTER = ("exporter", "metrics")
"""Names of its container and of its port."""


@dataclass(frozen=True, slots=True)
class AgentPod:
    name: str
    uid: str
    node: str
    is_ready: bool
    """Whether the agent answers its readiness probe, and is not being deleted."""
    exporter: tuple[str, int]
    """Address and port of its exporter; port 0 if it has none."""
    assigned: AssignedRanges | None
    """Its annotation; None if it is missing or cannot be read."""
    failed_preflight: str = ""
    """Why its last preflight failed, as its kubelet says; empty if it did not."""


def agent_pod(pod: Object) -> AgentPod | None:
    """What matters about a pod; None while it is on no Node."""
    metadata, node = pod["metadata"], pod["spec"].get("nodeName")
    if not node:
        return None
    containers = pod.get("status", {}).get("containerStatuses") or ()
    # The exporter beside it does not count: any host-network pod can keep its port busy.
    is_ready = any(status["name"] == CONTAINER and status["ready"] for status in containers)
    try:
        assigned = AssignedRanges.parse(metadata.get("annotations", {}).get(NODE_RANGES, ""))
    except ValueError:
        # The controller writes an unreadable one again, like a missing one.
        assigned = None
    return AgentPod(
        name=metadata["name"],
        uid=metadata["uid"],
        node=node,
        is_ready=is_ready and "deletionTimestamp" not in metadata,
        exporter=_exporter(pod),
        assigned=assigned,
        failed_preflight=_failed_preflight(pod),
    )


def _failed_preflight(pod: Object) -> str:
    """What the last completed run of the preflight says, if it failed."""
    statuses = pod.get("status", {}).get("initContainerStatuses") or ()
    own: Object = next((status for status in statuses if status["name"] == PREFLIGHT), {})
    # While it waits for its next start, or runs, the last run's end is what is known.
    states = [own.get("state") or {}, own.get("lastState") or {}]
    ended = next((state["terminated"] for state in states if state.get("terminated")), None)
    if not ended or not ended["exitCode"]:
        return ""
    message = ended.get("message", "")[:LONGEST_MESSAGE]
    # It goes to terminals: no control characters.
    words = "; ".join(filter(None, (plain(line.strip()) for line in message.splitlines())))
    return words or f"it ended with exit code {ended['exitCode']}, and said nothing"


def _exporter(pod: Object) -> tuple[str, int]:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if (container["name"], port.get("name")) == EXPORTER:
                return pod.get("status", {}).get("podIP", ""), int(port["containerPort"])
    return "", 0
