"""The plan document (`plan.yaml`): what the operator asks for, by name.

It has no address that netmgr chose: those are in the lock. Order carries no meaning anywhere, and
allocations are kept by name, so that inserting, removing or reordering entries renumbers nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from netmgr.documents.diagnostics import KeyPath, invalid
from netmgr.documents.fields import Document, PrefixText
from netmgr.documents.sites import HUB, KeyedPrefix, SourceAddress, overlapping
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.plan.clouds.cloud import CloudKeys
from netmgr.prefixes import Family, Prefix

PERCENT = 100
V6_SUBNET = 64
"""Length of an IPv6 subnet; clouds allow no other."""

Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$")]
"""Of clusters and node pools: it becomes part of node and resource names."""

NodeCount = Annotated[int, Field(ge=0, le=1_000_000)]


def named_alike(
    pools: Iterable[tuple[str, str]],
) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """The first two pools, each (cluster, node pool), whose nodes would have the same names.

    As those of pool `a-b` of cluster `x`, and of pool `b` of cluster `x-a`.
    """
    owners: dict[str, tuple[str, str]] = {}
    for cluster, pool in pools:
        first = owners.setdefault(f"{cluster}-{pool}", (cluster, pool))
        if first != (cluster, pool):
            return first, (cluster, pool)
    return None


class Addressing(StrEnum):
    """How a node gets its pods' addresses."""

    BLOCKS = "blocks"
    SINGLE = "single"


class ServiceMode(StrEnum):
    """Whose a cluster's Service range is."""

    UNIQUE = "unique"
    """The range is nobody else's; the hub sees the Services where the cluster does."""
    SHARED = "shared"
    """All shared clusters use the same range; the hub sees it at a prefix of each cluster's own."""


def _to_list(value: object) -> object:
    """Read one prefix, several, or null."""
    if value is None:
        return ()
    # A Prefix is a tuple, too, and one prefix.
    return value if isinstance(value, list | tuple) and not isinstance(value, Prefix) else (value,)


def _one_or_all(prefixes: tuple[Prefix, ...]) -> str | list[str]:
    texts = [str(prefix) for prefix in prefixes]
    return texts[0] if len(texts) == 1 else texts


class Pools(Document):
    """The prefixes that allocations come from; IPv4, and optionally IPv6."""

    nodes: Annotated[tuple[PrefixText, ...], Field(min_length=1)]
    """Nodes, pods, the hub: everything that is routed between virtual networks."""
    services: tuple[PrefixText, ...] = ()
    """Service ranges: IPv4, needed once there is a cluster, and optionally IPv6.

    With IPv6 the hub and NAT hosts have IPv6 addresses, too.
    """

    @field_validator("nodes", "services")
    @classmethod
    def _usable(cls, prefixes: tuple[Prefix, ...]) -> tuple[Prefix, ...]:
        for number, prefix in enumerate(prefixes):
            # A pool may contain special-use prefixes: nothing is allocated from those.
            for special in SPECIAL_USE:
                if special.covers(prefix):
                    message = f"{prefix} lies in the special-use prefix {special}"
                    raise invalid(message, (number,), remedy="nothing there can be routed")
        # Nodes always have IPv4: the segments of the lock are laid out in it, IPv6 comes beside it.
        if prefixes and not any(prefix.family is Family.V4 for prefix in prefixes):
            raise ValueError("has no IPv4 prefix; add one, for example 10.0.0.0/8")
        return prefixes

    @model_validator(mode="after")
    def _nodes_have_every_family(self) -> Pools:
        for number, prefix in enumerate(self.services):
            if prefix.family not in self.families:
                message = f"{prefix} is IPv6, and nothing of nodes is"
                remedy = "NAT hosts need such addresses, too"
                raise invalid(message, ("services", number), ("nodes",), remedy)
        return self

    def keyed(self) -> Iterator[KeyedPrefix]:
        for key, prefixes in (("nodes", self.nodes), ("services", self.services)):
            for number, prefix in enumerate(prefixes):
                yield KeyedPrefix(prefix, (key, number), key)

    @property
    def families(self) -> tuple[Family, ...]:
        """The families nodes and pods get addresses of."""
        return tuple(sorted({prefix.family for prefix in self.nodes}))

    @property
    def service_families(self) -> tuple[Family, ...]:
        """The families of Services, and with them of the hub and NAT hosts; IPv4 at least."""
        return tuple(sorted({Family.V4, *(prefix.family for prefix in self.services)}))


def key_of(name: str, family: Family) -> str:
    """The key of one family, where plan and lock have one for each."""
    return name if family is Family.V4 else f"{name}_v6"


class Exclusion(Document):
    """A prefix that is never allocated from."""

    prefix: PrefixText
    """What is excluded."""
    reason: str = ""
    """Why; `netmgr plan explain` shows it."""


