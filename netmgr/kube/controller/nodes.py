"""What matters about the cluster's Nodes, and netmgr's labels, taints and conditions there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from netmgr.documents.sites import Role
from netmgr.kube.client.api import Object
from netmgr.kube.controller.node_document import RANGES, internal_addresses, pod_cidr
from netmgr.prefixes import Prefix

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


MOST_PODS = 1000
"""Of one Node, whatever its kubelet says that it takes."""


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    uid: str
    created: str
    pool: str | None
    cidrs: tuple[Prefix, ...] = ()
    annotation: str = ""
    addresses: tuple[str, ...] = ()
    """Its InternalIPs, as its kubelet wrote them."""
    runs_pods: bool = True
    """A NAT host or a router needs no ranges."""
    taints: tuple[Mapping[str, str], ...] = ()
    is_network_unavailable: bool = False
    """Whether its condition NetworkUnavailable is true."""
    health: tuple[str, str] | None = None
    """Status and reason of its condition NetmgrHealthy."""
    health_message: str = ""
    health_since: str = ""
    """When the status of that condition changed last, as the controller wrote it."""
    most_pods: int = 0
    """That its kubelet takes, as it says itself."""

    def has_taint(self, key: str) -> bool:
        return any(taint["key"] == key for taint in self.taints)


def as_time(seconds: float) -> str:
    """A time (seconds since the epoch) as the API server writes it."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    return text.replace("+00:00", "Z")


def conditions_of(api_object: Object) -> dict[str, Object]:
    """The conditions in an object's status, by their type."""
    conditions = api_object.get("status", {}).get("conditions") or ()
    return {condition["type"]: condition for condition in conditions}


def is_ready(api_object: Object) -> bool:
    """Whether a Node or a pod has the condition Ready."""
    return bool(conditions_of(api_object).get("Ready", {}).get("status") == "True")


def node_view(node: Object, pool_label: str = "") -> NodeView:
    """What matters about a Node object; it has no pool without a label that names it."""
    metadata = node["metadata"]
    labels = metadata.get("labels", {})
    conditions = conditions_of(node)
    health = conditions.get(HEALTHY, {})
    return NodeView(
        name=metadata["name"],
        uid=metadata["uid"],
        created=metadata["creationTimestamp"],
        pool=labels.get(pool_label),
        addresses=internal_addresses(node),
        # In the order of an allocation's, with which they are compared.
        cidrs=tuple(sorted(map(pod_cidr, node["spec"].get("podCIDRs", ())))),
        annotation=metadata.get("annotations", {}).get(RANGES, ""),
        runs_pods=labels.get(ROLE, Role.NODE) == Role.NODE,
        taints=tuple(node["spec"].get("taints") or ()),
        is_network_unavailable=conditions.get(NETWORK_UNAVAILABLE, {}).get("status") == "True",
        health=(health["status"], health.get("reason", "")) if health else None,
        health_message=health.get("message", ""),
        health_since=health.get("lastTransitionTime") or "",
        most_pods=_most_pods(node),
    )


def _most_pods(node: Object) -> int:
    text = str((node.get("status", {}).get("capacity") or {}).get("pods", ""))
    # The server takes any quantity, as 1k.
    return min(int(text), MOST_PODS) if text.isdecimal() else MOST_PODS
