"""The cluster's machines: Nodes that register, agents that start, and pods that come and go.

Kubelets and the DaemonSet controller are simulated as far as netmgr depends on them. The times
between their steps are those of a real cluster (tests/e2e).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

from netmgr.backoff import Backoff
from netmgr.documents.node import NodeDocument
from netmgr.errors import ApiAway, ApiError, CapacityError, ConfigError
from netmgr.kube.agent_pods import CONTAINER
from netmgr.kube.api import Object
from netmgr.kube.node_document import render
from netmgr.kube.nodes import STARTUP_TAINT
from netmgr.model import PodRef
from netmgr.ranges.assigned import NODE_RANGES, AssignedRanges
from netmgr.simulation.api_server import ApiServer
from netmgr.simulation.controllers import AGENT_NAMESPACE, POOL_LABEL
from netmgr.simulation.machine import Machine
from netmgr.simulation.virtual_time import VirtualTime

NODES, AGENTS = "/api/v1/nodes", f"/api/v1/namespaces/{AGENT_NAMESPACE}/pods"
KUBELETS, INIT_CONTAINERS = "kubelets", "init-containers"
"""Clients of the API server beside the controllers."""

POD_SECONDS, SERVE_SECONDS, FILE_SECONDS = 1.2, 1.7, 1.0
"""From an agent's pod to the init container's request, from that until the agent is ready, and from
an annotation to the file that the agent reads."""

REPLACE_SECONDS = 0.7
"""From the end of an agent's pod to the next pod."""

CRASH_SECONDS, MOST_CRASH_SECONDS = 10.0, 300.0
"""Pauses before a container that failed is started again; each is twice the last."""

ADD_SECONDS = 15.0
"""A kubelet tries again to start a pod after this time."""


@dataclass
class Joining:
    """How far a Node has come; times in seconds since the beginning."""

    registered: float
    ranges: float | None = None
    schedulable: float | None = None


