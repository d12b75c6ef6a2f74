"""What a cloud allows: dated figures that stand in data files beside this module."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from netmgr.fields import Document, PrefixText
from netmgr.plan.document import Cloud

KUBERNETES = {"cluster_nodes": 5_000, "cluster_pods": 150_000, "cluster_services": 10_000}
"""What Kubernetes is tested with (kubernetes/community, sig-scalability/configs-and-limits/thresholds.md)."""


class Figures(Document):
    """The limits themselves; None is unknown. Mappings are private addresses, a block counting as one."""

    addresses_per_nic: int | None = None
    mappings_per_vnet: int | None = None
    mappings_per_peered_group: int | None = None
    """A group is a VNet and every VNet it is peered with."""
    peerings_per_vnet: int | None = None
    subnets_per_vnet: int | None = None
    route_tables: int | None = None
    routes_per_table: int | None = None
    nat_gateway_ips: int | None = None
    snat_ports_per_ip: int | None = None
    flows_per_nic: int | None = None
    nodes_per_vmss: int | None = None
    """A node pool with more nodes gets several scale sets."""
    scale_sets_per_region: int | None = None


class CloudLimits(Document):
    """One data file."""

    api_version: Annotated[Literal["netmgr.io/v1alpha1"], Field(alias="apiVersion")]
    kind: Literal["CloudLimits"]
    cloud: Cloud
    as_of: str
    """Year and month the figures were read."""
    source: str
    limits: Figures
    reserved_first: Annotated[int, Field(ge=0)]
    """Addresses at the beginning of a subnet that no host may have."""
    reserved_last: Annotated[int, Field(ge=0)]
    reserved_among_pods: bool
    """Whether a subnet of pods loses those addresses too, and so the blocks they lie in."""
    smallest_subnet: Annotated[int, Field(ge=0, le=32)]
    """Longest prefix length of a subnet (IPv4)."""
    forbidden: tuple[PrefixText, ...] = ()

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, populate_by_name=True)

    def agreed(self, quotas: dict[str, int]) -> CloudLimits:
        """These limits with the quotas of a plan in place of the published ones."""
        return self.model_copy(update={"limits": self.limits.model_copy(update=quotas)})

    @property
    def reserved(self) -> int:
        """Addresses of each subnet that no host may have."""
        return self.reserved_first + self.reserved_last
