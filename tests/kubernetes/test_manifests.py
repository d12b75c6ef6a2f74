"""Every manifest is taken by a real API server, and every account may do what it needs and nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from netmgr.ranges.assigned import NODE_RANGES
from tests.kubernetes import manifests
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import AGENTS, MERGE, STRATEGIC, add_pods, agent_pod, node
from tests.waiting import eventually

pytestmark = pytest.mark.kubernetes

OK, FORBIDDEN = 200, 403
INVALID = 422
"""What a ValidatingAdmissionPolicy answers, unless it says another reason."""

KEY = "netmgr.io/agent-not-ready"
STARTUP = {"key": KEY, "effect": "NoSchedule"}
GPU = {"key": "example.org/gpu", "effect": "NoSchedule"}
UNHEALTHY = {"key": "netmgr.io/unhealthy", "effect": "NoSchedule"}
RBAC = "rbac.authorization.k8s.io"
NODES, EVENTS, CONFIG_MAPS = ("", "nodes"), ("", "events"), ("", "configmaps")
PODS, POD_STATUS, NODE_STATUS = ("", "pods"), ("", "pods/status"), ("", "nodes/status")
SERVICES, SLICES = ("", "services"), ("discovery.k8s.io", "endpointslices")
LEASES = ("coordination.k8s.io", "leases")
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
EVERYTHING = (
    *(NODES, NODE_STATUS, PODS, POD_STATUS, EVENTS, CONFIG_MAPS, SERVICES, SLICES, LEASES),
    *(("", name) for name in ("secrets", "namespaces", "endpoints", "serviceaccounts")),
    *(("", name) for name in ("pods/exec", "nodes/proxy", "serviceaccounts/token")),
    *(("apps", name) for name in ("daemonsets", "deployments")),
    *((RBAC, name) for name in ("clusterroles", "clusterrolebindings", "roles")),
)
ALLOWED: dict[str, dict[tuple[tuple[str, str], str], set[str]]] = {
    "netmgr-node": {(NODES, ""): {"get"}, (EVENTS, "default"): {"create"}},
    "netmgr-nat-host": {(NODES, ""): {"get"}, (EVENTS, "default"): {"create"}},
    "netmgr-controller": {
        (NODES, ""): {"get", "list", "watch", "patch"},
        (EVENTS, "default"): {"create", "patch"},
        (NODE_STATUS, ""): {"patch"},
        (PODS, "netmgr"): {"list", "watch"},
        (POD_STATUS, "netmgr"): {"patch"},
        (CONFIG_MAPS, "netmgr-claims"): {"list", "create", "patch"},
        (LEASES, "netmgr-claims"): {"create"},
    },
}
NAMESPACES = ("", "netmgr", "netmgr-claims", "default", "kube-system")


def holds(wanted: object, found: object) -> bool:
    """Whether what was asked for is there; the server fills in more."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and holds(value, found[key])
            for key, value in wanted.items()
            if value not in ({}, None)
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list) and len(wanted) == len(found) and all(map(holds, wanted, found))
        )
    return wanted == found


@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_every_object_of_an_overlay_is_applied_and_read_back(
    control_plane: ControlPlane, overlay: str
) -> None:
    for wanted in manifests.overlay(overlay):
        manifests.apply(control_plane, wanted)
        found = control_plane.ask("GET", manifests.path_of(control_plane, wanted))
        assert holds(wanted, found), f"{wanted['kind']} {wanted['metadata']['name']}: {found}"
        again = manifests.apply(control_plane, wanted)
        assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"], (
            "applied twice, changed twice"
        )
    # What this overlay alone has is none of other tests': rights, and workloads, and what it gives
    # to objects that the others have as well.
    installed = [each for name in manifests.INSTALLED for each in manifests.overlay(name)]
    kept = {manifests.path_of(control_plane, each) for each in installed}
    for wanted in manifests.overlay(overlay):
        path = manifests.path_of(control_plane, wanted)
        if wanted["kind"] != "Namespace" and path not in kept:
            control_plane.ask("DELETE", path)
    for wanted in installed:
        manifests.apply(control_plane, wanted)


@pytest.mark.parametrize(
    "component",
    ["budgets", "controller-on-workers", "k3s", "preflight", "throughput-test", "taint-unhealthy"],
)
def test_a_component_changes_workloads_as_the_server_allows(
    installed: ControlPlane, tmp_path: Path, component: str
) -> None:
    workloads = ("DaemonSet", "Deployment")
    for wanted in manifests.with_component(tmp_path, "cni", component):
        if wanted["kind"] in workloads:
            assert holds(wanted, manifests.apply(installed, wanted, dry_run=True))


