"""One control plane for all the tests of a session, and a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest

from tests.kubernetes import clusters, manifests, programs
from tests.kubernetes.clusters import Cluster
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import Program, Start, Starter

_numbers = count(1)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if reason := programs.missing():
        pytest.skip(reason)
    with ControlPlane(tmp_path_factory.mktemp("control-plane")).running() as plane:
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A new namespace."""
    name = f"test-{next(_numbers)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    control_plane.ask("POST", "/api/v1/namespaces", body)
    return name


@pytest.fixture
def starter(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Starter]:
    """Starts netmgr's own programs; all are ended after the test."""
    made = Starter(control_plane, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def start(installed: ControlPlane, starter: Starter) -> Start:
    """Starts a controller with the account and the options of the manifests, and more options."""
    account = starter.account("netmgr", "netmgr-controller")

    def start_controller(
        *options: str, port: int = 0, environment: Mapping[str, str] | None = None
    ) -> Program:
        assert starter.plane is installed
        own = ("controller", "--namespace=netmgr-claims", f"--listen=127.0.0.1:{port}")
        return starter.start(*own, *options, account=account, port=port, environment=environment)

    return start_controller


@pytest.fixture
def no_nodes(control_plane: ControlPlane, starter: Starter) -> Iterator[None]:
    """A cluster without Nodes, and afterwards without them, agents' pods, and what a controller of
    the manifests remembers.
    """
    assert not control_plane.ask("GET", "/api/v1/nodes?limit=1")["items"]
    yield
    starter.stop()
    control_plane.forget("/registry/minions/", "/api/v1/nodes")
    control_plane.forget("/registry/pods/netmgr/", "/api/v1/namespaces/netmgr/pods")
    control_plane.ask(
        "DELETE", "/api/v1/namespaces/netmgr-claims/configmaps?labelSelector=netmgr.io/claims-of"
    )
    control_plane.ask("DELETE", "/api/v1/namespaces/default/events")
    control_plane.ask("DELETE", "/apis/coordination.k8s.io/v1/namespaces/netmgr-claims/leases")


@pytest.fixture(scope="session")
def installed(control_plane: ControlPlane) -> ControlPlane:
    """The accounts and roles of the manifests, and all the rest of the overlays that have them."""
    for overlay in manifests.INSTALLED:
        for wanted in manifests.overlay(overlay):
            manifests.apply(control_plane, wanted)
    return control_plane


@pytest.fixture
def cluster(installed: ControlPlane, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that `netmgr status --cluster` is asked about."""
    with clusters.cluster(installed, tmp_path) as made:
        yield made


@pytest.fixture
def may_taint(installed: ControlPlane, tmp_path: Path) -> Iterator[None]:
    """The admission policy of components/taint-unhealthy, until the test is over."""
    policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/netmgr-controller"
    wider = manifests.with_component(tmp_path, "cni", "taint-unhealthy")
    for objects, is_over in ((wider, False), (manifests.overlay("cni"), True)):
        if is_over:
            yield
        (wanted,) = [each for each in objects if manifests.path_of(installed, each) == policy]
        manifests.apply(installed, wanted)
