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

PATH = f"/api/v1/namespaces/{NAMESPACE}/events"
LONGEST = 1024
"""Characters of a message that the API server takes."""

LONGEST_NAME = 236
"""Characters of the Node's name, so that an Event's own stays within 253."""

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
            name = event_name(refusal.node.name, refusal.node.uid, refusal.reason, refusal.message)
            since = self._told.get(name)
            told[name] = now if since is None or now - since >= AGAIN_SECONDS else since
            if told[name] == now:
                self._write(name, refusal, is_new=since is None)
        self._told = told

    def _write(self, name: str, refusal: Refusal, *, is_new: bool) -> None:
        node = refusal.node
        if is_new:
            log.warning("refused node=%s reason=%s message=%s", node.name, refusal.reason, refusal.message)
        made = event(name, (node.name, node.uid), str(refusal.reason), refusal.message, (COMPONENT, self._instance))
        try:
            try:
                self._api.create(PATH, made)
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
                self._api.patch(f"{PATH}/{name}", {"lastTimestamp": made["lastTimestamp"]})
        except ApiError as error:
            log.warning("event-not-written node=%s reason=%s", node.name, error.message)


def event(name: str, node: tuple[str, str], reason: str, message: str, author: tuple[str, str]) -> Object:
    """A Warning about a Node (its name and UID), by a component and the instance of it."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node[0], "uid": node[1]},
        "type": "Warning",
        "reason": reason,
        "message": message[:LONGEST],
        "source": {"component": author[0]},
        "reportingComponent": author[0],
        "reportingInstance": author[1],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def event_name(node: str, *said: str) -> str:
    """The same for the same trouble, whoever tells it."""
    return f"{node[:LONGEST_NAME]}.{hashlib.sha256(' '.join(said).encode()).hexdigest()[:16]}"