@pytest.mark.parametrize("account", ALLOWED)
def test_an_account_may_do_what_it_needs_and_nothing_else(
    installed: ControlPlane, account: str
) -> None:
    token, allowed = installed.token("netmgr", account), ALLOWED[account]
    wrong = []
    for resource, namespace, verb in product(EVERYTHING, NAMESPACES, VERBS):
        everywhere, here = allowed.get((resource, ""), set()), allowed.get((resource, namespace))
        may = verb in everywhere | (here or set())
        if _may(installed, token, verb, resource, namespace) != may:
            wrong.append(f"{verb} {resource} in {namespace or 'all'}: should be {may}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("resource", "namespace", "verbs", "own", "other"),
    [
        (LEASES, "netmgr-claims", ("get", "update"), "netmgr-controller", "another"),
        (CONFIG_MAPS, "netmgr", ("patch",), "netmgr-nodes", "netmgr-plan"),
    ],
    ids=["lease", "list of nodes"],
)
def test_what_the_controller_writes_by_name_is_its_own_and_no_other(
    installed: ControlPlane,
    resource: tuple[str, str],
    namespace: str,
    verbs: tuple[str, ...],
    own: str,
    other: str,
) -> None:
    token = installed.token("netmgr", "netmgr-controller")
    for verb, (name, may) in product(verbs, ((own, True), (other, False))):
        assert _may(installed, token, verb, resource, namespace, name) is may, (verb, name)


@dataclass
class Guarded:
    """An object that the controller may change a part of, as its admission policies say."""

    plane: ControlPlane
    path: str
    token: str

    def answer(self, body: Object, kind: str = MERGE, of: str = "") -> tuple[int, str]:
        """What the server says to a change, or to one of a subresource, by the controller."""
        return self.plane.answer("PATCH", f"{self.path}{of}", body, token=self.token, kind=kind)

    def write(self, body: Object, kind: str = MERGE, of: str = "") -> None:
        status, text = self.answer(body, kind, of)
        assert status == OK, text

    def refuses(self, bodies: Iterable[Object], kind: str = MERGE, of: str = "") -> None:
        for body in bodies:
            status, text = self.answer(body, kind, of)
            assert (status, "netmgr-controller may" in text) == (INVALID, True), (body, text)

    def read(self) -> Object:
        return self.plane.ask("GET", self.path)


PROBE: Object = {"metadata": {"labels": {"probe": "x"}}}
"""Refused once a policy is in force, which takes the server a moment."""


@pytest.fixture
def guarded(installed: ControlPlane) -> Iterator[Guarded]:
    """A Node, once the policy for Nodes is in force."""
    token = installed.token("netmgr", "netmgr-controller")
    path = "/api/v1/nodes/guarded"
    taints = [STARTUP, GPU]
    installed.ask("POST", "/api/v1/nodes", node("guarded", "gpu", taints=taints))
    conditions = [{"type": "Ready", "status": "False"}, {"type": "MemoryPressure", "status": "No"}]
    installed.ask("PATCH", f"{path}/status", {"status": {"conditions": conditions}}, kind=MERGE)
    made = Guarded(installed, path, token)
    eventually(lambda: made.answer(PROBE)[0] == INVALID)
    yield made
    installed.ask("DELETE", path)


