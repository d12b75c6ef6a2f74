"""Rules as the kernel's own structures for the legacy tables, and back far enough to compare.

An entry is struct ipt_entry or ip6t_entry, then matches, then a target
(<linux/netfilter_ipv4/ip_tables.h>, <linux/netfilter_ipv6/ip6_tables.h>,
<linux/netfilter/x_tables.h>, <linux/netfilter/xt_set.h>); this is user-space ABI and has
not changed since these revisions came. Comparing the bytes finds any alteration of a rule
of ours, and a rule of somebody else's never has to be understood.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.model import (
    Action,
    Count,
    Drop,
    GoOn,
    InPrefix,
    InSet,
    Masquerade,
    Match,
    Netmap,
    OneIn,
    OnLink,
    OriginallyTo,
    Pass,
    Rewrite,
    Rule,
    Side,
    Sort,
    SourceNat,
    Tally,
)
from netmgr.rules.packets import Asking, IcmpType, Returnable, UdpTo

_LINK_NAME = 16
_HEADER = struct.Struct("=H29sB")
"""xt_entry_match and xt_entry_target: size, name, revision."""

_INVERTED_LINK = {Side.SOURCE: 0x01, Side.DESTINATION: 0x02}
_INVERTED_ADDRESS = {Side.SOURCE: 0x08, Side.DESTINATION: 0x10}
_SET_INVERTED, _SET_FIRST_IS_SOURCE = 1, 2
SET_REVISION = 4
"""Of the match `set`: one that may ask for counters (Linux 3.16)."""
_RPFILTER_INVERT = 8
_COMMENT_SIZE = 256
_MARK = b"netmgr\0"
"""Ends the comment's buffer in rules of ours among others' rules: behind the text's end, where no program shows it."""

_MAP_ADDRESSES = 1
"""NF_NAT_RANGE_MAP_IPS of <linux/netfilter/nf_nat.h>."""
_ORIGINAL_DESTINATION = 1 << 3
"""XT_CONNTRACK_ORIGDST of <linux/netfilter/xt_conntrack.h>."""
_REPLY_SOURCE_PORT, _DIRECTION = 1 << 10, 1 << 12
"""XT_CONNTRACK_REPLSRC_PORT and XT_CONNTRACK_DIRECTION; without inversion the direction is the original one."""
_EVERY_NTH = 1
"""XT_STATISTIC_MODE_NTH of <linux/netfilter/xt_statistic.h>."""

OWN_CHAINS = "NETMGR-"
"""How the names of our own chains begin."""

_ICMP, _UDP = {Family.V4: 1, Family.V6: 58}, 17

VERDICTS = ("", "DROP", "RETURN")
"""Targets that have no options; their data is an offset that the table's other rules decide."""


_Extension = tuple[str, int, bytes]
"""Name, revision and data of a match or a target."""


@dataclass(frozen=True)
class _Layout:
    """Where things stand in an entry of one family."""

    address: int
    protocol_at: int
    flags_at: int
    invert_at: int
    offsets_at: int
    counters_at: int
    size: int
    goto: int
    has_protocol: int

    @property
    def links_at(self) -> int:
        return 4 * self.address


LAYOUTS = {
    Family.V4: _Layout(4, 80, 82, 83, offsets_at=88, counters_at=96, size=112, goto=0x02, has_protocol=0),
    Family.V6: _Layout(16, 128, 131, 132, offsets_at=140, counters_at=152, size=168, goto=0x04, has_protocol=0x01),
}


def encode(rule: Rule, set_indexes: Mapping[str, int]) -> bytes | None:
    """The rule as an entry, or None while a set it looks into does not exist."""
    if not rule.set_names <= set_indexes.keys():
        return None
    head = bytearray(LAYOUTS[rule.family].size)
    extensions = b""
    for match in rule.matches:
        extensions += _match(head, match, rule.family, set_indexes)
    comment = _comment(comment_of(rule), _MARK if rule.comment else b"")
    return assembled(head, extensions + comment, _target(rule), rule.family)


def encode_jump(chain: str, family: Family) -> bytes:
    """A jump to a chain, without any condition."""
    return assembled(bytearray(LAYOUTS[family].size), b"", extension(chain, bytes(4)), family)


def comment_of(rule: Rule) -> str:
    """The comment the rule carries in the kernel."""
    return rule.comment or f"netmgr {rule.id}"


def comment_in(entry: bytes, family: Family) -> str:
    """The text of an entry's comment match; empty if it has none."""
    for name, _, data in _matches(entry, family):
        if name == "comment":
            return _text(data).decode(errors="replace")
    return ""


def is_marked(entry: bytes, family: Family) -> bool:
    """Whether we wrote the entry among others' rules; rules that went through a save and a restore lose the mark."""
    return any(name == "comment" and data.endswith(_MARK) for name, _, data in _matches(entry, family))


