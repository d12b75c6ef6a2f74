"""A whole cluster on a real API server and etcd, and the same in the simulation beside it.

Kubelets and pods are objects and connections, without machines: Nodes register, agents' pods come
and become ready, each kubelet has a watch and a Lease. The controller is a real process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from netmgr.kube.allocations import NodeAllocations
from netmgr.kube.plan_watch import PlanWatch
from netmgr.plan import files
from netmgr.simulation.api_server import ApiServer
from netmgr.simulation.controllers import Controllers
from netmgr.simulation.virtual_time import VirtualTime
from tests.bench.report import Figure
from tests.fleet.effort import Effort
from tests.fleet.steps import Asked, Change
from tests.kubernetes import manifests
from tests.kubernetes.control_plane import ControlPlane, Object, free_ports
from tests.kubernetes.controllers import Crowd, Program, Starter, write_plan
from tests.waiting import eventually

COMPARED = ("nodes", "pods", "configmaps", "events")
"""Resources that the controller asks for, but for its Lease."""

PATIENCE = 900
POLL_SECONDS = 0.2
CONNECTIONS = 8
REQUEST_SECONDS = 0.01
"""What a request takes in the simulation."""
TICK = 1 / os.sysconf("SC_CLK_TCK")


class RealSite:
    """The real server; its controller's own counters say what it has asked."""

    def __init__(self, plane: ControlPlane, controller: Program, before: Asked) -> None:
        self.plane = plane
        self.controller = controller
        self._crowd = Crowd(plane, CONNECTIONS)
        # What others asked.
        self._asked = before

    def create(self, path: str, bodies: Iterable[Object]) -> None:
        self._ask("POST", ((path, body) for body in bodies))

    def patch(self, patches: Iterable[tuple[str, Object]]) -> None:
        self._ask("PATCH", patches, "merge-patch+json")

    def delete(self, paths: Iterable[str]) -> None:
        self._ask("DELETE", ((path, {"gracePeriodSeconds": 0}) for path in paths))

    def _ask(
        self, method: str, asked: Iterable[tuple[str, Object | None]], kind: str = "json"
    ) -> None:
        listed = list(asked)
        self._crowd.ask(method, listed, kind)
        for path, _ in listed:
            self._asked[method, _resource(path)] += 1

    def wrote(self) -> Asked:
        """What everybody asked, less what the test and the kubelets did."""
        found = self.plane.requests()
        return Asked({key: n - self._asked[key] for key, n in found.items()})

    def wait(self, wrote: Asked) -> float:
        return _wait(self.wrote, wrote, time.monotonic, lambda: time.sleep(POLL_SECONDS))


class SimulatedSite:
    """The server in memory."""

    def __init__(self, allocations: NodeAllocations) -> None:
        self.time = VirtualTime()
        self.server = ApiServer(self.time)
        self._api = self.server.api("kubelets")
        self.controllers = Controllers(
            self.time, self.server, PlanWatch(lambda: allocations, ()), REQUEST_SECONDS
        )
        self.controllers.start()
        self.time.run(1)

    def create(self, path: str, bodies: Iterable[Object]) -> None:
        for body in bodies:
            self._api.create(path, body)
            self._pass_time()

    def patch(self, patches: Iterable[tuple[str, Object]]) -> None:
        for path, body in patches:
            self._api.patch(path, body)
            self._pass_time()

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.server.answer("kubelets", "DELETE", path, None, "")
            self._pass_time()

    def _pass_time(self) -> None:
        """The controllers go on meanwhile, as they do beside the real one."""
        self.time.run(self.time.monotonic() + REQUEST_SECONDS / CONNECTIONS)

    def wrote(self) -> Asked:
        return Asked(
            {
                (verb, resource): n
                for (client, verb, resource), n in self.server.asked.items()
                if client != "kubelets"
            }
        )

    def wait(self, wrote: Asked) -> float:
        clock = self.time.monotonic
        return _wait(self.wrote, wrote, clock, lambda: self.time.run(clock() + POLL_SECONDS))


