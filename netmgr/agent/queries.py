"""What the read-only socket answers: the snapshot, the attachments, and where an address belongs."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from yaml import YAMLError

import netmgr
from netmgr import documents
from netmgr.agent import accounting_queries, files
from netmgr.agent.latest import Latest
from netmgr.agent.opening import Books
from netmgr.agent.telemetry import Telemetry
from netmgr.clock import Clock
from netmgr.config import NodeDocument
from netmgr.errors import ConfigError, LimitedConnectivity, NetmgrError, NotReady, SetupError
from netmgr.explain import Explanation, explain, reason_of
from netmgr.ipam.pool import Occupancy
from netmgr.ledger.totals import NamespaceTotal, PodTotal
from netmgr.model import PROTECTED, Attachment, Sample
from netmgr.prefixes import Address, Family
from netmgr.rules.readings import Dropped, Drops
from netmgr.sites import Role
from netmgr.snapshot import (
    VERSION,
    AttachmentView,
    DroppedTotals,
    NamespaceTotals,
    NatAnswer,
    PodTotals,
    PoolState,
    RangesState,
    ResultFiles,
    RuleReading,
    Snapshot,
)

if TYPE_CHECKING:
    from netmgr.agent.nat import NatHost

log = logging.getLogger(__name__)


class Pods(Protocol):
    """Where the pods come from, which differs with `cni`."""

    def attachments(self) -> list[Attachment]:
        """What is counted."""
        ...

    def occupancy(self) -> Mapping[Family, Occupancy]:
        """The addresses that are handed out, by family."""
        ...

    def files(self) -> list[ResultFiles]:
        """What became of the runtime's result files."""
        ...

    def longest_delay(self) -> float:
        """The longest a pod was there uncounted, in seconds."""
        ...

    def status(self) -> None:
        """Say nothing when ready, else raise NotReady or LimitedConnectivity."""
        ...


