"""A cluster's subnets: which are missing, and the lock's entry once they have their places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from netmgr.plan.demand import (
    NewSegment,
    Vnets,
    Want,
    blocks,
    fitting,
    holds,
    layout,
    mappings_per_node,
    promised_mappings,
    segment_wants,
)
from netmgr.plan.document import Cluster, NodePool
from netmgr.plan.ground import Places
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import ClusterLock, Layout, NodePoolLock, Segment
from netmgr.prefixes import Family, Prefix


@dataclass(frozen=True, slots=True)
class Missing:
    """What a cluster lacks: segments to be, and a subnet for each of their roles and families.

    `existing` are segments that lack a family, with their numbers, as (pool, number).
    """

    segments: tuple[NewSegment, ...]
    existing: tuple[NewSegment, ...]
    wants: tuple[Want, ...]


def cluster_wants(
    name: str,
    cluster: Cluster,
    before: Mapping[str, NodePoolLock],
    families: tuple[Family, ...],
    limits: CloudLimits,
    sizes: Mapping[str, list[int]] | None = None,
) -> Missing:
    """What the cluster lacks, beside the node pools it has, for the capacity that it declares.

    `sizes` divides what a node pool lacks into segments of so many nodes; without, it gets one.
    """
    promised = promised_mappings(((cluster.node_pools.get(pool), spec) for pool, spec in before.items()), families)
    vnets = Vnets(name, limits.limits.mappings_per_vnet, promised)
    segments: list[NewSegment] = []
    existing: list[NewSegment] = []
    wants: list[Want] = []
    for pool in sorted(cluster.node_pools, key=lambda pool: (-cluster.node_pools[pool].capacity, pool)):
        spec, path = cluster.node_pools[pool], ("clusters", name, "node_pools", pool, "nodes")
        lacks = missing(spec, before.get(pool))
        parts = (sizes or {}).get(pool, [lacks] if lacks else [])
        for segment in vnets.segments(pool, parts, before.get(pool), mappings_per_node(spec, families)):
            segments.append(segment)
            wants += segment_wants(segment, spec, families, limits, path)
        for segment, lacking in _lacking(pool, before.get(pool), families):
            existing.append(segment)
            wants += segment_wants(segment, spec, lacking, limits, path)
    # Only once every node pool has what it wants may one promise more than that.
    widened = []
    for segment in segments:
        spec = cluster.node_pools[segment.pool]
        most = fitting(segment.nodes, spec, families, limits)
        widened.append(vnets.widened(segment, most, mappings_per_node(spec, families)))
    return Missing(tuple(widened), tuple(existing), tuple(wants))


def missing(spec: NodePool, held: NodePoolLock | None) -> int:
    """Nodes that a pool has no places for."""
    return max(spec.capacity - (held.capacity if held else 0), 0)


def _lacking(
    pool: str, held: NodePoolLock | None, families: Iterable[Family]
) -> Iterable[tuple[NewSegment, list[Family]]]:
    """Segments made before the plan had IPv6."""
    for number, segment in enumerate(held.segments if held else ()):
        present = {found.pods.family for found in segment.layouts}
        if lacking := [family for family in families if family not in present]:
            yield NewSegment(pool, number, segment.first, segment.nodes, segment.nodes, segment.vnet), lacking


def taken_by(held: ClusterLock | None) -> list[Prefix]:
    """The subnets a cluster has carved, those of tombstones included."""
    return [*held.nat.prefixes, *taken_by_pools(held.node_pools)] if held else []


def taken_by_pools(pools: Mapping[str, NodePoolLock]) -> list[Prefix]:
    """The subnets of node pools."""
    layouts = [part for spec in pools.values() for segment in spec.segments for part in segment.layouts]
    return [prefix for part in layouts for prefix in (part.hosts, part.pods)]


def complete(
    cluster: Cluster,
    before: Mapping[str, NodePoolLock],
    new: Missing,
    places: Mapping[Family, Places],
    limits: CloudLimits,
) -> dict[str, NodePoolLock]:
    """The node pools' entries, with new segments appended and old ones as they were."""
    found = {}
    for name in sorted(before.keys() | cluster.node_pools.keys()):
        old = before.get(name, NodePoolLock())
        spec = cluster.node_pools.get(name)
        if spec is None:
            found[name] = old.model_copy(update={"tombstone": True})
            continue
        late = {segment.number: segment for segment in new.existing if segment.pool == name}
        segments = [
            _with_v6(segment, late[number], spec, places, limits) if number in late else segment
            for number, segment in enumerate(old.segments)
        ]
        segments += [_segment(segment, spec, places, limits) for segment in new.segments if segment.pool == name]
        found[name] = NodePoolLock(segments=tuple(_numbered(segments)))
    return found


def keep_tombstones(held: ClusterLock, cluster: Cluster | None) -> ClusterLock:
    """The entry of a cluster that the plan names no more."""
    return held if cluster else held.model_copy(update={"tombstone": True})


def _numbered(segments: Iterable[Segment]) -> Iterable[Segment]:
    """New segments begin where those before them end, however many more nodes fit than were asked for."""
    first = 0
    for segment in segments:
        yield segment if segment.first == first else segment.model_copy(update={"first": first})
        first += segment.nodes


def _segment(new: NewSegment, spec: NodePool, places: Mapping[Family, Places], limits: CloudLimits) -> Segment:
    layouts = {
        family: _layout(new, spec, family, found, limits)
        for family, found in places.items()
        if new.key("pods") in found
    }
    nodes = min(new.most, *(holds(found, limits) for found in layouts.values()))
    v4 = layouts[Family.V4]
    return Segment(first=new.first, nodes=nodes, vnet=new.vnet, v4=v4, v6=layouts.get(Family.V6))


def _with_v6(
    old: Segment, late: NewSegment, spec: NodePool, places: Mapping[Family, Places], limits: CloudLimits
) -> Segment:
    return old.model_copy(update={"v6": _layout(late, spec, Family.V6, places[Family.V6], limits)})


def _layout(new: NewSegment, spec: NodePool, family: Family, found: Places, limits: CloudLimits) -> Layout:
    return layout(found[new.key("hosts")], found[new.key("pods")], blocks(spec, family), limits)
