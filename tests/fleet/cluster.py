"""A whole cluster on a real API server and etcd.

Kubelets and pods are objects and connections, without machines: Nodes register, agents' pods come
and become ready, each kubelet has a watch and a Lease. The controller is a real process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.report import Figure
from tests.fleet.effort import Effort
from tests.fleet.steps import PATIENCE, Change, Site
from tests.kubernetes import manifests
from tests.kubernetes.control_plane import ControlPlane, free_ports
from tests.kubernetes.controllers import Starter, write_plan
from tests.waiting import eventually

RESOURCES = ("nodes", "pods", "configmaps", "events")
"""What the controller asks for, but for its Lease."""

TICK = 1 / os.sysconf("SC_CLK_TCK")


def measure(effort: Effort) -> Iterator[Figure]:
    """Times and requests of each step, and what the controller takes."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        plan = write_plan(folder, f"{{gpu: {{nodes: {effort.nodes}, surge: 10%}}}}")
        with _running(folder, plan, effort) as site:
            yield from _steps(site, effort)
            yield from _requests(site, effort)


def _steps(site: Site, effort: Effort) -> Iterator[Figure]:
    change, of = Change(site, effort.nodes, effort.wave), f"{effort.nodes:,} nodes"
    for what, step in (
        ("all Nodes register, from the last one until all have ranges", change.register),
        ("all agents start, from the last one until all Nodes take pods", change.start_agents),
        ("agents' pods replaced in waves, the longest", change.replace_agents),
        ("Nodes deleted and registered again in waves, the longest", change.register_again),
    ):
        yield Figure(f"{what}, {of}", max(step()), "s")
    began, requests = time.monotonic(), site.plane.requests().total()
    spent = _processor(site.controller.process.pid)
    time.sleep(effort.idle_seconds)
    seconds = time.monotonic() - began
    spent = _processor(site.controller.process.pid) - spent
    yield Figure(f"controller's processor while nothing happens, {of}", 100 * spent / seconds, "%")
    rate = (site.plane.requests().total() - requests) / seconds
    yield Figure("requests a second then, those of kubelets included", rate, "")
    yield Figure(f"controller's memory at most, {of}", site.controller.most_memory / 1e6, "MB")


def _processor(process: int) -> float:
    """Seconds of a processor that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def _requests(site: Site, effort: Effort) -> Iterator[Figure]:
    for (verb, resource), number in sorted(site.wrote().items()):
        if verb != "WATCH" and resource in RESOURCES and number:
            yield Figure(f"{verb} {resource} by the controller, {effort.nodes:,} nodes", number, "")


@contextmanager
def _running(folder: Path, plan: Path, effort: Effort) -> Iterator[Site]:
    """The server with a controller, and the kubelets' watches and Leases."""
    plane = ControlPlane(folder)
    starter = Starter(plane, folder)
    crowd: subprocess.Popen[bytes] | None = None
    try:
        plane.start()
        for overlay in ("controller", "cni"):
            for found in manifests.build(manifests.HERE / "overlays" / overlay):
                manifests.apply(plane, found)
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}}
        plane.answer("POST", "/api/v1/namespaces", body)
        crowd = _crowd(plane, effort)
        before = plane.requests()
        (port,) = free_ports(1)
        account = starter.account("netmgr", "netmgr-controller")
        options = ("--namespace=netmgr-claims", f"--plan={plan}", f"--listen=127.0.0.1:{port}")
        controller = starter.start("controller", *options, account=account, port=port)
        eventually(lambda: " leading " in controller.said)
        yield Site(plane, controller, before)
    finally:
        starter.stop()
        if crowd is not None:
            crowd.kill()
            crowd.wait(PATIENCE)
        plane.stop()


def _crowd(plane: ControlPlane, effort: Effort) -> subprocess.Popen[bytes]:
    """The kubelets' process, once all watch."""
    arguments = (plane.port, plane.authority, plane.admin, effort.nodes, effort.lease_seconds)
    command = [sys.executable, "-m", "tests.fleet.crowd", *map(str, arguments)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + PATIENCE
    while _watches(plane) < effort.nodes:
        assert process.poll() is None, "the kubelets ended"
        assert time.monotonic() < deadline, "not all kubelets watch"
        time.sleep(0.5)
    return process


def _watches(plane: ControlPlane) -> int:
    page = plane.ask("GET", "/metrics")["text"]
    lines = (
        line for line in page.splitlines() if line.startswith("apiserver_longrunning_requests{")
    )
    return sum(int(line.rpartition(" ")[2]) for line in lines if 'resource="nodes"' in line)
