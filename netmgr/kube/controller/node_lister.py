"""Writes the list of the cluster's nodes, one ConfigMap, from which agents keep their routes.

The kubelets bring it to the agents as a file: no agent watches anything, or has a token.
"""

from __future__ import annotations

import logging

from netmgr.documents import node_list
from netmgr.errors import ApiError
from netmgr.kube.client.api import CONFLICT
from netmgr.kube.controller.events import Events, event_of
from netmgr.kube.controller.node_listing import choose
from netmgr.kube.controller.reconciling import Leadership

log = logging.getLogger(__name__)

CONFIG_MAP, KEY = "netmgr-nodes", "nodes.json"

PAUSE = 10.0
"""Seconds between two writes, each of which the API server sends to every node."""

CHECK = 300.0
"""Seconds after which the ConfigMap is read again: somebody may have changed or deleted it."""


class NodeLister:
    """Keeps the ConfigMap, which the manifests make: its account may create none."""

    def __init__(self, leadership: Leadership, namespace: str) -> None:
        self._leadership = leadership
        self._api = leadership.api
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{CONFIG_MAP}"
        self._events = Events(leadership)
        self._written: str | None = None
        self._version = ""
        self._wrote_at = self._checked_at = -CHECK

    def reconcile(self) -> bool:
        nodes, refusals = choose(self._leadership.nodes.views())
        is_reported = self._events.report(map(event_of, refusals))
        now, text = self._leadership.concurrency.monotonic(), node_list.write(nodes)
        if now - self._checked_at >= CHECK:
            config_map = self._api.get(self._path)
            self._version = config_map["metadata"]["resourceVersion"]
            self._written = (config_map.get("data") or {}).get(KEY)
            self._checked_at = now
        if text == self._written or now - self._wrote_at < PAUSE:
            return is_reported
        if self._leadership.lost.is_set():
            return False
        metadata = {"resourceVersion": self._version}
        try:
            config_map = self._api.patch(self._path, {"metadata": metadata, "data": {KEY: text}})
        except ApiError as error:
            # A leader unaware of its replacement must not write an older list.
            self._checked_at = -CHECK
            if error.status != CONFLICT:
                raise
            return False
        self._written, self._version = text, config_map["metadata"]["resourceVersion"]
        self._wrote_at = now
        log.info("nodes-listed number=%s refused=%s", len(nodes), len(refusals))
        return is_reported
