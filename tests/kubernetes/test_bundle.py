"""`netmgr kube bundle` against a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import add_nodes, agent_pod, node

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]


def test_nodes_objects_and_logs_are_there_or_say_why_not(
    installed: ControlPlane, tmp_path: Path
) -> None:
    add_nodes(installed, [node("a"), node("b")])
    pod = agent_pod("netmgr-x", "a")
    pods = "/api/v1/namespaces/netmgr/pods"
    installed.ask("POST", pods, pod)
    target = tmp_path / "cluster.tar.gz"
    try:
        command = [sys.executable, "-m", "netmgr", "kube", "bundle", "--to", str(target)]
        command += ["--service-account", str(installed.credentials(tmp_path, installed.admin))]
        environment = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"}
        subprocess.run(command, env=environment | installed.environment, check=True, timeout=60)
    finally:
        installed.ask("DELETE", f"{pods}/netmgr-x?gracePeriodSeconds=0")
    found = {}
    with tarfile.open(target) as archive:
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read().decode()
    names = {item["metadata"]["name"] for item in json.loads(found["nodes.json"])["items"]}
    assert names == {"a", "b"}
    assert {f"netmgr/{kind}.json" for kind in ("pods", "configmaps", "events", "daemonsets")} <= (
        found.keys()
    )
    assert "netmgr-claims/leases.json" in found
    # There is no kubelet, which would have the log.
    assert found["netmgr/logs/netmgr-x-agent.log"].startswith("cannot be collected: GET /api/v1/")
    assert not any("secrets" in name for name in found)
