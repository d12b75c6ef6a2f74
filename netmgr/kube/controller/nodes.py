"""The cluster's Nodes: a copy that a watch keeps."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from netmgr.documents.sites import Role
from netmgr.kube.client.api import Object
from netmgr.kube.controller.assigning import NodeView
from netmgr.kube.controller.node_document import RANGES, pod_cidr

ROLE = "node-restriction.kubernetes.io/netmgr-role"
"""Label of a machine that is not a node in the plan's sense: a NAT host or a hub's router.

No kubelet may set or change labels of this prefix (NodeRestriction): otherwise any machine could
make itself a NAT host.
"""

STARTUP_TAINT = "netmgr.io/agent-not-ready"
"""Key of the taint that kubelets may register their Nodes with, until the agent serves."""

UNHEALTHY_TAINT = "netmgr.io/unhealthy"
"""Key of the taint that keeps new pods from Nodes whose networks are bad."""

NETWORK_UNAVAILABLE = "NetworkUnavailable"
"""The condition that a cloud's controller manager sets on new Nodes."""

HEALTHY = "NetmgrHealthy"
"""The condition that says whether a Node's network has problems that last."""


class ClusterNodes:
    """Follows the Nodes; `changed` is set when something that matters has changed."""

    def __init__(self, pool_label: str, changed: threading.Event) -> None:
        """`pool_label` is the label whose value is the node pool's name."""
        self._label = pool_label
        self._lock = threading.Lock()
        self._known: dict[str, tuple[NodeView, str]] = {}
        self._changed = changed
        self.generation = 0
        """Grows with every change that `changed` announces."""

    def views(self) -> list[NodeView]:
        with self._lock:
            return [view for view, _ in self._known.values()]

    def current(self, name: str) -> tuple[NodeView, str] | None:
        """A Node, and the resourceVersion that it has; None when it is gone."""
        with self._lock:
            return self._known.get(name)

    def version(self, name: str) -> str | None:
        """The resourceVersion of a Node; None when it is gone."""
        current = self.current(name)
        return current[1] if current else None

    def replace(self, objects: Iterable[Object]) -> None:
        """Replace the copy with a whole list."""
        known = [
            (node_view(node, self._label), node["metadata"]["resourceVersion"]) for node in objects
        ]
        with self._lock:
            self._known = {view.name: (view, version) for view, version in known}
            self.generation += 1
        self._changed.set()

    def change(self, api_object: Object) -> None:
        """Add or update a Node, unless a later version of it is known."""
        view, version = (
            node_view(api_object, self._label),
            api_object["metadata"]["resourceVersion"],
        )
        with self._lock:
            known, known_version = self._known.get(view.name, (None, "0"))
            # Our own patch returns the newest version at once; the watch delivers older ones after
            # it.
            # resourceVersion is documented as opaque, but it is etcd's revision: a number that
            # grows.
            if known and known.uid == view.uid and int(known_version) > int(version):
                return
            self._known[view.name] = (view, version)
            self.generation += view != known
        # Most updates are heartbeats of the kubelet in the Node's status, which decide nothing
        # here.
        if view != known:
            self._changed.set()

    def delete(self, api_object: Object) -> None:
        """Remove a Node, unless a newer one has the same name."""
        name, uid = api_object["metadata"]["name"], api_object["metadata"]["uid"]
        with self._lock:
            if name in self._known and self._known[name][0].uid == uid:
                del self._known[name]
                self.generation += 1
        self._changed.set()


def node_view(node: Object, pool_label: str = "") -> NodeView:
    """What matters about a Node object; it has no pool without a label that names it."""
    metadata = node["metadata"]
    labels = metadata.get("labels", {})
    conditions: dict[str, Object] = {
        condition["type"]: condition for condition in node.get("status", {}).get("conditions") or ()
    }
    health = conditions.get(HEALTHY, {})
    return NodeView(
        name=metadata["name"],
        uid=metadata["uid"],
        created=metadata["creationTimestamp"],
        pool=labels.get(pool_label),
        addresses=tuple(
            address["address"]
            for address in node.get("status", {}).get("addresses") or ()
            if address["type"] == "InternalIP"
        ),
        cidrs=tuple(sorted(map(pod_cidr, node["spec"].get("podCIDRs", ())))),
        annotation=metadata.get("annotations", {}).get(RANGES, ""),
        runs_pods=labels.get(ROLE, Role.NODE) == Role.NODE,
        taints=tuple(node["spec"].get("taints") or ()),
        is_network_unavailable=conditions.get(NETWORK_UNAVAILABLE, {}).get("status") == "True",
        health=(health["status"], health.get("reason", "")) if health else None,
        health_message=health.get("message", ""),
        health_since=health.get("lastTransitionTime") or "",
    )
