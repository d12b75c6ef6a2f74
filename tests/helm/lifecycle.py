"""A release is installed, changed, rolled back and removed on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm import programs
from tests.kubernetes.control_plane import ControlPlane, Object

pytestmark = [pytest.mark.programs, pytest.mark.kubernetes, pytest.mark.timeout(300)]

CHART = Path(__file__).parents[2] / "configs" / "helm" / "netmgr"
KINDS = (
    *("api/v1/namespaces", "api/v1/configmaps", "api/v1/serviceaccounts"),
    *("apis/apps/v1/daemonsets", "apis/apps/v1/deployments"),
    *(f"apis/rbac.authorization.k8s.io/v1/{each}" for each in ("clusterroles", "roles")),
    *(f"apis/rbac.authorization.k8s.io/v1/{each}bindings" for each in ("clusterrole", "role")),
    *("apis/networking.k8s.io/v1/networkpolicies",),
    *(
        f"apis/admissionregistration.k8s.io/v1/validatingadmissionpolic{each}"
        for each in ("ies", "ybindings")
    ),
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("control-plane")).running() as found:
        yield found


def helm(plane: ControlPlane, *arguments: str | Path) -> None:
    done = programs.run(
        *arguments,
        *("--namespace", "netmgr", "--kube-apiserver", f"https://127.0.0.1:{plane.port}"),
        *("--kube-token", plane.admin, "--kube-ca-file", plane.authority),
    )
    assert done.returncode == 0, done.stderr


def ours(plane: ControlPlane) -> dict[tuple[str, str], Object]:
    """The release's objects on the server."""
    return {
        (kind.rpartition("/")[2], each["metadata"]["name"]): each
        for kind in KINDS
        for each in plane.ask("GET", f"/{kind}?labelSelector=app.kubernetes.io/managed-by=Helm")[
            "items"
        ]
    }


def image(found: dict[tuple[str, str], Object]) -> str:
    pod = found["daemonsets", "netmgr"]["spec"]["template"]["spec"]
    return pod["containers"][0]["image"].rpartition(":")[2]


def test_a_release_from_its_installation_to_its_removal(plane: ControlPlane):
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "netmgr"}}
    plane.ask("POST", "/api/v1/namespaces", namespace)

    helm(plane, "install", "netmgr", CHART, "--set", "image.tag=1.0.0")
    installed = ours(plane)
    assert image(installed) == "1.0.0"
    assert ("deployments", "netmgr-controller") not in installed

    helm(plane, "upgrade", "netmgr", CHART, "--set", "mode=cni,image.tag=2.0.0")
    changed = ours(plane)
    assert image(changed) == "2.0.0"
    assert {
        ("deployments", "netmgr-controller"),
        ("namespaces", "netmgr-claims"),
        ("validatingadmissionpolicies", "netmgr-controller"),
    } <= changed.keys()
    # Its NAT hosts are another release, which shares no object with this one.
    helm(plane, "install", "nat-hosts", CHART, "--set", "mode=nat-host")
    helm(plane, "uninstall", "nat-hosts")

    helm(plane, "rollback", "netmgr", "1")
    rolled_back = ours(plane)
    assert image(rolled_back) == "1.0.0"
    # No controller removes a namespace's content here.
    assert rolled_back.keys() - {("namespaces", "netmgr-claims")} == installed.keys()

    helm(plane, "uninstall", "netmgr")
    assert ours(plane).keys() <= {("namespaces", "netmgr-claims")}
