"""The cluster's Nodes: a copy that a watch keeps."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from netmgr.documents.sites import Role
from netmgr.kube.api import Object
from netmgr.kube.assigning import NodeView, Refusal
from netmgr.kube.events import Notice
from netmgr.kube.node_document import RANGES, pod_cidr

ROLE = "node-restriction.kubernetes.io/netmgr-role"
"""Label of a machine that is not a node in the plan's sense: a NAT host or a hub's router.

No kubelet may set or change labels of this prefix (NodeRestriction): otherwise any machine could
make itself a NAT host.
"""

STARTUP_TAINT = "netmgr.io/agent-not-ready"
"""Key of the taint that kubelets may register their Nodes with, until the agent serves."""

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
    conditions = {
        each["type"]: (each["status"], each.get("reason", ""))
        for each in node.get("status", {}).get("conditions") or ()
    }
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
        is_network_unavailable=conditions.get(NETWORK_UNAVAILABLE, ("", ""))[0] == "True",
        health=conditions.get(HEALTHY),
    )


def _other_taints(taints: Sequence[Object]) -> tuple[Object, ...] | None:
    others = tuple(taint for taint in taints if taint["key"] != STARTUP_TAINT)
    return others if len(others) < len(taints) else None


def notice(refusal: Refusal) -> Notice:
    """The Event of a Node that cannot be served, which `kubectl describe node` shows."""
    node = refusal.node
    return Notice("Node", node.name, node.uid, str(refusal.reason), refusal.message)
