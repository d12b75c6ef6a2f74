"""Whether what a document says of a machine's role, its site, its translation and its routes fits together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from netmgr.fields import Disagreement, KeyPath
from netmgr.prefixes import Address, Prefix
from netmgr.sites import HUB, Nat, Role, Site, StaticRoute

Claim = tuple[Prefix, KeyPath, str]
"""A prefix, where it stands, and whose it is."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What of a node document has to agree; the names are those of its keys, `addresses` the node's own."""

    role: Role
    addresses: tuple[Address, ...]
    site: str | None
    sites: tuple[Site, ...]
    nat: Nat | None
    routes: tuple[StaticRoute, ...]
    ranges: tuple[Prefix, ...]


def sites_apart(sites: Sequence[Site]) -> Iterator[Disagreement]:
    """Sites of one name, and prefixes that two sites claim (or one twice); places as seen from the list."""
    for number, site in enumerate(sites):
        for earlier, other in enumerate(sites[:number]):
            if site.name == other.name:
                yield Disagreement(
                    f"{site.name} is named already", (number, "name"), (earlier, "name"), "name every site once"
                )
    for (prefix, at, whose), (other_prefix, beside, holder) in overlapping(_claims(sites)):
        yield Disagreement(
            f"{prefix} of {whose} overlaps {other_prefix} of {holder}", at, beside, "an address is of one site"
        )


def overlapping(claims: Iterable[Claim]) -> Iterator[tuple[Claim, Claim]]:
    """Pairs of claims that overlap, the one that stands later in its document first; by sort and sweep."""
    open_claims: list[Claim] = []
    for claim in sorted(claims, key=lambda claim: claim[0]):
        while open_claims and not open_claims[-1][0].overlaps(claim[0]):
            open_claims.pop()
        if open_claims:
            pair = sorted((claim, open_claims[-1]), key=lambda each: [str(part).zfill(9) for part in each[1]])
            yield pair[1], pair[0]
        open_claims.append(claim)


def disagreements(machine: Machine) -> Iterator[Disagreement]:
    """Everything of a machine's document that contradicts its role or its sites; places as seen from the document."""
    yield from _role_and_site(machine)
    own = next((site for site in machine.sites if site.name == machine.site), None)
    yield from _own_parts(machine, own)
    yield from _translation(machine, own)
    yield from _routes(machine)


def _role_and_site(machine: Machine) -> Iterator[Disagreement]:
    role, site, names = machine.role, machine.site, [site.name for site in machine.sites]
    if site is not None and site not in names:
        known = f"there are {', '.join(names)}" if names else "there are none"
        yield Disagreement(f"{site} is none of sites", ("site",), ("sites",), known)
    if site is None and names and role is not Role.HUB_ROUTER:
        yield Disagreement("site is missing", ("sites",), remedy="say which of the sites this machine belongs to")
    if role is Role.HUB_ROUTER and site not in (None, HUB):
        yield Disagreement(f"{site} has no hub-router", ("site",), ("role",), f"a hub-router is of the site {HUB}")
    if role is Role.NAT_HOST and site == HUB:
        yield Disagreement("the hub has no nat-host", ("site",), ("role",), "name the spoke whose Services it opens")
    if role is Role.NAT_HOST and machine.nat is None:
        yield Disagreement("a nat-host needs nat", ("role",), remedy="say what it translates")
    if role is not Role.NAT_HOST and machine.nat is not None:
        yield Disagreement(f"a {role} translates no Services", ("nat",), ("role",), "remove it, or say role: nat-host")
    if machine.ranges and role is not Role.NODE:
        yield Disagreement(f"a {role} runs no pods", ("ranges",), ("role",), "remove it, or say role: node")


def _own_parts(machine: Machine, own: Site | None) -> Iterator[Disagreement]:
    """Pods' addresses must be of the own site, or nothing would keep them apart; the machine's of no other spoke."""
    if own is None:
        return
    for number, block in enumerate(machine.ranges):
        if not any(prefix.covers(block) for prefix in own.prefixes):
            where = ("sites", machine.sites.index(own), "prefixes")
            message = f"{block} lies in no prefix of {own.name}"
            yield Disagreement(message, ("ranges", number), where, "correct the range, the prefixes or site")
    if machine.role is Role.HUB_ROUTER:
        return
    for number, address in enumerate(machine.addresses):
        for prefix, beside, holder in _foreign(machine):
            if prefix.holds(address):
                message = f"{address} lies in {prefix} of {holder}, not in {own.name}"
                yield Disagreement(message, ("node", "addresses", number), beside, "correct the address or site")


def _translation(machine: Machine, own: Site | None) -> Iterator[Disagreement]:
    for number, service in enumerate(machine.nat.services if machine.nat and own else ()):
        here = ("nat", "services", number)
        if own and not any(prefix.covers(service.seen) for prefix in own.services):
            where = ("sites", machine.sites.index(own), "services")
            message = f"{service.seen} lies in no Service range that the hub sees of {own.name}"
            yield Disagreement(message, (*here, "seen"), where, "correct one of them")
        for prefix, beside, holder in _claims(machine.sites, ("sites",)):
            if prefix.overlaps(service.real) and (service.real != service.seen or not prefix.covers(service.seen)):
                message = f"{service.real} overlaps {prefix} of {holder}"
                yield Disagreement(message, (*here, "real"), beside, "a spoke's inner range is nobody's outer one")


def _routes(machine: Machine) -> Iterator[Disagreement]:
    seen: dict[Prefix, int] = {}
    for number, route in enumerate(machine.routes):
        if route.to in seen:
            message = f"{route.to} has a route already"
            yield Disagreement(message, ("routes", number, "to"), ("routes", seen[route.to], "to"), "keep one")
        seen[route.to] = number
        for prefix, beside, holder in _foreign(machine) if machine.role is not Role.HUB_ROUTER else ():
            for key, claimed in (("to", route.to), ("via", route.via.prefix)):
                if prefix.overlaps(claimed):
                    shown = claimed if key == "to" else route.via
                    message = f"{shown} leads to {prefix} of {holder}, another spoke"
                    yield Disagreement(message, ("routes", number, key), beside, "spokes do not reach each other")


def _foreign(machine: Machine) -> Iterator[Claim]:
    """What belongs to spokes that are not the machine's."""
    return (claim for claim in _claims(machine.sites, ("sites",)) if claim[2] not in (HUB, machine.site))


def _claims(sites: Sequence[Site], above: KeyPath = ()) -> Iterator[Claim]:
    for number, site in enumerate(sites):
        for key, prefixes in (("prefixes", site.prefixes), ("services", site.services)):
            for place, prefix in enumerate(prefixes):
                yield prefix, (*above, number, key, place), site.name
