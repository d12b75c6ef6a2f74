"""The controller's part in a cluster's budgets: who reports, what is kept, and Events.

Only the leader answers reports (`netmgr/budgets/server.py`). The others name its address, which is
an annotation of the Lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from netmgr.budgets import messages
from netmgr.budgets.identity import ClusterKeys, TokenVerifier
from netmgr.budgets.keeping import BudgetsInForce, Keeper, ServerState
from netmgr.budgets.server import BudgetServer
from netmgr.documents import patterns
from netmgr.errors import ApiError
from netmgr.file_version import RenewedFiles
from netmgr.kube.client.api import Api, Object
from netmgr.kube.controller.events import MOST_EVENTS, Events, WarningEvent
from netmgr.kube.controller.health import Telemetry
from netmgr.kube.controller.reconciling import ClusterReconciler, Leadership

CONFIG_MAP, KEY = "netmgr-budgets", "state.json"
"""In the namespace of the claims, where nobody else writes."""

NEAR, SPENT = "BudgetNearQuota", "BudgetQuotaSpent"
NEAR_SHARE, SPENT_SHARE = 0.9, 0.99
"""Of a quota's bytes. A report is lent a part of what is left: the last bytes are never used."""

NAMESPACES_SECONDS = 300.0

Status = dict[str, Any]
"""Of a budget, as `netmgr/budgets/overview.py` makes it."""


@dataclass(frozen=True, slots=True)
class BudgetService:
    """What a controller with budgets has, whether it leads or not."""

    server: BudgetServer
    verifier: TokenVerifier
    said: RenewedFiles[BudgetsInForce | None]
    """What the document says now, or said when it last made sense; None if it never did."""

    def telemetry(self, api: Api) -> Telemetry:
        """With the budgets' figures."""
        return Telemetry(api, self.server)

    def serve(self, leader: Callable[[], str]) -> None:
        """Begin; `leader` says where the one that leads answers."""
        self.server.leader = leader
        self.server.start()

    def reconciler(
        self, leadership: Leadership, namespace: str, telemetry: Telemetry
    ) -> ClusterReconciler:
        """Of one leadership; `namespace` is that of the claims."""
        return ClusterBudgets(leadership, self, namespace, telemetry)


def read_keys(api: Api) -> ClusterKeys:
    """The cluster's public keys; ApiError. Every service account may read them."""
    issuer = str(api.get("/.well-known/openid-configuration")["issuer"])
    return ClusterKeys.of(issuer, api.get("/openid/v1/jwks"))


class ConfigMapStore:
    """What the next leader has to know, in one ConfigMap; errors are ApiErrors."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._version = ""

    def read(self) -> ServerState | None:
        # A list, which is all that the account may read there; from etcd, not a server's cache.
        selected = self._api.get(self._path, {"fieldSelector": f"metadata.name={CONFIG_MAP}"})
        self._version = ""
        for config_map in selected["items"]:
            self._version = config_map["metadata"]["resourceVersion"]
            try:
                return messages.decode((config_map.get("data") or {})[KEY], ServerState)
            except (ValueError, KeyError):
                # Of this reconciler alone: ranges are assigned meanwhile.
                raise ApiError(
                    f"ConfigMap {CONFIG_MAP} cannot be read: delete it, by which quotas forget "
                    "what was used today by nodes that are gone"
                ) from None
        return None

    def write(self, state: ServerState) -> None:
        metadata = {"resourceVersion": self._version} if self._version else {"name": CONFIG_MAP}
        body: Object = {"metadata": metadata, "data": {KEY: messages.encode(state).decode()}}
        if self._version:
            config_map = self._api.patch(f"{self._path}/{CONFIG_MAP}", body)
        else:
            kind = {"apiVersion": "v1", "kind": "ConfigMap"}
            config_map = self._api.create(self._path, kind | body)
        self._version = config_map["metadata"]["resourceVersion"]


class ClusterBudgets:
    """Has the server lead, and writes an Event in each namespace whose quota is near or spent."""

    def __init__(
        self, leadership: Leadership, service: BudgetService, namespace: str, telemetry: Telemetry
    ) -> None:
        self._leadership, self._service, self._telemetry = leadership, service, telemetry
        store = ConfigMapStore(leadership.api, namespace)
        self._keeper = Keeper(service.server, store, leadership.lost)
        self._events = Events(leadership)
        self._uids: dict[str, str] = {}
        self._listed_at = -NAMESPACES_SECONDS

    def reconcile(self) -> bool:
        views = self._leadership.nodes.views()
        nodes = {view.name: view.most_pods for view in views if view.runs_pods}
        said = self._service.said.value()
        self._telemetry.budgets_refused.set(said is None or bool(self._service.said.refused))
        if said is not None:
            self._keeper.look(said, nodes)
        is_reported = self._events.report(self._notices())
        # Last: without new keys, all that is known goes on.
        self._service.verifier.renew()
        return is_reported

    def _notices(self) -> list[WarningEvent]:
        near = [status for status in self._service.server.statuses if _is_near(status)]
        now = self._leadership.concurrency.monotonic()
        if near and now - self._listed_at >= NAMESPACES_SECONDS:
            listed = self._leadership.api.get("/api/v1/namespaces")["items"]
            self._uids = {o["metadata"]["name"]: o["metadata"]["uid"] for o in listed}
            self._listed_at = now
        due = (
            _notice(status, name, uid)
            for name, uid in sorted(self._uids.items())
            for status in near
            if patterns.matches(status["namespaces"], name)
        )
        return list(islice(due, MOST_EVENTS))


def _is_near(status: Status) -> bool:
    return bool(status["per_day"]) and status["used"] >= NEAR_SHARE * status["per_day"]


def _notice(status: Status, namespace: str, uid: str) -> WarningEvent:
    is_spent, slow = status["used"] >= SPENT_SHARE * status["per_day"], status["slow"]
    then = f"packets {f'pass at {slow} bits a second together' if slow else 'are dropped'}"
    used = "{used} of {per_day} bytes of {traffic} a day".format_map(status)
    message = (
        f"the cluster's budget {status['name']} has used {used}: "
        f"{'further' if is_spent else 'when it is spent,'} {then} until midnight (UTC)"
    )
    reason = SPENT if is_spent else NEAR
    return WarningEvent("Namespace", namespace, uid, reason, message, namespace, key=status["name"])
