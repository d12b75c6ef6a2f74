"""Cuts one scenario at any of its durable steps, and has the next agent put everything right."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import yaml

from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.errors import NetmgrError
from tests.chaos.books import Blind
from tests.chaos.kernel import Kernel
from tests.chaos.node import Chaos
from tests.failpoints.order import Order
from tests.failpoints.steps import ROOT, Step
from tests.fakes.metadata import MetadataServer, document, http
from tests.kernel.test_accounting_host_pods import UNIFIED, kubelets
from tests.lab.runtime import Sandbox
from tests.lab.world import counting_by
from tests.waiting import PATIENCE

QUIET: dict[str, Any] = {
    "reconcile_seconds": 3600,
    "accounting": {"reading_seconds": 300, "min_reading_seconds": 0, "linger_seconds": 86400},
}
"""An agent that does nothing by itself, so that a scenario takes the same steps each time."""
PODS = 2
CGROUPS = UNIFIED / f"netmgr-cuts-{os.getpid()}"
LOGS = Path(f"/run/netmgr-cuts-{os.getpid()}")
WITH_HOST_PODS = {
    "accounting": {"host_pods": True, "cgroup_dir": str(CGROUPS), "pod_logs_dir": str(LOGS)}
}
QUIET_SECONDS = 0.5
LEFT_SECONDS = 1.0
"""How long the steps of a scenario may follow it in other threads."""


@dataclass(frozen=True)
class Scenario:
    """Something that an agent does in several durable steps.

    Attributes:
        act: does it, or what has the agent do it. Of a scenario that `starts`, it comes before the
            agent starts, which then does it. It may fail where the agent is killed.
        cleans: whether what is killed is no agent, but `netmgr host clean`.
        document: keys of node.yaml while it runs.
        after: keys of node.yaml from then on.
        is_blind: whether something that counts is broken meanwhile.
        loses_books: whether it takes the ledger, and perhaps the leases, away.
        breaks_limits: whether it takes the limits away.
        shares: whether pairs of steps that an earlier scenario has as well are the same work.
        backends: where it takes place.
    """

    act: Callable[[Bench], object]
    starts: bool = False
    cleans: bool = False
    document: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    is_blind: bool = False
    alters_rules: bool = False
    loses_books: bool = False
    breaks_limits: bool = False
    shares: bool = False
    backends: tuple[Backend, ...] = (Backend.NFTABLES, Backend.LINKS, Backend.IPTABLES_LEGACY)

    @property
    def name(self) -> str:
        return self.act.__name__


class NotReached(AssertionError):
    """The scenario ended without the step at which it was to be cut."""


class Bench(Chaos):
    """One node on which scenarios are cut."""

    def __post_init__(self) -> None:
        self._stack = ExitStack()
        self._worker = self._stack.enter_context(ThreadPoolExecutor(1))
        self._cloud = self._stack.enter_context(MetadataServer(self.node.namespace))
        self._ended: list[Sandbox] = []
        super().__post_init__()
        self.base = yaml.safe_load(self.node.document.read_text())
        self._known = {(): (self.invariants.rules, self.invariants.blackholes)}

    def close(self) -> None:
        super().close()
        self._stack.close()

    def tell_ranges(self, ranges: Iterable[str]) -> None:
        """What the cloud's metadata say from now on."""
        listed = [str(one) for one in self.node.node.addresses]
        for one in map(ip_network, ranges):
            listed += map(str, one)
        self._cloud.answer = http(document(listed))

    @contextmanager
    def host_pods(self) -> Iterator[Path]:
        """Kubelet's cgroups, and in a folder of the same name its logs."""
        (CGROUPS / "kubepods").mkdir(parents=True)
        LOGS.mkdir()
        try:
            yield CGROUPS
        finally:
            for folder, _, _ in os.walk(CGROUPS, topdown=False):
                Path(folder).rmdir()
            shutil.rmtree(LOGS)

    @contextmanager
    def host_pod(self, name: str) -> Iterator[None]:
        """A pod in the node's own network."""
        container = kubelets(CGROUPS, LOGS, name)
        process = subprocess.Popen(["nsenter", f"--net={self.node.namespace}", "sleep", "100"])
        try:
            (container / "cgroup.procs").write_text(str(process.pid))
            yield
        finally:
            process.kill()
            process.wait()
            for folder in (container, container.parent):
                folder.rmdir()

    def end(self, name: str) -> None:
        """A pod's DEL. Its sandbox, which would take the link along, stays until all is judged."""
        sandbox = self.forget(name)
        self._ended.append(sandbox)
        self.node.runtime.execute("DEL", sandbox)

    def write(self, keys: dict[str, Any]) -> None:
        """Write node.yaml with these keys changed; None takes one away."""
        kept = {key: value for key, value in self._document(keys).items() if value is not None}
        self.node.document.write_text(yaml.safe_dump(kept, sort_keys=False))

    def _document(self, keys: dict[str, Any]) -> dict[str, Any]:
        accounting = {**self.base["accounting"], **keys.get("accounting", {})}
        return {**self.base, **keys, "accounting": accounting}

    def record(self, scenario: Scenario) -> list[Step]:
        """Run a scenario to its end; the steps that it takes."""
        self._prepare(scenario)
        try:
            self._run(scenario, Order(records=True))
            self._learn(scenario)
            steps = self.points.steps()
            self._put_right(scenario)
        finally:
            self._go_back(scenario)
        return steps

    def cut(self, scenario: Scenario, order: Order) -> Step:
        """Kill the agent at one step of a scenario, and have the next one put everything right.

        Raises:
            NotReached: the scenario did not take this step.
        """
        self._prepare(scenario)
        self.history[-1] = f"{scenario.name} {order}"
        try:
            self._run(scenario, order)
            step = self.points.killed_at()
            self._put_right(scenario)
        finally:
            self._go_back(scenario)
        if step is None:
            raise NotReached(f"{scenario.name}: {order}")
        self.done["fail points"] += 1
        return step

    def _prepare(self, scenario: Scenario) -> None:
        while len(self.pods) < PODS:
            self.add()
        self.begin(scenario.name)
        self.points.give(Order())

    def _run(self, scenario: Scenario, order: Order) -> None:
        self.alters_rules = scenario.alters_rules or scenario.is_blind
        self._since = self.read()
        if scenario.cleans:
            scenario.act(self)
            self.points.give(order)
            self.clean("tests.failpoints")
        elif scenario.starts:
            self.kill()
            scenario.act(self)
            self.write(_quiet(scenario.document))
            self.points.give(order)
            self.start("tests.failpoints")
            self._wait(self._is_over)
        else:
            self.node.stop_agent()
            self.write(_quiet(scenario.document))
            self.start("tests.failpoints")
            self.node.wait_until_ready()
            self._wait_until_quiet(scenario)
            self._since = self.read()
            self.points.give(order)
            self._acting = self._worker.submit(scenario.act, self)
            self._wait(lambda: self._is_dead() or self._acting.done())
        if order.number == 0 or not self._is_dead():
            # Other threads of the agent are still at work for it.
            time.sleep(LEFT_SECONDS)

    def _wait_until_quiet(self, scenario: Scenario) -> None:
        """Wait for what an agent does once after its start, which is no part of the scenario."""
        self.points.give(Order(records=True))
        seen, since = -1, time.monotonic()
        while "reconcile_seconds" not in scenario.document:
            if (taken := len(self.points.steps())) != seen:
                seen, since = taken, time.monotonic()
            if time.monotonic() - since > QUIET_SECONDS:
                return
            time.sleep(0.05)

    def clean(self, module: str) -> None:
        """Run `netmgr host clean` to its end, or until it is killed."""
        command = [sys.executable, "-m", module, "host", "clean"]
        command += ["--state-dir", str(self.state), "--run-dir", str(self.node.run_dir)]
        environment = {"PYTHONPATH": str(ROOT), **self.points.environment}
        done = programs.run(
            ["nsenter", f"--net={self.node.namespace}", *command],
            env={**os.environ, **environment},
        )
        assert done.returncode == 0 or self._is_dead(), done.stderr

    def _judge_cleaned(self) -> None:
        """`netmgr host clean`, repeated, leaves nothing of netmgr's, and all of the others'."""
        self.clean("netmgr")
        rules = self.kernel.rules()
        assert not rules.skeleton, rules.skeleton
        assert not rules.members, rules.members
        assert not self.kernel.links()
        assert not self.kernel.blackholes()
        tables = self.kernel.run("nft", "list", "tables").splitlines()
        left = [one for one in tables if "netmgr" in one and "not-quite" not in one]
        assert not left, left
        assert not self.foreign.wrong(), self.foreign.wrong()

    def _is_over(self) -> bool:
        return self._is_dead() or not self.node.status()

    def _is_dead(self) -> bool:
        return self.points.killed_at() is not None

    def _wait(self, over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not over():
            assert time.monotonic() < deadline, "the scenario does not end"
            time.sleep(0.01)

    def _put_right(self, scenario: Scenario) -> None:
        """A plain agent takes over, and every invariant holds."""
        self.has_whole_state = not scenario.loses_books
        self.has_whole_limits = not scenario.breaks_limits
        if scenario.loses_books:
            self.faults.books_since = 0.0
            self.released.clear()
        if scenario.cleans:
            self._judge_cleaned()
        else:
            self.kill()
        self._know(scenario.after)
        self.write(scenario.after)
        self.start()
        if not (scenario.starts or scenario.cleans):
            failure = self._acting.exception()
            # A request may find no agent; what it was for is judged below.
            if failure and not (self._is_dead() and isinstance(failure, NetmgrError)):
                raise failure
        if scenario.is_blind:
            self.wait_until_counting()
            self.faults.blinds.append(Blind(self._since, time.monotonic()))
        self.hold()

    def _learn(self, scenario: Scenario) -> None:
        """Take the rules of a changed document for right, as the agent made them undisturbed."""
        if scenario.after:
            self._know(scenario.after)
            found = self.kernel.rules().skeleton, self.kernel.blackholes()
            self._known.setdefault(_key(scenario.after), found)

    def _know(self, keys: dict[str, Any]) -> None:
        """Expect what follows from the document with these keys."""
        backend = counting_by(self._document(keys))
        self.kernel = self.invariants.kernel = Kernel(self.node, backend)
        found = self._known.get(_key(keys), self._known[()])
        self.invariants.rules, self.invariants.blackholes = found
        self.invariants.has_limits = bool(keys.get("limits", self.base["limits"]))

    def _go_back(self, scenario: Scenario) -> None:
        """Have the base's document in force again, and as many pods as at the beginning."""
        while self._ended:
            self.node.runtime.delete(self._ended.pop())
        if scenario.after:
            self.begin("go_back")
            self.alters_rules = True
            self.node.stop_agent()
            self.repairs = None
            self._know({})
            self.write({})
            began = time.monotonic()
            self.start()
            self.wait_until_counting()
            self.faults.blinds.append(Blind(began, time.monotonic()))
            self.hold()
        while len(self.pods) > PODS:
            self.delete(next(iter(self.pods)))


def _quiet(keys: dict[str, Any]) -> dict[str, Any]:
    accounting = {**QUIET["accounting"], **keys.get("accounting", {})}
    return {**QUIET, **keys, "accounting": accounting}


def _key(keys: dict[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(f"{key}={value}" for key, value in keys.items()))
