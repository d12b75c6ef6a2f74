"""What a cloud is to the planner: a name, keys in plan.yaml, words for its resources, and limits.

Another cloud is a folder beside this module with a `limits.yaml` and renderings in it, an entry in
`Cloud` (with a key in `CloudKeys` if it needs settings), and a row in `registry.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from netmgr.documents.fields import Document, PrefixText

KUBERNETES = {"cluster_nodes": 5_000, "cluster_pods": 150_000, "cluster_services": 10_000}
"""What Kubernetes is tested with: kubernetes/community, sig-scalability, thresholds.md."""


class Cloud(StrEnum):
    """Whose limits hold, and whose resources are rendered; each has a folder of that name."""

    AZURE = "azure"
    NONE = "none"


class Azure(Document):
    """What only the rendered resources of Azure need."""

    location: str = "eastus"
    """Cloud region of whatever names none."""
    resource_group: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.()-]{1,90}$")] = "netmgr"
    """The group of all resources."""
    vm_size: str = "Standard_D4s_v5"
    """Of routers and NAT hosts."""


class CloudKeys(Document):
    """The keys of plan.yaml that name the cloud and hold its settings."""

    cloud: Cloud = Cloud.AZURE
    azure: Azure = Azure()

    @property
    def default_location(self) -> str:
        """The region of everything that names none."""
        return self.azure.location


class Words(Document):
    """What the cloud calls things, for messages."""

    cloud: str
    network: str
    interface: str
    node_group: str


class Figures(Document):
    """The limits; None is unknown. Mappings are private addresses, and a block counts as one."""

    addresses_per_interface: int | None = None
    mappings_per_network: int | None = None
    mappings_per_peered_group: int | None = None
    """A group is a virtual network and every network it is peered with."""
    peerings_per_network: int | None = None
    subnets_per_network: int | None = None
    networks_per_region: int | None = None
    interfaces_per_region: int | None = None
    public_ips_per_region: int | None = None
    security_groups_per_region: int | None = None
    rules_per_security_group: int | None = None
    prefixes_per_security_group: int | None = None
    """Of sources, and again of destinations, in all its rules together."""
    route_tables_per_region: int | None = None
    routes_per_table: int | None = None
    nat_gateway_ips: int | None = None
    snat_ports_per_ip: int | None = None
    nodes_per_node_group: int | None = None
    """A node pool with more nodes is divided into several node groups."""
    node_groups_per_region: int | None = None


class SystemRoutes(Document):
    """Routes that every subnet has, beside those to its network and the peers of that."""

    internet: bool
    """Whether a subnet reaches the internet without a route table."""
    needs_gateway: bool
    """Whether what leaves for the internet needs a NAT gateway, which takes IPv4 alone."""
    dropped: tuple[PrefixText, ...]
    """Private ranges that lead nowhere unless the subnet's table has a default route (IPv4)."""


class CloudLimits(Document):
    """One cloud's `limits.yaml`."""

    api_version: Annotated[Literal["netmgr.io/v1alpha1"], Field(alias="apiVersion")]
    kind: Literal["CloudLimits"]
    cloud: Cloud
    words: Words
    as_of: str
    """Year and month that the source was last changed, or the figures were read."""
    source: str
    limits: Figures
    reserved_first: Annotated[int, Field(ge=0)]
    """Addresses at the beginning of a subnet that no host may have."""
    reserved_last: Annotated[int, Field(ge=0)]
    block_length: int | None = None
    """Prefix length of every IPv4 block that an interface may have; None for any."""
    block_length_v6: int | None = None
    """The same for IPv6."""
    smallest_subnet: Annotated[int, Field(ge=0, le=32)]
    """Longest prefix length of a subnet (IPv4)."""
    forbidden: tuple[PrefixText, ...] = ()
    system_routes: SystemRoutes

    def agreed(self, quotas: dict[str, int]) -> CloudLimits:
        """These limits with the quotas of a plan in place of the published ones."""
        return self.model_copy(update={"limits": self.limits.model_copy(update=quotas)})

    def months_old(self, today: date) -> int:
        """The age of the figures."""
        year, month = map(int, self.as_of.split("-"))
        return (today.year - year) * 12 + today.month - month

    @property
    def reserved(self) -> int:
        """Addresses of each subnet that no host may have."""
        return self.reserved_first + self.reserved_last


@dataclass(frozen=True, slots=True)
class ListedNetwork:
    """A virtual network as a cloud's own tool lists it; prefixes are not validated yet."""

    name: str
    prefixes: object
    subnets: tuple[tuple[str, Sequence[object]], ...]
    """Name and prefixes of each."""
    id: str = ""
    """Empty where the list has none."""
