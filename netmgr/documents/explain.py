"""Why an address is what it is, and what becomes of a packet to it: which key of which document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from netmgr.documents import sites
from netmgr.documents.diagnostics import KeyPath, dotted
from netmgr.documents.node import NodeDocument, RangeSource
from netmgr.documents.special_use import PLATFORM, PRIVATE_USE, RESERVED_USE, SPECIAL_USE
from netmgr.model import Attachment
from netmgr.prefixes import Address, Prefix, PrefixTable


class PacketPath(StrEnum):
    """What becomes of a packet that this node's pods, or others through this machine, send."""

    NATIVE = "native"
    MASQUERADED = "masqueraded"
    DROPPED = "dropped"
    NAT_HOST = "through the NAT host"
    TRANSLATED = "translated here"


class Reason(NamedTuple):
    """What a prefix makes of its addresses, and the key of node.yaml that has it; () for none."""

    role: str
    key: KeyPath
    text: str = ""

    def __str__(self) -> str:
        return self.text or f"{dotted(self.key)} of node.yaml"


INTERNET = Reason("internet", (), "no prefix of node.yaml holds it")


def explain(
    document: NodeDocument, address: Address, attachments: Iterable[Attachment]
) -> dict[str, Any]:
    """Explain one address; the caller, who has the file, fills in `where`: its file and line.

    `because` is which prefix of which key decided the role, and `path` what becomes of a packet
    from here to there; `packet` says the same in words. What there is not is empty.
    """
    holder = next(
        (attachment for attachment in attachments if address in attachment.addresses), None
    )
    limits = [
        f"{dotted(('limits', index))} of node.yaml: {limit}"
        for index, limit in enumerate(document.limits)
        if holder and limit.covers(holder.pod)
    ]
    prefix, reason = reason_of(document, address)
    there = sites.site_of(document.sites, address)
    path, packet = _packet(document, address, there)
    return {
        "address": str(address),
        "role": "pod" if holder else reason.role,
        "prefix": str(prefix) if prefix else "",
        "because": str(reason),
        "where": "",
        "pod": str(holder.pod) if holder else "",
        "limits": limits,
        "site": there.site if there else "",
        "counted": not _holds(document.internal_prefixes, address),
        "masqueraded": path is PacketPath.MASQUERADED,
        "path": path,
        "packet": packet,
    }


def reason_of(document: NodeDocument, address: Address) -> tuple[Prefix | None, Reason]:
    """The longest prefix that holds the address, and what it makes of it."""
    return PrefixTable(_keys(document)).match(address) or (None, INTERNET)


def _keys(document: NodeDocument) -> Iterator[tuple[Prefix, Reason]]:
    # Of equal prefixes the table keeps the last, so the least telling keys come first.
    special = Reason("special-use", (), "special-use prefixes are never internet")
    for prefix in (*SPECIAL_USE, *RESERVED_USE):
        yield prefix, special
    yield from _given_or_default("internal", "internal", document.internal, PRIVATE_USE)
    if document.wires_pods:
        yield from _given_or_default("protected", "protect", document.protect, PLATFORM)
    for number, site in enumerate(document.sites):
        role = "hub" if site.name == sites.HUB else "spoke"
        yield from _listed(role, ("sites", number, "prefixes"), site.prefixes)
        yield from _listed("service", ("sites", number, "services"), site.services)
    for number, item in enumerate(document.nat.services if document.nat else ()):
        yield item.service_cidr, Reason("service", ("nat", "services", number, "service_cidr"))
        yield item.vip_range, Reason("service", ("nat", "services", number, "vip_range"))
    yield from _keys_of_ranges(document)


def _given_or_default(
    role: str, key: str, prefixes: tuple[Prefix, ...], default: tuple[Prefix, ...]
) -> Iterator[tuple[Prefix, Reason]]:
    # Without a key in the file there is no line to show. (A file that repeats the default is
    # answered likewise.)
    if prefixes != default:
        yield from _listed(role, (key,), prefixes)
        return
    for index, prefix in enumerate(prefixes):
        yield prefix, Reason(role, (), f"the default of {key}[{index}] of node.yaml")


def _keys_of_ranges(document: NodeDocument) -> Iterator[tuple[Prefix, Reason]]:
    if document.ranges_file is not None:
        reason = Reason("range", ("ranges_file",), "the Node's ranges")
    elif document.range_source is RangeSource.FILE:
        yield from _listed("range", ("ranges",), document.ranges)
        return
    else:
        text = f"the machine's metadata (range_source: {document.range_source})"
        reason = Reason("range", ("range_source",), text)
    for prefix in document.ranges:
        yield prefix, reason