def counters_in(entry: bytes, family: Family) -> tuple[int, int]:
    """Packets and bytes the entry has counted."""
    packets, octets = struct.unpack_from("=QQ", entry, LAYOUTS[family].counters_at)
    return packets, octets


def conditions(entry: bytes, family: Family) -> tuple[bytes, tuple[_Extension, ...]]:
    """What the entry matches, without what the kernel itself keeps there: its head and its matches.

    Of a comment its text alone, marked or not.
    """
    matches = (
        (name, revision, _text(data) if name == "comment" else data) for name, revision, data in _matches(entry, family)
    )
    return entry[: LAYOUTS[family].offsets_at - 4], tuple(matches)


def apart_from_comment(entry: bytes, family: Family) -> tuple[bytes, tuple[_Extension, ...]]:
    """What `conditions` gives, without the comment."""
    head, matches = conditions(entry, family)
    return head, tuple(match for match in matches if match[0] != "comment")


def parts(entry: bytes, family: Family) -> tuple[bytes, tuple[_Extension, ...], _Extension]:
    """The entry's head, its matches, and its target."""
    size, name, revision = _HEADER.unpack_from(entry, at := _target_at(entry, family))
    target = _text(name).decode(), revision, entry[at + _HEADER.size : at + size]
    return entry[: LAYOUTS[family].size], tuple(_matches(entry, family)), target


def target_data(entry: bytes, family: Family) -> bytes:
    """The options of the entry's target."""
    return entry[_target_at(entry, family) + _HEADER.size :]


def with_target(entry: bytes, name: str, family: Family) -> bytes:
    """The entry with its target called by name, as libiptc wants to be given it."""
    at = _target_at(entry, family)
    size, _, revision = _HEADER.unpack_from(entry, at)
    return entry[:at] + _HEADER.pack(size, name.encode(), revision) + entry[at + _HEADER.size :]


def with_counts(entry: bytes, packets: int, octets: int, family: Family) -> bytes:
    """The entry, to be put in place as one that has counted so much."""
    at = LAYOUTS[family].counters_at
    return entry[:at] + struct.pack("=QQ", packets, octets) + entry[at + 16 :]


def target_name(rule: Rule) -> str:
    """The rule's target as libiptc reports it; empty: go on with the next rule."""
    match rule.action:
        case Pass():
            return "RETURN"
        case Count() | Tally() | GoOn():
            return ""
        case Drop():
            return "DROP"
        case Masquerade():
            return "MASQUERADE"
        case SourceNat():
            return "SNAT"
        case Netmap():
            return "NETMAP"
        case Rewrite() | Sort():
            raise ValueError(f"rule '{rule.id}': the legacy tables cannot do that: {rule.action}")
    assert_never(rule.action)


def _match(head: bytearray, match: Match, family: Family, set_indexes: Mapping[str, int]) -> bytes:  # noqa: PLR0911 - one return per kind of match reads best
    match match:
        case InSet(side, name, negated):
            return _set_match(set_indexes[name], side, negated=negated)
        case InPrefix(side, prefix, negated):
            _put_prefix(head, side, prefix, negated=negated)
            return b""
        case OnLink():
            _put_link(head, match, family)
            return b""
        case Returnable(negated):
            return extension("rpfilter", bytes([_RPFILTER_INVERT if negated else 0]))
        case IcmpType(number):
            _put_protocol(head, _ICMP[family], family)
            # struct ipt_icmp and ip6t_icmp: a type, and the first and last of its codes.
            return extension("icmp" if family is Family.V4 else "icmp6", bytes([number, 0, 255, 0]))
        case UdpTo(port):
            _put_protocol(head, _UDP, family)
            return udp_match(port)
        case Asking(besides):
            return _asking(besides)
        case OriginallyTo(prefix):
            return _conntrack_match(prefix)
        case OneIn(number):
            # struct xt_statistic_info: the kernel counts from 0, and from `count` on.
            return extension("statistic", struct.pack("=HHIII8x", _EVERY_NTH, 0, number - 1, 0, number - 1))
    assert_never(match)


def _asking(port: int) -> bytes:
    # Behind the addresses: two spans of expiry, a protocol, four ports, what counts, what is inverted; the ports' ends.
    counts = struct.pack("=HH4x", _REPLY_SOURCE_PORT | _DIRECTION, _REPLY_SOURCE_PORT)
    return extension(
        "conntrack", bytes(128 + 10) + struct.pack("=4xHxx", port) + counts + struct.pack("=4xHxx2x", port), 3
    )


def udp_match(port: int) -> bytes:
    """The match of datagrams to a port (struct xt_udp: first and last port of each end)."""
    return extension("udp", struct.pack("=4HB", 0, 0xFFFF, port, port, 0))


