"""A cluster of Nodes with agents, as `netmgr status` and `netmgr connectivity-test` find it: the
objects are as controllers and kubelets write them, in a real API server.
"""

from __future__ import annotations

import itertools
import json
import os
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from netmgr.prefixes import Family, Prefix
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import AGENTS, MERGE, Crowd, add_nodes, add_pods, agent_pod, node
from tests.waiting import PATIENCE, patient_netmgr

APPS = "/apis/apps/v1/namespaces/netmgr"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/netmgr-claims/leases"
REVISIONS = f"{APPS}/controllerrevisions"
NEWEST, OLDER = "rev-2", "rev-1"


class Exporter(socketserver.ThreadingTCPServer):
    """An exporter of every node: the API server passes requests on to no loopback address.

    It answers with `status` and then `pieces`, which are sent `pause` seconds apart.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: str) -> None:
        super().__init__((address, 0), _Answer)
        self.pieces: Callable[[], Iterator[bytes]] = lambda: iter([body()])
        self.pause = 0.0
        self.status = b"200 OK"
        self.asked = self.sent = 0

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def problems(self, *problems: tuple[str, str]) -> None:
        """Report these from now on."""
        self.pieces = lambda: iter([body(*problems)])

    @classmethod
    @contextmanager
    def serving(cls, address: str = "127.0.0.1") -> Iterator[Self]:
        """One that serves."""
        with cls(address) as made:
            thread = threading.Thread(target=made.serve_forever)
            thread.start()
            try:
                yield made
            finally:
                made.shutdown()
                thread.join()


class _Answer(socketserver.BaseRequestHandler):
    server: Exporter

    def handle(self) -> None:
        self.request.recv(10_000)
        self.server.asked += 1
        try:
            self.request.sendall(b"HTTP/1.0 %s\r\n\r\n" % self.server.status)
            for piece in self.server.pieces():
                self.request.sendall(piece)
                self.server.sent += len(piece)
                time.sleep(self.server.pause)
        except OSError:
            pass  # whoever asked had enough


def endless(piece: bytes) -> Iterator[bytes]:
    """An answer that does not end."""
    while True:
        yield piece


def body(*problems: tuple[str, str]) -> bytes:
    found = [{"reason": reason, "message": message} for reason, message in problems]
    return json.dumps({"spent": [], "problems": found}).encode()


def own_address() -> str:
    """An address of this machine that is none of the loopback; packets to it do not leave."""
    command = ["ip", "-json", "-4", "address", "show", "scope", "global", "up"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    found = [each["local"] for link in shown for each in link.get("addr_info", ())]
    assert found, "this machine has no address but the loopback's"
    return str(found[0])


@dataclass
class Cluster:
    """Nodes with agents, as DaemonSet controller, kubelets and netmgr's controller leave them.

    Attributes:
        answer_seconds: how long the command waits for an exporter: this one shares a process.
    """

    plane: ControlPlane
    exporter: Exporter
    kubeconfig: Path
    command: tuple[str, ...] = ("status", "--cluster")
    answer_seconds: float = PATIENCE
    _blocks: Iterator[int] = field(default_factory=partial(itertools.count, 10 << 19))

    def add(self, *names: str, revision: str = NEWEST, pods: bool = True, **spec: object) -> None:
        """Nodes that are well, with agents that are ready."""
        nodes = []
        for name in names:
            cidr = str(Prefix(Family.V4, next(self._blocks) << 5, 27))
            nodes.append(node(name, **({"podCIDRs": [cidr], "podCIDR": cidr} | spec)))
        add_nodes(self.plane, nodes)
        # The server adds a taint to every Node that is new; the node controller removes it.
        taints = {"spec": {"taints": spec.get("taints")}}
        ready = {"status": {"conditions": [condition("Ready", "True")]}}
        crowd = Crowd(self.plane)
        crowd.ask("PATCH", ((f"/api/v1/nodes/{name}", taints) for name in names), MERGE)
        crowd.ask("PATCH", ((f"/api/v1/nodes/{name}/status", ready) for name in names), MERGE)
        if pods:
            add_pods(self.plane, [self._pod(name, revision) for name in names])
            paths = [(f"{AGENTS}/agent-{name}/status", self.status()) for name in names]
            crowd.ask("PATCH", paths, MERGE)
            self.count(len(names))

    def _pod(self, name: str, revision: str) -> Object:
        pod = agent_pod(f"agent-{name}", name)
        pod["metadata"]["labels"]["controller-revision-hash"] = revision
        port = {"name": "metrics", "containerPort": self.exporter.port}
        pod["spec"]["containers"][1]["ports"] = [port]
        return pod

    def status(self, *, ready: bool = True, **more: object) -> Object:
        """A pod's status as its kubelet writes it."""
        address = self.exporter.server_address[0]
        statuses = [
            container(name, ready=ready or name == "exporter", state={"running": {}})
            for name in ("agent", "exporter")
        ]
        own = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        return {"status": own | {"containerStatuses": statuses} | more}

    def write(self, path: str, change: Object) -> None:
        self.plane.ask("PATCH", path, change, kind=MERGE)

    def set_pod(self, name: str, change: Object) -> None:
        self.write(f"{AGENTS}/agent-{name}/status", change)

    def set_conditions(self, name: str, *conditions: Object) -> None:
        self.write(f"/api/v1/nodes/{name}/status", {"status": {"conditions": conditions}})

    def count(self, scheduled: int, wanted: int | None = None) -> None:
        """What the DaemonSet controller says of the agents' DaemonSet."""
        wanted = scheduled if wanted is None else wanted
        status = {"currentNumberScheduled": scheduled, "numberReady": scheduled}
        more = {"desiredNumberScheduled": wanted, "numberMisscheduled": 0}
        self.describe("daemonsets/netmgr", status | more)

    def describe(self, workload: str, status: Object) -> None:
        """A workload's status, of its newest form."""
        found = self.plane.ask("GET", f"{APPS}/{workload}")
        status["observedGeneration"] = found["metadata"]["generation"]
        self.write(f"{APPS}/{workload}/status", {"status": status})

    def run(self, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The command, as an operator runs it."""
        limit = "netmgr.kube.diagnose.cluster.ANSWER_SECONDS"
        netmgr = patient_netmgr(limit, self.answer_seconds)
        command = [*netmgr, *self.command, *options]
        ended = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            env=self.environment(**environment),
        )
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended

    def environment(self, **more: str) -> dict[str, str]:
        """Variables of a person who has the cluster's kubeconfig."""
        kept = {k: v for k, v in os.environ.items() if "PROXY" not in k.upper()}
        return kept | {"KUBECONFIG": str(self.kubeconfig)} | more

    def findings(self, *options: str) -> tuple[int, dict[tuple[str, str], Object]]:
        """The exit code, and the findings by check and first object."""
        ended = self.run("-o", "json", *options)
        answer = json.loads(ended.stdout)
        assert answer["healthy"] is (ended.returncode == 0)
        by_object = {(each["check"], each["objects"][0]): each for each in answer["findings"]}
        assert len(by_object) == len(answer["findings"])
        return ended.returncode, by_object


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Object:
    at = "2026-01-01T00:00:00Z"
    times = {"lastHeartbeatTime": at, "lastTransitionTime": at}
    return {"type": kind, "status": status, "reason": reason, "message": message} | times


def container(name: str, *, ready: bool, state: Object, last: Object | None = None) -> Object:
    own = {"name": name, "ready": ready, "state": state, "lastState": last or {}}
    return own | {"image": "netmgr", "imageID": "", "restartCount": 0}


def revision(name: str, number: int) -> Object:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "netmgr", "uid": "0"}
    labels = {"app.kubernetes.io/name": "netmgr", "controller-revision-hash": name}
    metadata = {"name": f"netmgr-{name}", "labels": labels, "ownerReferences": [owner]}
    kind = {"apiVersion": "apps/v1", "kind": "ControllerRevision"}
    return kind | {"metadata": metadata, "data": {}, "revision": number}


