"""Compares what was counted with what passed: forward rules, the links of pods, and uplinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import sub
from typing import NamedTuple

from netmgr.api.snapshot import AuditRatio, LinkAudit
from netmgr.kernel.links import Carried
from netmgr.ledger.tables import NOTHING, Amount
from netmgr.ledger.totals import Totals
from netmgr.model import PROTECTED, Attachment, Counter, Traffic

ETHERNET_HEADER = 14
"""Bytes before the IP header on a veth pair: two addresses and the type (IEEE 802.3)."""

FORWARD, LINKS, UPLINKS = "forward", "links", "uplinks"


class Passed(NamedTuple):
    """Bytes that uplinks carried, their headers taken off, and those of the internet counted.

    `segments` are the headers that pods' wire bytes have beside the bytes; 0 where these have a
    link layer, too, which cannot be told from headers.
    """

    carried: int
    counted: int
    packets: int = 0
    counted_packets: int = 0
    segments: int = 0

    def since(self, former: Passed) -> Passed:
        return Passed(*map(sub, self, former))


def through(uplinks: Iterable[Carried], totals: Totals, *, link_layer: int) -> dict[str, Passed]:
    """What passed these uplinks so far, by traffic."""
    sizes, packets = {"in": 0, "out": 0}, {"in": 0, "out": 0}
    for uplink in uplinks:
        sizes["in"] += uplink.received - ETHERNET_HEADER * uplink.received_packets
        sizes["out"] += uplink.sent - ETHERNET_HEADER * uplink.sent_packets
        packets["in"] += uplink.received_packets
        packets["out"] += uplink.sent_packets
    of_pods = {str(total.traffic): total.counted for total in totals.forwarded}
    passed: dict[str, Passed] = {}
    for total in totals.node:
        traffic, way = total["traffic"], _direction(total["traffic"])
        counts = total["bytes"], packets[way], total["packets"]
        wire = of_pods.get(traffic, NOTHING)
        segments = 0 if link_layer else wire.wire - wire.measured
        passed[traffic] = Passed(sizes[way], *counts, segments)
    return passed


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All comparisons, as of one reading. `uplinks` is what passed them since the first one."""

    totals: Totals
    links: list[LinkAudit]
    uplinks: Mapping[str, Passed] = field(default_factory=dict)

    def through_uplinks(self) -> list[LinkAudit]:
        audits: list[LinkAudit] = []
        for traffic, passed in sorted(self.uplinks.items()):
            counted = {Traffic(traffic): Amount(passed.counted, passed.counted_packets)}
            carried = passed.carried + ETHERNET_HEADER * passed.packets
            way = _direction(traffic)
            audits.append(_audit([], UPLINKS, way, counted, carried, passed.packets))
            audits[-1]["segments"] = passed.segments
        return audits

    def ratios(self) -> list[AuditRatio]:
        """All comparisons as figures to export: 1 if all was counted.

        Without traffic it is 1 for what was forwarded and for uplinks, and 0 for links.
        """
        ratios: list[AuditRatio] = []
        for total in self.totals.forwarded:
            missed = total.missed.bytes + self.totals.lost(total.traffic)
            ratio = max(0.0, 1 - missed / total.passed.bytes) if total.passed.bytes else 1.0
            ratios.append({"against": FORWARD, "traffic": total.traffic, "ratio": ratio})
        carried = {"in": 0, "out": 0}
        counted: dict[str, int] = {}
        for link in self.links:
            carried[link["direction"]] += link["carried"] - link["headers"]
            for traffic, size in link["counted"].items():
                counted[traffic] = counted.get(traffic, 0) + size
        for traffic, size in sorted(counted.items()):
            link_bytes = carried[_direction(traffic)]
            ratio = size / link_bytes if link_bytes else 0.0
            ratios.append({"against": LINKS, "traffic": traffic, "ratio": ratio})
        for traffic, passed in sorted(self.uplinks.items()):
            ratio = passed.counted / passed.carried if passed.carried else 1.0
            ratios.append({"against": UPLINKS, "traffic": traffic, "ratio": ratio})
        return ratios


def _direction(traffic: str) -> str:
    """`in` or `out`, which every traffic's name ends with."""
    return traffic.rpartition("-")[2]


def link_audits(
    attachments: Iterable[Attachment],
    readings: Mapping[Counter, Amount],
    links: Mapping[str, Carried],
) -> list[LinkAudit]:
    """Compare live counters with the links of their pods; a link that is not there is left out.

    `readings` must have been taken before `links`, so that what passes meanwhile can only be
    missing from the first.
    """
    pods: dict[str, set[str]] = {}
    link_of: dict[object, str] = {}
    for attachment in attachments:
        link = attachment.host_link
        if link in links:
            pods.setdefault(link, set()).add(str(attachment.pod))
            link_of.update(dict.fromkeys(attachment.addresses, link))
    counted: dict[str, dict[Traffic, Amount]] = {link: {} for link in pods}
    for counter, amount in readings.items():
        # What was dropped as protected did not pass.
        if counter.subject in link_of and counter.traffic != PROTECTED:
            sums = counted[link_of[counter.subject]]
            sums[counter.traffic] = sums.get(counter.traffic, NOTHING) + amount
    audits: list[LinkAudit] = []
    for link, names in sorted(pods.items()):
        carried = links[link]
        # What the host's end receives is what the pods sent.
        for direction, size, packets in (
            ("in", carried.sent, carried.sent_packets),
            ("out", carried.received, carried.received_packets),
        ):
            audits.append(_audit(sorted(names), link, direction, counted[link], size, packets))
    return audits


def _audit(
    pods: list[str],
    link: str,
    direction: str,
    counted: Mapping[Traffic, Amount],
    carried: int,
    packets: int,
) -> LinkAudit:
    """One direction of one link, which several pods may share."""
    mine = {
        str(traffic): amount
        for traffic, amount in sorted(counted.items())
        if _direction(traffic) == direction
    }
    counted_bytes = sum(amount.bytes for amount in mine.values())
    headers = ETHERNET_HEADER * packets
    return {
        "pods": pods,
        "link": link,
        "direction": direction,
        "carried": carried,
        "packets": packets,
        "headers": headers,
        "counted": {traffic: amount.bytes for traffic, amount in mine.items()},
        "counted_packets": sum(amount.packets for amount in mine.values()),
        # Internal traffic, ARP, drops. Below 0, what was counted was dropped later.
        "rest": carried - headers - counted_bytes,
    }
