"""Every manifest is taken by a real API server, and every account may do what it needs and nothing
else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.kubernetes import manifests
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import eventually, node

pytestmark = pytest.mark.kubernetes

POD_MONITORS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PodMonitor, plural: podmonitors, singular: podmonitor, listKind: PodMonitorList}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""

INVALID = 422
"""What a ValidatingAdmissionPolicy answers, unless it says another reason."""

MERGE = "merge-patch+json"
NODES, EVENTS, CONFIG_MAPS = ("", "nodes"), ("", "events"), ("", "configmaps")
PODS = ("", "pods")
SERVICES, SLICES, LEASES = (
    ("", "services"),
    ("discovery.k8s.io", "endpointslices"),
    ("coordination.k8s.io", "leases"),
)
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
EVERYTHING = (
    *(NODES, PODS, EVENTS, CONFIG_MAPS, SERVICES, SLICES, LEASES),
    *(
        ("", name)
        for name in (
            "secrets",
            "namespaces",
            "endpoints",
            "serviceaccounts",
            "nodes/status",
        )
    ),
    *(("", name) for name in ("pods/exec", "nodes/proxy", "serviceaccounts/token")),
    *(("apps", name) for name in ("daemonsets", "deployments")),
    *(
        ("rbac.authorization.k8s.io", name)
        for name in ("clusterroles", "clusterrolebindings", "roles")
    ),
)
ALLOWED: dict[str, dict[tuple[tuple[str, str], str], set[str]]] = {
    "netmgr-node": {(NODES, ""): {"get"}, (EVENTS, "default"): {"create"}},
    "netmgr-nat-host": {
        (NODES, ""): {"get"},
        (EVENTS, "default"): {"create"},
        (SERVICES, ""): {"list", "watch"},
        (SLICES, ""): {"list", "watch"},
    },
    "netmgr-controller": {
        (NODES, ""): {"get", "list", "watch", "patch"},
        (EVENTS, "default"): {"create", "patch"},
        (PODS, "netmgr"): {"list", "watch"},
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
    for wanted in manifests.build(manifests.HERE / "overlays" / overlay):
        manifests.apply(control_plane, wanted)
        found = control_plane.ask("GET", manifests.path_of(control_plane, wanted))
        assert holds(wanted, found), f"{wanted['kind']} {wanted['metadata']['name']}: {found}"
        again = manifests.apply(control_plane, wanted)
        assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"], (
            "applied twice, changed twice"
        )


def test_the_pod_monitor_is_added_where_the_prometheus_operator_is(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    above = os.path.relpath(manifests.HERE, tmp_path.resolve())
    lines = [
        f"resources: [{above}/overlays/controller]",
        f"components: [{above}/components/pod-monitor]",
    ]
    (tmp_path / "kustomization.yaml").write_text("\n".join(lines))
    (wanted,) = [found for found in manifests.build(tmp_path) if found["kind"] == "PodMonitor"]
    manifests.apply(control_plane, yaml.safe_load(POD_MONITORS))
    eventually(lambda: control_plane.answer("GET", "/apis/monitoring.coreos.com/v1")[0] == 200)
    manifests.apply(control_plane, wanted)
    assert holds(wanted, control_plane.ask("GET", manifests.path_of(control_plane, wanted)))


@pytest.mark.parametrize("account", ALLOWED)
def test_an_account_may_do_what_it_needs_and_nothing_else(
    installed: ControlPlane, account: str
) -> None:
    token = installed.token("netmgr", account)
    wrong = []
    for group_and_resource in EVERYTHING:
        for namespace in NAMESPACES:
            for verb in VERBS:
                everywhere = ALLOWED[account].get((group_and_resource, ""), set())
                here = ALLOWED[account].get((group_and_resource, namespace), set())
                may = verb in everywhere | here
                if _may(installed, token, verb, group_and_resource, namespace) != may:
                    wrong.append(
                        f"{verb} {group_and_resource} in {namespace or 'all namespaces'}: "
                        f"should be {may}"
                    )
    assert not wrong, "\n".join(wrong)


def test_the_controllers_lease_is_its_own_and_no_other(installed: ControlPlane) -> None:
    token = installed.token("netmgr", "netmgr-controller")
    for name, may in (("netmgr-controller", True), ("another", False)):
        for verb in ("get", "update", "patch"):
            assert _may(installed, token, verb, LEASES, "netmgr-claims", name) is may, (verb, name)


@pytest.fixture
def guarded(installed: ControlPlane) -> Iterator[tuple[ControlPlane, str, str]]:
    """A Node, and the controller's token once its admission policy is in force, which takes the
    server a moment.
    """
    token = installed.token("netmgr", "netmgr-controller")
    path = "/api/v1/nodes/guarded"
    installed.ask("POST", "/api/v1/nodes", node("guarded", "gpu"))

    def refused() -> bool:
        return (
            installed.answer(
                "PATCH", path, {"metadata": {"labels": {"probe": "x"}}}, token=token, kind=MERGE
            )[0]
            == INVALID
        )

    eventually(refused)
    yield installed, path, token
    installed.ask("DELETE", path)


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"labels": {"netmgr.io/node-pool": "cpu"}}},
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"metadata": {"annotations": {"example.org/owner": "x"}}},
        {"metadata": {"finalizers": ["example.org/keep"]}},
        {"spec": {"taints": [{"key": "example.org/away", "effect": "NoExecute"}]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"providerID": "example://another"}},
        {"spec": {"podCIDR": "10.0.0.0/28", "podCIDRs": ["10.0.0.0/28"], "unschedulable": True}},
    ],
    ids=str,
)
def test_the_controller_may_change_nothing_of_a_node_but_its_ranges(
    guarded: tuple[ControlPlane, str, str], body: Object
) -> None:
    plane, path, token = guarded
    before = plane.ask("GET", path)
    status, text = plane.answer("PATCH", path, body, token=token, kind=MERGE)
    assert (status, "netmgr-controller may" in str(text)) == (INVALID, True), text
    assert (
        plane.ask("GET", path)["metadata"]["resourceVersion"]
        == before["metadata"]["resourceVersion"]
    )


def test_the_controller_gives_ranges_and_others_are_not_concerned(
    guarded: tuple[ControlPlane, str, str],
) -> None:
    plane, path, token = guarded
    ranges = {"metadata": {"annotations": {"netmgr.io/ranges": "10.0.0.0/28,10.0.1.0/28"}}}
    given = ranges | {"spec": {"podCIDR": "10.0.0.0/28", "podCIDRs": ["10.0.0.0/28"]}}
    plane.ask("PATCH", path, given, token=token, kind=MERGE)
    plane.ask(
        "PATCH",
        path,
        {"metadata": {"annotations": {"netmgr.io/ranges": None}}},
        token=token,
        kind=MERGE,
    )
    plane.ask("PATCH", path, {"spec": {"unschedulable": True}}, kind=MERGE)
    assert plane.ask("GET", path)["spec"]["podCIDRs"] == ["10.0.0.0/28"]


def _may(
    plane: ControlPlane,
    token: str,
    verb: str,
    resource: tuple[str, str],
    namespace: str,
    name: str = "",
) -> bool:
    """What the server says to the account itself (SelfSubjectAccessReview)."""
    group, path = resource
    kind, _, part = path.partition("/")
    attributes: Object = {"verb": verb, "group": group, "resource": kind, "subresource": part}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes | {"namespace": namespace, "name": name}},
    }
    return plane.ask(
        "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, token=token
    )["status"]["allowed"]
