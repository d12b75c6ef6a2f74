"""The first plan.yaml of a network: what its operator already knows, with a comment on each key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import yaml

from netmgr.plan.clouds.cloud import Azure, Cloud
from netmgr.prefixes import Family, Prefix

_LONGEST_SERVICES, _SHORTEST_SERVICES = 28, 16
"""Prefix lengths that a cluster's Service range may have, and has by default (IPv4)."""

_AZURE = f"""\
azure:  # for rendered resources
  location: {Azure().location}
  resource_group: {Azure().resource_group}
"""


def text(  # noqa: PLR0913  what is known of a network
    *,
    name: str,
    cloud: Cloud,
    nodes: Sequence[Prefix],
    services: Sequence[Prefix],
    researchers: int,
    routers: int,
    clusters: Sequence[str],
    nodes_per_cluster: int,
    pods_per_node: int,
) -> str:
    """The plan before its first lock; names are not validated, `plan lock` decides whether it fits.

    `nodes` are prefixes that the hub, nodes and pods get theirs from, `services` those that Service
    ranges come from.
    """
    length = _services_length(services, len(clusters))
    entries = "".join(
        _cluster(cluster, length, nodes_per_cluster, pods_per_node) for cluster in clusters
    )
    return f"""\
# What you want of the network. netmgr chooses the addresses and records them beside this file:
#
#   netmgr plan lock     choose prefixes, show them, ask, and write the lock
#   netmgr plan check    overlaps, headroom and limits
#   netmgr plan explain  whose an address is, and which key says so
#
# Keep this file and the lock in git. Allocations are recorded by name: entries can be inserted,
# removed and reordered, and nothing else moves. Keys that are commented out show examples.
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: {_scalar(name)}

cloud: {cloud.value}  # whose limits apply: azure, or none
{_AZURE if cloud is Cloud.AZURE else ""}
pools:
  nodes:  # where the hub, nodes and pods get their addresses; an IPv6 prefix may be added
{_items(nodes)}
  services:  # where clusters' Service ranges come from
{_items(services)}

# exclude:  # never allocated from
#   - prefix: 10.255.0.0/16
#     reason: office network

hub:  # where researchers enter; it reaches every cluster
  researchers: {researchers}  # addresses for their machines
  routers: {routers}

clusters:  # none reaches another
{entries}"""


def _cluster(name: str, length: int, nodes: int, pods_per_node: int) -> str:
    return f"""\
  {_scalar(name)}:
    # grow_to: {4 * nodes}  # nodes it may get in all: their addresses stay free beside its own
    services:
      mode: unique  # or shared: all such clusters have the range that shared_services names
      length: {length}  # prefix length of the range
    node_pools:
      default:  # becomes part of the nodes' names
        nodes: {nodes}
        pods_per_node: {pods_per_node}
        # surge: 10%  # more nodes during an upgrade
        # grow_to: {2 * nodes}  # subnets have room for so many nodes from the first day
"""


def _services_length(services: Iterable[Prefix], clusters: int) -> int:
    """As large as usual, unless as many clusters again would then not fit."""
    lengths = [prefix.length for prefix in services if prefix.family is Family.V4]
    shares = max(2 * clusters, 1)
    needed = min(lengths, default=0) + (shares - 1).bit_length()
    return min(max(needed, _SHORTEST_SERVICES), _LONGEST_SERVICES)


def _items(prefixes: Iterable[Prefix]) -> str:
    return "\n".join(f"    - {prefix}" for prefix in prefixes)


def _scalar(value: str) -> str:
    """A string as a YAML scalar: `on` needs quotes."""
    dumped: str = yaml.safe_dump(value, width=1 << 20)
    return dumped.removesuffix("\n").removesuffix("\n...")
