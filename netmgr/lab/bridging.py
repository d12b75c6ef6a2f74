"""Route-netlink messages that only a lab needs: bridges, their ports, and routing by incoming interface.

Sources: linux/if_link.h, linux/fib_rules.h.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from netmgr.dataplane import rtnetlink
from netmgr.dataplane.rtnetlink import Operation, attribute, nested
from netmgr.prefixes import Family

RTM_NEWRULE = 32
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO = 3, 10, 18
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _IFLA_BR_MCAST_SNOOPING = 1, 2, 23
_FRA_IIFNAME, _FRA_PRIORITY, _FRA_TABLE = 3, 6, 15
_FR_ACT_TO_TBL = 1
_AF = {Family.V4: 2, Family.V6: 10}
_IFINFO = struct.Struct("=BxHiII")
_FIB_RULE = struct.Struct("=BBBBBBBBI")
_CREATE = rtnetlink.NLM_F_ACK | rtnetlink.NLM_F_CREATE | rtnetlink.NLM_F_EXCL
_TABLE_OFFSET = 4
_BEFORE_MAIN = 1000


def create_bridge(name: str) -> Operation:
    """Create a bridge, down. It floods multicast: neighbour discovery must not wait for a querier."""
    data = nested(_IFLA_INFO_DATA, attribute(_IFLA_BR_MCAST_SNOOPING, b"\0"))
    body = (
        _IFINFO.pack(0, 0, 0, 0, 0)
        + attribute(_IFLA_IFNAME, name.encode() + b"\0")
        + nested(_IFLA_LINKINFO, attribute(_IFLA_INFO_KIND, b"bridge\0"), data)
    )
    return Operation(f"link add {name} type bridge", rtnetlink.RTM_NEWLINK, _CREATE, body)


def enslave(index: int, bridge: int) -> Operation:
    """Make the link of this index a port of a bridge."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + attribute(_IFLA_MASTER, struct.pack("=I", bridge))
    return Operation(f"link set {index} master {bridge}", rtnetlink.RTM_NEWLINK, rtnetlink.NLM_F_ACK, body)


def look_up_first(family: Family, arriving_on: str, table: int) -> Operation:
    """Route what comes in by an interface by a table of its own first."""
    body = (
        _FIB_RULE.pack(_AF[family], 0, 0, 0, table, 0, 0, _FR_ACT_TO_TBL, 0)
        + attribute(_FRA_IIFNAME, arriving_on.encode() + b"\0")
        + attribute(_FRA_PRIORITY, struct.pack("=I", _BEFORE_MAIN + table))
        + attribute(_FRA_TABLE, struct.pack("=I", table))
    )
    return Operation(f"rule add iif {arriving_on} lookup {table}", RTM_NEWRULE, _CREATE, body)


def in_table(route: Operation, table: int) -> Operation:
    """A route of the main table as one of another table, numbered 1 to 252."""
    body = bytearray(route.body)
    body[_TABLE_OFFSET] = table  # rtm_table of struct rtmsg
    return replace(route, text=f"{route.text} table {table}", body=bytes(body))
