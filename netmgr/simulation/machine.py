"""A node of the fleet: an agent's own parts on a simulated kernel.

Rules, ledger, leases, collector and page are the product's. Of the agent only that is missing which
wires pods, watches the machine or listens: there is nothing here to wire, watch or listen on.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry, generate_latest

from exporter.collector import Collector
from exporter.settings import DEFAULT_MAX_SERIES
from netmgr.agent.accounting import Accounting, examine
from netmgr.agent.accounts import Accounts
from netmgr.agent.components import Agent, Component
from netmgr.agent.queries import Readers
from netmgr.agent.quotas import Spending
from netmgr.api.snapshot import Snapshot
from netmgr.clock import Clock
from netmgr.documents.node import NodeDocument
from netmgr.ipam import store as lease_store
from netmgr.ipam.leases import Leases
from netmgr.ipam.pool import Timing
from netmgr.ledger import store as ledger_store
from netmgr.ledger.history import Retention
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.totals import Totals
from netmgr.limits import quotas
from netmgr.model import Attachment, AttachmentKey, PodRef, Traffic
from netmgr.prefixes import Prefix
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from netmgr.simulation.kernel import SimulatedKernel

_IN_MEMORY = Path(":memory:")
"""SQLite's name for a database without a file."""


class _Pool(Component):
    """The leases, of which readers get the addresses by state."""

    def __init__(self, agent: Agent, leases: Leases) -> None:
        super().__init__(agent)
        self.leases = leases

    def snapshot(self, snapshot: Snapshot) -> None:
        snapshot["pool"] = list(self.leases.occupancy().values())


class _Quotas(Component):
    """What is used of quotas. The kernel here drops nothing beyond them."""

    def __init__(self, agent: Agent, leases: Leases) -> None:
        super().__init__(agent)
        self._leases = leases
        self._spending = Spending(agent.get(Accounting).accounts, agent.clock)

    def snapshot(self, snapshot: Snapshot) -> None:
        limits, pods = self._agent.document.limits, [one.pod for one in self._leases.all()]
        budgets = dict.fromkeys(
            budget
            for pod, traffic in product(pods, Traffic)
            for budget in quotas.of_pod(pod, limits, traffic)
        )
        if budgets:
            snapshot["quotas"] = self._spending.states(budgets)


@dataclass(eq=False)
class Machine:
    """One machine, with or without an agent that runs.

    Attributes:
        name: its Node's name.
        address: its own.
        pool: the node pool of the plan.
        folder: where its state is; None keeps it in memory.
        most_pods: how many pods its kubelet takes.
    """

    name: str
    address: str
    pool: str
    clock: Clock
    random: Random
    most_pods: int
    folder: Path | None = None
    pods: dict[str, Attachment] = field(default_factory=dict)
    agent: Agent | None = None

    def __post_init__(self) -> None:
        self.kernel = SimulatedKernel(self.clock, self.random)
        self._numbers = count()
        if self.folder:
            self.folder.mkdir()
        # As in files, all is written in SQL and read back by the next agent.
        self._ledger_store = ledger_store.Store(self._path("ledger.sqlite"))
        self._lease_store = lease_store.Store(self._path("ipam.sqlite"))
        if not self.folder:
            # Beside its file an agent looks for others, which must not be the caller's.
            self._ledger_store.path = Path("/nonexistent/ledger.sqlite")

    def _path(self, name: str) -> Path:
        return self.folder / name if self.folder else _IN_MEMORY

    def start_agent(self, document: NodeDocument) -> None:
        """Start an agent, which takes over what the kernel counts and its predecessor wrote."""
        accounting = document.accounting
        ledger = Ledger(
            self._ledger_store,
            clock=self.clock,
            linger_seconds=accounting.linger_seconds,
            boot_id=self.name,
            retention=Retention(accounting.history_hours, accounting.history_rows),
        )
        rules = Rules(self.kernel, Policy.of(document))
        examine(ledger, rules)
        accounts = Accounts(rules, ledger, self.clock, accounting.min_reading_seconds)
        timing = Timing(document.pool.cooldown_seconds, document.pool.conntrack_wait_seconds)
        leases = Leases(self._lease_store, document.ranges, timing, self.clock, self.kernel.tracked)
        self.agent = Agent(_IN_MEMORY, document, self.clock, (), ExitStack())
        self.agent.components = [
            Accounting(self.agent, accounts, rules, ledger),
            _Pool(self.agent, leases),
        ]
        if self.folder:
            # The hours that they are summed up from are read from the file.
            self.agent.components.append(_Quotas(self.agent, leases))
        accounts.start(leases.all())

    def kill_agent(self) -> None:
        """End the agent at once; the kernel counts on."""
        self.agent = None

    @property
    def _running(self) -> Agent:
        if self.agent is None:
            raise LookupError(f"{self.name} has no agent")
        return self.agent

    @property
    def ledger(self) -> Ledger:
        """The running agent's ledger."""
        return self._running.get(Accounting).ledger

    @property
    def leases(self) -> Leases:
        """The running agent's leases."""
        return self._running.get(_Pool).leases

    @property
    def _accounts(self) -> Accounts:
        return self._running.get(Accounting).accounts

    def use_ranges(self, ranges: tuple[Prefix, ...]) -> None:
        """Give out addresses of these from now on, as they are the Node's now."""
        self.leases.set_ranges(ranges)

    def add_pod(self, namespace: str, name: str, rate: float) -> None:
        """Attach a pod that exchanges about so many bytes a second with the internet.

        Raises:
            CapacityError: there is no address.
        """
        number = next(self._numbers)
        key = AttachmentKey(f"{self.name}-{number}", "eth0")
        pod = PodRef(namespace, name, f"{self.name}-{number}")
        attachment = self.leases.reserve(key, pod, f"nm{number:012x}", "/run/netns/simulated")
        self._accounts.begin(attachment)
        self.pods[name] = attachment
        # All of it over the first address: which family a pod prefers changes no sum.
        self.kernel.begin(attachment.addresses[0], namespace, rate)

    def remove_pod(self, name: str) -> tuple[PodRef, int]:
        """Detach a pod; returns whose all those bytes were that it exchanged."""
        attachment = self.pods.pop(name)
        passed = self.kernel.end(attachment.addresses[0])
        self._accounts.end(attachment)
        self.leases.release(attachment)
        return attachment.pod, passed

    def read(self) -> None:
        """Read all counters, and do what an agent does now and then."""
        self._accounts.read(at_once=True)
        self.ledger.sweep()
        self.leases.settle()

    def totals(self) -> Totals:
        """What the ledger has, as of now."""
        self.read()
        return self.ledger.totals()

    def page(self) -> bytes:
        """The page that Prometheus gets."""
        registry = CollectorRegistry()
        registry.register(Collector(Readers(self._running).snapshot_now, DEFAULT_MAX_SERIES))
        return generate_latest(registry)
