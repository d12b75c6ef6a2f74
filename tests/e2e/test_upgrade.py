"""From the release before to this source and back, while pods talk, come and go."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from netmgr.prefixes import Family
from tests.e2e import counting, images, netmgr, network, pods
from tests.e2e.cluster import Cluster
from tests.e2e.load import Background, Churn, Conversation
from tests.e2e.pods import Pod
from tests.lab import comparison
from tests.lab.capture import Capture
from tests.lab.exchange import End
from tests.lab.topology import INTERNET

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

BEFORE = "c6af4de249c519ad1aac09ecc2e81d20441503d2"
"""The commit that the former version is built from; nothing is released yet."""

TAG = "0.0.9"
PODS = {"a1": "node-1", "b1": "node-2"}
SECONDS_TO_COUNT = 20


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


@pytest.mark.parametrize("way", ["forth", "back"])
def test_no_pod_fails_and_every_byte_is_counted(
    cluster: Cluster, before: Path, running: dict[str, Pod], way: str
) -> None:
    internet = End(cluster.namespace("internet"), INTERNET[Family.V4])
    counted = counting.counts(cluster)
    talk, churn = Conversation(running, internet), Churn(cluster)
    with Capture(internet.namespace, "eth0") as capture:
        with (
            Background(lambda _: capture.drain(), ["capture"]),
            Background(talk.step, running),
            Background(churn.step, network.NODES),
        ):
            netmgr.apply(cluster, netmgr.overlay(cluster, "cni") if way == "forth" else before)
            netmgr.roll_out(cluster)
        seen = talk.seen(capture)
    gained = partial(counting.difference, cluster, counted)
    assert comparison.wait_for(gained, seen, SECONDS_TO_COUNT) == seen
    assert len(churn.seconds) > len(network.NODES), churn.seconds
