"""The lock (`plan.lock.yaml`): every prefix that was ever handed out and not released, by name.

Only `netmgr plan lock` and `netmgr plan release` write it. What it holds never moves. Nodes are not
listed one by one: a segment says where the first begins, and the rest is arithmetic, so that a lock
of 100,000 nodes is as small as one of ten.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator

from netmgr.documents.diagnostics import Diagnostic
from netmgr.documents.fields import AddressText, Document, PrefixText
from netmgr.documents.sites import HUB
from netmgr.errors import ConfigError
from netmgr.plan.document import PlanDocument, ServiceMode
from netmgr.prefixes import Address, Family, Prefix

LOCK_VERSION = 4
"""Incremented when a lock's content or form changes: another netmgr would misread it."""

LOCK_FILE = "plan.lock.yaml"
"""Name of the lock's file in diagnostics, until `files.located` puts the real one in its place."""


class PlanRefused(ConfigError):
    """The plan cannot be locked as it is; the lock is unchanged. `diagnostics` say why."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(map(str, self.diagnostics)))


class Allocation(Document):
    """A prefix of the node pools' space that one cluster, or the hub, holds."""

    prefix: PrefixText
    """In use: the cluster's subnets lie in it, and it is routed to the cluster."""
    reserve: PrefixText
    """Covers `prefix`; the rest is kept free for this owner's declared growth."""


class Layout(Document):
    """Where one segment's addresses of one family are: in one prefix, the hosts below the pods.

    Node i of the segment (from 0) has its own address at `host_base + i`, and `blocks` blocks
    of `block_length`, one after the other, from `pod_base + i * blocks * 2^(width - block_length)`.
    """

    subnet: PrefixText
    host_base: AddressText
    pod_base: AddressText
    block_length: int
    blocks: Annotated[int, Field(ge=1)]

    @property
    def family(self) -> Family:
        return self.subnet.family

    @property
    def stride(self) -> int:
        """Addresses from one node's first block to the next node's."""
        return self.blocks << (self.family.width - self.block_length)

    @property
    def below_pods(self) -> tuple[Prefix, ...]:
        """The part of the subnet that has the nodes' own addresses, largest prefix first."""
        first, parts = self.subnet.value, []
        for length in range(self.subnet.length + 1, self.family.width + 1):
            part = Prefix(self.family, first, length)
            if part.last < self.pod_base.value:
                parts.append(part)
                first += part.size
        return tuple(parts)

    def host(self, offset: int) -> Address:
        """The own address of the segment's node at `offset` (from 0)."""
        return Address(self.host_base.family, self.host_base.value + offset)

    def node_blocks(self, offset: int) -> tuple[Prefix, ...]:
        """The blocks of the segment's node at `offset` (from 0)."""
        # Blocks of a node lie side by side, and nodes in order: any node's addresses follow from
        # its number alone.
        first = self.pod_base.value + offset * self.stride
        size = self.stride // self.blocks
        return tuple(
            Prefix(self.family, value, self.block_length)
            for value in range(first, first + self.stride, size)
        )


class Segment(Document):
    """A run of a node pool's nodes, `first` to `first + nodes - 1`, and their subnets."""

    first: Annotated[int, Field(ge=0)]
    nodes: Annotated[int, Field(ge=1)]
    """How many nodes fit, not how many there are."""
    network: Annotated[str, Field(alias="vnet")]
    """Name of its virtual network."""
    v4: Layout
    v6: Layout | None = None

    @property
    def last(self) -> int:
        return self.first + self.nodes - 1

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One for each family, v4 first."""
        return (self.v4,) if self.v6 is None else (self.v4, self.v6)

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        """The subnet of each family."""
        return tuple(layout.subnet for layout in self.layouts)


class NodePoolLock(Document):
    """A node pool's segments, in the order of node numbers."""

    tombstone: bool = False
    """The plan names it no more; its addresses stay its own until they are released."""
    segments: tuple[Segment, ...] = ()

    @property
    def capacity(self) -> int:
        """How many nodes fit in all."""
        return sum(segment.nodes for segment in self.segments)

    @property
    def addresses_per_node(self) -> int:
        """Pods that any of its nodes has addresses for: those of the family with the fewest."""
        layouts = [layout for segment in self.segments for layout in segment.layouts]
        return min((layout.stride for layout in layouts), default=0)


