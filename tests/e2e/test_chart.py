"""The Helm chart from its installation to its removal, as docs/how-to/helm.md has it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e import counting, lifecycle, netmgr, network, quick_starts
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.images import NETMGR_IMAGE
from tests.e2e.pods import Pod
from tests.helm import programs
from tests.lab.exchange import End
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.root, pytest.mark.e2e, pytest.mark.timeout(600)]

CONFIGS = Path(__file__).parents[2] / "configs"
CHART, BUDGETS = CONFIGS / "helm" / "netmgr", CONFIGS / "budgets.yaml"
IMAGE = "image.repository={},image.tag={}".format(*NETMGR_IMAGE.rsplit(":", 1))


def helm(cluster: Cluster, *arguments: str | Path) -> None:
    config = ("--kubeconfig", cluster.plane.kubeconfig(), "--namespace", "netmgr")
    entered = ("nsenter", f"--net={cluster.namespace(network.CONTROL_PLANE)}", programs.helm())
    done = subprocess.run(
        [*entered, *arguments, *config], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def revisions(cluster: Cluster) -> set[str]:
    """Those of the agents' pods."""
    return {
        each["metadata"]["labels"]["controller-revision-hash"] for each in lifecycle.agents(cluster)
    }


@pytest.fixture(scope="module")
def installed(cluster: Cluster, pristine: dict[str, list[str]]) -> Cluster:
    assert pristine
    cluster.plane.kubectl("create", "namespace", "netmgr")
    label = "pod-security.kubernetes.io/enforce=privileged"
    cluster.plane.kubectl("label", "namespace", "netmgr", label)
    helm(cluster, "install", "netmgr", CHART, "--set", f"mode=cni,{IMAGE}")
    netmgr.roll_out(cluster)
    wait_for(cluster.nodes_are_ready, "Ready Nodes", 60)
    return cluster


def test_every_byte_of_the_internet_is_counted_for_its_pod(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    counting.check(installed, running, internet)


def test_a_value_replaces_the_agents_and_disturbs_no_pod(
    installed: Cluster, running: dict[str, Pod], internet: End
):
    old = revisions(installed)
    changed = ("upgrade", "netmgr", CHART, "--reuse-values", "--set", "node.reconcile_seconds=20")
    lifecycle.disturb_nobody(installed, running, internet, lambda: helm(installed, *changed))
    assert not revisions(installed) & old


def test_budgets_are_added_to_what_runs(installed: Cluster, tmp_path: Path):
    for node in network.NODES:
        # There is no control plane among the nodes.
        installed.label(node, "node-restriction.kubernetes.io/netmgr-controller")
    shutil.copy(BUDGETS, tmp_path)
    quick_starts.run(installed, "On Kubernetes", "docs/budgets.md", tmp_path)
    file = "node.budgets_file=/var/lib/netmgr-budgets/budgets.json"
    changed = ("upgrade", "netmgr", CHART, "--reuse-values", "--set", "components={budgets}")
    helm(installed, *changed, "--set", file)
    netmgr.roll_out(installed)
    wait_for(lambda: min(netmgr.budget_epochs(installed)) > 0, "a budget for every node", PATIENCE)


def test_removing_it_leaves_the_nodes_as_they_were(
    installed: Cluster, pristine: dict[str, list[str]]
):
    kubectl = installed.plane.kubectl
    for node in network.NODES:
        kubectl("drain", node, "--ignore-daemonsets", "--force", timeout=90)
    helm(installed, "upgrade", "netmgr", CHART, "--set", f"mode=uninstall,{IMAGE}")
    netmgr.roll_out(installed, "netmgr-uninstall")
    helm(installed, "uninstall", "netmgr")
    kubectl("delete", "namespace", "netmgr", timeout=90)
    for node in network.NODES:
        assert lifecycle.additions(installed, node, pristine[node]) == []
