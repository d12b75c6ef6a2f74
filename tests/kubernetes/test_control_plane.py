"""The control plane of these tests is a real one: tokens, RBAC and counted requests."""

from __future__ import annotations

import pytest

from tests.kubernetes.control_plane import ControlPlane, Refused

pytestmark = pytest.mark.kubernetes

ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "someone"}}


def test_an_account_without_a_role_may_see_no_nodes(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", ACCOUNT)
    token = control_plane.token(namespace, "someone")
    with pytest.raises(Refused, match=f"403.*system:serviceaccount:{namespace}:someone"):
        control_plane.ask("GET", "/api/v1/nodes", token=token)
    with pytest.raises(Refused, match="401"):
        control_plane.ask("GET", "/api/v1/nodes", token=token[:-8] + "forgeryy")


def test_the_server_counts_requests(control_plane: ControlPlane) -> None:
    with control_plane.counted() as asked:
        for _ in range(3):
            control_plane.ask("GET", "/api/v1/nodes")
    assert asked["LIST", "nodes"] == 3
    assert asked["LIST", "services"] == 0
