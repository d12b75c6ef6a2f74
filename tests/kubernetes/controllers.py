"""Plans, controllers as processes of their own with real tokens, and Nodes by the thousand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

from netmgr.kube.controller.nodes import HEALTHY, STARTUP_TAINT
from netmgr.plan import files
from netmgr.plan.lock import LockDocument
from netmgr.plan.locking import make_lock
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.waiting import PATIENCE

POOL = "netmgr.io/node-pool"
Rules = Iterable[tuple[str, str, tuple[str, ...]]]
MERGE, STRATEGIC = "merge-patch+json", "strategic-merge-patch+json"


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


def lock_of(plan: Path) -> LockDocument:
    """The lock beside a plan."""
    lock = files.load_lock(files.lock_path(plan))
    assert lock is not None
    return lock


def relock(plan: Path) -> None:
    """The lock that answers a plan."""
    document = files.load_plan(plan)
    before = files.load_lock(files.lock_path(plan))
    limits = files.limits_of(document, plan)
    files.write_lock(files.lock_path(plan), make_lock(document, before, limits), before)


def make_account(plane: ControlPlane, namespace: str, rules: Rules) -> str:
    """A service account that may do what these rules say; its token."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "some"}}
    plane.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    grant(plane, namespace, rules)
    return plane.token(namespace, "some")


def grant(plane: ControlPlane, namespace: str, rules: Rules) -> None:
    """Let that service account do more, in all namespaces."""
    group = "rbac.authorization.k8s.io"
    common = {"apiVersion": f"{group}/v1", "metadata": {"generateName": f"{namespace}-"}}
    allowed = [{"apiGroups": [g], "resources": [r], "verbs": list(verbs)} for g, r, verbs in rules]
    role = common | {"kind": "ClusterRole", "rules": allowed}
    name = plane.ask("POST", f"/apis/{group}/v1/clusterroles", role)["metadata"]["name"]
    binding = common | {
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "some", "namespace": namespace}],
    }
    plane.ask("POST", f"/apis/{group}/v1/clusterrolebindings", binding)


@contextmanager
def refusing(
    plane: ControlPlane, resource: str, operation: str, expression: str, message: str
) -> Iterator[None]:
    """A policy of the cluster's, by which the server refuses what some do not fulfil."""
    group = "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": [operation],
        "resources": [resource],
    }
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression, "message": message}],
    }
    binding = {"policyName": "refusing", "validationActions": ["Deny"]}
    kinds = {"Policy": ("policies", policy), "PolicyBinding": ("policybindings", binding)}
    for kind, (plural, spec) in kinds.items():
        body = {"apiVersion": group, "kind": f"ValidatingAdmission{kind}", "spec": spec}
        body["metadata"] = {"name": "refusing"}
        plane.ask("POST", f"/apis/{group}/validatingadmission{plural}", body)
    try:
        yield
    finally:
        for plural, _ in kinds.values():
            plane.ask("DELETE", f"/apis/{group}/validatingadmission{plural}/refusing")


@dataclass
class Program:
    """A netmgr command that runs beside the test."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0

    def kill(self) -> None:
        """End it at once, as a lost machine would."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def end(self) -> int:
        """End it as the kubelet does; its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE)

    @property
    def said(self) -> str:
        """What it has logged."""
        return self.log.read_text()

    def page(self, name: str) -> str:
        """What it answers over HTTP."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
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
        (peak,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(peak.split()[1]) * 1024


@dataclass
class Starter:
    """Starts netmgr commands that ask the API server as a service account."""

    plane: ControlPlane
    folder: Path
    started: list[Program] = field(default_factory=list)

    def account(self, namespace: str, name: str) -> Path:
        """The account's token and the server's certificate, as a pod has them."""
        folder = self.folder / f"account-{namespace}-{name}"
        return self.plane.credentials(folder, self.plane.token(namespace, name))

    def start(
        self,
        *arguments: str,
        account: Path | None = None,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> Program:
        """Start `netmgr` with these arguments, and `environment` beside what a pod has."""
        log = self.folder / f"program-{len(self.started)}.log"
        command = [sys.executable, "-m", "netmgr", *arguments]
        command += [f"--service-account={account}"] if account else []
        kept = {
            k: v for k, v in os.environ.items() if "PROXY" not in k.upper() and k != "KUBECONFIG"
        }
        variables = kept | self.plane.environment | dict(environment or {})
        with log.open("wb") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream, env=variables)
        self.started.append(Program(process, log, port))
        return self.started[-1]

    def stop(self) -> None:
        """End all that still run."""
        for program in self.started:
            if program.process.poll() is None:
                program.kill()


Start = Callable[..., Program]
"""Starts a controller with more options."""


class Crowd:
    """Many requests over few connections."""

    def __init__(self, plane: ControlPlane, connections: int = 4) -> None:
        self._plane = plane
        self._connections = connections

    def ask(
        self, method: str, paths: Iterable[tuple[str, Object | None]], kind: str = "json"
    ) -> None:
        """One request for each path and body; every one must succeed."""
        with ThreadPoolExecutor(self._connections) as pool:
            list(pool.map(lambda entry: self._plane.ask(method, *entry, kind=kind), paths))


def node(name: str, pool: str | None = None, **spec: object) -> Object:
    """A Node object as a kubelet registers it."""
    metadata = {"name": name, "labels": {POOL: pool} if pool else {}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}


def add_nodes(plane: ControlPlane, nodes: Iterable[Object]) -> None:
    """Register Nodes."""
    Crowd(plane).ask("POST", (("/api/v1/nodes", each) for each in nodes))


def agent_pod(name: str, node: str, component: str = "agent") -> Object:
    """A pod as the DaemonSet controller makes it, on a node."""
    labels = {"app.kubernetes.io/name": "netmgr", "app.kubernetes.io/component": component}
    containers = [{"name": each, "image": "netmgr"} for each in ("agent", "exporter")]
    spec = {"serviceAccountName": "netmgr-node", "nodeName": node, "containers": containers}
    metadata = {"name": name, "labels": labels}
    spec |= {"automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


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
    plane.ask("PATCH", f"{AGENTS}/{pod}/status", pod_status(**containers), kind=MERGE)


def add_exporter(plane: ControlPlane, name: str, port: int) -> None:
    """A Node, and its agent's pod with an exporter at this port of the loopback."""
    add_nodes(plane, [node(name)])
    pod = agent_pod(f"agent-{name}", name)
    pod["spec"]["containers"][1]["ports"] = [{"name": "metrics", "containerPort": port}]
    add_pods(plane, [pod])
    status = {"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    plane.ask("PATCH", f"{AGENTS}/agent-{name}/status", status, kind=MERGE)


def taints(plane: ControlPlane, name: str) -> list[Object]:
    """A Node's taints."""
    return plane.ask("GET", f"/api/v1/nodes/{name}")["spec"].get("taints") or []


def starts_up(plane: ControlPlane, name: str) -> bool:
    """Whether a Node still has the startup taint."""
    return STARTUP_TAINT in {taint["key"] for taint in taints(plane, name)}


def events_of(plane: ControlPlane, name: str) -> dict[str, Object]:
    """A Node's Events by reason, of which each has one."""
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    items = plane.ask("GET", path)["items"]
    by_reason = {event["reason"]: event for event in items}
    assert len(by_reason) == len(items), items
    return by_reason


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