def lease(holder: str, renewed: float) -> Object:
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(renewed))
    spec = {"holderIdentity": holder, "renewTime": at, "leaseDurationSeconds": 15}
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    return kind | {"metadata": {"name": "netmgr-controller"}, "spec": spec}


@contextmanager
def cluster(installed: ControlPlane, folder: Path) -> Iterator[Cluster]:
    """A cluster without Nodes, with two controllers of which one leads, and a finished rollout."""
    kubeconfig = installed.write_kubeconfig(folder / "config", admin=installed.admin)
    for name, number in ((NEWEST, 10), (OLDER, 9)):
        installed.ask("POST", REVISIONS, revision(name, number))
    # Held for as long as any test takes, since nobody renews it.
    installed.ask("POST", LEASES, lease("controller-a_1", time.time() + 3600))
    with Exporter.serving(own_address()) as exporter:
        made = Cluster(installed, exporter, kubeconfig)
        made.count(0)
        made.describe("daemonsets/netmgr-nat-host", {"desiredNumberScheduled": 0})
        made.describe("deployments/netmgr-controller", {"replicas": 2, "readyReplicas": 2})
        try:
            yield made
        finally:
            installed.ask("DELETE", f"{AGENTS}?gracePeriodSeconds=0")
            installed.ask("DELETE", REVISIONS)
            installed.ask("DELETE", "/api/v1/namespaces/netmgr/events")
