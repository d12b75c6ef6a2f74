"""Plans, controllers as processes of their own with real tokens, and Nodes by the thousand."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

from netmgr.kube.nodes import HEALTHY
from netmgr.plan import files
from netmgr.plan.locking import make_lock
from tests.kubernetes.control_plane import ControlPlane, Object

POOL = "netmgr.io/node-pool"
Rules = tuple[tuple[str, str, tuple[str, ...]], ...]
RULES: Rules = (
    ("", "nodes", ("get", "list", "watch", "patch")),
    ("", "events", ("create", "patch")),
    ("", "nodes/status", ("patch",)),
    ("", "pods", ("list", "watch")),
    ("", "pods/status", ("patch",)),
)
OWN_RULES: Rules = (
    ("", "configmaps", ("list", "create", "patch")),
    ("coordination.k8s.io", "leases", ("get", "create", "update")),
)


def write_plan(folder: Path, pools: str, *, v6: bool = False, lock: bool = True) -> Path:
    """A plan of the one cluster `train` with these node pools (YAML), and its lock."""
    plan = folder / "plan.yaml"
    nodes = '[10.0.0.0/8, "fd00:10::/40"]' if v6 else "[10.0.0.0/8]"
    plan.write_text(
        "apiVersion: netmgr.io/v1alpha1\nkind: NetworkPlan\nname: test\ncloud: none\n"
        f"pools: {{nodes: {nodes}, services: [172.16.0.0/12]}}\n"
        f"clusters: {{train: {{node_pools: {pools}}}}}\n"
    )
    if lock:
        relock(plan)
    return plan


def relock(plan: Path) -> None:
    """The lock that answers a plan."""
    document = files.load_plan(plan)
    before = files.load_lock(files.lock_path(plan))
    limits = files.limits_of(document, plan)
    files.write_lock(files.lock_path(plan), make_lock(document, before, limits))


def make_account(
    plane: ControlPlane, namespace: str, name: str = "controller", rules: Rules = RULES
) -> str:
    """A service account that may do what a controller does, or only what these rules say."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    plane.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    grant(plane, namespace, name, rules)
    if rules is RULES:
        grant(plane, namespace, name, OWN_RULES, everywhere=False)
    return name


