"""Messages for source routing: what is sent with an interface's address leaves by that interface (ip-rule(8)).

A sandbox with several interfaces has one default route that is preferred. An answer from another
interface's address would take it, come to the node by the wrong link, and be dropped there as forged.
So each further interface has a table of its own, and a rule for each of its addresses that leads there.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from netmgr.dataplane.rtnetlink import (
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_REPLACE,
    RT_SCOPE_UNIVERSE,
    RTM_GETROUTE,
    RTM_NEWROUTE,
    RTN_UNICAST,
    Operation,
    attribute,
    attributes,
)
from netmgr.prefixes import Address, Family

RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34

PRIORITY = 30000
"""Of the rules: before the main table (32766), behind the local one (0)."""

_FR_ACT_TO_TBL = 1
_FRA_SRC, _FRA_PRIORITY, _FRA_TABLE = 2, 6, 15
_RTA_OIF, _RTA_GATEWAY, _RTA_TABLE = 4, 5, 15
_RTNH_F_ONLINK = 4
_AF = {Family.V4: 2, Family.V6: 10}
_FAMILY = {2: Family.V4, 10: Family.V6}

_RTMSG = struct.Struct("=BBBBBBBBI")
_RULE = struct.Struct("=BBBBBxxBI")


class SourceRule(NamedTuple):
    """What is sent with this address is routed by this table."""

    source: Address
    table: int

    def __str__(self) -> str:
        return f"from {self.source} lookup {self.table}"


class TableRoute(NamedTuple):
    """A route of a table that is not the main one: where it goes, by which link and whom."""

    length: int
    oif: int
    gateway: Address | None


def add_rule(rule: SourceRule) -> Operation:
    """Route what is sent with an address by a table."""
    return Operation(f"rule add {rule}", RTM_NEWRULE, _CREATED, _rule(rule))


def delete_rule(rule: SourceRule) -> Operation:
    """Remove such a rule."""
    return Operation(f"rule delete {rule}", RTM_DELRULE, NLM_F_ACK, _rule(rule))


_CREATED = NLM_F_ACK | NLM_F_CREATE


def _rule(rule: SourceRule) -> bytes:
    family = rule.source.family
    body = _RULE.pack(_AF[family], 0, family.width, 0, 0, _FR_ACT_TO_TBL, 0) + attribute(_FRA_SRC, rule.source.packed)
    return body + _number(_FRA_PRIORITY, PRIORITY) + _number(_FRA_TABLE, rule.table)


def dump_rules(family: Family) -> Operation:
    """Ask for the rules of a family."""
    return Operation(f"rule dump IPv{family.value}", RTM_GETRULE, NLM_F_DUMP, _RULE.pack(_AF[family], 0, 0, 0, 0, 0, 0))


def rule_of(body: bytes) -> SourceRule | None:
    """Decode an RTM_NEWRULE body; None for what is no rule of ours."""
    af, _, source_length, _, _, action, _ = _RULE.unpack_from(body)
    found = attributes(body, _RULE.size)
    family = _FAMILY.get(af)
    if family is None or source_length != family.width or action != _FR_ACT_TO_TBL:
        return None
    if _u32(found.get(_FRA_PRIORITY, b"")) != PRIORITY:
        return None
    return SourceRule(Address(family, int.from_bytes(found[_FRA_SRC], "big")), _u32(found.get(_FRA_TABLE, b"")))


def add_default_route(gateway: Address, index: int, *, table: int, protocol: int) -> Operation:
    """Install or replace a table's default route; the gateway is on the link, whatever other routes say."""
    family = _AF[gateway.family]
    body = _RTMSG.pack(family, 0, 0, 0, 0, protocol, RT_SCOPE_UNIVERSE, RTN_UNICAST, _RTNH_F_ONLINK)
    body += _number(_RTA_OIF, index) + attribute(_RTA_GATEWAY, gateway.packed) + _number(_RTA_TABLE, table)
    text = f"route add default via {gateway} on link {index} table {table}"
    return Operation(text, RTM_NEWROUTE, _CREATED | NLM_F_REPLACE, body)


def dump_table(family: Family, table: int) -> Operation:
    """Ask for the routes of one table; the kernel says ENOENT for a table without any."""
    body = _RTMSG.pack(_AF[family], 0, 0, 0, 0, 0, 0, 0, 0) + _number(_RTA_TABLE, table)
    return Operation(f"route dump IPv{family.value} table {table}", RTM_GETROUTE, NLM_F_DUMP, body)


def table_route_of(body: bytes) -> TableRoute | None:
    """Decode an RTM_NEWROUTE body; None for what leads nowhere."""
    af, length, _, _, _, _, _, kind, _ = _RTMSG.unpack_from(body)
    if af not in _FAMILY or kind != RTN_UNICAST:
        return None
    found = attributes(body, _RTMSG.size)
    gateway = found.get(_RTA_GATEWAY)
    via = Address(_FAMILY[af], int.from_bytes(gateway, "big")) if gateway else None
    return TableRoute(length, _u32(found.get(_RTA_OIF, b"")), via)


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def _u32(raw: bytes) -> int:
    return int.from_bytes(raw, "little")
