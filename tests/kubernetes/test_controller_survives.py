"""What a controller and its successor do when leaders, tokens and the API server itself go away;
and 7,500 Nodes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from netmgr.kube.nodes import STARTUP_TAINT
from netmgr.prefixes import Prefix, overlaps
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import (
    Crowd,
    Program,
    Starter,
    add_nodes,
    add_pods,
    agent_pod,
    all_nodes,
    make_account,
    node,
    pod_cidrs,
    pod_status,
    write_plan,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

MANY = 7500
NEW = 500
ACCOUNT = "netmgr-controller"


def assert_none_twice(plane: ControlPlane) -> None:
    """No address of any Node is another's, too."""
    prefixes = [Prefix.parse(text) for texts in pod_cidrs(plane).values() for text in texts]
    assert not list(overlaps(prefixes))


@pytest.mark.timeout(600)
def test_7500_nodes_are_assigned_and_none_twice_and_their_agents_are_followed(
    installed: ControlPlane, starter: Starter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assign_all(installed, starter, tmp_path, capsys)
    # With the same Nodes: to make so many takes as long as to follow their agents.
    follow_agents(installed, starter, capsys)


def assign_all(
    installed: ControlPlane, starter: Starter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path, f"{{gpu: {{nodes: {MANY}, surge: 0}}}}")
    add_nodes(installed, (node(f"vmss{number:06}", "gpu") for number in range(MANY)))
    before = installed.requests()["PATCH", "nodes"]
    with installed.counted() as asked:
        begun = time.monotonic()
        controller = starter.controller(plan, starter.account("netmgr", ACCOUNT), "netmgr-claims")
        eventually(
            lambda: installed.requests()["PATCH", "nodes"] - before >= MANY, seconds=200, every=0.5
        )
        taken = time.monotonic() - begun
    assert len({tuple(cidrs) for cidrs in pod_cidrs(installed).values()}) == MANY
    assert_none_twice(installed)
    wrote = asked["PATCH", "nodes"]
    claims = asked["POST", "configmaps"] + asked["PATCH", "configmaps"]
    lists = asked["LIST", "nodes"]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{MANY} Nodes assigned in {taken:.1f} s ({MANY / taken:.0f} a second), "
            "started included: "
            f"{wrote / MANY:.3f} writes of Nodes for each, {claims} of claims and {lists} "
            "pages of lists in all, "
            f"{controller.most_memory >> 20} MB\n"
        )
    assert MANY <= wrote <= MANY * 1.01
    assert claims <= 2 * -(-MANY // 256)
    assert controller.end() == 0


def follow_agents(
    installed: ControlPlane, starter: Starter, capsys: pytest.CaptureFixture[str]
) -> None:
    """One write for each, and one for each startup taint. Without a plan: every Node has its
    podCIDR, and some are new.
    """
    new = {"spec": {"taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]}}
    Crowd(installed).ask(
        "PATCH", ((f"/api/v1/nodes/vmss{i:06}", new) for i in range(NEW)), kind="merge-patch+json"
    )
    add_pods(installed, (agent_pod(f"agent-{i}", f"vmss{i:06}") for i in range(MANY)))
    path = "/api/v1/namespaces/netmgr/pods/agent-{}/status"
    ready = pod_status(agent=True, exporter=True)
    Crowd(installed).ask(
        "PATCH", ((path.format(i), ready) for i in range(NEW)), kind="merge-patch+json"
    )
    before = installed.requests()

    def written() -> tuple[int, int]:
        asked = installed.requests() - before
        return asked["PATCH", "pods"], asked["PATCH", "nodes"]

    with installed.counted() as asked:
        begun = time.monotonic()
        account = starter.account("netmgr", ACCOUNT)
        controller = starter.start(
            "controller", "--namespace=netmgr-claims", "--listen=127.0.0.1:0", account=account
        )
        eventually(lambda: written()[0] >= MANY, seconds=200, every=0.5)
        eventually(lambda: written()[1] >= NEW, seconds=60, every=0.5)
        taken = time.monotonic() - begun
        # Nothing changes any more: watches, and the Lease.
        time.sleep(5)
    found = all_nodes(installed)
    assert not [name for name, each in found.items() if STARTUP_TAINT in str(each["spec"])]
    with capsys.disabled():
        sys.stdout.write(
            f"\n{MANY} agents in {taken:.1f} s: {asked['PATCH', 'pods'] / MANY:.3f} writes of pods "
            f"and {asked['PATCH', 'nodes'] / NEW:.3f} of new Nodes for each, "
            f"{asked['LIST', 'pods'] + asked['LIST', 'nodes']} pages of lists, "
            f"{asked['GET', 'nodes']} Nodes read, {controller.most_memory >> 20} MB\n"
        )
    assert MANY <= asked["PATCH", "pods"] <= MANY * 1.01
    assert NEW <= asked["PATCH", "nodes"] <= NEW * 1.01
    assert asked["GET", "nodes"] == 0
    assert controller.most_memory < 256 << 20


def test_a_leader_that_is_killed_is_followed_by_another_and_no_range_is_given_twice(
    installed: ControlPlane, starter: Starter, tmp_path: Path
) -> None:
    number = 600
    plan = write_plan(tmp_path, f"{{gpu: {{nodes: {number}, surge: 0}}}}")
    account = starter.account("netmgr", ACCOUNT)
    leader = starter.controller(plan, account, "netmgr-claims", "--lease-seconds=5")
    eventually(lambda: " leading " in leader.said)
    other = starter.controller(plan, account, "netmgr-claims", "--lease-seconds=5")
    add_nodes(installed, (node(f"vmss{i:06}", "gpu") for i in range(number)))
    eventually(lambda: leader.said.count(" assigned ") > 50, every=0.02)
    leader.kill()
    had = len(pod_cidrs(installed))
    assert had < number, "it was killed in the middle"
    assert " leading " not in other.said
    eventually(lambda: len(pod_cidrs(installed)) == number, seconds=40, every=0.5)
    assert " leading " in other.said
    assert_none_twice(installed)
    assert other.said.count(" assigned ") <= number - had + 4, "what the first had written stood"


def test_an_api_server_that_restarts_in_the_middle_is_waited_for(
    installed: ControlPlane, starter: Starter, tmp_path: Path
) -> None:
    number = 400
    plan = write_plan(tmp_path, f"{{gpu: {{nodes: {number}, surge: 0}}}}")
    controller = starter.controller(
        plan, starter.account("netmgr", ACCOUNT), "netmgr-claims", "--lease-seconds=5"
    )
    eventually(lambda: " leading " in controller.said)
    add_nodes(installed, (node(f"vmss{i:06}", "gpu") for i in range(number)))
    eventually(lambda: controller.said.count(" assigned ") > 20, every=0.02)
    installed.stop_server()
    eventually(lambda: " leads-no-more " in controller.said)
    assert controller.process.poll() is None
    installed.start_server()
    eventually(lambda: len(pod_cidrs(installed)) == number, seconds=60, every=0.5)
    assert_none_twice(installed)
    add_nodes(installed, [node("odd", "cpu")])
    eventually(lambda: "UnknownNodePool" in controller.said, seconds=60)
    assert controller.said.count(" leading ") == 2
    assert controller.end() == 0


def test_watches_whose_version_etcd_has_compacted_are_begun_anew(
    installed: ControlPlane, starter: Starter, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 10, surge: 0}}")
    controller = starter.controller(plan, starter.account("netmgr", ACCOUNT), "netmgr-claims")
    add_nodes(installed, [node("a", "gpu"), node("b", "gpu")])
    eventually(lambda: len(pod_cidrs(installed)) == 2)
    # Its watch cache still has what etcd forgets: a new server has neither.
    installed.stop_server()
    installed.compact()
    installed.start_server()
    installed.ask("DELETE", "/api/v1/nodes/b")
    add_nodes(installed, [node("c", "gpu")])
    eventually(lambda: "c" in pod_cidrs(installed))
    for path in ("/api/v1/nodes", "/api/v1/namespaces/netmgr/pods"):
        eventually(lambda path=path: f" relist path={path} " in controller.said)
    assert_none_twice(installed)
    assert controller.end() == 0


def test_a_token_that_is_no_longer_taken_is_read_again_from_its_file(
    installed: ControlPlane, starter: Starter, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 10, surge: 0}}")
    account = starter.account("netmgr", ACCOUNT)
    token = account / "token"
    good = token.read_text()
    token.write_text(good[:-8] + "forgeryy")
    controller = starter.controller(plan, account, "netmgr-claims", "--lease-seconds=8")
    add_nodes(installed, [node("a", "gpu")])
    eventually(lambda: installed.requests()["GET", "leases"])
    time.sleep(1)
    assert controller.process.poll() is None
    assert not pod_cidrs(installed)
    token.write_text(good)
    eventually(lambda: pod_cidrs(installed), seconds=10)


def test_two_controllers_that_both_think_they_lead_give_nothing_twice(
    control_plane: ControlPlane, starter: Starter, tmp_path: Path, namespace: str
) -> None:
    """Without any election: each has a Lease of its own,
    and the claims alone stand between them."""
    number = 60
    plan = write_plan(tmp_path, f"{{gpu: {{nodes: {number}, surge: 0}}}}")
    account = starter.account(namespace, make_account(control_plane, namespace))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/netmgr-controller"
    both: list[Program] = []

    def newest_leads() -> bool:
        leads = " leading " in both[-1].said
        # Again and again: a renewal that was under way makes the Lease of the first anew.
        control_plane.answer("DELETE", leases)
        return leads

    for _ in range(2):
        both.append(starter.controller(plan, account, namespace, "--lease-seconds=60"))
        eventually(newest_leads)
    for batch in range(6):
        add_nodes(control_plane, (node(f"vmss{batch}{i:05}", "gpu") for i in range(number // 6)))
    eventually(lambda: len(pod_cidrs(control_plane)) == number, seconds=60)
    assert_none_twice(control_plane)
    assert any(" claims-conflict " in each.said for each in both)
    assert len(all_nodes(control_plane)) == number