class SubnetLock(Document):
    """A subnet beside the node pools', and the hosts in it that have fixed addresses."""

    prefix: PrefixText
    prefix_v6: PrefixText | None = None
    network: Annotated[str, Field(alias="vnet")]
    addresses: tuple[AddressText, ...] = ()
    addresses_v6: tuple[AddressText, ...] = ()

    @property
    def prefixes(self) -> tuple[Prefix, ...]:
        """One for each family, v4 first."""
        return (self.prefix,) if self.prefix_v6 is None else (self.prefix, self.prefix_v6)

    @property
    def hosts(self) -> tuple[tuple[Address, ...], ...]:
        """The addresses of each host, v4 first."""
        # A family that the subnet lacks has no addresses, and no part in a host's.
        return tuple(zip(*filter(None, (self.addresses, self.addresses_v6)), strict=True))

    def of_family(self, family: Family) -> tuple[Address, ...]:
        return self.addresses if family is Family.V4 else self.addresses_v6


class ServiceMapping(NamedTuple):
    """A range as the hub reaches it, and the same Services as the cluster sees them, one to one."""

    vip_range: Prefix
    service_cidr: Prefix


class ServiceRangeLock(Document):
    """A cluster's Services: where it sees them itself, and where the hub does."""

    mode: ServiceMode
    prefix: PrefixText
    hub_prefix: PrefixText
    """The same as `prefix`, or, when that is shared, one of this cluster's own."""
    prefix_v6: PrefixText | None = None
    hub_prefix_v6: PrefixText | None = None

    @property
    def pairs(self) -> tuple[ServiceMapping, ...]:
        """One for each family, v4 first."""
        v4 = ServiceMapping(self.hub_prefix, self.prefix)
        if self.hub_prefix_v6 is None or self.prefix_v6 is None:
            return (v4,)
        return v4, ServiceMapping(self.hub_prefix_v6, self.prefix_v6)

    @property
    def vip_ranges(self) -> tuple[Prefix, ...]:
        """Where the hub reaches them, v4 first."""
        return tuple(vip_range for vip_range, _ in self.pairs)


class ClusterLock(Document):
    tombstone: bool = False
    prefixes: tuple[Allocation, ...]
    services: ServiceRangeLock
    nat: SubnetLock
    """The NAT hosts' subnet and their addresses."""
    node_pools: dict[str, NodePoolLock]


class HubLock(Document):
    prefixes: tuple[Allocation, ...]
    routers: SubnetLock
    researchers: tuple[SubnetLock, ...]


class LockDocument(Document):
    """The whole of `plan.lock.yaml`."""

    api_version: Annotated[Literal["netmgr.io/v1alpha1"], Field(alias="apiVersion")]
    kind: Literal["NetworkPlanLock"]
    version: Annotated[int, Field(ge=1)]
    plan: str
    """Name of the plan it belongs to."""
    hub: HubLock
    clusters: dict[str, ClusterLock]
    plan_digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    """Of the plan that it was made from (`plan_digest_of`); another one means: lock again."""
    digest: str = ""
    """Of everything above (`digest_of`). In the file alone: a lock that was read has none."""

    @field_validator("version")
    @classmethod
    def _is_known(cls, version: int) -> int:
        if version != LOCK_VERSION:
            which = "a newer" if version > LOCK_VERSION else "an earlier"
            raise ValueError(
                f"was written by {which} netmgr (version {version}; "
                f"this one reads {LOCK_VERSION}); use that netmgr"
            )
        return version

    @property
    def sites(self) -> dict[str, tuple[Allocation, ...]]:
        """The prefixes of the hub and of each cluster, tombstones included."""
        prefixes = {name: held.prefixes for name, held in self.clusters.items()}
        return {HUB: self.hub.prefixes, **prefixes}


def digest_of(lock: LockDocument) -> str:
    """SHA-256 over a lock's content, whatever the order of keys and the spacing."""
    return _written(_hash(_content(lock)))


def plan_digest_of(plan: PlanDocument) -> str:
    """The sum of the SHA-256 of every key of a plan with its path.

    As a sum, so that `merged_digest` knows that of a merged plan without its file.
    """
    return _written(sum(_hash([path, leaf]) for path, leaf in _leaves(_content(plan))))


def merged_digest(base: str, ours: str, theirs: str) -> str:
    """The plan's digest after both sides' changes of keys, if no key was changed on both."""
    before, own, other = (int(digest.partition(":")[2], 16) for digest in (base, ours, theirs))
    return _written(own + other - before)


def _content(document: LockDocument | PlanDocument) -> dict[str, object]:
    # Without defaults, so that a key which a later netmgr adds invalidates no older digest.
    return document.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"digest"}
    )


def _leaves(
    content: Mapping[str, object], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object]]:
    # A cluster may have nothing in it that is no default.
    if not content:
        yield above, {}
    for key, inner in content.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, (*above, key))
        else:
            yield (*above, key), inner


def _hash(content: object) -> int:
    # Canonical: reformatting the file by hand or by a tool is harmless, and must not look like an
    # edit.
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(sha256(canonical.encode()).digest())


def _written(digest: int) -> str:
    return f"sha256:{digest % (1 << 256):064x}"
