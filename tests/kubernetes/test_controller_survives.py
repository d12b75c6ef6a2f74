"""What a controller and its successor do when leaders, tokens and the API server itself go away;
and 7,500 Nodes.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from netmgr.errors import Exit
from netmgr.kube.controller.nodes import STARTUP_TAINT
from netmgr.prefixes import Prefix, overlaps
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import (
    MERGE,
    Crowd,
    Program,
    Start,
    Starter,
    add_nodes,
    add_pods,
    agent_pod,
    all_nodes,
    node,
    pod_cidrs,
    pod_status,
    write_plan,
)
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

MANY = 7500
NEW = 100


def reaches(number: Callable[[], int], goal: int) -> None:
    """Wait until there are so many, for as long as there are ever more."""
    while (reached := number()) < goal:
        eventually(
            lambda reached=reached: number() > reached, f"{reached} of {goal}, no more", every=0.5
        )


def assert_none_twice(plane: ControlPlane) -> None:
    """No address of any Node is another's, too."""
    prefixes = [Prefix.parse(text) for texts in pod_cidrs(plane).values() for text in texts]
    assert not list(overlaps(prefixes, lambda prefix: prefix))


@pytest.mark.timeout(1800)
def test_7500_nodes_are_assigned_and_none_twice_and_their_agents_are_followed(
    installed: ControlPlane, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assign_all(installed, start, tmp_path, capsys)
    # With the same Nodes: to make so many takes as long as to follow their agents.
    follow_agents(installed, start, capsys)


def assign_all(
    installed: ControlPlane, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path, f"{{gpu: {{nodes: {MANY}, surge: 0}}}}")
    add_nodes(installed, (node(f"vmss{number:06}", "gpu") for number in range(MANY)))
    before = installed.requests()["PATCH", "nodes"]
    with installed.counted() as asked:
        begun = time.monotonic()
        controller = start(f"--plan={plan}")
        reaches(lambda: installed.requests()["PATCH", "nodes"] - before, MANY)
        taken = time.monotonic() - begun
        # Some of the requests may have been made twice.
        reaches(lambda: len(pod_cidrs(installed)), MANY)
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
    installed: ControlPlane, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """One write for each, and one for each startup taint. Without a plan: every Node has its
    podCIDR, and some are new.
    """
    new = {"spec": {"taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]}}
    Crowd(installed).ask(
        "PATCH", ((f"/api/v1/nodes/vmss{i:06}", new) for i in range(NEW)), kind=MERGE
    )
    add_pods(installed, (agent_pod(f"agent-{i}", f"vmss{i:06}") for i in range(MANY)))
    path = "/api/v1/namespaces/netmgr/pods/agent-{}/status"
    ready = pod_status(agent=True, exporter=True)
    Crowd(installed).ask("PATCH", ((path.format(i), ready) for i in range(NEW)), kind=MERGE)
    before = installed.requests()

    def written() -> tuple[int, int]:
        asked = installed.requests() - before
        return asked["PATCH", "pods"], asked["PATCH", "nodes"]

    with installed.counted() as asked:
        begun = time.monotonic()
        controller = start()
        reaches(lambda: written()[0], MANY)
        reaches(lambda: written()[1], NEW)
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
    installed: ControlPlane, start: Start, tmp_path: Path
) -> None:
    number = 600
    plan = write_plan(tmp_path, f"{{gpu: {{nodes: {number}, surge: 0}}}}")
    options = (f"--plan={plan}", "--lease-seconds=20")
    leader = start(*options)
    eventually(lambda: " leading " in leader.said)
    other = start(*options)
    with ThreadPoolExecutor(1) as beside:
        nodes = (node(f"vmss{i:06}", "gpu") for i in range(number))
        adding = beside.submit(add_nodes, installed, nodes)
        eventually(lambda: leader.said.count(" assigned ") > 50, every=0.02)
        # While Nodes still come: a leader that is slower to be killed has not served them all.
        leader.kill()
        adding.result()
    had = len(pod_cidrs(installed))
    assert had < number, "it was killed in the middle"
    assert " leading " not in other.said
    reaches(lambda: len(pod_cidrs(installed)), number)
    assert " leading " in other.said
    assert_none_twice(installed)
    assert other.said.count(" assigned ") <= number - had + 4, "what the first had written stood"


def test_an_api_server_that_restarts_in_the_middle_is_waited_for(
    installed: ControlPlane, start: Start, tmp_path: Path
) -> None:
    number = 400
    plan = write_plan(tmp_path, f"{{gpu: {{nodes: {number}, surge: 0}}}}")
    controller = start(f"--plan={plan}", "--lease-seconds=5")
    eventually(lambda: " leading " in controller.said)
    add_nodes(installed, (node(f"vmss{i:06}", "gpu") for i in range(number)))
    eventually(lambda: controller.said.count(" assigned ") > 20, every=0.02)
    installed.stop_server()
    eventually(lambda: " leadership-lost " in controller.said)
    assert controller.process.poll() is None
    installed.start_server()
    reaches(lambda: len(pod_cidrs(installed)), number)
    assert_none_twice(installed)
    add_nodes(installed, [node("odd", "cpu")])
    eventually(lambda: "UnknownNodePool" in controller.said)
    assert controller.said.count(" leading ") >= 2
    assert controller.end() == 0


def test_watches_whose_version_etcd_has_compacted_are_begun_anew(
    installed: ControlPlane, start: Start, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 10, surge: 0}}")
    # A new leader would list anyway, and the server may be away for long.
    controller = start(f"--plan={plan}", "--lease-seconds=600")
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
        eventually(lambda path=path: f" relist path={path} " in controller.said, seconds=120)
    assert_none_twice(installed)
    assert controller.end() == 0


def test_a_token_that_is_no_longer_taken_is_read_again_from_its_file(
    installed: ControlPlane, starter: Starter, start: Start, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 10, surge: 0}}")
    account = starter.account("netmgr", "netmgr-controller")
    token = account / "token"
    good = token.read_text()
    token.write_text(good[:-8] + "forgeryy")
    controller = start(f"--plan={plan}", "--lease-seconds=8")
    add_nodes(installed, [node("a", "gpu")])
    eventually(lambda: " lease-attempt-failed " in controller.said)
    assert controller.process.poll() is None
    assert not pod_cidrs(installed)
    token.write_text(good)
    eventually(lambda: pod_cidrs(installed))


