"""netmgr in a cluster: its overlays, and what its exporters say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from http.client import HTTPConnection
from pathlib import Path

import yaml

from tests.e2e import network
from tests.e2e.cluster import Cluster
from tests.kubernetes import manifests
from tests.lab import wiring

EXPORTER_PORT = 9119
NAMESPACE = "netmgr"
SECONDS_TO_ROLL_OUT = 120


def overlay(
    cluster: Cluster,
    name: str,
    *,
    tag: str = "0.1.0",
    node_yaml: Mapping[str, object] | None = None,
    config_map: str = "netmgr-node",
    components: Iterable[str] = (),
    patch: Iterable[Mapping[str, object]] = (),
) -> Path:
    """An overlay of configs/kubernetes with another tag of the image, with more keys of the
    node.yaml that is in `config_map`, with more components, and with a JSON patch of the agents'
    DaemonSet.
    """
    folder = cluster.folder / "overlay" / name
    folder.mkdir(parents=True, exist_ok=True)
    kustomization: dict[str, object] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(manifests.HERE / "overlays" / name, folder)],
        "components": [
            os.path.relpath(manifests.HERE / "components" / each, folder) for each in components
        ],
        "images": [
            {"name": "registry.example.com/netmgr", "newTag": tag},
            # Of components' own containers, which come after the overlay named the others.
            {"name": "netmgr", "newName": "registry.example.com/netmgr", "newTag": tag},
        ],
    }
    if node_yaml is not None:
        template = yaml.safe_load((manifests.HERE / "overlays" / name / "node.yaml").read_text())
        (folder / "node.yaml").write_text(yaml.safe_dump({**template, **node_yaml}))
        replaced = {"name": config_map, "namespace": NAMESPACE, "behavior": "replace"}
        kustomization["configMapGenerator"] = [{**replaced, "files": ["node.yaml"]}]
    if patch:
        target = {"kind": "DaemonSet", "name": "netmgr"}
        kustomization["patches"] = [{"target": target, "patch": yaml.safe_dump(list(patch))}]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


def apply(cluster: Cluster, folder: Path) -> None:
    """Apply a kustomization."""
    cluster.plane.kubectl("apply", "-k", folder)


def roll_out(cluster: Cluster, daemon_set: str = "netmgr") -> None:
    """Wait until all pods of a DaemonSet are there, of its newest revision, and Ready."""
    arguments = ("-n", NAMESPACE, "rollout", "status", f"daemonset/{daemon_set}")
    timeout = f"--timeout={SECONDS_TO_ROLL_OUT}s"
    cluster.plane.kubectl(*arguments, timeout, timeout=SECONDS_TO_ROLL_OUT + 10)


def page(cluster: Cluster, node: str) -> str:
    """What a node's exporter serves, scraped over the network."""
    with wiring.inside(cluster.namespace(network.FABRIC)):
        connection = HTTPConnection(str(network.address(node)), EXPORTER_PORT, timeout=10)
        connection.connect()
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def links(cluster: Cluster, node: str) -> int:
    """How many links of pods the node has."""
    return len(re.findall(r"\bnm[0-9a-f]{12}@", cluster.run_at(node, "ip", "-o", "link")))


def leases(cluster: Cluster, node: str) -> int:
    """How many addresses the agent says are a pod's."""
    text = page(cluster, node)
    found = re.findall(r'^netmgr_ipam_addresses\{.*state="allocated"\} (\d+)', text, re.MULTILINE)
    return sum(map(int, found))


def budget_epochs(cluster: Cluster) -> list[int]:
    """Of the server of budgets that answered each node last, as its agent knows it; 0 for none."""
    pages = [page(cluster, node) for node in network.NODES]
    found = [re.search(r"^netmgr_budget_epoch (\S+)$", text, re.MULTILINE) for text in pages]
    return [int(float(epoch[1])) if epoch else 0 for epoch in found]
