"""From the release before to this source, to counting at links and back, while pods come and go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import images, lifecycle, netmgr, pods
from tests.e2e.cluster import Cluster
from tests.e2e.pods import Pod
from tests.lab.exchange import End

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

BEFORE = "bd7841626224a9ad4c813cea29c7338c7a4611a1"
"""The commit that the former version is built from; nothing is released yet."""

TAG = "0.0.9"
AT_LINKS = {"node_yaml": {"accounting": {"at": "links"}}}
OVERLAYS: dict[str, dict[str, Any]] = {
    "forth": {},
    "to_links": AT_LINKS,
    "upgraded_at_links": {**AT_LINKS, "tag": lifecycle.TAG},
    "to_rules": {},
}
"""What is different in each overlay that follows the release before."""

PODS = {"a1": "node-1", "b1": "node-2"}


@pytest.fixture(scope="module")
def before(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The overlay `cni` of the release before, whose image is on the nodes."""
    source = tmp_path_factory.mktemp("before") / "before"
    source.mkdir()
    packed = subprocess.run(
        ["git", "-C", images.SOURCE, "archive", BEFORE], capture_output=True, check=False
    )
    assert packed.returncode == 0, f"this needs the history: {packed.stderr.decode()}"
    subprocess.run(["tar", "-x", "-C", source], input=packed.stdout, check=True)
    build = [sys.executable, "-P", "-m", "cni.build"]
    subprocess.run(build, env={**os.environ, "PYTHONPATH": str(source)}, cwd=source, check=True)
    archive = images.of_source(source, cluster.folder, f"registry.example.com/netmgr:{TAG}")
    for node in cluster.nodes:
        node.import_image(archive)
    folder = cluster.folder / "overlay" / "before"
    folder.mkdir(parents=True)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(source / "configs/kubernetes/overlays/cni", folder)],
        "images": [{"name": "registry.example.com/netmgr", "newTag": TAG}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


@pytest.fixture(scope="module")
def running(cluster: Cluster, before: Path) -> dict[str, Pod]:
    """Pods that the release before has wired."""
    netmgr.apply(cluster, before)
    netmgr.roll_out(cluster)
    return pods.run(cluster, PODS)


@pytest.mark.parametrize("way", [*OVERLAYS, "back"])
def test_no_pod_fails_and_every_byte_is_counted(
    cluster: Cluster, before: Path, running: dict[str, Pod], internet: End, way: str
) -> None:
    folder = before if way == "back" else netmgr.overlay(cluster, "cni", **OVERLAYS[way])
    lifecycle.disturb_nobody(cluster, running, internet, lambda: netmgr.apply(cluster, folder))
