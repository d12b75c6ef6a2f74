"""`netmgr status --cluster` against a real API server, with objects as kubelets write them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

from netmgr.kube.controller.events import WarningEvent, event
from netmgr.kube.controller.node_reports import ANSWER_SECONDS, LONGEST_ANSWER
from netmgr.kube.controller.nodes import HEALTHY, STARTUP_TAINT
from netmgr.kube.diagnose.cluster import LONGEST_REASON
from tests.kubernetes.clusters import APPS, OLDER, Cluster, condition, container, endless
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import (
    MERGE,
    Crowd,
    add_nodes,
    add_pods,
    agent_pod,
    grant,
    make_account,
    node,
)
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

NOBODY = "nobody"


def test_a_healthy_cluster_is_described_in_a_few_lines(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add("a", "b")
    assert cluster.findings() == (0, {})
    # Without a kubeconfig, kubectl's own is used.
    (tmp_path / ".kube").mkdir()
    cluster.plane.write_kubeconfig(tmp_path / ".kube/config", admin=cluster.plane.admin)
    ended = cluster.run(KUBECONFIG="", HOME=str(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [" ".join(line.split()) for line in ended.stdout.splitlines()] == [
        "Nodes 2",
        "agents ready 2 of 2",
        "controllers ready 2 of 2",
        "exporters that answer 2 of 2",
        "leader controller-a_1",
        "image netmgr (2)",
        "",
        "healthy",
    ]


def test_each_node_that_is_not_well_is_named_with_the_reason(cluster: Cluster) -> None:
    plane = cluster.plane
    cluster.add("well", "crashing", "starting", "unprobed", "drifting", "quiet", "unknown")
    cluster.add("behind", revision=OLDER)
    cluster.add("rangeless", podCIDRs=None, podCIDR=None)
    cluster.add("tainted", taints=[{"key": STARTUP_TAINT, "effect": "NoSchedule"}])
    cluster.add("unavailable")
    cluster.add("empty", pods=False)
    cluster.add("down")
    cluster.count(12, wanted=13)
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    ended = {"terminated": {"exitCode": 1, "message": "routes of 10.1.0.0/27: no answer\n"}}
    crashed = [container("agent", ready=False, state=waiting, last=ended)]
    cluster.set_pod("crashing", cluster.status(containerStatuses=crashed))
    cluster.set_pod("starting", cluster.status(ready=False))
    failed = [container("preflight", ready=False, state=waiting, last=ended)]
    cluster.set_pod("unprobed", cluster.status(ready=False, initContainerStatuses=failed))
    cluster.set_pod("rangeless", cluster.status(ready=False))
    cluster.set_pod("quiet", {"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}})
    ready = condition("Ready", "True")
    unhealthy = condition(HEALTHY, "False", "DriftReturns", "rules, again and again")
    cluster.set_conditions("drifting", ready, unhealthy)
    cluster.set_conditions("unknown", ready, condition(HEALTHY, "Unknown", "NoReport", "silent"))
    cluster.set_conditions("down", condition("Ready", "Unknown"))
    cluster.set_conditions("unavailable", ready, condition("NetworkUnavailable", "True"))
    notice = WarningEvent("Node", "well", "", "MorePodsThanAddresses", "the kubelet takes 50")
    plane.ask("POST", notice.collection, event(notice, ("netmgr-node", "well"), time.time()))
    other = WarningEvent("Node", "well", "", "Rebooted", "of the kubelet's own")
    plane.ask("POST", other.collection, event(other, ("kubelet", "well"), time.time()))

    code, found = cluster.findings()
    assert code == 1
    assert {key: each["severity"] for key, each in found.items()} == {
        ("agent", "node/crashing"): "error",
        ("agent", "node/starting"): "error",
        ("preflight", "node/unprobed"): "error",
        ("ranges", "node/rangeless"): "error",
        ("agent", "node/empty"): "error",
        ("node", "node/down"): "error",
        ("network", "node/drifting"): "error",
        ("taint", "node/tainted"): "error",
        ("taint", "node/unavailable"): "error",
        ("exporter", "node/quiet"): "warning",
        ("network", "node/unknown"): "warning",
        ("rollout", "node/behind"): "warning",
        ("event", "node/well"): "warning",
    }
    preflight = found["preflight", "node/unprobed"]
    assert preflight["message"].endswith("10.1.0.0/27: no answer")
    assert preflight["remedy"] == "kubectl -n netmgr logs agent-unprobed -c preflight"
    shown = cluster.run()
    assert shown.returncode == 1
    assert "healthy" not in shown.stdout.splitlines()


def test_what_is_over_or_cannot_be_is_not_said(cluster: Cluster) -> None:
    plane = cluster.plane
    cluster.add("a", "worker")
    labels = {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/os": "linux"}
    control_plane = {"metadata": {"labels": labels}}
    cluster.write("/api/v1/nodes/a", control_plane)
    cluster.describe("deployments/netmgr-controller", {"replicas": 2, "readyReplicas": 1})
    uid = plane.ask("GET", "/api/v1/nodes/a")["metadata"]["uid"]
    a_day_ago = time.time() - 86_400
    for of, at, reason in (
        (("Node", "a", uid), a_day_ago, "OfAFormerInstallation"),
        (("Node", "a", "former"), time.time(), "OfAFormerNode"),
    ):
        notice = WarningEvent(*of, reason, "it was so")
        plane.ask("POST", notice.collection, event(notice, ("netmgr-controller", "x"), at))
    assert cluster.findings() == (0, {}), "one control plane node runs one controller"
    gone = WarningEvent("Pod", "netmgr-gone", "gone", "BackOff", "it was so", namespace="netmgr")
    plane.ask("POST", gone.collection, event(gone, ("kubelet", "a"), time.time()))
    lasting = WarningEvent("Node", "a", uid, "NodePoolFull", "no range is left")
    plane.ask("POST", lasting.collection, event(lasting, ("netmgr-controller", "x"), time.time()))
    cluster.add("second")
    cluster.count(3)
    cluster.write("/api/v1/nodes/second", control_plane)
    _, found = cluster.findings()
    assert {key: each["message"] for key, each in found.items()} == {
        ("event", "node/a"): "NodePoolFull: no range is left",
        ("controller", "deployment/netmgr-controller"): "1 of 2 controllers are ready",
    }


def test_problems_that_exporters_report_are_shown_and_odd_answers_bounded(cluster: Cluster) -> None:
    cluster.add("a")
    cluster.exporter.problems(("CountersLost", "three times \x1b[2J"))
    code, found = cluster.findings()
    assert (code, found.keys()) == (1, {("network", "node/a")})
    assert found["network", "node/a"]["message"].startswith("CountersLost: three times")
    assert "\x1b" not in cluster.run().stdout

    forged = json.dumps({"message": "x" * 10_000}).encode()
    for status, pieces, pause, complaint in (
        (b"200 OK", lambda: iter([b"<html>"]), 0.0, "validation error for Report"),
        (b"200 OK", lambda: endless(b" " * (1 << 16)), 0.0, f"more than {LONGEST_ANSWER}"),
        (b"403 Forbidden", lambda: iter([forged]), 0.0, f"403: {'x' * LONGEST_REASON}"),
        (b"500 Failed", lambda: endless(b" "), 0.1, "500: "),
        (b"200 OK", lambda: endless(b" "), 0.1, f"takes longer than {ANSWER_SECONDS:.0f} s"),
    ):
        cluster.exporter.pieces = pieces
        cluster.exporter.status, cluster.exporter.pause = status, pause
        cluster.answer_seconds = ANSWER_SECONDS if pause else PATIENCE
        code, found = cluster.findings()
        assert (code, found.keys()) == (0, {("exporter", "node/a")})
        assert complaint in found["exporter", "node/a"]["message"]
        assert len(found["exporter", "node/a"]["message"]) < 2 * LONGEST_REASON
    # What was sent beyond the longest answer is in buffers of the kernel and of the server.
    assert cluster.exporter.sent < 10_000_000
    # Exporters that are slow in all take no longer than what was asked for.
    code, found = cluster.findings("--timeout", "0")
    assert "not asked" in found["exporter", "node/a"]["message"]


def test_waiting_ends_as_soon_as_all_is_well(cluster: Cluster) -> None:
    cluster.add("a")
    cluster.set_pod("a", cluster.status(ready=False))
    mend = threading.Timer(2, lambda: cluster.set_pod("a", cluster.status()))
    begun = time.monotonic()
    mend.start()
    ended = cluster.run("--wait", "200")
    mend.join()
    assert ended.returncode == 0, ended.stdout
    assert 2 < time.monotonic() - begun < 200
    # Progress is for terminals.
    assert ended.stderr == ""


def test_hundreds_of_nodes_with_one_cause_are_one_finding(cluster: Cluster) -> None:
    names = [f"node-{number:04}" for number in range(1000)]
    cluster.add(*names)
    with cluster.plane.counted() as asked:
        assert cluster.findings() == (0, {})
    assert asked["LIST", "nodes"] == 2, "a page has 500"
    silent = {"status": {"conditions": [condition("Ready", "Unknown")]}}
    crowd = Crowd(cluster.plane)
    crowd.ask("PATCH", ((f"/api/v1/nodes/{name}/status", silent) for name in names), MERGE)
    cluster.exporter.asked = 0
    code, found = cluster.findings()
    assert (code, found.keys()) == (1, {("node", "node/node-0000")})
    assert cluster.exporter.asked == 0, "of Nodes that are down, each would cost its time limit"
    assert found["node", "node/node-0000"]["objects"] == [f"node/{name}" for name in names]
    shown = cluster.run().stdout
    assert "and 997 more" in shown
    assert len(shown.splitlines()) < 20


def test_what_the_account_may_not_read_is_said_and_no_more_is_read_into_it(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.add("a")
    plane = cluster.plane
    # It reads Nodes and pods; and nothing of these: workloads, Leases, proxied pods.
    token = make_account(plane, namespace, [("", kind, ("list",)) for kind in ("nodes", "pods")])
    tokens = {"reader": token, "admin": plane.admin}
    some = plane.write_kubeconfig(tmp_path / "some", **tokens)
    ended = cluster.run(KUBECONFIG=str(some))
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"netmgr: GET {APPS}/daemonsets: 403: daemonsets.apps is forb")
    # Another context of the same kubeconfig.
    assert cluster.run("--context", "admin", KUBECONFIG=str(some)).returncode == 0
    workloads = [("apps", kind, ("list",)) for kind in ("daemonsets", "deployments")]
    grant(plane, namespace, [*workloads, ("", "events", ("list",))])
    ended = cluster.run("-o", "json", KUBECONFIG=str(some))
    answer = json.loads(ended.stdout)
    assert ended.returncode == 0
    said = {each["objects"][0]: each["message"] for each in answer["findings"]}
    assert said.keys() == {"controllerrevisions", "leases", "node/a"}
    assert "leases.coordination.k8s.io" in said["leases"]
    assert 'cannot get resource "pods/proxy"' in said["node/a"]


def test_a_server_that_cannot_be_asked_is_one_clear_message(
    cluster: Cluster, tmp_path: Path
) -> None:
    plane = cluster.plane
    wrong = plane.write_kubeconfig(tmp_path / "wrong", stranger=NOBODY)
    for kubeconfig, options, code, complaint in (
        (wrong, (), 1, "netmgr: GET /api/v1/nodes: 401: Unauthorized"),
        (tmp_path / "missing", (), 2, "missing: no way to reach an API server"),
        (cluster.kubeconfig, ("--context", "other"), 2, "no way to reach an API server"),
        (cluster.kubeconfig, ("--namespace", "elsewhere"), 1, ""),
    ):
        ended = cluster.run(*options, KUBECONFIG=str(kubeconfig))
        assert ended.returncode == code, ended.stderr
        assert complaint in ended.stderr
    assert "no DaemonSet or Deployment of netmgr is in elsewhere" in ended.stdout


def test_a_bundle_has_nodes_objects_and_logs_or_says_why_not(
    installed: ControlPlane, tmp_path: Path
) -> None:
    add_nodes(installed, [node("a"), node("b")])
    add_pods(installed, [agent_pod("netmgr-x", "a")])
    target = tmp_path / "cluster.tar.gz"
    command = [sys.executable, "-m", "netmgr", "kube", "bundle", "--to", str(target)]
    command += ["--service-account", str(installed.credentials(tmp_path, installed.admin))]
    environment = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"}
    subprocess.run(command, env=environment | installed.environment, check=True, timeout=PATIENCE)
    found = {}
    with tarfile.open(target) as archive:
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read().decode()
    names = {item["metadata"]["name"] for item in json.loads(found["nodes.json"])["items"]}
    assert names == {"a", "b"}
    kinds = ("pods", "configmaps", "events", "daemonsets")
    assert {f"netmgr/{kind}.json" for kind in kinds} <= found.keys()
    assert "netmgr-claims/leases.json" in found
    # There is no kubelet, which would have the log.
    assert found["netmgr/logs/netmgr-x-agent.log"].startswith("cannot be collected: GET /api/v1/")
    assert not any("secrets" in name for name in found)
