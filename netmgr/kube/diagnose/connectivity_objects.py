"""The objects of `netmgr connectivity-test`, and what their status says.

Pods need nothing that the strictest pod security refuses (`restricted`), except a host port. They
are bound to a Node by its name: what is tested is the Node's network, not the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from netmgr.api.connectivity import PORT, ProbeTask
from netmgr.kube.client.api import Object
from netmgr.kube.diagnose.connectivity import SERVICE
from netmgr.printable import plain

PREFIX = "netmgr-connectivity-test-"
LABELS = {"app.kubernetes.io/name": "netmgr-connectivity-test"}
LABEL = "app.kubernetes.io/name=netmgr-connectivity-test"
SERVER, CLIENT = "server", "client"
USER = 65_534  # nobody: `restricted` takes no root
LONGEST_REASON = 300
"""Characters of why a pod does not run: kubelets, plugins and registries wrote it."""

_STARTING = ("", "ContainerCreating", "PodInitializing")


class PodNow(NamedTuple):
    """A pod's status: its phase, its addresses, its Node's, and why it does not run, if it says."""

    phase: str
    addresses: tuple[str, ...]
    host_addresses: tuple[str, ...]
    reason: str


def namespace(name: str, *, has_host_port: bool) -> Object:
    """The namespace; a host port is what `restricted` and `baseline` refuse."""
    level = "privileged" if has_host_port else "restricted"
    return _object("Namespace", name, {"pod-security.kubernetes.io/enforce": level})


def account() -> Object:
    # The default one comes a while after its namespace, and pods are refused until then.
    return _object("ServiceAccount", SERVICE)


def service() -> Object:
    ports = [
        {"name": protocol.lower(), "protocol": protocol, "port": PORT}
        for protocol in ("TCP", "UDP")
    ]
    spec = {
        "selector": LABELS | {"role": SERVER},
        "ports": ports,
        # The server of the client's own Node, so that no other Node can make the check fail.
        "internalTrafficPolicy": "Local",
        # PreferDualStack takes one family where the cluster has one, RequireDualStack does not.
        "ipFamilyPolicy": "PreferDualStack",
    }
    return _object("Service", SERVICE) | {"spec": spec}


def server(number: int, node: str, image: str, lifetime: float, host_port: int) -> Object:
    """The server's pod; `lifetime` in seconds."""
    ports = [{"containerPort": PORT, "protocol": "TCP"}]
    ports = [port | {"hostPort": host_port} for port in ports] if host_port else []
    return _pod(SERVER, number, node, image, ["netmgr.preflight.pod_server"], lifetime, ports)


def client(number: int, node: str, image: str, lifetime: float, task: ProbeTask) -> Object:
    """The client's pod, which prints its answer and ends."""
    command = ["netmgr.preflight.pod_probes", task.model_dump_json()]
    return _pod(CLIENT, number, node, image, command, lifetime, [])


def pod_name(role: str, number: int) -> str:
    return f"{role}-{number}"


def _pod(
    role: str,
    number: int,
    node: str,
    image: str,
    command: list[str],
    lifetime: float,
    ports: list[Object],
) -> Object:
    container = {
        "name": role,
        "image": image,
        # The agent's image is on the Node, perhaps without a registry to pull it from again.
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", *command],
        "ports": ports,
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # Then the status has the last lines of a program that dies.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spec = {
        "nodeName": node,
        "serviceAccountName": SERVICE,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        # As process 1 of its namespace Python ignores SIGTERM: its end would take the usual 30 s.
        "terminationGracePeriodSeconds": 1,
        # Whoever made it may be killed before it deletes the namespace.
        "activeDeadlineSeconds": int(lifetime),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        # Bound by name, it would be evicted for a NoExecute taint.
        "tolerations": [{"operator": "Exists"}],
    }
    return _object("Pod", pod_name(role, number), {"role": role}) | {"spec": spec}


def _object(kind: str, name: str, labels: Mapping[str, str] = MappingProxyType({})) -> Object:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {**LABELS, **labels}},
    }


def pod_now(pod: Object) -> PodNow:
    status = pod.get("status", {})
    return PodNow(
        phase=status.get("phase", ""),
        addresses=tuple(pod_ip["ip"] for pod_ip in status.get("podIPs") or ()),
        host_addresses=tuple(host_ip["ip"] for host_ip in status.get("hostIPs") or ()),
        reason=_reason(status),
    )


def _reason(status: Object) -> str:
    """Why it does not run; empty while it is starting, and if nothing is wrong."""
    for container in status.get("containerStatuses") or ():
        state = container.get("state", {})
        waiting, ended = state.get("waiting", {}), state.get("terminated", {})
        if waiting.get("reason", "") not in _STARTING:
            return shortened(f"{waiting['reason']}: {waiting.get('message', '')}")
        if ended.get("exitCode"):
            # A traceback's last line names the error.
            last = (ended.get("message") or "").strip().rpartition("\n")[2]
            return shortened(f"it ended with exit code {ended['exitCode']}: {last}")
    reason, message = status.get("reason", ""), status.get("message", "")
    return shortened(f"{reason}: {message}") if reason or message else ""


def shortened(words: str) -> str:
    """Others' text, without control characters and bounded in length."""
    return plain(words[:LONGEST_REASON].strip().rstrip(":"))
