"""Why an address is what it is, and what becomes of a packet to it: which key of which document made it so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple, TypedDict

from netmgr.config import PLATFORM, PRIVATE_USE, RESERVED_USE, SPECIAL_USE, NodeDocument, RangeSource
from netmgr.model import Attachment
from netmgr.prefixes import Address, Prefix, PrefixTable
from netmgr.sites import HUB, Mapping, Nat, Part, Role, ServiceRange, SourceAddress, belonging

KeyPath = tuple[str | int, ...]


class Passage(StrEnum):
    """What becomes of a packet from here (this node's pods, or who sends through this machine) to an address."""

    NATIVE = "native"
    MASQUERADED = "masqueraded"
    DROPPED = "dropped"
    NAT_HOST = "through the NAT host"
    TRANSLATED = "translated here"


class Explanation(TypedDict):
    """The answer, for people and programs.

    `role` is "pod", "range", "hub", "spoke", "service", "internal", "special-use", "protected" or "internet";
    `because` says which prefix of which key decided it, `where` file and line of that key; `pod` is
    the holder and `site` the hub or spoke, or empty. `passage` is what becomes of a packet from
    here to there, `packet` the same as a sentence.
    """

    address: str
    role: str
    prefix: str
    because: str
    where: str
    pod: str
    site: str
    counted: bool
    masqueraded: bool
    passage: str
    packet: str


class Reason(NamedTuple):
    """What a prefix makes of its addresses, and the key of node.yaml that holds the prefix; () where none does."""

    role: str
    key: KeyPath
    text: str = ""

    def __str__(self) -> str:
        return self.text or f"{dotted(self.key)} of node.yaml"


INTERNET = Reason("internet", (), "no prefix of node.yaml holds it")


def explain(document: NodeDocument, address: Address, attachments: Iterable[Attachment]) -> Explanation:
    """Explain one address; `where` is left for whoever has the file."""
    holder = next((a for a in attachments if address in a.addresses), None)
    prefix, reason = reason_of(document, address)
    there = belonging(document.sites, address)
    passage, packet = _packet(document, address)
    return {
        "address": str(address),
        "role": "pod" if holder else reason.role,
        "prefix": str(prefix) if prefix else "",
        "because": str(reason),
        "where": "",
        "pod": str(holder.pod) if holder else "",
        "site": there.site if there else "",
        "counted": _is_internet(document, address),
        "masqueraded": passage is Passage.MASQUERADED,
        "passage": passage,
        "packet": packet,
    }


def reason_of(document: NodeDocument, address: Address) -> tuple[Prefix | None, Reason]:
    """The longest prefix that holds the address, and what it makes of it; of equal ones the more telling key's."""
    match = PrefixTable(_entries(document)).match(address)
    return match or (None, INTERNET)


def _entries(document: NodeDocument) -> Iterator[tuple[Prefix, Reason]]:
    """Every prefix that is not internet, later entries winning over earlier ones of the same prefix."""
    default = "special-use prefixes are never internet"
    yield from ((prefix, Reason("special-use", (), default)) for prefix in (*SPECIAL_USE, *RESERVED_USE))
    is_default = document.internal == PRIVATE_USE
    for place, prefix in enumerate(document.internal):
        text = f"the default of internal[{place}] of node.yaml" if is_default else ""
        yield prefix, Reason("internal", () if is_default else ("internal", place), text)
    is_default = document.protect == PLATFORM
    for place, prefix in enumerate(document.protect if document.wires_pods else ()):
        text = f"the default of protect[{place}] of node.yaml" if is_default else ""
        yield prefix, Reason("protected", () if is_default else ("protect", place), text)
    for number, site in enumerate(document.sites):
        role = "hub" if site.name == HUB else "spoke"
        yield from _listed(role, ("sites", number, "prefixes"), site.prefixes)
        yield from _listed("service", ("sites", number, "services"), site.services)
    for number, item in enumerate(document.nat.services if document.nat else ()):
        yield item.real, Reason("service", ("nat", "services", number, "real"))
        yield item.seen, Reason("service", ("nat", "services", number, "seen"))
    if document.range_source is RangeSource.FILE:
        yield from _listed("range", ("ranges",), document.ranges)
    else:
        told = Reason("range", ("range_source",), f"the machine's metadata (range_source: {document.range_source})")
        yield from ((prefix, told) for prefix in document.ranges)


def _listed(role: str, key: KeyPath, prefixes: Iterable[Prefix]) -> Iterator[tuple[Prefix, Reason]]:
    return ((prefix, Reason(role, (*key, place))) for place, prefix in enumerate(prefixes))


def _is_internet(document: NodeDocument, address: Address) -> bool:
    return not any(prefix.holds(address) for prefix in document.internal_prefixes)


def _packet(document: NodeDocument, address: Address) -> tuple[Passage, str]:
    """What becomes of a packet from here to the address."""
    found = _of_nat(document, document.nat, address) if document.nat is not None else _kept_away(document, address)
    if found is not None:
        return found
    there = belonging(document.sites, address)
    if there is None:
        return _outside(document, address)
    here = document.site or HUB
    others = "; from any other spoke it is dropped here and counted" if document.role is Role.HUB_ROUTER else ""
    if HUB not in (here, there.site) and here != there.site:
        return (
            Passage.DROPPED,
            f"dropped here and counted as from {here} to {there.site}: spokes do not reach each other",
        )
    if there.part is Part.SERVICES and there.site == here:
        text = f"for clients outside {here}, by its NAT host; within it a Service is reached by its own address"
        return Passage.NAT_HOST, text
    if there.part is Part.SERVICES:
        return Passage.NAT_HOST, f"through the NAT host of {there.site}, which translates it{others}"
    return Passage.NATIVE, f"native, the sender's own address is kept{others if there.site != HUB else ''}"


def _kept_away(document: NodeDocument, address: Address) -> tuple[Passage, str] | None:
    """What becomes of a pod's packet to an address that is protected; None for other addresses."""
    if not document.wires_pods or not any(prefix.holds(address) for prefix in document.protect):
        return None
    excepted = f", and of pods in {', '.join(document.protect_except)}" if document.protect_except else ""
    return Passage.DROPPED, f"dropped here and counted, but for DNS{excepted}: protect keeps pods away from it"


def _of_nat(document: NodeDocument, nat: Nat, address: Address) -> tuple[Passage, str] | None:
    """What becomes of a packet from outside the spoke to one of its Services; None for other addresses."""
    for item in nat.services:
        if item.seen.holds(address):
            return _translated(document, nat, item, address)
        if item.real.holds(address):
            seen = _moved(address, item.real, item.seen)
            return Passage.NATIVE, f"passed on as it is; from outside the spoke this Service is {seen}"
    return None


def _translated(document: NodeDocument, nat: Nat, item: ServiceRange, address: Address) -> tuple[Passage, str]:
    real = _moved(address, item.seen, item.real)
    if nat.translation is Mapping.ENDPOINTS:
        target = f"translated here to a ready endpoint of the Service {real}"
    elif item.is_identity:
        target = "passed on as it is"
    else:
        target = f"translated here to {real}, by its place in {item.real}"
    if nat.source is SourceAddress.PRESERVE:
        untouched = item.is_identity and nat.translation is Mapping.NETMAP
        return Passage.NATIVE if untouched else Passage.TRANSLATED, f"{target}; the client's address is kept"
    own = [str(each) for each in nat.addresses or document.node.addresses if each.family is address.family]
    return Passage.TRANSLATED, f"{target}; the client is seen as {' or '.join(own) or 'this machine'}"


def _outside(document: NodeDocument, address: Address) -> tuple[Passage, str]:
    if not _is_internet(document, address):
        return Passage.NATIVE, "native, the sender's own address is kept"
    masquerades = document.masquerade and (document.wires_pods or document.role is Role.HUB_ROUTER)
    if masquerades:
        return Passage.MASQUERADED, f"to the internet as this {'node' if document.role is Role.NODE else 'router'}"
    return Passage.NATIVE, "to the internet with the sender's own address, as far as this machine is concerned"


def _moved(address: Address, source: Prefix, target: Prefix) -> Address:
    return Address(address.family, address.value - source.value + target.value)


def dotted(key: KeyPath) -> str:
    """A key as documents' errors write it, for example `sites[1].prefixes[0]`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
