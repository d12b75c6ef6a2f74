"""The agents' pods: a copy that a watch of the DaemonSet's namespace keeps."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from netmgr.kube.api import Object

SELECTOR = "app.kubernetes.io/name=netmgr,app.kubernetes.io/component=agent"
"""Labels of the agents' pods, in the manifests' DaemonSet."""


@dataclass(frozen=True, slots=True)
class AgentPod:
    """What matters of an agent's pod."""

    name: str
    uid: str
    node: str
    """Name of the Node that it is on."""
    is_ready: bool
    """Whether the agent answers its readiness probe, and is not being deleted."""


class AgentPods:
    """Follows the agents' pods; `changed` is set when something that matters has changed."""

    def __init__(self, changed: threading.Event) -> None:
        """Know no pod yet."""
        self._lock = threading.Lock()
        self._pods: dict[str, AgentPod] = {}
        self._changed = changed
        self._is_known = False

    def pods(self) -> list[AgentPod] | None:
        """List the pods that are on a Node; None while the first list is not complete."""
        with self._lock:
            return list(self._pods.values()) if self._is_known else None

    def replace(self, objects: Iterable[Object]) -> None:
        """Replace the copy by a whole list."""
        pods = [pod for pod in map(agent_pod, objects) if pod is not None]
        with self._lock:
            self._pods = {pod.name: pod for pod in pods}
            self._is_known = True
        self._changed.set()

    def change(self, found: Object) -> None:
        """Add or update a pod."""
        pod = agent_pod(found)
        if pod is None:
            return
        with self._lock:
            known = self._pods.get(pod.name)
            self._pods[pod.name] = pod
        if pod != known:
            self._changed.set()

    def delete(self, found: Object) -> None:
        """Remove a pod."""
        with self._lock:
            self._pods.pop(found["metadata"]["name"], None)
        self._changed.set()


def agent_pod(found: Object) -> AgentPod | None:
    """What matters of a pod; None while it is on no Node."""
    metadata, node = found["metadata"], found["spec"].get("nodeName")
    if not node:
        return None
    conditions = found.get("status", {}).get("conditions") or ()
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return AgentPod(
        name=metadata["name"],
        uid=metadata["uid"],
        node=node,
        is_ready=is_ready and "deletionTimestamp" not in metadata,
    )