OF_NODE: tuple[Object, ...] = (
    {"metadata": {"labels": {"netmgr.io/node-pool": "cpu"}}},
    {"metadata": {"annotations": {"example.org/owner": "x"}}},
    {"metadata": {"finalizers": ["example.org/keep"]}},
    {"spec": {"taints": [{"key": "example.org/away", "effect": "NoExecute"}]}},
    {"spec": {"taints": None}},
    {"spec": {"taints": [STARTUP]}},
    {"spec": {"taints": [{"key": "example.org/gpu", "effect": "NoExecute"}]}},
    {"spec": {"unschedulable": True}},
    {"spec": {"providerID": "example://another"}},
    {"spec": {"podCIDR": "10.0.0.0/28", "podCIDRs": ["10.0.0.0/28"], "unschedulable": True}},
)
OF_STATUS: tuple[Object, ...] = (
    {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    {"status": {"conditions": [{"type": "DiskPressure", "status": "True"}]}},
    {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}},
    {"status": {"capacity": {"cpu": "1000"}}},
    {"status": {"allocatable": {"pods": "1000"}}},
    {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}},
    {"status": {"nodeInfo": {"kubeletVersion": "v0"}}},
    {"metadata": {"labels": {"netmgr.io/node-pool": "cpu"}}},
    {"metadata": {"annotations": {"example.org/owner": "x"}}},
)
OF_POD: tuple[Object, ...] = (
    {"metadata": {"labels": {"app.kubernetes.io/name": "another"}}},
    {"metadata": {"annotations": {"example.org/owner": "x"}}},
    {"metadata": {"finalizers": ["example.org/keep"]}},
    {"status": {"phase": "Failed"}},
    {"status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}},
    {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
)


def test_the_controller_may_change_nothing_of_a_node_but_its_ranges_and_one_condition(
    guarded: Guarded,
) -> None:
    before = guarded.read()["metadata"]["resourceVersion"]
    guarded.refuses(OF_NODE)
    guarded.refuses(OF_STATUS, STRATEGIC, "/status")
    assert guarded.read()["metadata"]["resourceVersion"] == before


def test_the_controller_removes_the_startup_taint_and_clears_the_clouds_condition(
    guarded: Guarded,
) -> None:
    taints = [taint for taint in guarded.read()["spec"]["taints"] if taint["key"] != KEY]
    guarded.write({"spec": {"taints": taints}})
    condition = {"type": "NetworkUnavailable", "status": "False"}
    guarded.write({"status": {"conditions": [condition]}}, STRATEGIC, "/status")
    found = guarded.read()
    assert found["spec"]["taints"] == taints
    assert {each["type"]: each["status"] for each in found["status"]["conditions"]} == {
        "Ready": "False",
        "MemoryPressure": "No",
        "NetworkUnavailable": "False",
    }
    again = {"spec": {"taints": [*taints, STARTUP]}}
    assert guarded.answer(again)[0] == INVALID, "never added"


Write = Callable[..., int]


@pytest.fixture
def write_taints(guarded: Guarded) -> Write:
    """Writes a Node's taints as the controller, beside those that others gave it; the status."""
    others = [taint for taint in guarded.read()["spec"]["taints"] if taint != STARTUP]
    return lambda *taints: guarded.answer({"spec": {"taints": [*others, *taints]}})[0]


@pytest.mark.usefixtures("may_taint")
def test_with_its_component_the_controller_adds_and_removes_one_taint_and_no_other(
    write_taints: Write,
) -> None:
    eventually(lambda: write_taints(STARTUP, UNHEALTHY) == OK)
    assert write_taints(STARTUP) == OK
    for refused in (
        [{**UNHEALTHY, "effect": "NoExecute"}],
        [{**UNHEALTHY, "value": "x"}],
        [UNHEALTHY, {**GPU, "key": "example.org/another"}],
        [UNHEALTHY, {**STARTUP, "effect": "NoExecute"}],
    ):
        assert write_taints(STARTUP, *refused) == INVALID, refused
    assert write_taints(UNHEALTHY) == OK
    assert write_taints() == OK
    assert write_taints(STARTUP) == INVALID, "never added"


def test_without_the_component_the_controller_removes_both_taints_and_adds_none(
    guarded: Guarded, write_taints: Write
) -> None:
    # Until the policy is in force, the taint may be added, and is removed again.
    eventually(lambda: write_taints(STARTUP) and write_taints(STARTUP, UNHEALTHY) == INVALID)
    both = {"spec": {"taints": [*guarded.read()["spec"]["taints"], UNHEALTHY]}}
    guarded.plane.ask("PATCH", guarded.path, both, kind=MERGE)
    assert write_taints(UNHEALTHY) == OK
    assert write_taints() == OK
    assert write_taints(UNHEALTHY) == INVALID


@pytest.fixture
def guarded_pod(guarded: Guarded) -> Iterator[Guarded]:
    """An agent's pod, once the policy for pods is in force."""
    add_pods(guarded.plane, [agent_pod("guarded", "guarded")])
    made = replace(guarded, path=f"{AGENTS}/guarded")
    eventually(lambda: made.answer(PROBE, of="/status")[0] == INVALID)
    yield made
    made.plane.ask("DELETE", f"{made.path}?gracePeriodSeconds=0")


def test_the_controller_may_change_nothing_of_an_agents_pod_but_its_annotation(
    guarded_pod: Guarded,
) -> None:
    guarded_pod.refuses(OF_POD, of="/status")


def test_the_controller_writes_the_annotation_and_can_change_no_image(guarded_pod: Guarded) -> None:
    image = {"spec": {"containers": [{"name": "agent", "image": "example.org/other"}]}}
    assert guarded_pod.answer(image, STRATEGIC)[0] == FORBIDDEN
    # The server itself leaves a pod's spec as it is where its status is written.
    body = {"metadata": {"annotations": {NODE_RANGES: "{}"}}} | image
    guarded_pod.write(body, STRATEGIC, "/status")
    found = guarded_pod.read()
    assert found["metadata"]["annotations"] == {NODE_RANGES: "{}"}
    assert [each["image"] for each in found["spec"]["containers"]] == ["netmgr", "netmgr"]


def test_the_controller_gives_ranges_and_others_are_not_concerned(guarded: Guarded) -> None:
    ranges = {"metadata": {"annotations": {"netmgr.io/ranges": "10.0.0.0/28,10.0.1.0/28"}}}
    given = ranges | {"spec": {"podCIDR": "10.0.0.0/28", "podCIDRs": ["10.0.0.0/28"]}}
    guarded.write(given)
    guarded.write({"metadata": {"annotations": {"netmgr.io/ranges": None}}})
    guarded.plane.ask("PATCH", guarded.path, {"spec": {"unschedulable": True}}, kind=MERGE)
    assert guarded.read()["spec"]["podCIDRs"] == ["10.0.0.0/28"]


def _may(
    plane: ControlPlane,
    token: str,
    verb: str,
    resource: tuple[str, str],
    namespace: str,
    name: str = "",
) -> bool:
    """What the server says to the account itself (SelfSubjectAccessReview)."""
    group, name_of_kind = resource
    kind, _, part = name_of_kind.partition("/")
    attributes: Object = {"verb": verb, "group": group, "resource": kind, "subresource": part}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes | {"namespace": namespace, "name": name}},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return plane.ask("POST", path, body, token=token)["status"]["allowed"]
