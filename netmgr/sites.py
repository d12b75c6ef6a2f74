"""What a machine of a planned network is told about it: the sites, and its own part in joining them.

A site is the hub or one spoke (a cluster). Every machine knows every site's prefixes: they
decide what is dropped between spokes, and what `explain` answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from netmgr.fields import AbsolutePath, AddressText, Disagreement, Document, PrefixText
from netmgr.prefixes import Address, Prefix, PrefixTable

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
    """One Service range: what the hub sees, and what it is inside the spoke.

    Both are equal where the range is the spoke's alone. There is then nothing to rewrite:
    what reaches the host is passed on (to kube-proxy, or to the Services' endpoints) as it
    came, and only its source is translated.
    """

    seen: PrefixText
    real: PrefixText

    @property
    def is_identity(self) -> bool:
        """Whether the hub sees the range where it is."""
        return self.seen == self.real

    @model_validator(mode="after")
    def _match_one_to_one(self) -> ServiceRange:
        if (self.seen.family, self.seen.length) != (self.real.family, self.real.length):
            raise Disagreement(
                f"{self.real} is not of the length and family of {self.seen}",
                ("real",),
                ("seen",),
                "each address of one stands for exactly one of the other",
            )
        if self.seen != self.real and self.seen.overlaps(self.real):
            raise Disagreement(f"{self.real} overlaps {self.seen}", ("real",), ("seen",), "take one outside the other")
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
    machines: tuple[PrefixText, ...] = ()
    """Subnets of the spoke's own machines, whose addresses are no pods'."""
    host_endpoints: bool = False
    """Whether an endpoint may have a machine's address: a pod in the host's network, or whatever listens there."""

    @model_validator(mode="after")
    def _claim_each_range_once(self) -> Nat:
        for number, one in enumerate(self.services):
            for earlier, other in enumerate(self.services[:number]):
                for key, beside in _CLAIMS:
                    mine, theirs = getattr(one, key), getattr(other, beside)
                    if mine.overlaps(theirs):
                        at, where = ("services", number, key), ("services", earlier, beside)
                        raise Disagreement(f"{mine} overlaps {theirs}", at, where, "translate every address once")
        return self

    @model_validator(mode="after")
    def _have_an_address_to_show(self) -> Nat:
        families = {address.family for address in self.addresses}
        for number, each in enumerate(self.services if families and self.source is SourceAddress.SNAT else ()):
            if each.seen.family not in families:
                message = f"{each.seen} is IPv{each.seen.family}, and no address is"
                raise Disagreement(message, ("services", number, "seen"), ("addresses",), "add one for snat to take")
        return self


_CLAIMS = (("seen", "seen"), ("real", "real"), ("seen", "real"), ("real", "seen"))


class StaticRoute(Document):
    """A route the agent installs: the way back to clients whose address a NAT host preserves."""

    to: PrefixText
    via: AddressText

    @model_validator(mode="after")
    def _are_of_one_family(self) -> StaticRoute:
        if self.to.family is not self.via.family:
            raise Disagreement(f"{self.via} is not of the family of {self.to}", ("via",), ("to",))
        if self.to.length == self.to.family.width:
            message = f"{self.to} is a single address, which only routes to pods have"
            raise Disagreement(message, ("to",), remedy="give a prefix that holds it")
        return self


class Part(StrEnum):
    """What of a site an address is."""

    NODES = "nodes and pods"
    SERVICES = "Services"


@dataclass(frozen=True, slots=True)
class Belonging:
    """Whose an address is: the site, what of it, and the prefix that says so."""

    site: str
    part: Part
    prefix: Prefix


def belonging(sites: Iterable[Site], address: Address) -> Belonging | None:
    """The site that `address` belongs to by its longest prefix, or None.

    Services are those that the hub sees. An address of no site is internal or internet, which
    `internal` of the document tells.
    """
    parts = ((site, part) for site in sites for part in Part)
    entries = (
        (prefix, Belonging(site.name, part, prefix))
        for site, part in parts
        for prefix in (site.prefixes if part is Part.NODES else site.services)
    )
    found = PrefixTable(entries).match(address)
    return found[1] if found else None
