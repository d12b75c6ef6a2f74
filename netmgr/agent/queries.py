"""The read-only socket: the snapshot, where an address belongs, and components' queries.

What is wrong with the node's network is in the snapshot, for whoever looks after the cluster. What
a component knows to be wrong is reported at once; figures are watched for problems that last.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product

from yaml import YAMLError

import netmgr
from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.core.components import Agent, Component, PluginMissing, Query
from netmgr.agent.core.files import FILES, Files
from netmgr.agent.core.scheduler import Task
from netmgr.agent.core.uplinks import uplinks
from netmgr.agent.health import diagnosis
from netmgr.agent.health.diagnosis import NodeFigures
from netmgr.api.server import UnixServer
from netmgr.api.snapshot import VERSION, AttachmentView, Fault, Problem, Snapshot
from netmgr.dataplane.taps import read_taps
from netmgr.documents import loader
from netmgr.documents.explain import explain, reason_of
from netmgr.errors import ConfigError, NetmgrError, NodeFull, RequestError
from netmgr.kernel import links
from netmgr.logs import caused_by
from netmgr.prefixes import Address

# Repairs come once in `reconcile_seconds`, and all figures are looked at once in so many of them:
# a minute, by default.
LOOK_ROUNDS = 6

log = logging.getLogger(__name__)


class Readers(Component):
    """Answers readers; changes nothing but the time of the last reading."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._started_at = agent.clock.now()
        self._looks: list[NodeFigures] = []
        self._uplinks: frozenset[str] = frozenset()
        self._lasting: list[Problem] = []
        self._known: set[str] = set()

    def start(self) -> None:
        document = self._agent.document
        path, group = document.run_dir / "ledger.sock", document.reader_group
        self._agent.get(Files).serve(
            UnixServer(path, self.answer, mode=0o660, group=group, line=True)
        )

    def answer(self, message: bytes) -> bytes:
        try:
            request = json.loads(message)
            if not isinstance(request, dict) or request.get("version") != VERSION:
                return _refusal(f"this agent answers version {VERSION} of the snapshot protocol")
            return json.dumps(self._query(request)).encode()
        # RecursionError: JSON that is nested too deeply.
        except (ValueError, RecursionError) as error:
            return _refusal(f"not a query: {error}")
        except RequestError as error:
            return _refusal(error.message)
        except NetmgrError as error:
            # Any reader may repeat a query that fails: a kind has one line a minute.
            log.warning("query-failed error=%s", error, extra=caused_by(type(error).__name__))
            return _refusal(error.message, fault=True)

    def _query(self, request: Mapping[str, object]) -> object:
        query = request.get("query")
        for component in self._agent.components:
            if answer := component.queries().get(str(query)):
                return answer(request)
        if query == "nat":
            raise RequestError(
                f"this machine is no NAT host; its role is {self._agent.document.role}"
            )
        raise ValueError(
            f"unknown query {query!r}; ask for health, snapshot, pods, explain, nat, audit or usage"
        )

    def queries(self) -> Mapping[str, Query]:
        return {
            "health": self._health,
            "snapshot": lambda _: self.snapshot_now(),
            "pods": self._pods,
            "explain": self._explain,
            # The problems alone, which many nodes may be asked for at a time.
            "problems": lambda _: {
                "version": VERSION,
                "problems": self._problems(self._agent.health_fault()),
            },
        }

    def _health(self, _: Mapping[str, object]) -> object:
        # No counters are read, since probes ask often. If the accounting hangs, so does this, and
        # the probe fails.
        self._agent.get(NodeAccounting).accounts.await_turn()
        return {"version": VERSION, "files": self._agent.health.failing.get(FILES, "")}

    def _pods(self, _: Mapping[str, object]) -> object:
        pods: list[AttachmentView] = [
            {
                "namespace": attachment.pod.namespace,
                "pod": attachment.pod.name,
                "uid": attachment.pod.uid,
                "container_id": attachment.key.container_id,
                "ifname": attachment.key.ifname,
                "host_link": attachment.host_link,
                "addresses": [str(address) for address in attachment.addresses],
            }
            for attachment in self._agent.attachments()
        ]
        return self.snapshot_now() | {"attachments": pods}

    def _explain(self, request: Mapping[str, object]) -> object:
        address = Address.parse(str(request.get("address")))
        document = self._agent.document
        attachments = self._agent.attachments()
        answer = explain(document, address, attachments)
        holders = [attachment for attachment in attachments if address in attachment.addresses]
        answer["budgets"] = [
            line
            for component, holder in product(self._agent.components, holders)
            for line in component.explain(holder)
        ]
        _, reason = reason_of(document, address)
        # The file may have changed since the agent read it.
        with suppress(OSError, ValueError, YAMLError, ConfigError):
            answer["where"] = loader.place(self._agent.config, reason.key) if reason.key else ""
        return {"version": VERSION, **answer}

    def snapshot_now(self) -> Snapshot:
        """The whole snapshot, of which each component fills in its part."""
        agent = self._agent
        snapshot: Snapshot = {
            "version": VERSION,
            "node": agent.document.node.name,
            "role": agent.document.role,
            "netmgr_version": netmgr.__version__,
            "backend": "",
            "ready": False,
            "reason": "",
            "taken_at": 0.0,
            "started_at": self._started_at,
            "pods": [],
            "namespaces": [],
            "node_totals": [],
            "rules": [],
            "pool": [],
            "result_files": [],
            "longest_delay": 0.0,
            "cni_requests": [],
            "cni_latency": [],
            "gaps": [],
            "unattributed": [],
            "origins": [],
            "audit": [],
            "drift_repaired": [],
            "state_rebuilds": agent.health.rebuilds,
        }
        for component in agent.components:
            try:
                component.snapshot(snapshot)
            except NetmgrError as error:
                # Without it, what all the others know is worth an answer.
                name = type(component).__name__
                log.warning(
                    "snapshot-incomplete part=%s error=%s", name, error, extra=caused_by(name)
                )
        fault = agent.health_fault()
        snapshot["problems"] = self._problems(fault)
        snapshot["drift_repaired"] = agent.health.repairs()
        snapshot["reason"] = fault.message if fault else ""
        snapshot["ready"] = not snapshot["reason"]
        snapshot["taken_at"] = agent.clock.now()
        return snapshot

    def tasks(self) -> Iterable[Task]:
        seconds = LOOK_ROUNDS * self._agent.document.reconcile_seconds
        yield Task(self._look, seconds, name="problems")

    def _look(self) -> None:
        snapshot = self.snapshot_now()
        carried = links.read_carried()
        # Without its uplink a node has no default route either, which would name it.
        former, self._uplinks = self._uplinks, uplinks(self._agent.document) or self._uplinks
        carried_by_uplinks = [carried[name] for name in self._uplinks if name in carried]
        figures = replace(
            diagnosis.look_at(snapshot, carried_by_uplinks, time.monotonic()),
            taps=read_taps(self._uplinks),
            missing=(former | self._uplinks) - carried.keys(),
        )
        self._looks = diagnosis.recent([*self._looks, figures])
        self._lasting = diagnosis.problems(self._looks)

    def _problems(self, fault: NetmgrError | None) -> list[Problem]:
        problems: list[Problem] = []
        if self._agent.serves:
            for component in self._agent.components:
                problems += component.problems()
            # Pods that have used up its addresses or its disk are no fault of the network, and the
            # plugin is a problem of its own.
            if fault and not isinstance(fault, (NodeFull, PluginMissing)):
                problems.append({"reason": Fault.NOT_READY, "message": fault.message})
        problems += self._lasting
        # Logged when it begins and when it ends, not for each reader who asks.
        known, self._known = self._known, {problem["reason"] for problem in problems}
        for problem in problems:
            if problem["reason"] not in known:
                log.warning(
                    "node-unhealthy reason=%s message=%s", problem["reason"], problem["message"]
                )
        for reason in sorted(known - self._known):
            log.info("node-healthy-again reason=%s", reason)
        return problems


def _refusal(message: str, *, fault: bool = False) -> bytes:
    """Why there is no answer; `fault`: although the query is right."""
    return json.dumps({"version": VERSION, "error": message, "fault": fault}).encode()
