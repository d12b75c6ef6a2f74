"""A connection table that takes no more."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from netmgr.kernel.netlink import (
    NETLINK_NETFILTER,
    NFGENMSG,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_EXCL,
    Netlink,
    Operation,
    attribute,
    nested,
)
from tests.lab import wiring

_NEW = 1 << 8
_ORIGINAL, _REPLY, _STATUS, _TIMEOUT = 1, 2, 3, 7
_IP, _PROTOCOL = 1, 2
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_BIG_ENDIAN = 0x4000
_BATCH = 100
_SECONDS = 600
_MOST = Path("/proc/sys/net/netfilter/nf_conntrack_max")
CONFIRMED = 1 << 3
LASTING = CONFIRMED | 1 << 1 | 1 << 2
"""With IPS_SEEN_REPLY and IPS_ASSURED: the kernel makes no room by forgetting such a one."""


def fill(namespace: Path, status: int = CONFIRMED) -> None:
    """Make connections until the table is full."""
    most = int(_MOST.read_text())
    with wiring.inside(namespace):
        channel = Netlink(NETLINK_NETFILTER)
    with channel:
        batch: list[Operation] = []
        for operation in _connections(most + _BATCH, status):
            batch.append(operation)
            if len(batch) == _BATCH:
                # Some are refused at the end, since there are others in the table.
                channel.attempt(batch)
                batch.clear()


def _connections(count: int, status: int) -> Iterator[Operation]:
    head = NFGENMSG.pack(socket.AF_INET, 0, 0)
    more = attribute(_TIMEOUT | _BIG_ENDIAN, struct.pack(">I", _SECONDS))
    more += attribute(_STATUS | _BIG_ENDIAN, struct.pack(">I", status))
    for number in range(count):
        here = struct.pack(">I", 0xC6336400 + (number >> 15))  # 198.51.100.0 and on
        there = b"\xc0\x00\x02\x01"
        port = 1024 + (number & 0x7FFF)
        body = head + _tuple(_ORIGINAL, here, there, port, 53)
        body += _tuple(_REPLY, there, here, 53, port) + more
        flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK
        yield Operation("connection", _NEW, flags, body)


def _tuple(kind: int, source: bytes, destination: bytes, port: int, to_port: int) -> bytes:
    return nested(
        kind,
        nested(_IP, attribute(1, source), attribute(2, destination)),
        nested(
            _PROTOCOL,
            attribute(_NUMBER, bytes([socket.IPPROTO_UDP])),
            attribute(_SOURCE_PORT, struct.pack(">H", port)),
            attribute(_DESTINATION_PORT, struct.pack(">H", to_port)),
        ),
    )
