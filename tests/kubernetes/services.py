"""Services and EndpointSlices on a real API server, and the files that follow them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import Crowd, Program, Starter
from tests.kubernetes.cutting import Way

HOME = "/api/v1/namespaces/test-services"
SLICES_OF = "/apis/discovery.k8s.io/v1/namespaces/test-services/endpointslices"


def follow(starter: Starter, folder: Path, way: Way | None = None) -> Program:
    account = starter.account("netmgr", "netmgr-nat-host")
    port = {"KUBERNETES_SERVICE_PORT": str(way.port)} if way else {}
    return starter.start("kube", "services", f"--to={folder}", account=account, environment=port)


def service(name: str, **spec: object) -> Object:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": ports} | spec,
    }


def endpoint_slice(owner: str, address: str, name: str = "") -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name or f"{owner}-1", "labels": {"kubernetes.io/service-name": owner}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def said(folder: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each Service's cluster address and endpoints, as the files have them."""
    found = {}
    for path in folder.glob("[!.]*.json"):
        try:
            head, *slices = json.loads(path.read_text())["items"]
        except FileNotFoundError:  # removed since it was listed
            continue
        endpoints = sorted(a for each in slices for e in each["endpoints"] for a in e["addresses"])
        found[path.stem] = (head["spec"]["clusterIP"], tuple(endpoints))
    return found


def true(plane: ControlPlane) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The same, as the server has them."""
    endpoints: dict[str, list[str]] = {}
    for each in plane.ask("GET", "/apis/discovery.k8s.io/v1/endpointslices")["items"]:
        metadata = each["metadata"]
        owner = f"{metadata['namespace']}_{metadata['labels']['kubernetes.io/service-name']}"
        endpoints.setdefault(owner, []).extend(
            a for e in each["endpoints"] or [] for a in e["addresses"]
        )
    services = plane.ask("GET", "/api/v1/services")["items"]
    names = {
        f"{each['metadata']['namespace']}_{each['metadata']['name']}": each for each in services
    }
    return {
        name: (each["spec"]["clusterIP"], tuple(sorted(endpoints.get(name, []))))
        for name, each in names.items()
        if each["spec"].get("clusterIP") not in (None, "", "None")
    }


def create(plane: ControlPlane, names: Iterable[str], address: str = "10.1.0.1") -> None:
    """Services with one endpoint each."""
    names = list(names)
    Crowd(plane).ask("POST", ((f"{HOME}/services", service(name)) for name in names))
    Crowd(plane).ask("POST", ((SLICES_OF, endpoint_slice(name, address)) for name in names))
