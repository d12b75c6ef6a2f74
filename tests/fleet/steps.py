"""What kubelets and a DaemonSet write while a whole cluster comes up and is changed."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from netmgr.kube.controller.nodes import STARTUP_TAINT
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import AGENTS, POOL, Crowd, Program, agent_pod, pod_status

NODES = "/api/v1/nodes"
Asked = Counter[tuple[str, str]]
"""Requests by verb and resource."""

PATIENCE = 900
POLL_SECONDS = 0.2
CONNECTIONS = 8


class Site:
    """An API server with a controller, and how to write to it."""

    def __init__(self, plane: ControlPlane, controller: Program, before: Asked) -> None:
        self.plane = plane
        self.controller = controller
        self._crowd = Crowd(plane, CONNECTIONS)
        # What others asked.
        self._asked = before

    def create(self, path: str, bodies: Iterable[Object]) -> None:
        """Create objects."""
        self._ask("POST", ((path, body) for body in bodies))

    def patch(self, patches: Iterable[tuple[str, Object]]) -> None:
        """Merge patches into objects."""
        self._ask("PATCH", patches, "merge-patch+json")

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects."""
        self._ask("DELETE", ((path, {"gracePeriodSeconds": 0}) for path in paths))

    def _ask(
        self, method: str, asked: Iterable[tuple[str, Object | None]], kind: str = "json"
    ) -> None:
        listed = list(asked)
        self._crowd.ask(method, listed, kind)
        for path, _ in listed:
            self._asked[method, _resource(path)] += 1

    def wrote(self) -> Asked:
        """What the controller has asked so far: all requests, less the test's and the kubelets'."""
        answered = self.plane.requests()
        return Asked({key: number - self._asked[key] for key, number in answered.items()})

    def wait(self, wrote: Asked) -> float:
        """Wait until the controller has asked so much at least; seconds that it took."""
        began = time.monotonic()
        while missing := wrote - self.wrote():
            assert time.monotonic() - began < PATIENCE, f"never asked: {missing}"
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began


def _resource(path: str) -> str:
    """The resource of a collection's or an object's path."""
    parts = path.strip("/").split("/")[2:]
    return parts[2] if parts[0] == "namespaces" else parts[0]


def node(number: int) -> Object:
    """A Node as its kubelet registers it: with its status, images and all."""
    resources = {"cpu": "96", "memory": "1056762868Ki", "pods": "30", "ephemeral-storage": "900Gi"}
    conditions = [
        {"type": kind, "status": "False" if kind != "Ready" else "True", "reason": f"Kubelet{kind}"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [
        {"names": [f"registry.example.com/team/image-{each}@sha256:{each:064}"], "sizeBytes": each}
        for each in range(20)
    ]
    known = "machineID systemUUID bootID kernelVersion osImage containerRuntimeVersion"
    known += " kubeletVersion kubeProxyVersion operatingSystem architecture"
    info = dict.fromkeys(known.split(), "0123456789abcdef")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name(number), "labels": {POOL: "gpu"}},
        "spec": {"taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": f"198.18.{number >> 8}.{number & 255}"}
            ],
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions,
            "images": images,
            "nodeInfo": info,
        },
    }


def name(number: int) -> str:
    return f"vmss{number:06}"


class Change:
    """A cluster from its first Node on."""

    def __init__(self, site: Site, nodes: int, wave: float) -> None:
        """`wave` is the share of all that is changed at a time."""
        self._site = site
        self._nodes = nodes
        self._wave = wave
        self._pods = [""] * nodes
        self._made = 0

    @property
    def _waves(self) -> Iterator[Sequence[int]]:
        each = math.ceil(self._wave * self._nodes)
        for first in range(0, self._nodes, each):
            yield range(first, min(first + each, self._nodes))

    def register(self) -> list[float]:
        """Every Node registers; seconds from the last one until all have ranges."""
        before = self._site.wrote()
        self._site.create(NODES, map(node, range(self._nodes)))
        return [self._site.wait(before + Counter({("PATCH", "nodes"): self._nodes}))]

    def start_agents(self) -> list[float]:
        """Every Node gets its agent; seconds until all Nodes take pods."""
        before = self._site.wrote()
        self._deploy(range(self._nodes))
        expected = {("PATCH", "pods"): self._nodes, ("PATCH", "nodes"): self._nodes}
        return [self._site.wait(before + Counter(expected))]

    def replace_agents(self) -> list[float]:
        """Agents' pods are replaced in waves; seconds of each until all have their ranges."""
        took = []
        for wave in self._waves:
            before = self._site.wrote()
            self._site.delete(f"{AGENTS}/{self._pods[number]}" for number in wave)
            self._deploy(wave)
            took.append(self._site.wait(before + Counter({("PATCH", "pods"): len(wave)})))
        return took

    def register_again(self) -> list[float]:
        """Nodes are deleted and register again in waves; seconds until all take pods."""
        took = []
        for wave in self._waves:
            before = self._site.wrote()
            self._site.delete(f"{NODES}/{name(number)}" for number in wave)
            self._site.create(NODES, map(node, wave))
            # Its ranges, and the end of its taint; the agent is given its ranges, perhaps none
            # before.
            expected = {("PATCH", "nodes"): 2 * len(wave), ("PATCH", "pods"): len(wave)}
            took.append(self._site.wait(before + Counter(expected)))
        return took

    def _deploy(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._made += 1
            self._pods[number] = f"agent-{self._made}"
        self._site.create(AGENTS, (agent_pod(self._pods[each], name(each)) for each in numbers))
        ready = pod_status(agent=True, exporter=True)
        self._site.patch((f"{AGENTS}/{self._pods[each]}/status", ready) for each in numbers)