def _listed(role: str, key: KeyPath, prefixes: Iterable[Prefix]) -> Iterator[tuple[Prefix, Reason]]:
    for index, prefix in enumerate(prefixes):
        yield prefix, Reason(role, (*key, index))


def _holds(prefixes: Iterable[Prefix], address: Address) -> bool:
    return any(prefix.holds(address) for prefix in prefixes)


def _packet(
    document: NodeDocument, address: Address, there: sites.Membership | None
) -> tuple[PacketPath, str]:
    nat = document.nat
    # Before any site: what leads to a NAT host elsewhere is translated here.
    outcome = _through_nat(document, nat, address) if nat else _protected(document, address)
    if outcome is not None:
        return outcome
    if there is None:
        return _outside(document, address)
    here = document.site or sites.HUB
    others = ""
    if document.role is sites.Role.HUB_ROUTER:
        others = "; from any other spoke it is dropped here and counted"
    if sites.HUB not in (here, there.site) and here != there.site:
        text = f"dropped here and counted as from {here} to {there.site}"
        return PacketPath.DROPPED, f"{text}: spokes do not reach each other"
    if there.part is sites.SitePart.SERVICES and there.site == here:
        text = f"for clients outside {here}, by its NAT host"
        return PacketPath.NAT_HOST, f"{text}; within it a Service is reached by its own address"
    if there.part is sites.SitePart.SERVICES:
        text = f"through the NAT host of {there.site}, which translates it{others}"
        return PacketPath.NAT_HOST, text
    # The hub may be reached from every spoke.
    if there.site == sites.HUB:
        others = ""
    return PacketPath.NATIVE, f"native, the sender's own address is kept{others}"


def _protected(document: NodeDocument, address: Address) -> tuple[PacketPath, str] | None:
    """What becomes of a pod's packet to a protected address; None for other addresses."""
    if not document.wires_pods or not _holds(document.protect, address):
        return None
    excepted = ""
    if document.protect_except:
        excepted = f", and of pods in {', '.join(document.protect_except)}"
    text = f"dropped here and counted, but for DNS{excepted}: protect keeps pods away from it"
    return PacketPath.DROPPED, text


def _through_nat(
    document: NodeDocument, nat: sites.Nat, address: Address
) -> tuple[PacketPath, str] | None:
    """What becomes of a packet from outside the spoke to one of its Services; None for others."""
    for item in nat.services:
        if item.vip_range.holds(address):
            return _translated(document, nat, item, address)
        if item.service_cidr.holds(address):
            vip = item.service_cidr.counterpart(address, item.vip_range)
            text = f"passed on as it is; from outside the spoke this Service is {vip}"
            return PacketPath.NATIVE, text
    return None


def _translated(
    document: NodeDocument, nat: sites.Nat, item: sites.ServiceRange, address: Address
) -> tuple[PacketPath, str]:
    cluster_ip = item.vip_range.counterpart(address, item.service_cidr)
    if item.is_identity:
        target = "passed on as it is"
    else:
        target = f"translated here to {cluster_ip}, by its place in {item.service_cidr}"
    if nat.source is sites.SourceAddress.PRESERVE:
        path = PacketPath.NATIVE if item.is_identity else PacketPath.TRANSLATED
        return path, f"{target}; the client's address is kept"
    addresses = nat.addresses or document.node.addresses
    own = [str(source) for source in addresses if source.family is address.family]
    sources = " or ".join(own) or "this machine"
    return PacketPath.TRANSLATED, f"{target}; the client appears as {sources}"


def _outside(document: NodeDocument, address: Address) -> tuple[PacketPath, str]:
    is_internet = not _holds(document.internal_prefixes, address)
    masquerades = document.masquerade and (
        document.wires_pods or document.role is sites.Role.HUB_ROUTER
    )
    if masquerades and not _holds(document.native_prefixes, address):
        machine = "node" if document.role is sites.Role.NODE else "router"
        if is_internet:
            return PacketPath.MASQUERADED, f"to the internet as this {machine}"
        text = f"leaves as this {machine}: native of node.yaml does not hold it"
        return PacketPath.MASQUERADED, text
    if not is_internet:
        return PacketPath.NATIVE, "native, the sender's own address is kept"
    text = "to the internet with the sender's own address, as far as this machine is concerned"
    return PacketPath.NATIVE, text
