"""The read-only socket: the snapshot, where an address belongs, and components' queries."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress

from yaml import YAMLError

import netmgr
from netmgr.agent.accounting.accounting import Accounting
from netmgr.agent.core.components import Agent, Component
from netmgr.agent.core.files import FILES, Files
from netmgr.api.server import readers
from netmgr.api.snapshot import VERSION, AttachmentView, Snapshot
from netmgr.documents import loader
from netmgr.documents.explain import explain, reason_of
from netmgr.errors import ConfigError, LimitedConnectivity, NetmgrError, NotReady, SetupError
from netmgr.logs import caused_by
from netmgr.model import Attachment
from netmgr.prefixes import Address

log = logging.getLogger(__name__)


class Readers(Component):
    """Answers readers; changes nothing but the time of the last reading."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._started_at = agent.clock.now()

    def start(self) -> None:
        self._agent.get(Files).serve(readers(self._agent.document, self.answer))

    def answer(self, message: bytes) -> bytes:
        """The JSON answer to one line of JSON."""
        try:
            request = json.loads(message)
            if not isinstance(request, dict) or request.get("version") != VERSION:
                return _refusal(f"this agent answers version {VERSION} of the snapshot protocol")
            return json.dumps(self._query(request)).encode()
        except (ValueError, RecursionError) as error:
            return _refusal(f"not a query: {error}")
        except NetmgrError as error:
            log.warning("query-failed error=%s", error, extra=caused_by(type(error).__name__))
            return _refusal(error.message)

    def _query(self, request: Mapping[str, object]) -> object:
        match request.get("query"):
            case "health":
                return self._health()
            case "snapshot":
                return self.snapshot_now()
            case "pods":
                pods = [_view(attachment) for attachment in self._agent.attachments()]
                return self.snapshot_now() | {"attachments": pods}
            case "explain":
                address = Address.parse(str(request.get("address")))
                return {"version": VERSION, **self._explain(address)}
            case other:
                return self._answer_of_component(other, request)

    def _answer_of_component(self, query: object, request: Mapping[str, object]) -> object:
        for component in self._agent.components:
            for name, answer in component.queries().items():
                if name == query:
                    return answer(request)
        if query == "nat":
            raise SetupError(
                f"this machine is no NAT host; its role is {self._agent.document.role}"
            )
        raise ValueError(
            f"unknown query {query!r}; ask for health, snapshot, pods, explain, nat, audit or usage"
        )

    def _health(self) -> object:
        # No counters are read, since probes ask often. If the accounting hangs, so does this, and
        # the probe fails.
        self._agent.get(Accounting).accounts.await_turn()
        return {"version": VERSION, "files": self._agent.health.failing.get(FILES, "")}

    def _explain(self, address: Address) -> Mapping[str, object]:
        document = self._agent.document
        answer = explain(document, address, self._agent.attachments())
        _, reason = reason_of(document, address)
        # The file may have changed since the agent read it.
        with suppress(OSError, ValueError, YAMLError, ConfigError):
            answer["where"] = loader.place(self._agent.config, reason.key) if reason.key else ""
        return answer

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
            component.snapshot(snapshot)
        snapshot["drift_repaired"] = agent.health.repairs()
        snapshot["reason"] = self._reason()
        snapshot["ready"] = not snapshot["reason"]
        snapshot["taken_at"] = agent.clock.now()
        return snapshot

    def _reason(self) -> str:
        try:
            self._agent.check_health()
        except (NotReady, LimitedConnectivity) as error:
            return error.message
        return ""


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
