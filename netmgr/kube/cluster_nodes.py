"""The cluster's Nodes, as far as assigning needs to know them."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterable

from netmgr.kube.api import Object
from netmgr.kube.assigning import NodeView
from netmgr.kube.node_document import RANGES
from netmgr.prefixes import Prefix
from netmgr.sites import Role

ROLE = "node-restriction.kubernetes.io/netmgr-role"
"""Label of a machine that is no node in the plan's sense: a NAT host or a hub's router.

No kubelet may set or change labels of this prefix (NodeRestriction), so that no machine makes itself a NAT host.
"""


class ClusterNodes:
    """Follows the Nodes; `changed` is set when something that matters has."""

    def __init__(self, pool_label: str) -> None:
        """`pool_label` is the label whose value is the node pool's name."""
        self._label = pool_label
        self._lock = threading.Lock()
        self._views: dict[str, NodeView] = {}
        self._versions: dict[str, str] = {}
        self.changed = threading.Event()

    def views(self) -> list[NodeView]:
        """All there are now."""
        with self._lock:
            return list(self._views.values())

    def version(self, name: str) -> str | None:
        """The resourceVersion of a Node; None when it is gone."""
        with self._lock:
            return self._versions.get(name)

    def replace(self, objects: Iterable[Object]) -> None:
        """These are all there are."""
        known = [(node_view(found, self._label), found["metadata"]["resourceVersion"]) for found in objects]
        with self._lock:
            self._views = {view.name: view for view, _ in known}
            self._versions = {view.name: version for view, version in known}
        self.changed.set()

    def change(self, found: Object) -> None:
        """This one is new or different; what is older than what we have, our own write for one, is left."""
        view, version = node_view(found, self._label), found["metadata"]["resourceVersion"]
        with self._lock:
            known = self._views.get(view.name)
            if known and known.uid == view.uid and int(self._versions[view.name]) > int(version):
                return
            self._views[view.name] = view
            self._versions[view.name] = version
        if view != known:
            self.changed.set()

    def delete(self, found: Object) -> None:
        """This one is gone."""
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        with self._lock:
            if name in self._views and self._views[name].uid == uid:
                del self._views[name], self._versions[name]
        self.changed.set()


def node_view(node: Object, pool_label: str) -> NodeView:
    """What matters of a Node object."""
    metadata = node["metadata"]
    return NodeView(
        name=metadata["name"],
        uid=metadata["uid"],
        created=metadata["creationTimestamp"],
        pool=metadata.get("labels", {}).get(pool_label),
        cidrs=tuple(sorted(map(_prefix, node["spec"].get("podCIDRs", ())))),
        annotation=metadata.get("annotations", {}).get(RANGES, ""),
        runs_pods=metadata.get("labels", {}).get(ROLE, Role.NODE) == Role.NODE,
    )


def _prefix(text: str) -> Prefix:
    """A CIDR as the API server takes it: host bits may be set."""
    return Prefix.parse(str(ipaddress.ip_network(text, strict=False)))
