"""What differs on the host's side of pods' links, and what is foreign there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from netmgr.dataplane import desired, sandbox
from netmgr.dataplane.drift import Drift, Foreign, Host, described
from netmgr.kernel.links import Link
from netmgr.kernel.netlink import Reader, attribute, nested
from netmgr.kernel.routes import LAST_METRIC, RTN_BLACKHOLE, RTN_UNICAST, Route
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address, Family, Prefix
from netmgr.suspects import Suspects

OURS, KERNELS, UNIVERSE, LINK_SCOPE = 110, 2, 0, 253
UPLINK = 2
RTN_THROW = 9


def attachment(name: str, *addresses: str) -> Attachment:
    key = AttachmentKey(name, "eth0")
    parsed = tuple(map(Address.parse, addresses))
    return Attachment(key, PodRef("ns", name), parsed, desired.host_link_name(key), "")


WEB, DB = attachment("web", "10.1.0.5", "fd00:1::5"), attachment("db", "10.1.0.6")
INDEX = {WEB: 7, DB: 8}


def link(
    of: Attachment,
    *,
    up: bool = True,
    arp: bool = False,
    alias: str | None = None,
    group: int = 0x6E6E,
) -> Link:
    # Settings of IPv4, the first forwarding and the fourth accept_redirects; IPv6 is off.
    settings = bytes(12) + (1).to_bytes(4, "little") * arp
    return Link(
        INDEX[of],
        of.host_link,
        up,
        desired.HOST_MAC,
        1500,
        desired.identity_text(of.key, of.pod) if alias is None else alias,
        group,
        has_arp=arp,
        af_spec=nested(Family.V4.af, attribute(1, settings)) if arp else b"",
    )


def route(
    to: str,
    oif: int,
    protocol: int = OURS,
    via: str = "",
    metric: int | None = None,
    kind: int = RTN_UNICAST,
) -> Route:
    destination = Prefix.parse(to)
    if metric is None:
        metric = 0 if destination.family is Family.V4 else 1
    gateway = Address.parse(via) if via else None
    return Route(destination, oif, gateway, protocol, LINK_SCOPE, metric, kind=kind)


WANTED = [route("10.1.0.5", 7), route("fd00:1::5", 7), route("10.1.0.6", 8)]
LINKS = [link(WEB), link(DB)]


def host(
    links: Sequence[Link] = LINKS,
    routes: Sequence[Route] = WANTED,
    addresses: Sequence[tuple[Prefix, int]] = (),
) -> Host:
    return Host({each.name: each for each in links}, routes, addresses)


def drift(broken: Sequence[Attachment] = (), *foreign: Foreign) -> Drift:
    """What is amiss; foreign addresses come before foreign routes."""
    addresses = tuple(each for each in foreign if not isinstance(each, Route))
    routes = foreign[len(addresses) :]
    return Drift(Suspects(tuple(broken)), Suspects(addresses), Suspects(routes))


def test_a_host_as_it_should_be_has_no_drift() -> None:
    assert host().drift([WEB, DB]) == drift()
    assert (host().faults(WEB), host().faults(DB)) == ([], [])


def test_every_fault_of_a_link_is_named() -> None:
    name = WEB.host_link
    assert host(links=[]).faults(WEB) == [f"host link {name} is missing"]
    astray = [route("10.1.0.5", 8), route("fd00:1::5", 7, KERNELS)]
    lacking = "arp off", "ipv4 forwarding=1", "ipv4 accept_redirects=0"
    lost = "is down", "has lost its alias", "has lost its group"
    of_link = *lost, *(f"lacks {one}" for one in lacking)
    assert host([link(WEB, up=False, arp=True, alias="", group=0)], astray).faults(WEB) == [
        *(f"host link {name} {fault}" for fault in of_link),
        *(f"host route to {address} is missing" for address in WEB.addresses),
    ]


def test_a_pod_whose_link_has_a_fault_is_broken_and_no_other() -> None:
    assert host([link(WEB, up=False), link(DB)]).drift([WEB, DB]) == drift([WEB])
    assert host(routes=WANTED[:2]).drift([WEB, DB]) == drift([DB])


def test_a_pod_whose_link_is_gone_is_not_repaired_here_and_its_routes_are_foreign() -> None:
    assert host([link(DB)]).drift([WEB, DB]) == drift([], *WANTED[:2])


@pytest.mark.parametrize(
    "other",
    [
        # To a pod's address: by another link, of another protocol, by a gateway, of another metric.
        *(route("10.1.0.5", 8), route("10.1.0.5", UPLINK, KERNELS), route("10.1.0.5", 7, KERNELS)),
        *(route("10.1.0.5", 7, via="10.1.0.6"), route("10.1.0.5", 7, metric=5)),
        route("fd00:1::5", 7, metric=0),
        # Of another kind, even with our protocol.
        *(route("10.1.0.5", 0, KERNELS, kind=kind) for kind in range(RTN_BLACKHOLE, RTN_THROW + 1)),
        *(route("10.1.0.5", 0, kind=RTN_BLACKHOLE), route("fd00:1::5", 1, kind=RTN_BLACKHOLE)),
        # Ours, to an address without a pod.
        *(route("10.1.0.9", 7), route("10.1.0.9", UPLINK)),
        # Into a pod's link, wherever to.
        *(route("10.2.0.0/16", 7, KERNELS), route("0.0.0.0/0", 8, KERNELS, via="10.1.0.6")),
        *(route("203.0.113.1", 8, KERNELS), route("fd00:9::/64", 7, KERNELS)),
    ],
    ids=str,
)
def test_a_route_that_takes_a_pods_packets_or_leads_into_its_link_is_foreign(other: Route) -> None:
    assert host(routes=[other, *WANTED]).drift([WEB, DB]) == drift([], other)


@pytest.mark.parametrize(
    "other",
    [
        *(route("10.2.0.0/16", UPLINK, KERNELS), route("203.0.113.1", UPLINK, KERNELS)),
        route("0.0.0.0/0", UPLINK, KERNELS, via="10.0.0.1"),
        # Blackholes and node routes of ours are shorter, or have a gateway.
        *(route("10.1.0.0/24", UPLINK), route("203.0.113.1", UPLINK, via="10.0.0.1")),
        # A blackhole of a range that is a single address, of a pod or none.
        *(route(to, 0, metric=LAST_METRIC, kind=RTN_BLACKHOLE) for to in ("10.1.0.5", "10.1.0.9")),
        # Link-local.
        *(route("fe80::/64", 7, KERNELS), route("fe80::1", 8, KERNELS)),
    ],
    ids=str,
)
def test_other_routes_are_left_alone(other: Route) -> None:
    assert host(routes=[other, *WANTED]).drift([WEB, DB]) == drift()


def test_an_address_on_a_pods_link_is_foreign_unless_it_is_link_local() -> None:
    held = [
        (Prefix.parse("169.254.1.1"), 7),
        (Prefix.parse("10.9.0.1"), 8),
        (Prefix.parse("10.0.0.4"), UPLINK),
        (Prefix.parse("fe80::1"), 7),
    ]
    assert host(addresses=held).drift([WEB, DB]) == drift([], *held[:2])
    # A link that has lost its alias may be anybody's.
    lost = host([link(WEB, alias=""), link(DB)], addresses=held)
    assert lost.drift([DB]) == drift([], held[1], *WANTED[:2])


def test_what_was_removed_is_described_by_where_it_was() -> None:
    assert described(WANTED[0]) == "route to 10.1.0.5/32 on link 7 belonged to no pod"
    address = "address 10.9.0.1/32 on link 8 of a pod belonged to nobody"
    assert described((Prefix.parse("10.9.0.1"), 8)) == address


def test_a_pods_end_that_goes_while_it_is_looked_at_is_missing() -> None:
    with Reader() as here:
        differences = sandbox.faults(here, attachment("a", "10.0.0.1"), index=2**31 - 1)
    assert differences == ["interface eth0 is missing in the sandbox"]
