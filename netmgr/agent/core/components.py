"""What an agent is made of: components, in order (`roles.py`).

First all are opened, then all are started; they are stopped in reverse. A backend of rules is
retired, and a pod released, in `start` at the earliest: an agent that cannot go on must not take
away what its predecessor left running.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Self, TypeVar

from netmgr.agent.core.instance import HeldDirectory
from netmgr.agent.core.scheduler import Scheduler, Task
from netmgr.api.snapshot import Gaps, Problem, Snapshot
from netmgr.clock import Clock
from netmgr.documents.node import NodeDocument
from netmgr.errors import LimitedConnectivity, NetmgrError, NodeFull, NotReady
from netmgr.kernel import capabilities
from netmgr.kernel.capabilities import Capability
from netmgr.logs import caused_by
from netmgr.model import Attachment

Result = TypeVar("Result")

Query = Callable[[Mapping[str, object]], object]
"""Answers a reader's request with what JSON can hold; raises NetmgrError or ValueError."""

PLUGIN = "plugin"
"""Name of the attempt that checks whether runtimes find the plugin."""

log = logging.getLogger(__name__)


class PluginMissing(NotReady):
    """Runtimes do not find the plugin, and no other component keeps the node from being ready."""


@dataclass(frozen=True, slots=True)
class Remnants:
    """Where an agent that has ended kept its state, and what of it is to be removed."""

    state_dir: Path
    run_dir: Path
    rule_owner: str
    """The name in the comments of its rules."""
    with_pods: bool
    """Cut off pods that still have their network from netmgr, too."""
    keep_state: bool
    """Leave the totals and leases where they are."""


class Component:
    """One part of an agent. It overrides what it has; by default each part is empty."""

    vital: Collection[str] = ()
    """Names of attempts (`Health.attempt`) without which the machine is not ready."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @classmethod
    def open(cls, agent: Agent) -> Self | None:
        """Open files and sockets, which `agent.stack` closes; None if this machine needs none.

        Only components that are earlier in the list may be used yet. Raises as `start` does.
        """
        return cls(agent)

    def capabilities(self) -> Iterable[Capability]:
        """What it needs from `start` on, besides CAP_NET_ADMIN; the agent keeps no others."""
        return ()

    def start(self) -> None:
        """Take over from a predecessor. All components are open, the earlier ones started.

        Raises a SetupError where machine or kernel lack something, a StateError where the state
        cannot be written.
        """

    def stop(self) -> None:
        """Undo `start`; called only after it succeeded. What the network needs stays."""

    def reconcile(self) -> None:
        """Repair drift. Called before readers are served, and then every `reconcile_seconds`.

        Each failure is recorded (`Health.attempt`, `Health.repair`) and tried again the next time.
        """

    def tasks(self) -> Iterable[Task]:
        """Work at other intervals, or that a file descriptor wakes."""
        return ()

    def attachments(self) -> Iterable[Attachment]:
        """The pods that it knows."""
        return ()

    def health(self, failing: Mapping[str, str]) -> None:
        """Return if the machine is ready as far as this component knows.

        `failing` are the attempts that failed last, and why. Raises LimitedConnectivity where pods
        that run may be affected, NotReady where only new ones are.
        """
        for name in self.vital:
            if name in failing:
                raise LimitedConnectivity(f"{name} cannot be reconciled: {failing[name]}")

    def problems(self) -> Iterable[Problem]:
        """What is wrong now, and who can mend it; `Readers` adds what only time shows."""
        return ()

    def explain(self, _attachment: Attachment) -> Iterable[str]:
        """What slows a pod's traffic now, in words."""
        return ()

    def snapshot(self, snapshot: Snapshot) -> None:
        """Fill in its part of what readers get; after a NetmgrError it lacks the rest."""

    def queries(self) -> Mapping[str, Query]:
        """Further queries that it answers, by name."""
        return {}

    @classmethod
    def remove(cls, _remnants: Remnants) -> Iterator[str]:
        """Remove all that it may have left on the machine, by its marks; describe each thing done.

        May be repeated. The agent's state may be lost, and its role is unknown.
        """
        yield from ()


Kind = TypeVar("Kind", bound=Component)


