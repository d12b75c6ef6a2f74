"""What a machine of a planned network is told about it: the sites, and its own part in joining them.

A site is the hub or one spoke (a cluster). Every machine knows every site's prefixes: they
decide what is dropped between spokes, and what `explain` answers.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from netmgr.fields import AbsolutePath, AddressText, Document, PrefixText
from netmgr.prefixes import Prefix

HUB = "hub"
"""Name of the site that reaches every other one."""


class Role(StrEnum):
    """What a machine does for the network."""

    NODE = "node"
    HUB_ROUTER = "hub-router"
    NAT_HOST = "nat-host"


class Mapping(StrEnum):
    """How a NAT host opens Services."""

    NETMAP = "netmap"
    ENDPOINTS = "endpoints"


class SourceAddress(StrEnum):
    """Whose address a Service's endpoint sees: the NAT host's, or the client's."""

    SNAT = "snat"
    PRESERVE = "preserve"


class Site(Document):
    """The hub or one spoke."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9\-]{0,61}[a-z0-9])?$")]
    prefixes: Annotated[tuple[PrefixText, ...], Field(min_length=1)]
    """Of its nodes and pods."""
    services: tuple[PrefixText, ...] = ()
    """Its Service ranges, as the hub sees them."""

    @property
    def every_prefix(self) -> tuple[Prefix, ...]:
        """All that its packets carry toward other sites."""
        return (*self.prefixes, *self.services)


class ServiceRange(Document):
    """One Service range: what the hub sees, and what it is inside the spoke."""

    seen: PrefixText
    real: PrefixText

    @model_validator(mode="after")
    def _match_one_to_one(self) -> ServiceRange:
        if (self.seen.family, self.seen.length) != (self.real.family, self.real.length):
            raise ValueError(
                f"seen {self.seen} and real {self.real} are not of one length and family; "
                "each address of one stands for exactly one of the other"
            )
        return self


class Nat(Document):
    """What a NAT host translates."""

    services: Annotated[tuple[ServiceRange, ...], Field(min_length=1)]
    translation: Mapping = Mapping.NETMAP
    source: SourceAddress = SourceAddress.SNAT
    addresses: tuple[AddressText, ...] = ()
    """The host's own that `snat` takes, 64,512 ports each toward one endpoint; default: `node.addresses`."""
    documents: AbsolutePath = Path("/etc/netmgr/services")
    """File or directory with Services and EndpointSlices, watched; with `translation: endpoints` alone."""

    @model_validator(mode="after")
    def _claim_each_range_once(self) -> Nat:
        for kind in ("seen", "real"):
            prefixes = [getattr(item, kind) for item in self.services]
            for number, one in enumerate(prefixes):
                for other in prefixes[:number]:
                    if one.overlaps(other):
                        raise ValueError(f"{kind} ranges {other} and {one} overlap; translate every address once")
        return self


class StaticRoute(Document):
    """A route the agent installs: the way back to clients whose address a NAT host preserves."""

    to: PrefixText
    via: AddressText

    @model_validator(mode="after")
    def _are_of_one_family(self) -> StaticRoute:
        if self.to.family is not self.via.family:
            raise ValueError(f"to {self.to} and via {self.via} are of different families")
        if self.to.length == self.to.family.width:
            raise ValueError(f"{self.to} is a single address; full-length routes of netmgr's are pods' own")
        return self
