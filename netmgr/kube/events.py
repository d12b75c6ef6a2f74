"""Kubernetes Events of ours: each is written once, and again while what it says lasts."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from netmgr.errors import ApiError
from netmgr.kube.api import CONFLICT, Api, Object

log = logging.getLogger(__name__)

COMPONENT = "netmgr-controller"

DEFAULT_NAMESPACE = "default"
"""Where Events about objects without a namespace live."""

LONGEST = 1024
"""Characters of a message that the API server takes."""

LONGEST_NAME = 236
"""Characters of the object's name, so that an Event's own stays within 253."""

AGAIN_SECONDS = 1800
"""What lasts is reported again: the server forgets an Event after an hour."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A Warning about an object.

    Attributes:
        kind: the object's kind, of the core API group.
        name: the object's name.
        uid: the object's UID, by which `kubectl describe` finds its Events; empty if unknown.
        reason: one word in CamelCase.
        message: what is wrong and what to do, for people.
        namespace: where the Event is written, and the object's namespace if it has one.
        key: differs from that of others of this object and reason. Default: the message.
    """

    kind: str
    name: str
    uid: str
    reason: str
    message: str
    namespace: str = ""
    key: str = ""

    @property
    def event_name(self) -> str:
        """The Event's name; controllers that report the same thing use the same one."""
        content = " ".join((self.uid, self.reason, self.key or self.message))
        digest = hashlib.sha256(content.encode()).hexdigest()
        return f"{self.name[:LONGEST_NAME]}.{digest[:16]}"

    @property
    def path(self) -> str:
        """The collection that the Event is in."""
        return f"/api/v1/namespaces/{self.namespace or DEFAULT_NAMESPACE}/events"


class Events:
    """Reports each notice once, and again while it lasts."""

    def __init__(self, api: Api, instance: str) -> None:
        """`instance` is the controller that reports."""
        self._api = api
        self._instance = instance
        self._reported: dict[str, float] = {}

    def report(self, notices: Iterable[Notice]) -> None:
        """Write what is new among all current notices; a failure to write is only logged."""
        now, reported = time.monotonic(), {}
        for notice in notices:
            key = f"{notice.path}/{notice.event_name}"
            since = self._reported.get(key)
            if since is None or now - since >= AGAIN_SECONDS:
                reported[key] = now
                if since is None:
                    log.warning(
                        "reported kind=%s namespace=%s name=%s reason=%s message=%s",
                        notice.kind,
                        notice.namespace or "none",
                        notice.name,
                        notice.reason,
                        notice.message,
                    )
                write(self._api, notice, self._instance)
            else:
                reported[key] = since
        self._reported = reported


def write(api: Api, notice: Notice, instance: str) -> None:
    """Write a Warning in the controller's name; a failure to write is only logged."""
    made = event(notice, (COMPONENT, instance))
    try:
        try:
            api.create(notice.path, made)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            # It exists, perhaps by another controller: a new time keeps it from expiring.
            again = {"lastTimestamp": made["lastTimestamp"]}
            api.patch(f"{notice.path}/{notice.event_name}", again)
    except ApiError as error:
        log.warning("event-not-written of=%s reason=%s", notice.name, error.message)


def event(notice: Notice, author: tuple[str, str]) -> Object:
    """Make an Event, by a component and an instance of it."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    about = {"apiVersion": "v1", "kind": notice.kind, "name": notice.name, "uid": notice.uid}
    if notice.namespace:
        about["namespace"] = notice.namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": notice.event_name,
            "namespace": notice.namespace or DEFAULT_NAMESPACE,
        },
        "involvedObject": about,
        "type": "Warning",
        "reason": notice.reason,
        # The server refuses a longer one, and the Event with it.
        "message": notice.message[:LONGEST],
        "source": {"component": author[0]},
        "reportingComponent": author[0],
        "reportingInstance": author[1],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
