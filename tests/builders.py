"""Documents that many tests begin with."""

from __future__ import annotations

from typing import Any

from netmgr.prefixes import Prefix

NODE_KEYS: dict[str, Any] = {"apiVersion": "netmgr.io/v1alpha1", "kind": "Node"}
PLAN_KEYS: dict[str, Any] = {"apiVersion": "netmgr.io/v1alpha1", "kind": "NetworkPlan"}


def plan_of(clusters: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A plan with these clusters, and pools that hold them."""
    pools = {"nodes": ["10.0.0.0/8"], "services": ["172.16.0.0/12"]}
    return {**PLAN_KEYS, "name": "test", "pools": pools, "clusters": clusters, **keys}


def prefixes(*texts: str) -> tuple[Prefix, ...]:
    return tuple(map(Prefix.parse, texts))


PRICES = """\
apiVersion: netmgr.io/v1alpha1
kind: Prices
provider: Example Cloud
account: "1234"
currency: USD
per: GB
traffic: {internet-out: 0.09, zone-out: 0.01}
"""

SMALL_PLAN = """\
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: small
pools:
  nodes: [10.0.0.0/12]
  services: [172.16.0.0/16]
clusters:
  alpha:
    services: {length: 20}
    node_pools:
      gpu: {nodes: 500, pods_per_node: 31}
  beta:
    services: {length: 20}
    node_pools:
      cpu: {nodes: 100, pods_per_node: 60, grow_to: 400}
"""