def grant(
    plane: ControlPlane, namespace: str, account: str, rules: Rules, *, everywhere: bool = True
) -> None:
    """Let a service account do more: in all namespaces or in its own."""
    group = "rbac.authorization.k8s.io"
    scope, prefix = ("", "Cluster") if everywhere else (f"/namespaces/{namespace}", "")
    common = {
        "apiVersion": f"{group}/v1",
        "metadata": {"generateName": f"{namespace}-{account}-"},
    }
    role = common | {
        "kind": f"{prefix}Role",
        "rules": [
            {"apiGroups": [g], "resources": [r], "verbs": list(verbs)} for g, r, verbs in rules
        ],
    }
    path = f"/apis/{group}/v1{scope}/{prefix.lower()}role"
    name = plane.ask("POST", f"{path}s", role)["metadata"]["name"]
    binding = common | {
        "kind": f"{prefix}RoleBinding",
        "roleRef": {"apiGroup": group, "kind": f"{prefix}Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    plane.ask("POST", f"{path}bindings", binding)


@dataclass
class Program:
    """A netmgr command that runs beside the test."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0

    def kill(self) -> None:
        """End it at once, as a lost machine would."""
        self.process.kill()
        self.process.wait(10)

    def end(self) -> int:
        """End it as the kubelet does; its exit code."""
        self.process.terminate()
        return self.process.wait(20)

    @property
    def said(self) -> str:
        """What it has logged."""
        return self.log.read_text()

    def page(self, name: str) -> str:
        """What it answers over HTTP."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", f"/{name}")
        try:
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def figures(self) -> str:
        """Its metrics; empty before it serves them."""
        try:
            return self.page("metrics")
        except ConnectionRefusedError:
            return ""

    @property
    def most_memory(self) -> int:
        """The most memory it ever had at once, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return (
            int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
            * 1024
        )


@dataclass
class Starter:
    """Starts netmgr commands that ask the API server as a service account."""

    plane: ControlPlane
    folder: Path
    started: list[Program] = field(default_factory=list)

    def account(self, namespace: str, name: str, seconds: int = 3600) -> Path:
        """The account's token and the server's certificate, as a pod has them."""
        return self.plane.credentials(
            self.folder / f"account-{namespace}-{name}", self.plane.token(namespace, name, seconds)
        )

    def start(
        self,
        *arguments: str,
        account: Path,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        """Start `netmgr` with these arguments, and `environment` beside what a pod has."""
        log = self.folder / f"program-{len(self.started)}.log"
        command = [sys.executable, "-m", "netmgr", *arguments, f"--service-account={account}"]
        kept = {
            k: v for k, v in os.environ.items() if "PROXY" not in k.upper() and k != "KUBECONFIG"
        }
        variables = kept | self.plane.environment | dict(environment or {})
        with log.open("wb") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream, env=variables)
        self.started.append(Program(process, log, port))
        return self.started[-1]

    def controller(
        self, plan: Path, account: Path, namespace: str, *more: str, port: int = 0
    ) -> Program:
        """Start a controller of the cluster `train`."""
        options = [
            f"--plan={plan}",
            "--cluster=train",
            f"--namespace={namespace}",
            f"--listen=127.0.0.1:{port}",
        ]
        return self.start("controller", *options, *more, account=account, port=port)

    def stop(self) -> None:
        """End all that still run."""
        for program in self.started:
            if program.process.poll() is None:
                program.kill()


class Crowd:
    """Many requests over few connections that stay open."""

    def __init__(self, plane: ControlPlane, connections: int = 4) -> None:
        self._plane = plane
        self._connections = connections
        self._local = threading.local()
        self._open: list[HTTPSConnection] = []
        self._kind = "json"

    def ask(
        self, method: str, paths: Iterable[tuple[str, Object | None]], kind: str = "json"
    ) -> None:
        """One request for each path and body; every one must succeed."""
        self._kind = kind
        with ThreadPoolExecutor(self._connections) as pool:
            list(pool.map(lambda entry: self._one(method, *entry), paths))
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._local = threading.local()

    def _one(self, method: str, path: str, body: Object | None) -> None:
        if not hasattr(self._local, "connection"):
            context = ssl.create_default_context(cafile=str(self._plane.authority))
            self._local.connection = HTTPSConnection(
                "127.0.0.1", self._plane.port, timeout=60, context=context
            )
            self._open.append(self._local.connection)
        headers = {
            "Authorization": f"Bearer {self._plane.admin}",
            "Content-Type": f"application/{self._kind}",
        }
        self._local.connection.request(
            method, path, None if body is None else json.dumps(body), headers
        )
        reply = self._local.connection.getresponse()
        text = reply.read()
        assert reply.status in range(200, 300), text


def node(name: str, pool: str | None = None, **spec: object) -> Object:
    """A Node object as a kubelet registers it."""
    labels = {POOL: pool} if pool else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }


def add_nodes(plane: ControlPlane, nodes: Iterable[Object]) -> None:
    """Register Nodes."""
    Crowd(plane).ask("POST", (("/api/v1/nodes", each) for each in nodes))


def agent_pod(name: str, node: str, component: str = "agent") -> Object:
    """A pod as the DaemonSet controller makes it, on a node."""
    labels = {"app.kubernetes.io/name": "netmgr", "app.kubernetes.io/component": component}
    containers = [{"name": each, "image": "netmgr"} for each in ("agent", "exporter")]
    spec = {"serviceAccountName": "netmgr-node", "nodeName": node, "containers": containers}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": spec | {"automountServiceAccountToken": False},
    }


AGENTS = "/api/v1/namespaces/netmgr/pods"


def add_pods(plane: ControlPlane, pods: Iterable[Object]) -> None:
    """Create agents' pods."""
    Crowd(plane).ask("POST", ((AGENTS, each) for each in pods))


def pod_status(**containers: bool) -> Object:
    """A pod's status that says of its containers whether they are ready."""
    more = {"image": "netmgr", "imageID": "", "restartCount": 0}
    statuses = [{"name": each, "ready": ready, **more} for each, ready in containers.items()]
    return {"status": {"containerStatuses": statuses}}


def set_ready(plane: ControlPlane, pod: str, **containers: bool) -> None:
    """Say of a pod's containers whether they are ready, as its kubelet does."""
    plane.ask("PATCH", f"{AGENTS}/{pod}/status", pod_status(**containers), kind="merge-patch+json")


def all_nodes(plane: ControlPlane) -> dict[str, Object]:
    """Every Node there is, by name."""
    return {each["metadata"]["name"]: each for each in plane.ask("GET", "/api/v1/nodes")["items"]}


def pod_cidrs(plane: ControlPlane) -> dict[str, list[str]]:
    """The podCIDRs of the Nodes that have any."""
    nodes = all_nodes(plane)
    return {
        name: each["spec"]["podCIDRs"]
        for name, each in nodes.items()
        if each["spec"].get("podCIDRs")
    }


def health(plane: ControlPlane, name: str) -> Object:
    """A Node's condition NetmgrHealthy; empty without one."""
    found = plane.ask("GET", f"/api/v1/nodes/{name}")["status"].get("conditions") or ()
    return next((each for each in found if each["type"] == HEALTHY), {})


def health_state(plane: ControlPlane, name: str) -> tuple[str, str]:
    """Its status and reason."""
    found = health(plane, name)
    return found.get("status", ""), found.get("reason", "")