class Health:
    """Which recurring work is failing, and what it repaired. Thread-safe."""

    def __init__(self) -> None:
        self.failing: dict[str, str] = {}
        """Attempts whose last run failed, and why."""
        self.rebuilds = 0
        """How often state was lost and rebuilt from the kernel."""
        self._repairs: Tally[str] = Tally()
        self._lock = threading.Lock()

    def attempt(self, name: str, action: Callable[[], Result]) -> Result | None:
        """Run an action; while it fails, `failing` says why."""
        try:
            result = action()
        except (NetmgrError, OSError, sqlite3.Error) as error:
            # Also for what a pod does to its own link, perhaps a hundred times a second.
            extra = caused_by(f"{name}: {error}")
            log.error("attempt-failed name=%s error=%s", name, error, extra=extra)  # noqa: TRY400  expected kinds only
            self.failing[name] = str(error)
            return None
        self.failing.pop(name, None)
        return result

    def repair(self, area: str, action: Callable[[], Iterable[str]]) -> None:
        """Run an action that repairs drift; count and log each repair that it describes."""
        # An action may be a generator: what it raises has to come before anything is counted.
        self.attempt(area, lambda: self.repaired(area, list(action())))

    def repaired(self, area: str, repairs: Sequence[str]) -> None:
        with self._lock:
            # Also without a repair: readers get every area, zeros included.
            self._repairs[area] += len(repairs)
        for repair in repairs:
            log.warning("repaired area=%s what=%s", area, repair)

    def repairs(self) -> list[Gaps]:
        with self._lock:
            repairs = sorted(self._repairs.items())
        return [{"reason": area, "count": count} for area, count in repairs]


@dataclass(eq=False)
class Agent:
    """The components of one agent, in order, and what they share."""

    config: Path
    """Path of the node document."""
    document: NodeDocument
    """With the current ranges, if another source has them."""
    clock: Clock
    directories: Sequence[HeldDirectory]
    """Held by this process, restored by `Files`."""
    stack: ExitStack
    """Closes what components open."""
    health: Health = field(default_factory=Health)
    components: list[Component] = field(default_factory=list)
    serves: bool = False
    """Whether all components are started."""

    def open(self, kinds: Iterable[type[Component]]) -> None:
        for kind in kinds:
            component = kind.open(self)
            if component is not None:
                self.components.append(component)

    def find(self, kind: type[Kind]) -> Kind | None:
        listed = self.components
        return next((component for component in listed if isinstance(component, kind)), None)

    def get(self, kind: type[Kind]) -> Kind:
        """The component of this kind; LookupError if the role has none, or opens it later."""
        component = self.find(kind)
        if component is None:
            raise LookupError(f"{kind.__name__} is not open; see the order in roles.py")
        return component

    def start(self) -> None:
        """Start all components, in order, with the capabilities that they need."""
        needed = (component.capabilities() for component in self.components)
        # Before the first thread, since each has its own.
        capabilities.keep({Capability.NET_ADMIN, *chain.from_iterable(needed)})
        for component in self.components:
            component.start()
            # After `start`: what failed to start is not stopped. The stack closes in reverse, so
            # every component stops before the files that were opened before.
            self.stack.callback(component.stop)
        self.serves = True

    def attachments(self) -> list[Attachment]:
        return [*chain.from_iterable(component.attachments() for component in self.components)]

    def health_fault(self) -> LimitedConnectivity | NotReady | None:
        """Why the machine is not ready: the first reason of the worst kind, a full node last."""
        not_ready: NotReady | None = None
        # A copy: the tasks' threads change it meanwhile.
        failing = dict(self.health.failing)
        for component in self.components:
            try:
                component.health(failing)
            except LimitedConnectivity as error:
                return error
            except NotReady as error:
                # STATUS succeeds on a full node, so that must not hide a fault that fails STATUS.
                if not_ready is None or isinstance(not_ready, NodeFull):
                    not_ready = error
        return not_ready


class Reconciler(Component):
    """Runs the reconcile pass of all components, in their order, and their tasks."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._schedulers: list[Scheduler] = []

    def start(self) -> None:
        # Once before the servers, which are started later: they find everything in place.
        self._reconcile_all()
        tasks = [Task(self._reconcile_all, self._agent.document.reconcile_seconds)]
        for component in self._agent.components:
            tasks += map(self._attempted, component.tasks())
        # dict.fromkeys keeps the order of the components, which a set would not.
        for thread in dict.fromkeys(task.thread for task in tasks):
            scheduler = Scheduler(thread, [task for task in tasks if task.thread == thread])
            scheduler.start()
            self._schedulers.append(scheduler)

    def _attempted(self, task: Task) -> Task:
        if not task.name:
            return task
        attempt = partial(self._agent.health.attempt, task.name, task.action)
        return replace(task, action=attempt)

    def stop(self) -> None:
        # Waits for the work under way: the stack closes next what that works with.
        for scheduler in self._schedulers:
            scheduler.stop()

    def _reconcile_all(self) -> None:
        for component in self._agent.components:
            component.reconcile()
