"""The accounting of a machine: opens the ledger and the rules of the right backend."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Self

from netmgr.agent.accounting import changeover
from netmgr.agent.accounting.accounts import Accounts
from netmgr.agent.core.components import Agent, Component, Query, Remnants
from netmgr.agent.core.files import Files, Made
from netmgr.agent.core.recovery import boot_id, open_or_set_aside
from netmgr.agent.core.scheduler import Latest, Task
from netmgr.agent.core.uplinks import OtherLinks, uplinks
from netmgr.api.snapshot import (
    VERSION,
    AuditView,
    Fault,
    PodTotals,
    Problem,
    RemotePod,
    RuleReading,
    Snapshot,
    UsageView,
)
from netmgr.documents.accounting import CountingAt, NodeRules
from netmgr.documents.backend import Backend
from netmgr.documents.sites import Role
from netmgr.errors import KernelError, NetmgrError, SetupError, StateError, TryAgainLater
from netmgr.kernel import traffic_filters
from netmgr.kernel.capabilities import Capability
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.xtables.variant import give_memory_back
from netmgr.ledger.history import FARTHEST, By, Period, Retention, view
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.mark import MENDED, Mark
from netmgr.ledger.store import LedgerStore
from netmgr.ledger.totals import Totals
from netmgr.model import PROTECTED
from netmgr.prefixes import Prefix
from netmgr.rules.choose import FACTS, FILE_NAME, open_backend, open_kind, remember, remembered
from netmgr.rules.engine import Drops, RuleBackend, Rules
from netmgr.rules.policy import Policy
from netmgr.rules.tagged import Tagged

_FOLLOW_SECONDS = 1.0
"""How long links that come are without what counts there."""

log = logging.getLogger(__name__)


class NodeAccounting(Component):
    """Counts what the machine's pods, or the machine itself, exchange."""

    vital = ("rules",)

    def __init__(self, agent: Agent, accounts: Accounts, rules: Rules, ledger: Ledger) -> None:
        super().__init__(agent)
        self._drops = Latest[Drops](
            rules.drops, agent.clock, agent.document.accounting.min_reading_seconds, Drops([], [])
        )
        self.accounts = accounts
        self.rules = rules
        self._other_links: OtherLinks | None = None
        if agent.document.accounting.at is CountingAt.LINKS:
            self._other_links = agent.stack.enter_context(closing(OtherLinks()))
        self.ledger = ledger

    @classmethod
    def open(cls, agent: Agent) -> Self:
        """Open ledger and rules, and find out whether they belong together."""
        document, settings = agent.document, agent.document.accounting
        ledger, was_damaged = open_or_set_aside(
            document.state_dir / "ledger.sqlite",
            lambda path: Ledger(
                LedgerStore(path),
                clock=agent.clock,
                linger_seconds=settings.linger_seconds,
                boot_id=boot_id(),
                retention=Retention(settings.history_hours, settings.history_rows),
            ),
        )

        def opened(backend: RuleBackend) -> Rules:
            return agent.stack.enter_context(closing(Rules(backend, Policy.of(document))))

        rules = opened(open_backend(document.backend, document.state_dir, settings.at))
        change = changeover.begin(
            document.state_dir, ledger, rules, lambda kind: opened(open_kind(kind))
        )
        former = change.rules if change else ()
        # With the former backend's rules: the successor's may still be empty, and a lost ledger
        # would then look like this machine's first one.
        agent.health.rebuilds += examine(ledger, rules, *former, was_damaged=was_damaged)
        # During a change both names stay noted until it is over: a start after a crash has to find
        # the former backend's rules.
        if change is None:
            changeover.note_only_backend(document.state_dir, ledger, rules)
        name = rules.backend.name
        note = Made(document.state_dir / FILE_NAME, lambda: remember(name, document.state_dir))
        agent.get(Files).keep(ledger, note)
        seconds = settings.min_reading_seconds
        accounts = Accounts(rules, ledger, agent.clock, seconds, change, lambda: uplinks(document))
        # After the rules, so that it takes a last reading before they are closed.
        agent.stack.callback(accounts.close)
        return cls(agent, accounts, rules, ledger)

    def capabilities(self) -> Iterable[Capability]:
        backends = map(Backend, self.accounts.backends)
        return [needed for backend in backends for needed in FACTS[backend].capabilities]

    def start(self) -> None:
        for repair in self.accounts.start(self._agent.attachments()):
            log.info("rules-begin what=%s", repair)

    def reconcile(self) -> None:
        self._agent.health.repair("rules", self.accounts.reconcile)
        self._agent.health.attempt("ledger", self.accounts.tidy)

    def tasks(self) -> Iterable[Task]:
        # Nobody may ask for long, and what was not read is lost if another program zeroes it.
        seconds = self._agent.document.accounting.reading_seconds
        yield Task(self.accounts.read, seconds, name="reading")
        if self._other_links:
            yield Task(self._follow, _FOLLOW_SECONDS, name="links")

    def _follow(self) -> None:
        # A new uplink counts nothing yet.
        if self._other_links and self._other_links.have_changed():
            self._agent.health.repair("rules", self.accounts.reconcile)

    def problems(self) -> Iterable[Problem]:
        if not self.ledger.durable:
            message = (
                "totals are in the agent's memory alone, since its disk cannot be written; make "
                "room or mend it, and do not restart the agent before that"
            )
            yield {"reason": Fault.NOT_DURABLE, "message": message}

    def snapshot(self, snapshot: Snapshot) -> None:
        try:
            self.accounts.read()
        except NetmgrError as error:
            # The totals of the last reading beat no answer.
            log.warning("counters-unread error=%s", error)
        totals, drops = self.ledger.totals(), self._drops.value()
        runs_pods = self._agent.document.role is Role.NODE
        snapshot["backend"] = self.rules.backend.name
        snapshot["pods"] = self._pods(totals)
        snapshot["namespaces"], snapshot["protected"] = [], []
        for total in totals.namespaces:
            if total["traffic"] != PROTECTED:
                snapshot["namespaces"].append(total)
            # Namespaces without any have no series.
            elif total["packets"]:
                snapshot["protected"].append(total)
        snapshot["node_totals"] = totals.node
        # As PyPI's iptables-exporter would label a node rule's reading.
        owner = self._agent.document.accounting.rule_owner
        snapshot["rules"] = [
            {
                "ip_version": str(sample.counter.family.value),
                "table": "mangle",
                "chain": str(sample.counter.subject).lower(),
                "rule": f"{owner} traffic={sample.counter.traffic}",
                "bytes": sample.bytes,
                "packets": sample.packets,
            }
            for sample in totals.rules
        ]
        snapshot["gaps"] = totals.gaps
        snapshot["unattributed"] = totals.unattributed(runs_pods=runs_pods)
        snapshot["origins"] = totals.origins(runs_pods=runs_pods)
        snapshot["remote_pods"] = self._remote_pods()
        snapshot["audit"] = self.accounts.ratios
        snapshot["durable"] = totals.durable
        snapshot["isolation"], snapshot["drops"] = drops.between, drops.refused

    def _pods(self, totals: Totals) -> list[PodTotals]:
        pods = [total for total in totals.pods if total["traffic"] != PROTECTED]
        if not self.rules.backend.abilities.counts_at_links:
            for total in pods:
                del total["wire"], total["wire_unknown"]
        return pods

    def _remote_pods(self) -> list[RemotePod]:
        try:
            samples = self.rules.remote_pods()
        except NetmgrError as error:
            log.warning("remote-pods-unread error=%s", error)
            return []
        return [
            {
                "address": str(sample.counter.subject),
                "traffic": sample.counter.traffic,
                "bytes": sample.bytes,
                "packets": sample.packets,
            }
            for sample in samples
        ]

    def queries(self) -> Mapping[str, Query]:
        return {"audit": self._audit, "usage": self._usage}

    def _audit(self, _request: Mapping[str, object]) -> AuditView:
        report = self.accounts.audit()
        return {
            "version": VERSION,
            "node": self._agent.document.node.name,
            "forward": report.totals.forward_audit(),
            "links": report.links,
            "uplinks": report.through_uplinks(),
            "ratios": report.ratios(),
            "gaps": report.totals.gaps,
        }

    def _usage(self, request: Mapping[str, object]) -> UsageView:
        """History from `since` to `until`, seconds since the epoch; `by` is a list with commas."""
        since = float(str(request.get("since")))
        until = float(str(request.get("until") or self._agent.clock.now()))
        by = [By(name) for name in str(request.get("by")).split(",")]
        # NaN, which float() accepts from a reader, fails these comparisons as well.
        if not 0 <= since < until < FARTHEST:
            raise ValueError(
                "until must be later than since, and both within some thousand years from 1970"
            )
        period = Period.around(since, until)
        return view(period, by, self.accounts.usage(period, by))

    @classmethod
    def remove(cls, remnants: Remnants) -> Iterator[str]:
        # Of every backend: an agent that was killed in a changeover left the rules of two.
        last, shared = None, []
        with suppress(StateError):
            last = remembered(remnants.state_dir)
        possible = [backend for backend, facts in FACTS.items() if facts.may_have_rules()]
        for backend in dict.fromkeys([last, *possible] if last else possible):
            try:
                yield _remove_rules(backend, remnants.rule_owner)
            except (SetupError, KernelError, TryAgainLater) as error:
                # Both variants of iptables use the same sets. The kernel keeps a set while a rule
                # refers to it, so the first variant is tried again after the second.
                if isinstance(error, KernelError) and error.errno == errno.EBUSY:
                    shared.append(backend)
                else:
                    yield from _skip(backend, last, error)
        for backend in shared:
            yield _remove_rules(backend, remnants.rule_owner)