def _conntrack_match(prefix: Prefix) -> bytes:
    # struct xt_conntrack_mtinfo3: four addresses with a mask each, of which the third and fourth are told.
    address, mask = prefix.network.packed.ljust(16, b"\0"), mask_of(prefix).ljust(16, b"\0")
    return extension(
        "conntrack", bytes(32) + address + mask + bytes(64 + 18) + struct.pack("=H18x", _ORIGINAL_DESTINATION), 3
    )


def _put_protocol(head: bytearray, protocol: int, family: Family) -> None:
    layout = LAYOUTS[family]
    struct.pack_into("=H", head, layout.protocol_at, protocol)
    head[layout.flags_at] |= layout.has_protocol


def _put_prefix(head: bytearray, side: Side, prefix: Prefix, *, negated: bool) -> None:
    layout = LAYOUTS[prefix.family]
    at = 0 if side is Side.SOURCE else layout.address
    head[at : at + layout.address] = prefix.network.packed
    head[2 * layout.address + at : 3 * layout.address + at] = mask_of(prefix)
    head[layout.invert_at] |= _INVERTED_ADDRESS[side] if negated else 0


def _put_link(head: bytearray, match: OnLink, family: Family) -> None:
    layout = LAYOUTS[family]
    at = layout.links_at + (0 if match.side is Side.SOURCE else _LINK_NAME)
    wanted = match.name.replace("*", "+").encode()
    # A mask that stops before the plus matches every name that begins so; else the final zero counts too.
    significant = len(wanted) + (-1 if match.name.endswith("*") else 1)
    head[at : at + len(wanted)] = wanted
    head[at + 2 * _LINK_NAME : at + 2 * _LINK_NAME + significant] = b"\xff" * significant
    head[layout.invert_at] |= _INVERTED_LINK[match.side] if match.negated else 0


def _set_match(index: int, side: Side, *, negated: bool) -> bytes:
    flags = (_SET_INVERTED if negated else 0) | (_SET_FIRST_IS_SOURCE if side is Side.SOURCE else 0)
    dimensions = 1
    # struct xt_set_info_match_v4; the two counter conditions and the flags after them stay zero: none.
    return extension("set", struct.pack("=HBB4x16x16xI4x", index, dimensions, flags, 0), SET_REVISION)


def _comment(text: str, mark: bytes) -> bytes:
    return extension("comment", text.encode().ljust(_COMMENT_SIZE - len(mark), b"\0") + mark)


def _text(comment: bytes) -> bytes:
    return comment.partition(b"\0")[0]


def mask_of(prefix: Prefix) -> bytes:
    """The prefix's mask in network byte order."""
    return Address(prefix.family, (1 << prefix.family.width) - prefix.size).packed


def _target(rule: Rule) -> bytes:
    name = target_name(rule)
    if name in VERDICTS:
        return extension(name, bytes(4))
    span = _span(rule.action)
    if rule.family is Family.V4:
        # struct nf_nat_ipv4_multi_range_compat with one range.
        first, last = (address.packed for address in span) if span else (bytes(4), bytes(4))
        flags = _MAP_ADDRESSES if span else 0
        return extension(name, struct.pack("=II4s4s4x", 1, flags, first, last))
    # struct nf_nat_range; SNAT knows it by its revision 1.
    data = struct.pack("=I16s16s4x", _MAP_ADDRESSES, *(one.packed for one in span)) if span else bytes(40)
    return extension(name, data, revision=1 if name == "SNAT" else 0)


def _span(action: Action) -> tuple[Address, Address] | None:
    """The first and the last address that a translation gives, if it is told any."""
    match action:
        case SourceNat(address):
            return address, address
        case Netmap(real):
            return real.network, Address(real.family, real.last)
        case _:
            return None


def extension(name: str, data: bytes, revision: int = 0) -> bytes:
    """A match or a target with its header."""
    padded = data.ljust(-(-len(data) // 8) * 8, b"\0")
    return _HEADER.pack(_HEADER.size + len(padded), name.encode(), revision) + padded


def assembled(head: bytearray, matches: bytes, target: bytes, family: Family) -> bytes:
    """An entry of its parts."""
    layout = LAYOUTS[family]
    target_at = layout.size + len(matches)
    struct.pack_into("=HH", head, layout.offsets_at, target_at, target_at + len(target))
    return bytes(head) + matches + target


def _target_at(entry: bytes, family: Family) -> int:
    offset: int = struct.unpack_from("=H", entry, LAYOUTS[family].offsets_at)[0]
    return offset


def _matches(entry: bytes, family: Family) -> Iterator[_Extension]:
    at = LAYOUTS[family].size
    while at < _target_at(entry, family):
        size, name, revision = _HEADER.unpack_from(entry, at)
        # The kernel writes a name up to its final zero and leaves what was behind it in our buffer.
        yield name.partition(b"\0")[0].decode(), revision, entry[at + _HEADER.size : at + size]
        at += size