class Cluster:
    """All machines.

    Attributes:
        machines: those that there are, by name.
        joining: every Node there has been, by its UID.
        pods_started: how many pods were attached.
        adds_refused: how many attempts found no address.
        pod_ended: called with each pod that ended, and the bytes that it exchanged.
    """

    def __init__(
        self, time: VirtualTime, server: ApiServer, template: Object, random: Random
    ) -> None:
        self.machines: dict[str, Machine] = {}
        self.joining: dict[str, Joining] = {}
        self.pods_started = self.adds_refused = 0
        self.pod_ended: Callable[[Machine, PodRef, int], object] = lambda *_: None
        self._time = time
        self._template = template
        self._random = random
        self._numbers, self._pods = count(), count()
        self._agent_pods: dict[str, str] = {}
        self._assigned: dict[str, AssignedRanges] = {}
        self._open: set[str] = set()
        self._waiting: dict[str, list[Callable[[], object]]] = {}
        self._server = server
        self._kubelets, self._init = server.api(KUBELETS), server.api(INIT_CONTAINERS)
        server.follow(NODES, self._node_changed)
        server.follow(AGENTS, self._pod_changed)

    def make(self, pool: str, most_pods: int, folder: Path | None = None) -> Machine:
        """A machine of a node pool, whose kubelet does not run yet."""
        number = next(self._numbers)
        # Of the range for benchmarks (RFC 2544), which is no pod's.
        address = f"198.18.{number >> 8 & 255}.{number & 255}"
        traffic = Random(self._random.getrandbits(64))  # noqa: S311  no secret
        name = f"node-{number:06}"
        own = folder / name if folder else None
        machine = Machine(name, address, pool, self._time, traffic, most_pods, own)
        self.machines[name] = machine
        return machine

    def register(self, machine: Machine) -> None:
        """Have its kubelet register its Node; a DaemonSet's pod follows if there is none."""
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": machine.name, "labels": {POOL_LABEL: machine.pool}},
            "spec": {"taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": machine.address}],
                "allocatable": {"pods": str(machine.most_pods)},
            },
        }

        def create() -> None:
            self._kubelets.create(NODES, node)
            if machine.name not in self._agent_pods:
                self._deploy(machine)

        self._insist(create)

    def unregister(self, machine: Machine) -> None:
        """Delete its Node."""
        self._insist(partial(self._delete, f"{NODES}/{machine.name}"))

    def remove(self, machine: Machine) -> None:
        """Delete a machine, its Node and its agent's pod."""
        self.unregister(machine)
        self._insist(partial(self._delete, f"{AGENTS}/{self._agent_pods.pop(machine.name)}"))
        del self.machines[machine.name]

    def replace_agent(self, machine: Machine) -> None:
        """Replace its agent's pod, as a DaemonSet does."""
        machine.kill_agent()
        self._insist(partial(self._delete, f"{AGENTS}/{self._agent_pods[machine.name]}"))
        self._time.after(REPLACE_SECONDS, partial(self._deploy, machine))

    def is_served(self, machine: Machine) -> bool:
        """Whether pods can start there."""
        return machine.name in self._open and machine.agent is not None

    def start_pod(self, machine: Machine, namespace: str, name: str, rate: float) -> None:
        """Start a pod as soon as its machine takes pods, and has an address."""

        def add() -> None:
            try:
                machine.add_pod(namespace, name, rate)
                self.pods_started += 1
            except CapacityError:
                self.adds_refused += 1
                retry = partial(self.start_pod, machine, namespace, name, rate)
                self._time.after(ADD_SECONDS, retry)

        self._when_served(machine, add)

    def end_pod(self, machine: Machine, name: str) -> None:
        """End a pod, as soon as its machine has an agent; one that has ended is fine."""

        def remove() -> None:
            if name in machine.pods:
                self.pod_ended(machine, *machine.remove_pod(name))

        self._when_served(machine, remove)

    def _when_served(self, machine: Machine, action: Callable[[], object]) -> None:
        if self.is_served(machine):
            action()
        else:
            self._waiting.setdefault(machine.name, []).append(action)

    def _do_what_waited(self, machine: Machine) -> None:
        if self.is_served(machine):
            for action in self._waiting.pop(machine.name, ()):
                action()

    def _insist(self, request: Callable[[], object], backoff: Backoff | None = None) -> None:
        """Ask, and again until somebody answers."""
        waits = backoff or Backoff(1, 10, self._random.random)
        try:
            request()
        except ApiAway:
            self._time.after(waits.next(), partial(self._insist, request, waits))

    def _delete(self, path: str) -> None:
        if self._server.is_away:
            raise ApiAway("no answer")
        self._server.answer(KUBELETS, "DELETE", path, None, "")

    def _deploy(self, machine: Machine) -> None:
        if machine.name not in self.machines:
            return
        pod = f"netmgr-{next(self._pods)}"
        self._agent_pods[machine.name] = pod
        labels = {"app.kubernetes.io/name": "netmgr", "app.kubernetes.io/component": "agent"}
        containers = [{"name": CONTAINER}, {"name": "exporter", "ports": []}]
        made = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod, "labels": labels},
            "spec": {"nodeName": machine.name, "containers": containers},
        }
        self._insist(partial(self._kubelets.create, AGENTS, made))
        self._time.after(POD_SECONDS, partial(self._write_document, machine, pod, 0))

    def _write_document(self, machine: Machine, pod: str, failures: int) -> None:
        """What the init container does, and what its kubelet does when it fails."""
        if self._agent_pods.get(machine.name) != pod:
            return
        try:
            node = self._init.get(f"{NODES}/{machine.name}")
            document = NodeDocument.model_validate(render(self._template, node))
        except (ApiError, ConfigError):
            pause = min(CRASH_SECONDS * 2**failures, MOST_CRASH_SECONDS)
            again = partial(self._write_document, machine, pod, failures + 1)
            self._time.after(pause, again)
        else:
            self._time.after(SERVE_SECONDS, partial(self._serve, machine, pod, document))

    def _serve(self, machine: Machine, pod: str, document: NodeDocument) -> None:
        if self._agent_pods.get(machine.name) != pod:
            return
        machine.start_agent(document)
        self._use_ranges(machine, pod)
        ready = {"status": {"containerStatuses": [{"name": CONTAINER, "ready": True}]}}
        self._insist(partial(self._kubelets.patch, f"{AGENTS}/{pod}/status", ready))
        self._do_what_waited(machine)

    def _use_ranges(self, machine: Machine, pod: str) -> None:
        """The agent reads the file that has its pod's annotation."""
        assigned = self._assigned.get(pod)
        if machine.agent and assigned and assigned.replaces(machine.agent.document):
            machine.leases.set_ranges(assigned.in_force)

    def _pod_changed(self, kind: str, pod: Object) -> None:
        name, machine = pod["metadata"]["name"], self.machines.get(pod["spec"]["nodeName"])
        text = pod["metadata"].get("annotations", {}).get(NODE_RANGES)
        if kind == "DELETED":
            self._assigned.pop(name, None)
        elif text and machine and self._agent_pods.get(machine.name) == name:
            self._assigned[name] = AssignedRanges.parse(text)
            self._time.after(FILE_SECONDS, partial(self._use_ranges, machine, name))

    def _node_changed(self, kind: str, node: Object) -> None:
        name, now = node["metadata"]["name"], self._time.monotonic()
        if kind == "DELETED":
            self._open.discard(name)
            return
        state = self.joining.setdefault(node["metadata"]["uid"], Joining(now))
        if node["spec"].get("podCIDRs") and state.ranges is None:
            state.ranges = now
        if not node["spec"].get("taints") and state.schedulable is None:
            state.schedulable = now
            self._open.add(name)
            if machine := self.machines.get(name):
                # Not within the request that opened the Node.
                self._time.after(0, partial(self._do_what_waited, machine))
