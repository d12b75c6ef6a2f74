"""The sites of a planned network, and a machine's own part in joining them.

A site is the hub or one spoke (a cluster). Every machine knows every site's prefixes: they
decide what is dropped between spokes, and what `explain` answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple

from netmgr.documents.diagnostics import Diagnostic, KeyPath, error, invalid
from netmgr.documents.fields import AddressText, Document, PrefixText
from netmgr.documents.schema import Field, model_validator
from netmgr.prefixes import Address, Prefix, PrefixTable, overlaps

HUB = "hub"
"""Name of the site that reaches every other one."""


class Role(StrEnum):
    """What a machine does for the network."""

    NODE = "node"
    HUB_ROUTER = "hub-router"
    NAT_HOST = "nat-host"


class SourceAddress(StrEnum):
    """Whose address a Service's endpoint sees: the NAT host's, or the client's."""

    SNAT = "snat"
    PRESERVE = "preserve"


class Site(Document):
    """The hub or one spoke."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    """`hub`, or the spoke's name."""
    prefixes: Annotated[tuple[PrefixText, ...], Field(min_length=1)]
    """Of its nodes and pods."""
    services: tuple[PrefixText, ...] = ()
    """Its Service ranges, as the hub sees them."""

    @property
    def every_prefix(self) -> tuple[Prefix, ...]:
        return (*self.prefixes, *self.services)


class ServiceRange(Document):
    """One Service range: the VIPs that the hub reaches, and the Service CIDR inside the spoke.

    Both are equal where the range is the spoke's alone. Then nothing is rewritten: what reaches
    the host is passed on to kube-proxy as it came, and only its source is translated.
    """

    vip_range: PrefixText
    """The range as the hub reaches it."""
    service_cidr: PrefixText
    """The range inside the spoke."""

    @property
    def is_identity(self) -> bool:
        return self.vip_range == self.service_cidr

    @model_validator(mode="after")
    def _match_one_to_one(self) -> ServiceRange:
        vips, inner = self.vip_range, self.service_cidr
        if (vips.family, vips.length) != (inner.family, inner.length):
            message = f"{inner} is not of the length and family of {vips}"
            remedy = "each address of one maps to exactly one of the other"
            raise invalid(message, ("service_cidr",), ("vip_range",), remedy)
        if not self.is_identity and vips.overlaps(inner):
            message = f"{inner} overlaps {vips}"
            raise invalid(message, ("service_cidr",), ("vip_range",), "take one outside the other")
        return self


class Nat(Document):
    """What a NAT host translates."""

    services: Annotated[tuple[ServiceRange, ...], Field(min_length=1)]
    """The spoke's Service ranges."""
    source: SourceAddress = SourceAddress.SNAT
    """Whether a Service's endpoint sees the NAT host's address (`snat`) or the client's."""
    addresses: tuple[AddressText, ...] = ()
    """The host's own that `snat` takes, 64,512 ports each toward one endpoint.

    Default: `node.addresses`.
    """
    machines: tuple[PrefixText, ...] = ()
    """Where the spoke's own machines have their addresses, which are no pods'."""
    host_endpoints: bool = False
    """Whether an endpoint may have a machine's address, as a host-network pod has."""

    @model_validator(mode="after")
    def _translate_each_range_once(self) -> Nat:
        for number, service in enumerate(self.services):
            for earlier, other in enumerate(self.services[:number]):
                for key, beside in _SIDES:
                    mine, theirs = getattr(service, key), getattr(other, beside)
                    if mine.overlaps(theirs):
                        at, other_key = ("services", number, key), ("services", earlier, beside)
                        remedy = "translate every address once"
                        raise invalid(f"{mine} overlaps {theirs}", at, other_key, remedy)
        return self

    @model_validator(mode="after")
    def _have_an_address_of_each_family(self) -> Nat:
        if not self.addresses or self.source is not SourceAddress.SNAT:
            return self
        families = {address.family for address in self.addresses}
        for number, service in enumerate(self.services):
            if service.vip_range.family not in families:
                message = f"{service.vip_range} is IPv{service.vip_range.family}, and no address is"
                key = ("services", number, "vip_range")
                raise invalid(message, key, ("addresses",), "add one for snat to take")
        return self