class Queries:
    """Answers readers; changes nothing but the time of the last reading."""

    def __init__(
        self,
        config: Path,
        document: NodeDocument,
        books: Books,
        telemetry: Telemetry,
        clock: Clock,
        pods: Pods,
        nat: NatHost | None = None,
    ) -> None:
        self._config = config
        self._document = document
        self._accounts, rules, self._tagged = books
        self._pods = pods
        self._telemetry = telemetry
        self._backend = rules.backend.name
        self._drops = Latest[Drops](rules.drops, clock, document.accounting.min_reading_seconds, Drops())
        self._nat = nat
        self._clock = clock
        self._started_at = clock.now()

    def change_document(self, document: NodeDocument) -> None:
        """Explain addresses by this document from now on."""
        self._document = document

    def answer(self, message: bytes) -> bytes:
        """The JSON answer to one line of JSON."""
        try:
            request = json.loads(message)
            if not isinstance(request, dict) or request.get("version") != VERSION:
                return _refusal(f"this agent answers version {VERSION} of the snapshot protocol")
            if request.get("query") == "health":
                # No reading of counters: probes ask often. An agent whose accounts hang does not get by here.
                self._accounts.await_turn()
                return json.dumps({"version": VERSION, "files": self._telemetry.failing.get(files.STEP, "")}).encode()
            return json.dumps(self._query(request)).encode()
        except (ValueError, RecursionError) as error:
            return _refusal(f"not a query: {error}")
        except NetmgrError as error:
            log.warning("query-failed error=%s", error)
            return _refusal(error.message)

    def _query(self, request: dict[str, object]) -> object:
        match request.get("query"):
            case "snapshot":
                return self.snapshot()
            case "pods":
                return self.snapshot() | {"attachments": [_view(a) for a in self._pods.attachments()]}
            case "explain":
                address = Address.parse(str(request.get("address")))
                return {"version": VERSION, **self._explain(address)}
            case "nat":
                return self._nat_answer(services=bool(request.get("services")))
            case "audit":
                return accounting_queries.audit(self._accounts, self._document.node.name)
            case "usage":
                return accounting_queries.usage(self._accounts, request, self._clock.now())
            case other:
                raise ValueError(
                    f"unknown query {other!r}; ask for health, snapshot, pods, explain, nat, audit or usage"
                )

    def _nat_answer(self, *, services: bool) -> NatAnswer:
        if self._nat is None:
            raise SetupError(f"this machine is no NAT host; its role is {self._document.role}")
        return {
            "version": VERSION,
            "node": self._document.node.name,
            "nat": self._nat.state(),
            "services": self._nat.services() if services else [],
            "refused": self._nat.refused(),
        }

    def _explain(self, address: Address) -> Explanation:
        answer = explain(self._document, address, self._pods.attachments())
        _, reason = reason_of(self._document, address)
        with suppress(OSError, ValueError, YAMLError, ConfigError):  # the file may be another by now
            answer["where"] = documents.place(self._config, reason.key) if reason.key else ""
        return answer

    def snapshot(self) -> Snapshot:
        """The whole document, with counters as they are now (see `min_reading_seconds`)."""
        snapshot = self._common()
        if self._nat is not None:
            snapshot["nat"] = self._nat.state()
        if self._document.wires_pods:
            snapshot["ranges"] = self._ranges()
        return snapshot

    def _common(self) -> Snapshot:
        self._read()
        totals, drops = self._accounts.totals(), self._drops.value()
        reason, runs_pods = self._reason(), self._document.role is Role.NODE
        return {
            "version": VERSION,
            "node": self._document.node.name,
            "role": self._document.role,
            "netmgr_version": netmgr.__version__,
            "backend": self._backend,
            "ready": not reason,
            "reason": reason,
            "taken_at": self._clock.now(),
            "started_at": self._started_at,
            "pods": [_pod(item) for item in totals.pods if item.traffic != PROTECTED],
            "namespaces": [_namespace(item) for item in totals.namespaces if item.traffic != PROTECTED],
            "protected": [_namespace(item) for item in totals.namespaces if item.traffic == PROTECTED and item.packets],
            "node_totals": [
                {"traffic": item.traffic, "bytes": item.bytes, "packets": item.packets} for item in totals.node
            ],
            "rules": self._tagged.beside(self._rule(sample) for sample in totals.rules),
            "chain_sizes": self._tagged.sizes(),
            "pool": [_pool(family, state) for family, state in self._pods.occupancy().items()],
            "result_files": self._pods.files(),
            "longest_delay": self._pods.longest_delay(),
            "cni_requests": self._telemetry.requests(),
            "cni_latency": self._telemetry.latency(),
            "gaps": accounting_queries.gaps(totals),
            "unattributed": accounting_queries.unattributed(totals, runs_pods=runs_pods),
            "origins": accounting_queries.origins(totals, runs_pods=runs_pods),
            "audit": self._accounts.ratios(),
            "durable": totals.durable,
            "drift_repaired": self._telemetry.repairs(),
            "state_rebuilds": self._telemetry.state_rebuilds,
            "isolation": [_isolation(item) for item in drops.between],
            "drops": [{"reason": one.reason, "bytes": one.bytes, "packets": one.packets} for one in drops.refused],
        }

    def _ranges(self) -> RangesState:
        held = ((address, a.pod) for a in self._pods.attachments() for address in a.addresses)
        gone = [(address, pod) for address, pod in held if not any(r.holds(address) for r in self._document.ranges)]
        return {
            "source": self._document.range_source,
            "failing": self._telemetry.failing.get("ranges", ""),
            "withdrawn": [{"address": str(a), "namespace": pod.namespace, "pod": pod.name} for a, pod in gone],
        }

    def _read(self) -> None:
        """Take a reading; without one the totals are those of the last, which beat no answer."""
        try:
            self._accounts.read()
        except NetmgrError as error:
            log.warning("counters-unread error=%s", error)

    def _reason(self) -> str:
        try:
            self._pods.status()
        except (NotReady, LimitedConnectivity) as error:
            return error.message
        return ""

    def _rule(self, sample: Sample) -> RuleReading:
        """A node rule's reading as PyPI's iptables-exporter would label it."""
        return {
            "ip_version": str(sample.counter.family.value),
            "table": "mangle",
            "chain": str(sample.counter.subject).lower(),
            "rule": f"{self._document.accounting.rule_owner} traffic={sample.counter.traffic}",
            "bytes": sample.bytes,
            "packets": sample.packets,
        }


def _pod(item: PodTotal) -> PodTotals:
    return {
        "namespace": item.namespace,
        "pod": item.pod,
        "traffic": item.traffic,
        "bytes": item.bytes,
        "packets": item.packets,
        "live": item.live,
    }


def _namespace(item: NamespaceTotal) -> NamespaceTotals:
    return {"namespace": item.namespace, "traffic": item.traffic, "bytes": item.bytes, "packets": item.packets}


def _pool(family: Family, state: Occupancy) -> PoolState:
    return {
        "family": f"ipv{family.value}",
        "allocated": state.allocated,
        "cooldown": state.cooldown,
        "free": state.free,
        "withdrawn": state.withdrawn,
    }


def _isolation(item: Dropped) -> DroppedTotals:
    return {"origin": item.origin, "destination": item.destination, "bytes": item.bytes, "packets": item.packets}


def _view(attachment: Attachment) -> AttachmentView:
    return {
        "namespace": attachment.pod.namespace,
        "pod": attachment.pod.name,
        "uid": attachment.pod.uid,
        "container_id": attachment.key.container_id,
        "ifname": attachment.key.ifname,
        "host_link": attachment.host_link,
        "addresses": [str(address) for address in attachment.addresses],
    }


def _refusal(message: str) -> bytes:
    return json.dumps({"version": VERSION, "error": message}).encode()
