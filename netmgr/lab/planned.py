"""The address plan of a lab with a hub and spokes, and the world that is drawn from it.

The spokes open their Services in three ways in turn, and the first two have the same Service
range inside, so that the smallest lab with all of it has three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from netmgr import plan_files
from netmgr.errors import ConfigError
from netmgr.lab.drawing import POOL, draw
from netmgr.lab.topology import Topology
from netmgr.plan.allocate import make_lock
from netmgr.plan.document import PlanDocument, ServiceMode
from netmgr.plan.lock import LockDocument
from netmgr.sites import Mapping, SourceAddress

MAX_SPOKES = 8
MAX_NODES = 8
MAX_PODS = 12
"""A node of a planned lab has one /28, with room for pods that come and go."""


class Kind(NamedTuple):
    """How a spoke opens its Services, and whether it has a NAT gateway; without, the internet is reached by the hub."""

    mode: ServiceMode
    translation: Mapping
    source: SourceAddress
    gateway: bool = True


KINDS = (
    Kind(ServiceMode.SHARED, Mapping.NETMAP, SourceAddress.SNAT),
    Kind(ServiceMode.SHARED, Mapping.ENDPOINTS, SourceAddress.SNAT),
    Kind(ServiceMode.UNIQUE, Mapping.ENDPOINTS, SourceAddress.PRESERVE),
)
"""The spokes, in turn."""


def plan(spokes: int, nodes: int, kinds: Sequence[Kind] = KINDS) -> PlanDocument:
    """The plan of a lab's network.

    Raises:
        ConfigError: more spokes or nodes than a lab can have.
    """
    if not 1 <= spokes <= MAX_SPOKES or not 1 <= nodes <= MAX_NODES:
        raise ConfigError(
            f"a lab has 1 to {MAX_SPOKES} spokes with 1 to {MAX_NODES} nodes each, not {spokes} with {nodes}"
        )
    clusters = {f"spoke-{number + 1}": _cluster(nodes, kinds[number % len(kinds)]) for number in range(spokes)}
    return PlanDocument.model_validate(
        {
            "apiVersion": "netmgr.io/v1alpha1",
            "kind": "NetworkPlan",
            "name": "lab",
            "pools": {"nodes": ["10.64.0.0/12", "fd00:64::/40"], "services": ["172.16.0.0/16", "fd00:61::/96"]},
            "shared_services": ["100.64.0.0/24", "fd00:60::/112"],
            "hub": {"researchers": 4, "routers": 1},
            "clusters": clusters,
        }
    )


def _cluster(nodes: int, kind: Kind) -> dict[str, Any]:
    return {
        "nat_hosts": 1,
        "nat_gateway_ips": int(kind.gateway),
        "services": {"mode": kind.mode, "length": 24, "translation": kind.translation, "source": kind.source},
        "node_pools": {POOL: {"nodes": nodes, "pods_per_node": 16, "surge": 1}},
    }


def lock(planned: PlanDocument) -> LockDocument:
    """The addresses of a lab's plan."""
    return make_lock(planned, None, plan_files.load_limits(planned.cloud))


def network(spokes: int, nodes: int, pods: int, kinds: Sequence[Kind] = KINDS) -> Topology:
    """A hub and `spokes` spokes, each with `nodes` nodes that run `pods` pods.

    Raises:
        ConfigError: more of something than a lab can have.
    """
    if not 0 <= pods <= MAX_PODS:
        raise ConfigError(f"a lab with spokes has up to {MAX_PODS} pods a node, not {pods}")
    asked = plan(spokes, nodes, kinds)
    return draw(asked, lock(asked), pods)