def test_two_controllers_that_both_think_they_lead_give_nothing_twice(
    installed: ControlPlane, start: Start, tmp_path: Path
) -> None:
    """Without any election: each has a Lease of its own,
    and the claims alone stand between them."""
    number = 60
    plan = write_plan(tmp_path, f"{{gpu: {{nodes: {number + 2}, surge: 0}}}}")
    leases = "/apis/coordination.k8s.io/v1/namespaces/netmgr-claims/leases/netmgr-controller"
    both: list[Program] = []

    def newest_leads() -> bool:
        leads = " leading " in both[-1].said
        # Again and again: a renewal that was under way makes the Lease of the first anew.
        installed.answer("DELETE", leases)
        return leads

    for _ in range(2):
        both.append(start(f"--plan={plan}", "--lease-seconds=240"))
        eventually(newest_leads)
    for batch in range(6):
        add_nodes(installed, (node(f"vmss{batch}{i:05}", "gpu") for i in range(number // 6)))
    reaches(lambda: len(pod_cidrs(installed)), number)
    # One of them may have been first each time; the second here finds claims of the other's.
    for held, name in zip(both, ("x", "y"), strict=True):
        held.process.send_signal(signal.SIGSTOP)
        add_nodes(installed, [node(name, "gpu")])
        eventually(lambda name=name: name in pod_cidrs(installed))
        held.process.send_signal(signal.SIGCONT)
    assert_none_twice(installed)
    assert any(" claims-conflict " in each.said for each in both)
    assert len(all_nodes(installed)) == number + 2


class _Odd(BaseHTTPRequestHandler):
    """Takes every Lease, lists a Node without a UID, and has nothing else."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        nodes = {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "a"}}]}
        if self.path.startswith("/api/v1/nodes"):
            self._answer(200, nodes)
        else:
            self._answer(404, {"kind": "Status", "code": 404, "message": "not found"})

    def do_POST(self) -> None:
        self._answer(201, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, status: int, body: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


def test_a_controller_ends_with_a_thread_that_dies_of_what_nobody_foresaw(
    control_plane: ControlPlane, starter: Starter, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 3, surge: 0}}")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Odd) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        config = json.loads(control_plane.write_kubeconfig(tmp_path / "c", a="b").read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{server.server_port}"}
        (tmp_path / "c").write_text(json.dumps(config))
        options = (f"--plan={plan}", "--namespace=netmgr", f"--kubeconfig={tmp_path / 'c'}")
        controller = starter.start("controller", *options, "--listen=127.0.0.1:0")
        try:
            assert controller.process.wait(PATIENCE) == Exit.FAULT
        finally:
            server.shutdown()
            thread.join()
    assert " CRITICAL netmgr.faults thread-died action=end" in controller.said
    assert "KeyError" in controller.said