def _wait(
    wrote: Callable[[], Asked], wanted: Asked, clock: Callable[[], float], pause: Callable[[], None]
) -> float:
    began = clock()
    while missing := wanted - wrote():
        assert clock() - began < PATIENCE, f"never asked: {missing}"
        pause()
    return clock() - began


def _resource(path: str) -> str:
    """The resource of a collection's or an object's path."""
    parts = path.strip("/").split("/")[2:]
    return parts[2] if parts[0] == "namespaces" else parts[0]


def measure(effort: Effort) -> Iterator[Figure]:
    """Times and requests of each step, and what the controller takes."""
    with TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        plan = write_plan(folder, f"{{gpu: {{nodes: {effort.nodes}, surge: 10%}}}}")
        lock = files.load_lock(files.lock_path(plan))
        assert lock is not None
        site = stack.enter_context(_real(folder, plan, effort))
        yield from _steps(site, effort)
        asked = site.wrote()
        simulated = SimulatedSite(NodeAllocations(lock, "train"))
        stack.callback(simulated.time.close)
        change = Change(simulated, effort.nodes, effort.wave)
        for step in (
            change.register,
            change.start_agents,
            change.replace_agents,
            change.register_again,
        ):
            step()
        yield from _compared(asked, simulated.wrote(), effort)


def _steps(site: RealSite, effort: Effort) -> Iterator[Figure]:
    change, of = Change(site, effort.nodes, effort.wave), f"{effort.nodes:,} nodes"
    for what, step in (
        ("all Nodes register, from the last one until all have ranges", change.register),
        ("all agents start, from the last one until all Nodes take pods", change.start_agents),
        ("agents' pods replaced in waves, the longest", change.replace_agents),
        ("Nodes deleted and registered again in waves, the longest", change.register_again),
    ):
        with _measured(site) as measured:
            took = step()
        longest = max(took) if isinstance(took, list) else took
        yield Figure(f"{what}, {of}", longest, "s")
        yield Figure("  the whole step", measured["seconds"], "s")
        yield Figure("  requests a second at the API server", measured["requests"], "")
        yield Figure("  controller's processor time", measured["controller"], "s")
        yield Figure("  API server's processor time", measured["server"], "s")
    with _measured(site) as measured:
        time.sleep(effort.idle_seconds)
    share = 100 * measured["controller"] / measured["seconds"]
    yield Figure(f"controller's processor while nothing happens, {of}", share, "%")
    yield Figure("requests a second then, those of kubelets included", measured["requests"], "")
    yield Figure(f"controller's memory at most, {of}", site.controller.most_memory / 1e6, "MB")


@contextmanager
def _measured(site: RealSite) -> Iterator[dict[str, float]]:
    """What passes within the block; filled in at its end."""
    found: dict[str, float] = {}
    assert site.plane.server

    def now() -> dict[str, float]:
        return {
            "seconds": time.monotonic(),
            "requests": site.plane.requests().total(),
            "controller": _processor(site.controller.process.pid),
            "server": _processor(site.plane.server.pid),
        }

    before = now()
    yield found
    found |= {key: value - before[key] for key, value in now().items()}
    found["requests"] /= found["seconds"]


def _processor(process: int) -> float:
    """Seconds of a processor that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def _compared(real: Asked, simulated: Asked, effort: Effort) -> Iterator[Figure]:
    for verb, resource in sorted(real.keys() | simulated.keys()):
        key = verb, resource
        if verb != "WATCH" and resource in COMPARED and (real[key] or simulated[key]):
            what = f"{verb} {resource} by the controller, {effort.nodes:,} nodes"
            yield Figure(what, real[key], "", simulated[key] or None, "simulated")


@contextmanager
def _real(folder: Path, plan: Path, effort: Effort) -> Iterator[RealSite]:
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
        controller = starter.controller(plan, account, "netmgr-claims", port=port)
        eventually(lambda: " leading " in controller.said)
        yield RealSite(plane, controller, before)
    finally:
        starter.stop()
        if crowd is not None:
            crowd.kill()
            crowd.wait(10)
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