# Crosswise, too: a VIP that is also another range's ClusterIP would have two meanings.
_SIDES = (
    ("vip_range", "vip_range"),
    ("service_cidr", "service_cidr"),
    ("vip_range", "service_cidr"),
    ("service_cidr", "vip_range"),
)


class StaticRoute(Document):
    """A route the agent installs: the way back to clients whose address a NAT host preserves."""

    to: PrefixText
    """Where to."""
    via: AddressText
    """The next hop."""

    @model_validator(mode="after")
    def _are_of_one_family(self) -> StaticRoute:
        if self.to.family is not self.via.family:
            raise invalid(f"{self.via} is not of the family of {self.to}", ("via",), ("to",))
        # The agent knows a pod's route by its full length, which no other of its routes may have.
        if self.to.is_address:
            message = f"{self.to} is a single address, which only routes to pods have"
            raise invalid(message, ("to",), remedy="give a prefix that holds it")
        return self


class SitePart(StrEnum):
    NODES = "nodes and pods"
    SERVICES = "Services"


class Membership(NamedTuple):
    """The site that has an address, its part, and the prefix that decides."""

    site: str
    part: SitePart
    prefix: Prefix


def site_of(sites: Iterable[Site], address: Address) -> Membership | None:
    """The site that `address` belongs to by its longest prefix, or None.

    Services are those that the hub sees. An address of no site is internal or internet, which
    the document's `internal` decides.
    """
    entries: list[tuple[Prefix, Membership]] = []
    for site in sites:
        for part, prefixes in ((SitePart.NODES, site.prefixes), (SitePart.SERVICES, site.services)):
            entries += [(prefix, Membership(site.name, part, prefix)) for prefix in prefixes]
    match = PrefixTable(entries).match(address)
    return match[1] if match else None


class KeyedPrefix(NamedTuple):
    """A prefix of a document, the key that has it, and whose it is."""

    prefix: Prefix
    key: KeyPath
    owner: str


def prefixes_of(sites: Sequence[Site], above: KeyPath = ()) -> Iterator[KeyedPrefix]:
    """Every prefix of the sites; keys begin at their list, or at `above`."""
    for number, site in enumerate(sites):
        for key, prefixes in (("prefixes", site.prefixes), ("services", site.services)):
            for index, prefix in enumerate(prefixes):
                yield KeyedPrefix(prefix, (*above, number, key, index), site.name)


def overlapping(prefixes: Iterable[KeyedPrefix]) -> Iterator[tuple[KeyedPrefix, KeyedPrefix]]:
    """Pairs that overlap, the one that is later in its document first."""

    def order(keyed: KeyedPrefix) -> list[str]:
        # Names and numbers do not compare; as padded text, item 10 comes after item 9.
        return [str(part).zfill(9) for part in keyed.key]

    for outer, inner in overlaps(prefixes, lambda keyed: keyed.prefix):
        earlier, later = sorted((inner, outer), key=order)
        yield later, earlier


def conflicts(sites: Sequence[Site]) -> Iterator[Diagnostic]:
    """Sites of one name, and prefixes that two sites have (or one twice)."""
    first: dict[str, int] = {}
    for number, site in enumerate(sites):
        if (earlier := first.setdefault(site.name, number)) != number:
            message = f"{site.name} is named already"
            yield error(message, (number, "name"), (earlier, "name"), "name every site once")
    for later, beside in overlapping(prefixes_of(sites)):
        message = f"{later.prefix} of {later.owner} overlaps {beside.prefix} of {beside.owner}"
        yield error(message, later.key, beside.key, "an address is of one site")