class TaggedRules(Component):
    """What PyPI's iptables-exporter would report besides our own rules, as of the last reading."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        # It reads with the sockets of `NodeAccounting`.
        self._rules = agent.get(NodeAccounting).rules
        self._tagged = Tagged()
        self._fault = ""

    def capabilities(self) -> Iterable[Capability]:
        # Legacy tables are read by a raw socket, whatever backend the agent itself uses.
        return (Capability.NET_RAW,)

    def tasks(self) -> Iterable[Task]:
        seconds = self._agent.document.accounting.reading_seconds
        # The number of other people's rules is not ours to bound. In a thread of their own, no
        # request, no reading of counters and no answer to a reader waits for them.
        yield Task(self._read, seconds, thread="tagged-rules")

    def snapshot(self, snapshot: Snapshot) -> None:
        # Ours are there: `NodeAccounting` comes before.
        tagged = self._tagged
        readings = {
            (reading["ip_version"], reading["table"], reading["chain"], reading["rule"]): reading
            for reading in snapshot["rules"]
        }
        for series, packets in tagged.packets.items():
            version, table, chain, rule = str(series.family.value), *series[1:]
            # Those with equal labels are added up, as the exporter does.
            reading = readings.setdefault(
                (version, table, chain, rule),
                RuleReading(
                    ip_version=version, table=table, chain=chain, rule=rule, bytes=0, packets=0
                ),
            )
            reading["bytes"] += tagged.bytes[series]
            reading["packets"] += packets
        snapshot["rules"] = list(readings.values())
        snapshot["chain_sizes"] = [
            {
                "ip_version": str(series.family.value),
                "table": series.table,
                "chain": series.chain,
                "rules": count,
            }
            for series, count in tagged.chains.items()
        ]

    def _read(self) -> None:
        fault = ""
        try:
            self._tagged = self._rules.tagged()
            if self._tagged.left_out:
                fault = f"{self._tagged.left_out} tagged rules and chains exceed the bounds"
        except (NetmgrError, OSError) as error:
            fault = str(error)
        # A listing of many rules is large, and glibc would keep its memory for the next one.
        give_memory_back()
        if fault and fault != self._fault:
            log.warning("tagged-rules-incomplete reason=%s", fault)
        self._fault = fault


def examine(ledger: Ledger, *rules: Rules, was_damaged: bool = False) -> bool:
    """Compare the ledger with the kernel before the first posting; whether it lost something.

    `rules` are those of every backend that may have counted for it; `was_damaged`: it is new, and
    replaces one that was set aside.
    """
    marks = [Mark.of(address) for backend_rules in rules for address in backend_rules.marks()]
    # All counters are read only for a ledger without content: any other has a mark to compare.
    has_counters = was_damaged or (
        # Those at links are there as soon as they are looked for.
        ledger.is_new
        and any(sample.packets for backend_rules in rules for sample in backend_rules.read())
    )
    return ledger.examine(marks, has_counters=has_counters) in MENDED


def _skip(backend: Backend, last: Backend | None, error: NetmgrError) -> Iterator[str]:
    """Go on without a backend that cannot have rules of ours, or else raise the error."""
    if isinstance(error, SetupError):
        # Without the backend's library, no agent could have made rules in it.
        if backend is last:
            raise error
        return
    # Other people's tables may be unreadable to us; then they cannot hold rules of ours.
    if last in (None, backend):
        raise error
    yield f"{backend}, which the agent did not use last, was not looked into: {error.message}"


def _remove_rules(backend: Backend, owner: str) -> str:
    # Rules are recognised by their marks and their owner, whatever else they were made from.
    policy = Policy(
        internal=(),
        ranges=(),
        masquerade=True,
        node_rules=NodeRules.CORRECTED,
        rule_owner=owner,
        exact_prefix=Prefix.parse("10.0.0.0/8"),
    )
    with closing(Rules(open_kind(backend), policy)) as rules:
        rules.remove()
    if backend is Backend.LINKS:
        with closing(Netlink()) as channel:
            traffic_filters.remove_unused(channel)
    return f"rules and sets of {backend} were removed"
