"""Routes and routing rules, as rtnetlink messages (linux/rtnetlink.h, linux/fib_rules.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from netmgr.kernel import netlink
from netmgr.kernel.netlink import Operation
from netmgr.prefixes import Address, Family, Prefix

RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34

RT_TABLE_MAIN, RT_TABLE_LOCAL, ANY_TABLE = 254, 255, 0
KERNELS_TABLES = (253, 254, 255)
KERNELS_PROTOCOLS = (0, 2)
ANY_KIND, RTN_UNICAST, RTN_LOCAL, RTN_BLACKHOLE = 0, 1, 2, 6
_RT_SCOPE_UNIVERSE, _RT_SCOPE_LINK, _RT_SCOPE_NOWHERE = 0, 253, 255
_RTNH_F_ONLINK = 4
_RTM_F_FIB_MATCH = 0x2000
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_TABLE, _RTA_VIA = 1, 4, 5, 6, 15, 18
LAST_METRIC = 0xFFFFFFFF

# Of source rules: before the main table (32766), behind the local one (0).
RULE_PRIORITY = 30000
_FR_ACT_TO_TBL = 1
_FIB_RULE_INVERT = 2
_FRA_SRC, _FRA_PRIORITY, _FRA_TABLE = 2, 6, 15

_RTMSG = struct.Struct("=BBBBBBBBI")
_RULE = struct.Struct("=BBBBBxxBI")

# Scope and kind of whatever a request to delete means (fib_table_delete).
_ANY = _RT_SCOPE_NOWHERE, ANY_KIND
# With the last metric, so that any other route to the same prefix wins.
_BLACKHOLE = _RT_SCOPE_UNIVERSE, RTN_BLACKHOLE, {_RTA_PRIORITY: LAST_METRIC}


class Route(NamedTuple):
    """What the kernel says of one route; `table`, `scope` and `kind` as rtnetlink(7) numbers them.

    `gateway` is None as well where it is of the other family (`has_foreign_gateway`).
    """

    destination: Prefix
    oif: int
    gateway: Address | None
    protocol: int
    scope: int
    metric: int
    table: int = RT_TABLE_MAIN
    kind: int = RTN_UNICAST
    has_foreign_gateway: bool = False


class SourceRule(NamedTuple):
    """What is sent with these addresses is routed by this table (ip-rule(8))."""

    source: Prefix
    table: int
    priority: int = RULE_PRIORITY

    def __str__(self) -> str:
        return f"from {self.source} lookup {self.table} priority {self.priority}"


def add_route(
    destination: Prefix,
    index: int,
    *,
    protocol: int,
    gateway: Address | None = None,
    metric: int = 0,
) -> Operation:
    """Install or replace a unicast route of the main table."""
    # The kernel looks for an IPv4 gateway among routes of narrower scope (fib_check_nh), so the
    # routes that lead straight onto a link have that of the link.
    scope = _RT_SCOPE_UNIVERSE if gateway else _RT_SCOPE_LINK
    way: netlink.Values = {
        _RTA_OIF: index,
        _RTA_GATEWAY: gateway.packed if gateway else None,
        _RTA_PRIORITY: metric or None,
    }
    via = f" via {gateway}" if gateway else ""
    body = _route(destination, protocol, scope, RTN_UNICAST, way)
    text = f"route add {destination}{via} on link {index}"
    return Operation(text, RTM_NEWROUTE, netlink.REPLACE, body)


def add_table_default(gateway: Address, index: int, *, table: int, protocol: int) -> Operation:
    """Install or replace a table's default route; the gateway counts as on the link (onlink)."""
    # Without RTNH_F_ONLINK the kernel would look in the tables for a way to the gateway, and the
    # link of a further interface has one in none of them.
    everything = Prefix(gateway.family, 0, 0)
    way: netlink.Values = {_RTA_OIF: index, _RTA_GATEWAY: gateway.packed, _RTA_TABLE: table}
    body = _route(everything, protocol, _RT_SCOPE_UNIVERSE, RTN_UNICAST, way, _RTNH_F_ONLINK)
    text = f"route add default via {gateway} on link {index} table {table}"
    return Operation(text, RTM_NEWROUTE, netlink.REPLACE, body)


def add_gateway_route(destination: Prefix, gateway: Address, *, protocol: int) -> Operation:
    """Install a route of the main table via a gateway on any link, unless there is one (EEXIST)."""
    way = {_RTA_GATEWAY: gateway.packed}
    body = _route(destination, protocol, _RT_SCOPE_UNIVERSE, RTN_UNICAST, way)
    return Operation(f"route add {destination} via {gateway}", RTM_NEWROUTE, netlink.ADD, body)


def delete_gateway_route(destination: Prefix, gateway: Address, *, protocol: int) -> Operation:
    """Remove a route of the main table that has this gateway and protocol."""
    body = _route(destination, protocol, *_ANY, {_RTA_GATEWAY: gateway.packed})
    text = f"route delete {destination} via {gateway}"
    return Operation(text, RTM_DELROUTE, netlink.NLM_F_ACK, body)


def delete_route(route: Route) -> Operation:
    """Remove one route of the main table as a dump gave it."""
    way = {_RTA_OIF: route.oif, _RTA_PRIORITY: route.metric}
    # Of its kind alone: a blackhole has no link that would tell it from ours to the same address.
    body = _route(route.destination, route.protocol, _RT_SCOPE_NOWHERE, route.kind, way)
    text = f"route delete {route.destination} on link {route.oif}"
    return Operation(text, RTM_DELROUTE, netlink.NLM_F_ACK, body)


