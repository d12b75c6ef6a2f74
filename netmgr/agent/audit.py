"""The comparison of what was counted with what passed: pods against forward rules, pods against their links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from netmgr.dataplane.link_counters import Carried
from netmgr.ledger.account import NOTHING, Amount
from netmgr.ledger.audit import Audit
from netmgr.ledger.totals import Totals
from netmgr.model import PROTECTED, Attachment, Counter, Traffic
from netmgr.snapshot import AuditRatio

ETHERNET_HEADER = 14
"""Bytes before the IP header on a veth pair: two addresses and the type (IEEE 802.3); no tag, no checksum."""

FORWARD, LINKS = "forward", "links"


@dataclass(frozen=True, slots=True)
class LinkCheck:
    """One direction of one link: what it carried, and what of that was counted for its pods.

    Attributes:
        pods: whose link it is, as namespace/name; several where they share one.
        direction: `out` is from the pods, `in` to them.
        counted: bytes by traffic, as the pods' counters stand.
        counted_packets: packets of all traffic.
        carried: bytes, Ethernet headers included.
        packets: packets that the link carried.
    """

    pods: tuple[str, ...]
    link: str
    direction: str
    counted: Mapping[Traffic, int]
    counted_packets: int
    carried: int
    packets: int

    @property
    def headers(self) -> int:
        """Bytes of Ethernet headers in `carried`."""
        return ETHERNET_HEADER * self.packets

    @property
    def rest(self) -> int:
        """Bytes that were not counted: internal traffic, ARP, drops. Below 0, what was counted was dropped later."""
        return self.carried - self.headers - sum(self.counted.values())


@dataclass(frozen=True, slots=True)
class Report:
    """Both comparisons, as of one reading."""

    totals: Totals
    links: tuple[LinkCheck, ...]

    def ratios(self) -> list[AuditRatio]:
        """Both comparisons as figures to export; without traffic everything is as it should be: 1."""
        found: list[AuditRatio] = [
            {"against": FORWARD, "traffic": one.traffic, "ratio": _ratio(one.missed.bytes, one.passed.bytes)}
            for one in self.totals.audit(Audit.FORWARD)
        ]
        carried, counted = _sums(self.links)
        for traffic, size in sorted(counted.items()):
            whole = carried[direction_of(traffic)]
            found.append({"against": LINKS, "traffic": traffic, "ratio": size / whole if whole else 0.0})
        return found


def direction_of(traffic: str) -> str:
    """`in` or `out`, which every traffic's name ends with."""
    return traffic.rpartition("-")[2]


def _ratio(missed: int, whole: int) -> float:
    return 1 - missed / whole if whole else 1.0


def _sums(links: Iterable[LinkCheck]) -> tuple[dict[str, int], dict[Traffic, int]]:
    carried: dict[str, int] = {}
    counted: dict[Traffic, int] = {}
    for check in links:
        carried[check.direction] = carried.get(check.direction, 0) + check.carried - check.headers
        for traffic, size in check.counted.items():
            counted[traffic] = counted.get(traffic, 0) + size
    return carried, counted


def link_checks(
    attachments: Iterable[Attachment], readings: Mapping[Counter, Amount], links: Mapping[str, Carried]
) -> tuple[LinkCheck, ...]:
    """Hold live counters against the links of their pods; a link that is not there is left out.

    `readings` must have been taken before `links`, so that what passes meanwhile can only be missing from the first.
    """
    by_link: dict[str, list[Attachment]] = {}
    for attachment in attachments:
        if attachment.host_link in links:
            by_link.setdefault(attachment.host_link, []).append(attachment)
    by_address: dict[object, list[tuple[Counter, Amount]]] = {}
    for counter, amount in readings.items():
        if counter.traffic == PROTECTED:
            continue  # was dropped, and so is of the rest
        by_address.setdefault(counter.subject, []).append((counter, amount))
    return tuple(
        check for link, sharing in sorted(by_link.items()) for check in _checks(link, sharing, by_address, links[link])
    )


def _checks(
    link: str,
    sharing: Iterable[Attachment],
    by_address: Mapping[object, list[tuple[Counter, Amount]]],
    carried: Carried,
) -> Iterator[LinkCheck]:
    pods = tuple(sorted({str(attachment.pod) for attachment in sharing}))
    addresses = {address for attachment in sharing for address in attachment.addresses}
    counted: dict[Traffic, Amount] = {}
    for counter, amount in (entry for address in addresses for entry in by_address.get(address, ())):
        counted[counter.traffic] = counted.get(counter.traffic, NOTHING) + amount
    # What the host's end receives is what the pod sent.
    for direction, size, packets in (
        ("in", carried.sent, carried.sent_packets),
        ("out", carried.received, carried.received_packets),
    ):
        mine = {traffic: amount for traffic, amount in counted.items() if direction_of(traffic) == direction}
        yield LinkCheck(
            pods,
            link,
            direction,
            {traffic: amount.bytes for traffic, amount in mine.items()},
            sum(amount.packets for amount in mine.values()),
            size,
            packets,
        )
