"""The whole way: a plan's lock, a controller, a Node, its init container; at the end stands what
the plan renders.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.plan import files, machines
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import Starter, add_nodes, node, pod_cidrs, write_plan
from tests.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

POOLS = (
    "{gpu: {nodes: 3, pods_per_node: 31}, odd: {nodes: 2, pods_per_node: 40}, one: {nodes: 2, "
    "addressing: single}}"
)
NAMES = ("train-gpu-2", "train-odd-1", "train-one-0")


def netmgr(*arguments: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    command = [sys.executable, "-m", "netmgr", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=kept | environment
    )
    return done.stdout


def test_a_node_of_the_plan_ends_up_with_the_document_that_the_plan_renders(
    installed: ControlPlane, starter: Starter, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, POOLS, v6=True)
    lock = files.load_lock(files.lock_path(plan))
    assert lock is not None
    add_nodes(installed, (node(name, name.split("-")[1]) for name in NAMES))
    for name in NAMES:
        planned = machines.node_named(lock, name)
        assert planned is not None
        status = {
            "addresses": [
                {"type": "InternalIP", "address": str(address)} for address in planned.hosts
            ]
        }
        path = f"/api/v1/nodes/{name}/status"
        installed.ask("PATCH", path, {"status": status}, kind="merge-patch+json")
    starter.controller(plan, starter.account("netmgr", "netmgr-controller"), "netmgr-claims")
    eventually(lambda: len(pod_cidrs(installed)) == len(NAMES))
    template = tmp_path / "template.yaml"
    template.write_text(netmgr("plan", "render", "template", "train", f"--file={plan}"))
    account = starter.account("netmgr", "netmgr-node")
    for name in NAMES:
        to = tmp_path / f"{name}.yaml"
        options = (f"--template={template}", f"--to={to}", f"--service-account={account}")
        netmgr("kube", "node", *options, **installed.environment, NODE_NAME=name)
        expected = netmgr("plan", "render", "node", name, f"--file={plan}")
        found = loader.load(to, NodeDocument)
        assert found.ranges_version > 0
        own = {"ranges_file": None, "ranges_version": 0}
        assert found.model_copy(update=own) == loader.parse(expected, name, NodeDocument)
