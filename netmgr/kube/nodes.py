"""The cluster's Nodes: a copy that a watch keeps, and the Events of those that cannot be served."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from netmgr.documents.sites import Role
from netmgr.errors import ApiError
from netmgr.kube.api import CONFLICT, Api, Object
from netmgr.kube.assigning import NodeView, Refusal
from netmgr.kube.node_document import RANGES, pod_cidr

log = logging.getLogger(__name__)

ROLE = "node-restriction.kubernetes.io/netmgr-role"
"""Label of a machine that is not a node in the plan's sense: a NAT host or a hub's router.

No kubelet may set or change labels of this prefix (NodeRestriction): otherwise any machine could
make itself a NAT host.
"""

STARTUP_TAINT = "netmgr.io/agent-not-ready"
"""Key of the taint that kubelets may register their Nodes with, until the agent serves."""

NETWORK_UNAVAILABLE = "NetworkUnavailable"
"""The condition that a cloud's controller manager sets on new Nodes."""

NAMESPACE = "default"
"""Where Events of objects without a namespace live."""

PATH = f"/api/v1/namespaces/{NAMESPACE}/events"
LONGEST = 1024
"""Characters of a message that the API server takes."""

LONGEST_NAME = 236
"""Characters of the Node's name, so that an Event's own stays within 253."""

COMPONENT = "netmgr-controller"
AGAIN_SECONDS = 1800
"""A lasting refusal is reported again: the server forgets an Event after an hour."""


class ClusterNodes:
    """Follows the Nodes; `changed` is set when something that matters has changed."""

    def __init__(self, pool_label: str, changed: threading.Event) -> None:
        """`pool_label` is the label whose value is the node pool's name."""
        self._label = pool_label
        self._lock = threading.Lock()
        self._views: dict[str, NodeView] = {}
        self._versions: dict[str, str] = {}
        self._changed = changed

    def views(self) -> list[NodeView]:
        """List the Nodes there are now."""
        with self._lock:
            return list(self._views.values())

    def version(self, name: str) -> str | None:
        """The resourceVersion of a Node; None when it is gone."""
        with self._lock:
            return self._versions.get(name)

    def replace(self, objects: Iterable[Object]) -> None:
        """Replace the copy by a whole list."""
        known = [
            (node_view(found, self._label), found["metadata"]["resourceVersion"])
            for found in objects
        ]
        with self._lock:
            self._views = {view.name: view for view, _ in known}
            self._versions = {view.name: version for view, version in known}
        self._changed.set()

    def change(self, found: Object) -> None:
        """Add or update a Node, unless a later version of it is known."""
        view, version = node_view(found, self._label), found["metadata"]["resourceVersion"]
        with self._lock:
            known = self._views.get(view.name)
            # Our own patch returns the newest version at once; the watch delivers older ones after
            # it.
            # resourceVersion is documented as opaque, but it is etcd's revision: a number that
            # grows.
            if known and known.uid == view.uid and int(self._versions[view.name]) > int(version):
                return
            self._views[view.name] = view
            self._versions[view.name] = version
        # Most updates are heartbeats of the kubelet in the Node's status, which decide nothing
        # here.
        if view != known:
            self._changed.set()

    def delete(self, found: Object) -> None:
        """Remove a Node, unless a newer one has the same name."""
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        with self._lock:
            if name in self._views and self._views[name].uid == uid:
                del self._views[name], self._versions[name]
        self._changed.set()


def node_view(node: Object, pool_label: str) -> NodeView:
    """What matters of a Node object."""
    metadata = node["metadata"]
    labels = metadata.get("labels", {})
    return NodeView(
        name=metadata["name"],
        uid=metadata["uid"],
        created=metadata["creationTimestamp"],
        pool=labels.get(pool_label),
        addresses=tuple(
            each["address"]
            for each in node.get("status", {}).get("addresses") or ()
            if each["type"] == "InternalIP"
        ),
        cidrs=tuple(sorted(map(pod_cidr, node["spec"].get("podCIDRs", ())))),
        annotation=metadata.get("annotations", {}).get(RANGES, ""),
        runs_pods=labels.get(ROLE, Role.NODE) == Role.NODE,
        other_taints=_other_taints(node["spec"].get("taints") or ()),
        is_network_unavailable=any(
            each["type"] == NETWORK_UNAVAILABLE and each["status"] == "True"
            for each in node.get("status", {}).get("conditions") or ()
        ),
    )


def _other_taints(taints: Sequence[Object]) -> tuple[Object, ...] | None:
    others = tuple(taint for taint in taints if taint["key"] != STARTUP_TAINT)
    return others if len(others) < len(taints) else None


class Events:
    """Reports each refusal once, and again while it lasts; `kubectl describe node` shows it."""

    def __init__(self, api: Api, instance: str) -> None:
        """`instance` is the controller that reports."""
        self._api = api
        self._instance = instance
        self._reported: dict[str, float] = {}

    def report(self, refusals: Iterable[Refusal]) -> None:
        """Write what is new among all current refusals; a failure to write is only logged."""
        now, reported = time.monotonic(), {}
        for refusal in refusals:
            name = event_name(refusal.node.name, refusal.node.uid, refusal.reason, refusal.message)
            since = self._reported.get(name)
            if since is None or now - since >= AGAIN_SECONDS:
                reported[name] = now
                self._write(refusal, is_new=since is None)
            else:
                reported[name] = since
        self._reported = reported

    def _write(self, refusal: Refusal, *, is_new: bool) -> None:
        node = refusal.node
        if is_new:
            log.warning(
                "refused node=%s reason=%s message=%s", node.name, refusal.reason, refusal.message
            )
        author = (COMPONENT, self._instance)
        about = (node.name, node.uid)
        write_event(self._api, about, str(refusal.reason), refusal.message, author=author)


def write_event(
    api: Api, node: tuple[str, str], reason: str, message: str, *, author: tuple[str, str]
) -> None:
    """Write a Warning about a Node (its name and UID); a failure to write is only logged."""
    name = event_name(*node, reason, message)
    made = event(name, node, reason, message, author=author)
    try:
        try:
            api.create(PATH, made)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            # It exists, perhaps by another controller: a new time keeps it from expiring.
            api.patch(f"{PATH}/{name}", {"lastTimestamp": made["lastTimestamp"]})
    except ApiError as error:
        log.warning("event-not-written node=%s reason=%s", node[0], error.message)


def event(
    name: str, node: tuple[str, str], reason: str, message: str, *, author: tuple[str, str]
) -> Object:
    """Make a Warning about a Node (its name and UID), by a component and an instance of it."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node[0], "uid": node[1]},
        "type": "Warning",
        "reason": reason,
        # The server refuses a longer one, and the Event with it.
        "message": message[:LONGEST],
        "source": {"component": author[0]},
        "reportingComponent": author[0],
        "reportingInstance": author[1],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def event_name(node: str, *content: str) -> str:
    """An Event's name; controllers that report the same refusal use the same one."""
    digest = hashlib.sha256(" ".join(content).encode()).hexdigest()
    return f"{node[:LONGEST_NAME]}.{digest[:16]}"
