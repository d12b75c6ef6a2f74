"""Families about what the rules drop and translate: from spoke to spoke, for other reasons, by a NAT host."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric as Family

from exporter import crossing_catalog
from exporter.families import amounts, family
from netmgr.snapshot import NatState, Snapshot

NO_NAT: NatState = {
    "translation": "",
    "source": "",
    "ranges": [],
    "ports": [],
    "services": 0,
    "endpoints": 0,
    "refused": 0,
}


def families(snapshot: Snapshot) -> Iterable[Family]:
    """All of them; those of a NAT host have samples on a NAT host alone."""
    dropped = [((item["origin"], item["destination"]), item) for item in snapshot.get("isolation", [])]
    yield from amounts(crossing_catalog.ISOLATION_BYTES, crossing_catalog.ISOLATION_PACKETS, dropped)
    refused = [((item["reason"],), item) for item in snapshot.get("drops", [])]
    yield from amounts(crossing_catalog.DROPPED_BYTES, crossing_catalog.DROPPED_PACKETS, refused)
    protected = [((item["namespace"],), item) for item in snapshot.get("protected", [])]
    yield from amounts(crossing_catalog.PROTECTED_BYTES, crossing_catalog.PROTECTED_PACKETS, protected)
    nat = snapshot.get("nat", NO_NAT)
    ranges = [((item["seen"], item["real"]), item) for item in nat["ranges"]]
    yield from amounts(crossing_catalog.NAT_BYTES, crossing_catalog.NAT_PACKETS, ranges)
    ports = [((item["family"], item["protocol"]), item) for item in nat["ports"]]
    yield family(crossing_catalog.NAT_BUDGET, [(labels, item["budget"]) for labels, item in ports])
    yield family(crossing_catalog.NAT_USED, [(labels, item["used"]) for labels, item in ports])
    shares = [(labels, item["used"] / item["budget"]) for labels, item in ports if item["budget"]]
    yield family(crossing_catalog.NAT_SHARE, shares)
    here = ["nat"] if "nat" in snapshot else []
    yield family(crossing_catalog.NAT_SERVICES, [((), nat["services"]) for _ in here])
    yield family(crossing_catalog.NAT_ENDPOINTS, [((), nat["endpoints"]) for _ in here])
    yield family(crossing_catalog.NAT_REFUSED, [((), nat["refused"]) for _ in here])
