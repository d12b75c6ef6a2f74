"""Our Kubernetes Events: each is written once, and again while what it says lasts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from netmgr.errors import ApiError, ApiUnavailable
from netmgr.kube.client.api import CONFLICT, Object
from netmgr.kube.controller.assigning import Refusal
from netmgr.kube.controller.nodes import as_time
from netmgr.kube.controller.reconciling import Leadership, write_each
from netmgr.logs import caused_by

log = logging.getLogger(__name__)

COMPONENT, NODE_COMPONENT = "netmgr-controller", "netmgr-node"
"""Authors of Events: the controller, and a node's init container."""

DEFAULT_NAMESPACE = "default"
"""Where Events about objects without a namespace live."""

LONGEST = 1024
"""Characters of a message that the API server accepts."""

MOST_EVENTS = 1000
"""Of quotas and budgets that are kept up: the first by name."""

LONGEST_NAME = 236
"""Characters of the object's name, so that an Event's own stays within 253."""

# What lasts is reported again: the server forgets an Event after an hour.
AGAIN_SECONDS = 1800

MOST = 100
"""Events that are written in one round: thousands must not delay what is more important."""


@dataclass(frozen=True, slots=True)
class WarningEvent:
    kind: str
    """The object's kind, of the core API group."""
    name: str
    uid: str
    """The object's UID, by which `kubectl describe` finds its Events; empty if unknown."""
    reason: str
    """One word in CamelCase."""
    message: str
    """What is wrong and what to do, for people."""
    namespace: str = ""
    """Where the Event is written, and the object's namespace if it has one."""
    key: str = ""
    """Differs from that of others of this object and reason. Default: the message."""

    @property
    def event_name(self) -> str:
        """The Event's name; controllers that report the same thing use the same one."""
        content = " ".join((self.uid, self.reason, self.key or self.message))
        digest = hashlib.sha256(content.encode()).hexdigest()
        # A part of a DNS name does not end like this, but may where it is cut.
        name = self.name[:LONGEST_NAME].rstrip("-.")
        return f"{name}.{digest[:16]}"

    @property
    def collection(self) -> str:
        return f"/api/v1/namespaces/{self.namespace or DEFAULT_NAMESPACE}/events"

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.event_name}"


def event_of(refusal: Refusal) -> WarningEvent:
    """The Event of a Node that cannot be served, which `kubectl describe node` shows."""
    node = refusal.node
    return WarningEvent("Node", node.name, node.uid, str(refusal.reason), refusal.message)


class Events:
    """Writes each Warning once, and again while what it says lasts."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._reported: dict[str, float] = {}

    def report(self, warnings: Iterable[WarningEvent]) -> bool:
        """Write what is new among all current ones; False when more is left for another round.

        What is refused is only logged. What could not be written because the server is away is
        left.
        """
        now = self._leadership.concurrency.monotonic()
        current = {warning.path: warning for warning in warnings}
        # What is over is forgotten: should it return, it is reported at once.
        self._reported = {path: at for path, at in self._reported.items() if path in current}
        due = [
            warning
            for path, warning in current.items()
            if now - self._reported.get(path, -AGAIN_SECONDS) >= AGAIN_SECONDS
        ]
        try:
            write_each(self._leadership, due[:MOST], self._report_one)
        except ApiUnavailable as error:
            log.warning("events-delayed number=%s reason=%s", len(due), error.message)
            return False
        return len(due) <= MOST

    def _report_one(self, warning: WarningEvent) -> bool:
        # A node's root may report a thousand nonexistent pods a minute.
        cause = caused_by(warning.reason)
        if warning.path not in self._reported:
            log.warning(
                "reported kind=%s namespace=%s name=%s reason=%s message=%s",
                warning.kind,
                warning.namespace or "none",
                warning.name,
                warning.reason,
                warning.message,
                extra=cause,
            )
        try:
            write(self._leadership, warning)
        except ApiUnavailable:
            raise
        except ApiError as error:
            log.warning(
                "event-not-written of=%s reason=%s", warning.name, error.message, extra=cause
            )
        # Each by itself: what fails later must not have this one written again.
        self._reported[warning.path] = self._leadership.concurrency.monotonic()
        return True


def write(leadership: Leadership, warning: WarningEvent) -> None:
    """Write a Warning in the controller's name."""
    author = COMPONENT, leadership.identity
    body = event(warning, author, leadership.concurrency.now())
    try:
        leadership.api.create(warning.collection, body)
    except ApiError as error:
        if error.status != CONFLICT:
            raise
        # It exists, perhaps by another controller: a new time keeps it from expiring.
        leadership.api.patch(warning.path, {"lastTimestamp": body["lastTimestamp"]})


def event(warning: WarningEvent, author: tuple[str, str], now: float) -> Object:
    """Make an Event at a time (seconds since the epoch), by a component and an instance of it."""
    at = as_time(now)
    about = {"apiVersion": "v1", "kind": warning.kind, "name": warning.name, "uid": warning.uid}
    if warning.namespace:
        about["namespace"] = warning.namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": warning.event_name,
            "namespace": warning.namespace or DEFAULT_NAMESPACE,
        },
        "involvedObject": about,
        "type": "Warning",
        "reason": warning.reason,
        # The server refuses a longer one, and the Event with it.
        "message": warning.message[:LONGEST],
        "source": {"component": author[0]},
        "reportingComponent": author[0],
        "reportingInstance": author[1],
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
