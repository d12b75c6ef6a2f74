"""The rule model as entries of iptables: which bytes say what a rule says.

The structures are those of <linux/netfilter/xt_set.h>, xt_conntrack.h, xt_statistic.h, xt_udp.h and
nf_nat.h, of revisions that have not changed since they came.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import assert_never

from netmgr.kernel.xtables.entries import (
    LAYOUTS,
    LINK_NAME,
    SET_REVISION,
    VERDICTS,
    Entry,
    assembled,
    extension,
    udp_match,
)
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.model import (
    FORWARDED,
    Action,
    Asking,
    Classify,
    Count,
    Drop,
    GoOn,
    IcmpType,
    InPrefix,
    InSet,
    Masquerade,
    Match,
    Netmap,
    Offload,
    OneIn,
    OnLink,
    OriginallyTo,
    Pass,
    Returnable,
    Rewrite,
    Rule,
    Side,
    SourceNat,
    Tally,
    UdpTo,
)
from netmgr.rules.spokes import DropBetween

_INVERTED_LINK = {Side.SOURCE: 0x01, Side.DESTINATION: 0x02}
_INVERTED_ADDRESS = {Side.SOURCE: 0x08, Side.DESTINATION: 0x10}
_SET_INVERTED, _SET_FIRST_IS_SOURCE = 1, 2
_RPFILTER_INVERT = 8
_COMMENT_SIZE = 256
_MARK = b"netmgr\0"
"""Ends the comment's buffer in rules of ours among others' rules: behind the text's end, where no
program shows it."""

_MAP_ADDRESSES = 1
"""NF_NAT_RANGE_MAP_IPS of <linux/netfilter/nf_nat.h>."""
_ORIGINAL_DESTINATION = 1 << 3
"""XT_CONNTRACK_ORIGDST of <linux/netfilter/xt_conntrack.h>."""
_REPLY_SOURCE_PORT, _DIRECTION = 1 << 10, 1 << 12
"""XT_CONNTRACK_REPLSRC_PORT and XT_CONNTRACK_DIRECTION; without inversion the direction is the
original one."""
_LOCAL, _NOT_FROM = 1 << 2, 1
"""RTN_LOCAL as a bit, and XT_ADDRTYPE_INVERT_SOURCE of <linux/netfilter/xt_addrtype.h>."""
_EVERY_NTH = 1
"""XT_STATISTIC_MODE_NTH of <linux/netfilter/xt_statistic.h>."""

_ICMP, _UDP = {Family.V4: 1, Family.V6: 58}, 17


def encode(
    rule: Rule, set_indexes: Mapping[str, int], to: str = "", *, is_goto: bool = False
) -> Entry | None:
    """The rule as an entry, or None while a set it looks into does not exist.

    With `to`, it leads a matching packet to that chain, and by a goto for good.
    """
    if not rule.set_names <= set_indexes.keys():
        return None
    layout = LAYOUTS[rule.family]
    head = bytearray(layout.size)
    extensions = b""
    for match in rule.matches:
        extensions += _match(head, match, rule.family, set_indexes)
    comment = _comment(comment_of(rule), _MARK if rule.comment else b"")
    matches = extensions + comment
    if to:
        head[layout.flags_at] |= layout.goto if is_goto else 0
        return assembled(head, matches, to, extension(to, bytes(4)), rule.family)
    return assembled(head, matches, target_name(rule), _target(rule), rule.family)


def comment_of(rule: Rule) -> str:
    """The comment the rule carries in the kernel."""
    return rule.comment or f"netmgr {rule.id}"


def is_marked(entry: Entry) -> bool:
    """Whether we wrote the entry among others' rules.

    Rules that went through a save and a restore lose the mark.
    """
    return any(name == "comment" and data.endswith(_MARK) for name, _, data in entry.matches())


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
        case Rewrite() | Classify() | DropBetween() | Offload():
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
            return _link_match(head, match, family)
        # xt_rpfilter works in PREROUTING of raw and mangle alone.
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
        case OriginallyTo():
            return _conntrack_match(match)
        case OneIn(number):
            # struct xt_statistic_info: the kernel counts from 0, and from `count` on.
            return extension(
                "statistic", struct.pack("=HHIII8x", _EVERY_NTH, 0, number - 1, 0, number - 1)
            )
    assert_never(match)


def _asking(port: int) -> bytes:
    # Behind the addresses: two spans of expiry, a protocol, four ports, what counts, what is
    # inverted; the ports' ends.
    inverted = _REPLY_SOURCE_PORT if port else 0
    counts = struct.pack("=HH4x", inverted | _DIRECTION, inverted)
    return extension(
        "conntrack",
        bytes(128 + 10) + struct.pack("=4xHxx", port) + counts + struct.pack("=4xHxx2x", port),
        3,
    )


def _conntrack_match(match: OriginallyTo) -> bytes:
    if match.redirected:
        raise ValueError(f"the legacy tables cannot do that: {match}")
    # struct xt_conntrack_mtinfo3: four addresses with a mask each, two of the original direction,
    # two of replies.
    address = match.prefix.network.packed.ljust(16, b"\0")
    mask = _mask_of(match.prefix).ljust(16, b"\0")
    return extension(
        "conntrack",
        bytes(32) + address + mask + bytes(64 + 18) + struct.pack("=H18x", _ORIGINAL_DESTINATION),
        3,
    )


def _put_protocol(head: bytearray, protocol: int, family: Family) -> None:
    layout = LAYOUTS[family]
    struct.pack_into("=H", head, layout.protocol_at, protocol)
    head[layout.flags_at] |= layout.has_protocol


def _put_prefix(head: bytearray, side: Side, prefix: Prefix, *, negated: bool) -> None:
    layout = LAYOUTS[prefix.family]
    at = 0 if side is Side.SOURCE else layout.address
    head[at : at + layout.address] = prefix.network.packed
    head[2 * layout.address + at : 3 * layout.address + at] = _mask_of(prefix)
    head[layout.invert_at] |= _INVERTED_ADDRESS[side] if negated else 0


def _link_match(head: bytearray, match: OnLink, family: Family) -> bytes:
    if match == FORWARDED:
        # iptables has no name for no link. What is forwarded has no address of this machine as its
        # source.
        return extension("addrtype", struct.pack("=HHI", _LOCAL, 0, _NOT_FROM), 1)
    layout = LAYOUTS[family]
    at = layout.links_at + (0 if match.side is Side.SOURCE else LINK_NAME)
    wanted = match.name.replace("*", "+").encode()
    # A mask that stops before the plus matches every name that begins so; else the final zero
    # counts too.
    significant = len(wanted) + (-1 if match.name.endswith("*") else 1)
    head[at : at + len(wanted)] = wanted
    head[at + 2 * LINK_NAME : at + 2 * LINK_NAME + significant] = b"\xff" * significant
    head[layout.invert_at] |= _INVERTED_LINK[match.side] if match.negated else 0
    return b""


def _set_match(index: int, side: Side, *, negated: bool) -> bytes:
    flags = (_SET_INVERTED if negated else 0) | (_SET_FIRST_IS_SOURCE if side is Side.SOURCE else 0)
    dimensions = 1
    # struct xt_set_info_match_v4; the two counter conditions and the flags after them stay zero:
    # none.
    return extension(
        "set", struct.pack("=HBB4x16x16xI4x", index, dimensions, flags, 0), SET_REVISION
    )


def _comment(text: str, mark: bytes) -> bytes:
    return extension("comment", text.encode().ljust(_COMMENT_SIZE - len(mark), b"\0") + mark)


def _mask_of(prefix: Prefix) -> bytes:
    return Address(prefix.family, (1 << prefix.family.width) - prefix.size).packed


def _target(rule: Rule) -> bytes:
    name = target_name(rule)
    if name in VERDICTS:
        return extension(name, bytes(4))
    span = _span(rule.action)
    first, last = (address.packed for address in span) if span else (b"", b"")
    flags = _MAP_ADDRESSES if span else 0
    if rule.family is Family.V4:
        # struct nf_nat_ipv4_multi_range_compat with one range.
        return extension(name, struct.pack("=II4s4s4x", 1, flags, first, last))
    # struct nf_nat_range; SNAT knows it by its revision 1.
    data = struct.pack("=I16s16s4x", flags, first, last)
    return extension(name, data, revision=1 if name == "SNAT" else 0)


def _span(action: Action) -> tuple[Address, Address] | None:
    """The first and the last address that a translation gives, if it names any."""
    match action:
        case SourceNat(Address() as address):
            return address, address
        case Netmap(service_cidr):
            return service_cidr.network, Address(service_cidr.family, service_cidr.last)
        case _:
            return None
