"""Pods of a cluster that do nothing but hold a network namespace, in which tests open sockets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product
from pathlib import Path

from netmgr.prefixes import Address, Family
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.images import PAUSE_IMAGE
from tests.kubernetes.control_plane import Object
from tests.lab import exchange
from tests.lab.errors import LabError
from tests.lab.exchange import End, Frontend

SECONDS_TO_START = 60
PODS = {"a1": "node-1", "a2": "node-1", "b1": "node-2", "b2": "node-2"}
"""The pods of most tests, and their nodes."""

FORTH, BACK = 200_000, 70_000
TARGET_PORT = 8080
READY = "Ready"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that runs. `netns` is its network namespace."""

    name: str
    node: str
    addresses: tuple[Address, ...]
    netns: Path

    def end(self, family: Family = Family.V4) -> End:
        """The pod as an end of conversations."""
        return End(self.netns, next(each for each in self.addresses if each.family is family))


def run(cluster: Cluster, where: Mapping[str, str], **spec: object) -> dict[str, Pod]:
    """Start pods of the namespace `default`, by name on which node; returns when all are Ready."""
    for name, node in where.items():
        create(cluster, name, node, **spec)
    return {name: started(cluster, name) for name in where}


def create(
    cluster: Cluster,
    name: str,
    node: str,
    annotations: Mapping[str, str] | None = None,
    **spec: object,
) -> None:
    """Ask for a pod, without waiting for it; without a node, one is chosen once there is any."""
    # The account comes a moment after its namespace, and no pod is accepted before.
    wait_for(partial(_has_account, cluster), "the service account default", 30)
    container = {"name": "pause", "image": PAUSE_IMAGE, "imagePullPolicy": "Never"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations or {}},
        "spec": {
            "nodeName": node,
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            **spec,
        },
    }
    cluster.plane.ask("POST", _path(), body)


def started(cluster: Cluster, name: str) -> Pod:
    """The pod of this name, once it is Ready."""
    found = wait_for(
        partial(_ready, cluster, name), f"pod {name}: kubectl describe pod", SECONDS_TO_START
    )
    addresses = tuple(Address.parse(each["ip"]) for each in found["status"]["podIPs"])
    netns = network_namespace(found["metadata"]["uid"])
    return Pod(name, found["spec"]["nodeName"], addresses, netns)


def refusals(cluster: Cluster, prefix: str) -> list[str]:
    """What kubelets say about sandboxes that could not be made for these pods."""
    events = cluster.plane.ask("GET", "/api/v1/namespaces/default/events")["items"]
    return [
        event["message"]
        for event in events
        if event["reason"] == "FailedCreatePodSandBox"
        and event["involvedObject"]["name"].startswith(prefix)
    ]


def delete(cluster: Cluster, names: Iterable[str]) -> None:
    """Delete pods; returns when the API server has none of them any longer."""
    wanted = list(names)
    for name in wanted:
        cluster.plane.ask("DELETE", _path(name), {"gracePeriodSeconds": 0})
    for name in wanted:
        wait_for(partial(_is_gone, cluster, name), f"the end of pod {name}", SECONDS_TO_START)


def reach_each_other(running: Mapping[str, Pod], *families: Family) -> None:
    """Every pod reaches every other one, which sees its own address."""
    for (client, server), family in product(permutations(running.values(), 2), families):
        own = client.end(family)
        heard = exchange.stream(own, server.end(family), FORTH, BACK)
        assert heard.peer == own.address, (client.name, server.name)


def network_namespace(uid: str) -> Path:
    """The network namespace of the pod with this UID, by a process in its control groups."""
    for group in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if f"/pod{uid}/" in group.read_text():
                return group.with_name("ns") / "net"
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError(f"no process is in the control groups of pod {uid}")


def serve(cluster: Cluster, name: str, port: int) -> Object:
    """A Service with a node port for the pod of this name; its spec, as the API server made it."""
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "type": "NodePort",
            "selector": {"app": name},
            "ipFamilyPolicy": "PreferDualStack",
            "ports": [{"port": port, "targetPort": TARGET_PORT}],
        },
    }
    made: Object = cluster.plane.ask("POST", "/api/v1/namespaces/default/services", body)["spec"]
    return made


def reach(client: End, server: Pod, frontend: Frontend) -> None:
    """Talk to a Service of this pod, once kube-proxy has it."""
    own = server.end(frontend.address.family)

    def talked() -> bool:
        try:
            exchange.stream(client, own, FORTH, BACK, port=TARGET_PORT, frontend=frontend)
        except LabError:
            return False
        return True

    wait_for(talked, f"an answer of {frontend}", 20)


def is_ready(pod: Object) -> bool:
    """Whether the pod's condition Ready is true."""
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == READY and each["status"] == "True" for each in conditions)


def _ready(cluster: Cluster, name: str) -> Object | None:
    found = cluster.plane.ask("GET", _path(name))
    return found if is_ready(found) else None


def _is_gone(cluster: Cluster, name: str) -> bool:
    return cluster.plane.answer("GET", _path(name))[0] == 404


def _has_account(cluster: Cluster) -> bool:
    path = "/api/v1/namespaces/default/serviceaccounts/default"
    return cluster.plane.answer("GET", path)[0] == 200


def _path(name: str = "") -> str:
    return f"/api/v1/namespaces/default/pods/{name}".rstrip("/")
