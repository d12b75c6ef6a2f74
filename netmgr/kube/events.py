"""Events on Nodes: what `kubectl describe node` shows of a Node that cannot be served."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from netmgr.errors import ApiError
from netmgr.kube.api import CONFLICT, Api, Object
from netmgr.kube.assigning import Refusal

log = logging.getLogger(__name__)

NAMESPACE = "default"
"""Where Events of objects without a namespace live."""

COMPONENT = "netmgr-controller"
AGAIN_SECONDS = 1800
"""What holds on is told again: the server forgets an Event after an hour."""


class Events:
    """Tells each refusal once, and again while it lasts."""

    def __init__(self, api: Api, instance: str) -> None:
        """`instance` is the controller that tells it."""
        self._api = api
        self._instance = instance
        self._told: dict[str, float] = {}

    def tell(self, refusals: Iterable[Refusal]) -> None:
        """Write what is new among all the refusals there are; an Event that cannot be written is only logged."""
        now, told = time.monotonic(), {}
        for refusal in refusals:
            name = _name(refusal)
            since = self._told.get(name)
            told[name] = now if since is None or now - since >= AGAIN_SECONDS else since
            if told[name] == now:
                self._write(name, refusal, is_new=since is None)
        self._told = told

    def _write(self, name: str, refusal: Refusal, *, is_new: bool) -> None:
        if is_new:
            log.warning("event=refused node=%s reason=%s %s", refusal.node.name, refusal.reason, refusal.message)
        path = f"/api/v1/namespaces/{NAMESPACE}/events"
        event = self._event(name, refusal)
        try:
            try:
                self._api.create(path, event)
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
                self._api.patch(f"{path}/{name}", {"lastTimestamp": event["lastTimestamp"]})
        except ApiError as error:
            log.warning("event=event_not_written node=%s reason=%r", refusal.node.name, error.message)

    def _event(self, name: str, refusal: Refusal) -> Object:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        node = refusal.node
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
            "type": "Warning",
            "reason": str(refusal.reason),
            "message": refusal.message,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _name(refusal: Refusal) -> str:
    """The same for the same trouble, whichever controller tells it."""
    said = f"{refusal.node.uid} {refusal.reason} {refusal.message}"
    return f"{refusal.node.name}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"