class Surge(Document):
    """Extra nodes while a node pool is upgraded: a number, or a percentage."""

    nodes: NodeCount = 0
    percent: Annotated[int, Field(ge=0, le=PERCENT)] = 0

    def of(self, nodes: int) -> int:
        """Surge nodes of a pool of `nodes`, rounded up as AKS and GKE round."""
        # Rounded down, an upgrade would lack the node that the cloud makes.
        return self.nodes + -(-nodes * self.percent // PERCENT)


def _to_surge(value: object) -> object:
    """Read `10%` or `33`, the two forms plan.yaml has."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]+%", value):
        return {"percent": int(value[:-1])}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"nodes": value}
    if isinstance(value, Surge):
        return value
    raise ValueError(
        f"{value!r} is neither a number of nodes nor a percentage; write for example 33 or 10%"
    )


_SURGE_SCHEMA = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]
}
_TEXT = {"type": "string"}
PrefixOrMore = Annotated[
    tuple[PrefixText, ...],
    BeforeValidator(_to_list),
    PlainSerializer(_one_or_all),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"}]}),
]
"""A prefix, or one of each family."""


class NodePool(Document):
    """Nodes of one kind in a cluster; in the cloud a node group, or several to keep its limits."""

    nodes: NodeCount
    """How many there are today."""
    pods_per_node: Annotated[int, Field(ge=1, le=4096)] = 31
    """Pods that each node may have; it gets as many addresses at least."""
    addressing: Addressing = Addressing.BLOCKS
    """Whether a node's pods have blocks of addresses, or each address is an allocation."""
    block_length: Annotated[int, Field(ge=20, le=32)] = 28
    """Prefix length of one block (IPv4), when addressing is `blocks`."""
    block_length_v6: Annotated[int, Field(ge=80, le=128)] = 80
    """Prefix length of the one IPv6 block of a node, when `pools.nodes` has IPv6."""
    surge: Annotated[
        Surge,
        BeforeValidator(_to_surge),
        PlainSerializer(lambda surge: f"{surge.percent}%" if surge.percent else surge.nodes),
        WithJsonSchema(_SURGE_SCHEMA),
        Field(json_schema_extra={"default": "10%"}),
    ] = Surge(percent=10)
    """Extra nodes while it is upgraded: a number, or a percentage."""
    grow_to: NodeCount | None = None
    """Declared growth, in nodes: subnets have this size from day one."""
    zone: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$")] | None = None
    """The availability zone of all its nodes. Where pools have some, traffic is counted by zone."""
    subnets: tuple[PrefixOrMore, ...] = ()
    """Existing subnets, for its nodes from the first on; nodes that do not fit get others.

    Each is an IPv4 prefix for nodes and their pods, or a list of it and one of IPv6.
    """

    @field_validator("subnets")
    @classmethod
    def _one_a_family(cls, subnets: tuple[tuple[Prefix, ...], ...]) -> object:
        for number, prefixes in enumerate(subnets):
            if sorted(prefix.family for prefix in prefixes) not in ([Family.V4], list(Family)):
                message = "a subnet has one IPv4 prefix, and may have one of IPv6"
                raise invalid(message, (number,), remedy="list them in brackets")
            for prefix in prefixes:
                if prefix.family is Family.V6 and prefix.length > V6_SUBNET:
                    message = f"{prefix} is smaller than a /{V6_SUBNET}, the smallest IPv6 subnet"
                    raise invalid(message, (number,), remedy="pin the whole subnet")
        return subnets

    @field_validator("grow_to")
    @classmethod
    def _growth_is_growth(cls, grow_to: int | None, info: ValidationInfo) -> int | None:
        nodes = info.data.get("nodes", 0)
        if grow_to is not None and grow_to < nodes:
            raise ValueError(
                f"is less than nodes ({nodes}); "
                "declare the size the pool will grow to, or remove the key"
            )
        return grow_to

    @property
    def blocks_per_node(self) -> int:
        """Blocks a node has; in `single` addressing every address is one."""
        if self.addressing is Addressing.SINGLE:
            return self.pods_per_node
        return -(-self.pods_per_node // (1 << (Family.V4.width - self.block_length)))

    @property
    def single_addresses(self) -> int:
        """Addresses of each family that a node's pods have in `single` addressing; else 0."""
        return self.pods_per_node if self.addressing is Addressing.SINGLE else 0

    @property
    def effective_block_length(self) -> int:
        """Length of one block (IPv4): /32 in `single` addressing."""
        return Family.V4.width if self.addressing is Addressing.SINGLE else self.block_length

    @property
    def declared(self) -> int:
        """Nodes to reserve for, growth included, surge not."""
        return max(self.nodes, self.grow_to or 0)

    @property
    def capacity(self) -> int:
        """Nodes the subnets must hold from the first day: growth and surge."""
        return self.declared + self.surge.of(self.declared)

    @property
    def needed(self) -> int:
        """Nodes that must fit today: surge included, growth not."""
        return self.nodes + self.surge.of(self.nodes)


class Services(Document):
    """A cluster's Service range, and how its NAT host shows it to the outside."""

    mode: ServiceMode = ServiceMode.UNIQUE
    """Whether the range is the cluster's alone, or all shared clusters use one inside."""
    length: Annotated[int, Field(ge=12, le=28)] = 16
    """Prefix length of the range. Kubernetes refuses more than a /12."""
    length_v6: Annotated[int, Field(ge=108, le=120)] = 112
    """Of the IPv6 range, when `pools.services` has IPv6. Kubernetes refuses more than a /108."""
    prefix: PrefixText | None = None
    """An existing IPv4 range in `pools.services`; of shared Services, where the hub sees them."""
    prefix_v6: PrefixText | None = None
    """The same for IPv6."""
    source: SourceAddress = SourceAddress.SNAT
    """As `nat.source` in node.yaml."""

    @field_validator("prefix", "prefix_v6")
    @classmethod
    def _fits_its_length(cls, prefix: Prefix | None, info: ValidationInfo) -> Prefix | None:
        if prefix is None:
            return None
        family = Family.V4 if info.field_name == "prefix" else Family.V6
        key = key_of("length", family)
        if prefix.family is not family:
            raise ValueError(f"is not IPv{family}")
        # A length that was itself refused is missing here, and is reported separately.
        if prefix.length != info.data.get(key, prefix.length):
            raise ValueError(f"is a /{prefix.length}; say {key}: {prefix.length} beside it")
        return prefix

    def pinned(self, family: Family) -> Prefix | None:
        """The range of a family where it exists already."""
        return self.prefix if family is Family.V4 else self.prefix_v6

    def length_of(self, family: Family) -> int:
        return self.length if family is Family.V4 else self.length_v6


class Cluster(Document):
    """One cluster: a spoke."""

    node_pools: Annotated[dict[Name, NodePool], Field(min_length=1)]
    """Its node pools, by name."""
    services: Services = Services()
    # NAT subnets have as many addresses from the first day on (`allocate.demand.NAT_HOSTS`).
    nat_hosts: Annotated[int, Field(ge=1, le=8)] = 2
    """Hosts that translate the Service range for traffic from outside."""
    # The most that one NAT gateway of Azure takes.
    nat_gateway_ips: Annotated[int, Field(ge=0, le=16)] = 1
    """Public addresses of the cluster's NAT gateway, 64,512 SNAT ports each. 0: no gateway."""
    grow_to: NodeCount | None = None
    """Declared growth in nodes, future node pools included: kept free beside its prefix."""
    location: str | None = None
    """Cloud region; default: the plan's."""

    @field_validator("grow_to")
    @classmethod
    def _growth_is_growth(cls, grow_to: int | None, info: ValidationInfo) -> int | None:
        # Missing if it was itself refused, which is reported separately.
        pools: dict[str, NodePool] = info.data.get("node_pools", {})
        declared = sum(pool.declared for pool in pools.values())
        if grow_to is not None and grow_to < declared:
            raise ValueError(
                f"is less than its node pools declare together ({declared}); "
                "raise it or remove the key"
            )
        return grow_to

    @property
    def nodes(self) -> int:
        return sum(pool.nodes for pool in self.node_pools.values())


class Hub(Document):
    """Where researchers enter; it reaches every cluster."""

    researchers: Annotated[int, Field(ge=1, le=65_536)] = 250
    """Addresses for researchers' machines."""
    routers: Annotated[int, Field(ge=1, le=8)] = 2
    """Machines that forward between the hub and the clusters."""
    nat_gateway_ips: Annotated[int, Field(ge=0, le=16)] = 1
    """Public addresses of the hub's NAT gateway, for clusters without one, too. 0: no gateway."""
    location: str | None = None
    """Cloud region; default: the plan's."""


class PlanDocument(CloudKeys):
    """The whole of `plan.yaml`."""

    api_version: Annotated[Literal["netmgr.io/v1alpha1"], Field(alias="apiVersion")]
    """Version of the document's form."""
    kind: Literal["NetworkPlan"]
    """What the document is."""
    name: Name
    """The network's. A lock belongs to the plan of one name."""
    pools: Pools
    exclude: tuple[Exclusion, ...] = ()
    """What is never allocated from. Services may have a pool in what it takes out of the nodes'."""
    pinned: dict[Name, tuple[PrefixText, ...]] = Field(default_factory=dict)
    """Existing prefixes: a cluster's or the hub's own, or (any other name) somebody else's."""
    shared_services: PrefixOrMore = ()
    """What clusters with `services.mode: shared` use inside, one a family, outside all pools."""
    hub: Hub = Hub()
    clusters: dict[Name, Cluster] = Field(default_factory=dict)
    """The clusters, by name. None reaches another."""
    rule_owner: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")] = "netmgr"
    """`<owner>` in the comments of the agents' accounting rules."""
    limits: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Quotas agreed with the cloud's support; an unknown name is refused with a list of all."""

    @field_validator("shared_services")
    @classmethod
    def _one_a_family(cls, shared: tuple[Prefix, ...]) -> tuple[Prefix, ...]:
        if len({prefix.family for prefix in shared}) < len(shared):
            raise ValueError("has two prefixes of one family; all shared clusters use the same one")
        return shared

    @model_validator(mode="after")
    def _pools_are_apart(self) -> PlanDocument:
        for later, earlier in overlapping(self.pools.keyed()):
            services = max(later, earlier, key=lambda pool: pool.owner).prefix
            if later.owner == earlier.owner or not self._excludes(services):
                message = f"{later.prefix} overlaps {earlier.prefix}"
                remedy = "give every address to one pool, once, or exclude what Services get"
                at, beside = ("pools", *later.key), ("pools", *earlier.key)
                raise invalid(message, at, beside, remedy)
        return self

    @model_validator(mode="after")
    def _shared_is_apart(self) -> PlanDocument:
        # Every shared cluster has the same range inside, so the hub must have no route to it.
        for shared in self.shared_services:
            for pool in self.pools.keyed():
                is_free = pool.owner == "nodes" and self._excludes(shared)
                if shared.overlaps(pool.prefix) and not is_free:
                    message = f"{shared} overlaps the pool {pool.prefix}, which the hub routes"
                    beside = ("pools", *pool.key)
                    remedy = "take one outside it, or exclude it"
                    raise invalid(message, ("shared_services",), beside, remedy)
        return self

    def _excludes(self, prefix: Prefix) -> bool:
        return any(exclusion.prefix.covers(prefix) for exclusion in self.exclude)

    @field_validator("clusters")
    @classmethod
    def _names_are_clear(cls, clusters: dict[str, Cluster]) -> dict[str, Cluster]:
        if HUB in clusters:
            # Sites are one name space: lock, documents and counters name the hub beside the
            # clusters.
            raise ValueError(f"{HUB!r} is the hub's name; give the cluster another")
        pools = ((name, pool) for name, cluster in clusters.items() for pool in cluster.node_pools)
        if alike := named_alike(pools):
            first, second = map("/".join, alike)
            message = f"nodes of {first} and {second} would have the same names; rename one"
            raise ValueError(message)
        return clusters

    def exclusions(self) -> Iterator[KeyedPrefix]:
        for number, exclusion in enumerate(self.exclude):
            yield KeyedPrefix(exclusion.prefix, ("exclude", number), "excluded")

    def service_exclusions(self) -> Iterator[KeyedPrefix]:
        """Exclusions that hold for Services: not those with a whole pool of theirs in it."""
        for exclusion in self.exclusions():
            if not any(exclusion.prefix.covers(pool) for pool in self.pools.services):
                yield exclusion

    def pins(self) -> Iterator[KeyedPrefix]:
        """Every prefix of `pinned` with its key and owner."""
        for owner, prefixes in self.pinned.items():
            for number, prefix in enumerate(prefixes):
                yield KeyedPrefix(prefix, ("pinned", owner, number), owner)

    def subnet_pins(self) -> Iterator[KeyedPrefix]:
        """Every pinned subnet of nodes with its key and cluster."""
        for path, spec in self.node_pools():
            for number, prefixes in enumerate(spec.subnets):
                for prefix in prefixes:
                    yield KeyedPrefix(prefix, (*path, "subnets", number), str(path[1]))

    def service_pins(self) -> Iterator[KeyedPrefix]:
        """Every pinned Service range with its key and cluster."""
        for name, cluster in self.clusters.items():
            for family in Family:
                if prefix := cluster.services.pinned(family):
                    key = ("clusters", name, "services", key_of("prefix", family))
                    yield KeyedPrefix(prefix, key, name)

    def is_site(self, owner: str) -> bool:
        """Whether it is the hub or a cluster of the plan."""
        return owner == HUB or owner in self.clusters

    def node_pools(self) -> Iterator[tuple[KeyPath, NodePool]]:
        for name, cluster in self.clusters.items():
            for pool, spec in cluster.node_pools.items():
                yield ("clusters", name, "node_pools", pool), spec


def with_pool(plan: PlanDocument, name: str, pool: str, spec: NodePool) -> PlanDocument:
    """The plan with another node pool of that name in a cluster."""
    cluster = plan.clusters[name]
    changed = cluster.model_copy(update={"node_pools": {**cluster.node_pools, pool: spec}})
    return plan.model_copy(update={"clusters": {**plan.clusters, name: changed}})