def add_blackhole(destination: Prefix, *, protocol: int) -> Operation:
    """Install a route of the main table that drops packets; any other to the same prefix wins."""
    body = _route(destination, protocol, *_BLACKHOLE)
    return Operation(f"route add blackhole {destination}", RTM_NEWROUTE, netlink.ADD, body)


def delete_blackhole(destination: Prefix, *, protocol: int) -> Operation:
    body = _route(destination, protocol, *_BLACKHOLE)
    return Operation(f"route delete blackhole {destination}", RTM_DELROUTE, netlink.NLM_F_ACK, body)


def _route(
    destination: Prefix, protocol: int, scope: int, kind: int, way: netlink.Values, flags: int = 0
) -> bytes:
    af, length = destination.family.af, destination.length
    # Of the main table, unless an attribute names another: the header's byte is too short for most.
    head = _RTMSG.pack(af, length, 0, 0, RT_TABLE_MAIN, protocol, scope, kind, flags)
    network = destination.network.packed if length else None
    return head + netlink.encoded({_RTA_DST: network, **way})


def read_routes(
    channel: netlink.Reader,
    *,
    table: int = RT_TABLE_MAIN,
    kind: int = RTN_UNICAST,
    protocol: int = 0,
    oif: int = 0,
    families: Iterable[Family] = Family,
) -> list[Route]:
    """Routes of one kind and table, or of `ANY_KIND`, `ANY_TABLE`; of a protocol, link if given."""
    routes: list[Route] = []
    # Attributes, because the header has one byte for the table's number, and nothing for a link.
    chosen = netlink.encoded({_RTA_TABLE: table or None, _RTA_OIF: oif or None})
    for family in families:
        body = _RTMSG.pack(family.af, 0, 0, 0, 0, protocol, 0, kind, 0) + chosen
        text = f"route dump IPv{family.value} table {table}"
        request = Operation(text, RTM_GETROUTE, netlink.NLM_F_DUMP, body)
        # A table that never had a route does not exist.
        routes += channel.list_of(request, route_of)
    # Compared once more, since what the kernel filters a dump by differs from version to version.
    return [
        route
        for route in routes
        if kind in (ANY_KIND, route.kind)
        and table in (ANY_TABLE, route.table)
        and protocol in (0, route.protocol)
        and oif in (0, route.oif)
    ]


def route_of(body: bytes) -> Route | None:
    """Decode an RTM_NEWROUTE body; None for another family's."""
    af, length, _, _, table, protocol, scope, kind, _ = _RTMSG.unpack_from(body)
    family = Family.of_af(af)
    if family is None:
        return None
    attributes = netlink.attributes(body, _RTMSG.size)
    gateway = attributes.get(_RTA_GATEWAY)
    return Route(
        Prefix(family, int.from_bytes(attributes.get(_RTA_DST, b""), "big"), length),
        netlink.u32_of(attributes.get(_RTA_OIF)),
        Address.unpack(gateway) if gateway else None,
        protocol,
        scope,
        netlink.u32_of(attributes.get(_RTA_PRIORITY)),
        netlink.u32_of(attributes[_RTA_TABLE]) if _RTA_TABLE in attributes else table,
        kind,
        _RTA_VIA in attributes,
    )


def look_up(address: Address) -> Operation:
    """Ask which entry of the tables routes packets to an address (`ip route get fibmatch`)."""
    # Without the flag the kernel answers with a route of full length that it makes up for this
    # packet, and the length of the table's own entry is lost.
    head = _RTMSG.pack(address.family.af, address.family.width, *[0] * 6, _RTM_F_FIB_MATCH)
    body = head + netlink.attribute(_RTA_DST, address.packed)
    return Operation(f"route get {address}", RTM_GETROUTE, 0, body)


def add_rule(rule: SourceRule) -> Operation:
    flags = netlink.NLM_F_ACK | netlink.NLM_F_CREATE
    return Operation(f"rule add {rule}", RTM_NEWRULE, flags, _rule(rule))


def delete_rule(rule: SourceRule) -> Operation:
    return Operation(f"rule delete {rule}", RTM_DELRULE, netlink.NLM_F_ACK, _rule(rule))


def _rule(rule: SourceRule) -> bytes:
    source = rule.source
    head = _RULE.pack(source.family.af, 0, source.length, 0, 0, _FR_ACT_TO_TBL, 0)
    return head + netlink.encoded(
        {_FRA_SRC: source.network.packed, _FRA_PRIORITY: rule.priority, _FRA_TABLE: rule.table}
    )


def read_rules(channel: netlink.Reader, families: Iterable[Family] = Family) -> list[SourceRule]:
    """Source rules, ours and others'."""
    rules: list[SourceRule] = []
    for family in families:
        body, text = _RULE.pack(family.af, *[0] * 6), f"rule dump IPv{family.value}"
        rules += channel.dump(Operation(text, RTM_GETRULE, netlink.NLM_F_DUMP, body), rule_of)
    return rules


def rule_of(body: bytes) -> SourceRule | None:
    """Decode an RTM_NEWRULE body; None for a rule that goes by something else than the source."""
    af, _, length, _, _, action, flags = _RULE.unpack_from(body)
    family, attributes = Family.of_af(af), netlink.attributes(body, _RULE.size)
    if family is None or not length or action != _FR_ACT_TO_TBL or flags & _FIB_RULE_INVERT:
        return None
    source = Prefix(family, int.from_bytes(attributes[_FRA_SRC], "big"), length)
    table = netlink.u32_of(attributes.get(_FRA_TABLE))
    return SourceRule(source, table, netlink.u32_of(attributes.get(_FRA_PRIORITY)))
