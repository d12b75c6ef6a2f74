"""Neighbour entries as rtnetlink messages (linux/neighbour.h)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from errno import ENODEV, ENOENT
from typing import NamedTuple

from netmgr.kernel import netlink
from netmgr.prefixes import Address, Family

RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
_NUD_PERMANENT = 0x80
_NDA_DST, _NDA_LLADDR = 1, 2
_NDMSG = struct.Struct("=BxxxiHBB")


class Neighbour(NamedTuple):
    """One entry: the hardware address of an address, on a link."""

    address: Address
    mac: bytes
    link: int


def add_neighbour(address: Address, mac: bytes, index: int) -> netlink.Operation:
    """Install or replace a permanent neighbour entry."""
    # A permanent entry is neither resolved again nor aged nor collected (neigh_periodic_work).
    body = _NDMSG.pack(address.family.af, index, _NUD_PERMANENT, 0, 0)
    body += netlink.encoded({_NDA_DST: address.packed, _NDA_LLADDR: mac})
    text = f"neighbour add {address} on link {index}"
    return netlink.Operation(text, RTM_NEWNEIGH, netlink.REPLACE, body)


def read_permanent(channel: netlink.Reader) -> set[Neighbour]:
    """The permanent entries of both families and all links."""
    body = _NDMSG.pack(0, 0, 0, 0, 0)
    request = netlink.Operation("neighbour dump", RTM_GETNEIGH, netlink.NLM_F_DUMP, body)
    return set(channel.dump(request, permanent_of))


def missing_of(wanted: Sequence[Neighbour], channel: netlink.Reader) -> list[Neighbour]:
    """Those of the wanted entries that are not there, or not permanent."""
    # Each by itself: whoever administers a sandbox decides how many others there are.
    present = channel.query_each([*map(_show, wanted)], permanent_of, (ENODEV, ENOENT))
    return [entry for entry in wanted if entry not in present]


def _show(entry: Neighbour) -> netlink.Operation:
    body = _NDMSG.pack(entry.address.family.af, entry.link, 0, 0, 0)
    body += netlink.encoded({_NDA_DST: entry.address.packed})
    text = f"neighbour show {entry.address} on link {entry.link}"
    return netlink.Operation(text, RTM_GETNEIGH, netlink.NLM_F_ACK, body)


def permanent_of(body: bytes) -> Neighbour | None:
    """Decode an RTM_NEWNEIGH body; None for an entry that is not permanent."""
    _, _, state, _, _ = _NDMSG.unpack_from(body)
    return neighbour_of(body) if state & _NUD_PERMANENT else None


def neighbour_of(body: bytes) -> Neighbour | None:
    """Decode the body of a message about a neighbour; None for another family's."""
    af, index, _, _, _ = _NDMSG.unpack_from(body)
    attributes = netlink.attributes(body, _NDMSG.size)
    if Family.of_af(af) is None or _NDA_DST not in attributes:
        return None
    return Neighbour(Address.unpack(attributes[_NDA_DST]), attributes.get(_NDA_LLADDR, b""), index)
