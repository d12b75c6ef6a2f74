"""The programs that count at links: what enters and leaves by an uplink, what arrives at a pod.

An uplink is any link that is no pod's. Where a packet enters by one, its source decides what it is
counted as, and `tc_index` carries that along. Where it leaves by one, behind filters and
translation, its destination decides, and `ingress_ifindex` still names the pod's link. At a pod's
link, behind all translation, the pod is known by the link. A pod can set `tc_index`, which survives
its pair, so it counts only of what came in by an uplink. What an IFB gives back came in by the IFB:
where pods have limits, a program overwrites what pods set, and all believe it. What pods send is
never the internet's, also where it is given a public source. Of what came in by no uplink and no
pod's link the source decides.

A class is 15 bits. The flag beside it is set for other nodes' pods.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Mapping, Sequence
from itertools import groupby, product
from operator import itemgetter

from netmgr.documents.classes import INTERNAL
from netmgr.kernel.bpf import ARRAY, HASH, MapShape
from netmgr.model import PODS, REMOTE_PODS, UNATTRIBUTED, Traffic
from netmgr.prefixes import Address, Family, Prefix, PrefixTable
from netmgr.rules.at_links import AtLinks

CLUSTER, INTERNET, INSIDE = 0x8000, 1, 0x7FFF
"""The flag, the class of what is not known, and that of what is, but is in no class that counts."""
_CLASS = CLUSTER - 1

ELEMENT_KEY, ELEMENT = struct.Struct("=IHH"), struct.Struct("=QQQQ16s24s")
"""Link, class, `row_of`; and packets, bytes, what a wire has beside these, bytes that are told
apart since nobody knows their segments, the pod's address, the class's name."""
_SUM = struct.Struct("=QQ")
_SUBJECTS = (PODS, UNATTRIBUTED, REMOTE_PODS)
# Of a family and direction: a sum for each of these, and room for a fourth.
_ROW = 4 * _SUM.size
MOST_UPLINKS, UPLINKS = 14, struct.Struct("=14III")
"""Indexes, 0 behind the last; whether pods have limits, and the IFB before limited pods."""

PODS_MAP, SUMS_MAP, UPLINKS_MAP = "nm_pods", "nm_sums", "nm_uplinks"
SHAPES = (
    # A thousand pods of two families and sixteen classes.
    MapShape(PODS_MAP, HASH, ELEMENT_KEY.size, ELEMENT.size, 1 << 17),
    MapShape(SUMS_MAP, ARRAY, 4, 4 * _ROW, 1),
    MapShape(UPLINKS_MAP, ARRAY, 4, UPLINKS.size, 1),
)
ONLY_KEY = bytes(4)


Peers = Mapping[Family, Sequence[tuple[int, int]]]
"""What addresses count as, of each from these on."""


def peers(at_links: AtLinks, numbers: Mapping[str, int]) -> Peers:
    """Who peers are, given the numbers of classes."""
    everything = [Prefix(family, 0, 0) for family in Family]
    # Without classes nobody counts what is no internet.
    internal = numbers[INTERNAL] if at_links.classes else INSIDE
    by_class = dict.fromkeys(everything, INTERNET) | dict.fromkeys(at_links.known, internal)
    for name, prefixes in at_links.classes:
        by_class |= dict.fromkeys(prefixes, numbers[name])
    flags = dict.fromkeys(everything, 0) | dict.fromkeys(at_links.cluster, CLUSTER)
    return {family: _peers_of(family, by_class, flags) for family in Family}


def _peers_of(family: Family, *choices: Mapping[Prefix, int]) -> list[tuple[int, int]]:
    """The longest prefix decides, in each of the choices by itself."""
    tables = [PrefixTable(choice.items()) for choice in choices]
    prefixes = [prefix for choice in choices for prefix in choice if prefix.family is family]
    starts = {prefix.value for prefix in prefixes} | {prefix.last + 1 for prefix in prefixes}

    def peer_from(start: int) -> tuple[int, int]:
        matches = (table.match(Address(family, start)) for table in tables)
        return start, sum(chosen for _, chosen in filter(None, matches))

    alike = groupby(map(peer_from, sorted(starts - {1 << family.width})), itemgetter(1))
    return [next(group) for _, group in alike]


def mapped(address: Address) -> bytes:
    """An address in 16 bytes (RFC 4291, 2.5.5.2)."""
    before = b"" if address.family is Family.V6 else bytes(10) + b"\xff\xff"
    return before + address.packed


def row_of(family: Family, traffic: Traffic) -> int:
    """The number of a family and direction."""
    return 2 * (family is Family.V6) + traffic.is_inward


def sums(element: bytes) -> dict[tuple[Family, Traffic], dict[str, tuple[int, int]]]:
    """Packets and bytes by subject, for each family and traffic, of the sums' one element."""
    return {
        (family, traffic): {
            subject: _SUM.unpack_from(element, row_of(family, traffic) * _ROW + place * _SUM.size)
            for place, subject in enumerate(_SUBJECTS)
        }
        for family, traffic in product(Family, Traffic)
    }


# Fields of struct __sk_buff: len 0, protocol 16, vlan_tci 24, ingress_ifindex 36, ifindex 40,
# tc_index 44, wire_len 160, gso_segs 164, gso_size 176. As they are: r6 the packet, r7 its row, r8
# its class, r9 its bytes, and on the stack at -40 what `_segments` found.
_IPV4, _IPV6 = socket.htons(0x0800), socket.htons(0x86DD)
# TC_ACT_UNSPEC: on to the next filter.
_ON = "pass: r0 = -1; exit"
# A packet with a VLAN's tag is that link's, which counts it by itself.
_ITS_OWN = "r1 = *(u32 *)(r6 + 24); r1 &= 0xfff; if r1 != 0 goto pass"


def _load(offset: int, size: int, to: int) -> str:
    """Have bytes of the network header on the stack (bpf_skb_load_bytes_relative)."""
    return f"r1 = r6; r2 = {offset}; r3 = r10; r3 += {to}; r4 = {size}; r5 = 1; call 68"


def _look_up(peers: Peers, side: str, offset_v4: int, offset_v6: int) -> str:
    """An address's class and flag in r8, the row of its family outward in r7."""
    return f"""
        r1 = *(u32 *)(r6 + 16); if r1 == {_IPV6} goto {side}_v6; if r1 != {_IPV4} goto pass
        r7 = 0; {_load(offset_v4, 4, -4)}; if r0 != 0 goto pass
        r2 = *(u32 *)(r10 - 4); r2 = be32 r2; {_decide(peers[Family.V4], Family.V4, side)}
    {side}_v6: r7 = 2; {_load(offset_v6, 16, -16)}; if r0 != 0 goto pass
        r2 = *(u32 *)(r10 - 16); r2 = be32 r2; r3 = *(u32 *)(r10 - 12); r3 = be32 r3
        r4 = *(u32 *)(r10 - 8); r4 = be32 r4; r5 = *(u32 *)(r10 - 4); r5 = be32 r5
        {_decide(peers[Family.V6], Family.V6, side)}
    {side}_known:
    """


def _decide(peers: Sequence[tuple[int, int]], family: Family, side: str) -> str:
    """Halves what the address, in words from r2 on, may be until one is left."""
    middle = len(peers) // 2
    start, peer = peers[middle]
    if not middle:
        return f"r8 = {peer}; goto {side}_known"
    label, text, words = f"{side}{family}_{start:x}", "", family.width // 32
    for number in range(words):
        rest = family.width - 32 * (number + 1)
        register, word = f"w{number + 2}", start >> rest & 0xFFFFFFFF
        if start & (1 << rest) - 1 == 0:
            text += f"if {register} >= {word} goto {label}\n"
            break
        text += f"if {register} > {word} goto {label}; if {register} < {word} goto {label}_not\n"
    below, above = (_decide(part, family, side) for part in (peers[:middle], peers[middle:]))
    return f"{text} {label}_not: {below}\n{label}: {above}"


def _find(link: int, otherwise: str) -> str:
    """Have r0 point to the element of the pod of a link, a field's, for a class and row."""
    return f"""
        r1 = *(u32 *)(r6 + {link}); *(u32 *)(r10 - 32) = r1
        *(u16 *)(r10 - 28) = r8; *(u16 *)(r10 - 26) = r7
        r1 = map {PODS_MAP}; r2 = r10; r2 += -32; call 1; if r0 == 0 goto {otherwise}
    """


def _count(link: int, otherwise: str) -> str:
    """Count the packet for the pod of a link, if it has such an element."""
    return f"""
        {_find(link, otherwise)}
        r1 = 1; lock *(u64 *)(r0 + 0) += r1
        r1 = *(u32 *)(r10 - 40); if w1 == {_UNKNOWN} goto unknown_or_{otherwise}
        lock *(u64 *)(r0 + 8) += r9; if r1 == 0 goto counted_or_{otherwise}
        lock *(u64 *)(r0 + 16) += r1; goto counted_or_{otherwise}
    unknown_or_{otherwise}: lock *(u64 *)(r0 + 24) += r9
    counted_or_{otherwise}:
    """


_UNKNOWN = -1
_TCP, _UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
# bpf_skb_adjust_room would put Ethernet's header where there is no room for it. It changes nothing
# and answers EINVAL, but before that EALREADY if a tunnel of the pod's has put headers before.
_ASK_FOR_TUNNEL = "r1 = r6; r2 = 0; r3 = 1; r4 = 14; r4 <<= 56; r4 |= 3; call 50"
_LONGEST_TCP_HEADER = 60


def _segments(header: int, link_layer: int) -> str:
    """Have what a wire has beside a packet's bytes on the stack.

    These are the headers that further segments repeat, and each segment's link layer.
    The segments are as many as `gso_size` makes, which gso_segs need not say (a virtual machine's
    packets have none). Of a tunnel's, `wire_len` knows the headers since Linux 6.17 (and in updates
    of 6.12); before, each segment has at most a TCP header in place of what is behind IP's.
    """
    return f"""
        *(u32 *)(r10 - 40) = {link_layer}; r1 = *(u32 *)(r6 + 176); if r1 == 0 goto done
        *(u32 *)(r10 - 40) = {_UNKNOWN}; {_load(0, 10, -64)}; if r0 != 0 goto done
        r1 = *(u32 *)(r6 + 16); r2 = 40; r3 = *(u8 *)(r10 - 58); if r1 == {_IPV6} goto protocol
        r2 = *(u8 *)(r10 - 64); r2 &= 15; r2 <<= 2; r3 = *(u8 *)(r10 - 55)
    protocol: *(u32 *)(r10 - 44) = r2; if r3 == {_UDP} goto datagrams; if r3 != {_TCP} goto done
        r2 += 12; r1 = r6; r3 = r10; r3 += -64; r4 = 1; r5 = 1; call 68; if r0 != 0 goto done
        r2 = *(u8 *)(r10 - 64); r2 >>= 4; r2 <<= 2; goto plain
    datagrams: {_ASK_FOR_TUNNEL}
        r2 = 8; if r0 == {-errno.EINVAL} goto plain; if r0 != {-errno.EALREADY} goto done
        r1 = *(u32 *)(r6 + 164); if r1 < 2 goto done; r1 -= 1
        r2 = *(u32 *)(r6 + 160); r3 = *(u32 *)(r6 + 0); r2 -= r3
        r3 = *(u32 *)(r10 - 44); r3 += {header + _LONGEST_TCP_HEADER}; r3 *= r1
        if r2 <= r3 goto done
        r1 *= {header - link_layer}; r2 -= r1; r2 += {link_layer}
        *(u32 *)(r10 - 40) = r2; goto done
    plain: r1 = *(u32 *)(r10 - 44); r2 += r1; if r9 <= r2 goto done
        r3 = r9; r3 -= r2; r3 -= 1; r1 = *(u32 *)(r6 + 176); r3 /= r1
        r2 += {link_layer}; r3 *= r2; r3 += {link_layer}; *(u32 *)(r10 - 40) = r3
    done:
    """


def _sum(subject: str) -> str:
    """Count the packet in the sum of a subject."""
    place = _SUBJECTS.index(subject) * _SUM.size
    return f"""
        r3 = r7; r3 &= 3; r3 <<= {_ROW.bit_length() - 1}; r1 = value {SUMS_MAP}; r1 += r3; r2 = 1
        lock *(u64 *)(r1 + {place}) += r2; lock *(u64 *)(r1 + {place + 8}) += r9
    """


def _believe(yes: str, no: str) -> str:
    """Asks whether no pod can have set `tc_index`. Of what came in by an uplink, r3 is r1 then."""
    uplinks = (
        f"r3 = *(u32 *)(r2 + {4 * place}); if r3 == r1 goto {yes}; if r3 == 0 goto others\n"
        for place in range(MOST_UPLINKS)
    )
    limited = f"others: r3 = *(u32 *)(r2 + {4 * MOST_UPLINKS}); if r3 != 0 goto {yes}; goto {no}"
    return f"r2 = value {UPLINKS_MAP}; {''.join(uplinks)} {limited}"


def _leaving(peers: Peers, header: int, link_layer: int) -> str:
    """Counts what leaves by an uplink, whose packets have so many bytes before IP's header."""
    return f"""
        r6 = r1; r1 = *(u32 *)(r6 + 36); if r1 == 0 goto pass    # this machine's own
        {_ITS_OWN}
        {_look_up(peers, "destination", 16, 24)}
        r9 = *(u32 *)(r6 + 0); r9 -= {header}
        {_segments(header, link_layer)}
        *(u32 *)(r10 - 36) = r8; r8 &= {_CLASS}; if r8 == {INSIDE} goto nobody
        {_count(36, "nobody")}
        if r8 != {INTERNET} goto pass
        {_sum(PODS)}; goto pass
    nobody: r4 = 0; r1 = *(u32 *)(r6 + 36); {_believe("entered", "judged")}
    entered: r4 = *(u32 *)(r6 + 44)    # what `_entering` found
    judged: if r8 != {INTERNET} goto inward; if r4 & {CLUSTER} goto answer
        {_sum(UNATTRIBUTED)}; goto inward
    answer: {_sum(REMOTE_PODS)}
    inward: r4 &= {_CLASS}; if r4 != {INTERNET} goto pass
        r7 += 1; r8 = *(u32 *)(r10 - 36); if r8 & {CLUSTER} goto request
        {_sum(UNATTRIBUTED)}; goto pass
    request: {_sum(REMOTE_PODS)}
        {_ON}
    """


def _entering(peers: Peers) -> str:
    """Writes down what a packet that enters by an uplink is to be counted as."""
    return f"""
        r6 = r1; {_ITS_OWN}
        {_look_up(peers, "source", 12, 8)}
        *(u32 *)(r6 + 44) = r8
        {_ON}
    """


_SENDING = f"r2 = {INSIDE}; *(u32 *)(r1 + 44) = r2; {_ON}"

_ETHERNET = 14
# A card pads a frame to 60 bytes, and a flowtable leaves it so: the length is IP's then.
_UNPADDED = f"""
        if r9 > 46 goto whole
        {_load(2, 2, -2)}; if r0 != 0 goto pass
        r9 = *(u8 *)(r10 - 2); r9 <<= 8; r1 = *(u8 *)(r10 - 1); r9 |= r1
"""


def _arriving(peers: Peers, link_layer: int) -> str:
    """Counts what arrives at a pod's link."""
    return f"""
        r6 = r1; r1 = *(u32 *)(r6 + 36); if r1 == 0 goto pass
        r9 = *(u32 *)(r6 + 0); r9 -= {_ETHERNET}
        {_segments(_ETHERNET, link_layer)}
        r8 = *(u32 *)(r6 + 44); r8 &= {_CLASS}; r1 = *(u32 *)(r6 + 36)
        {_believe("entered", "inside")}
    entered: if r8 == {INSIDE} goto known; if r8 != 0 goto outside
        r3 = *(u32 *)(r2 + {4 * MOST_UPLINKS + 4})    # this machine's own, by the IFB
    known: if r3 == r1 goto pass
    inside: {_look_up(peers, "source", 12, 8)}
        r8 &= {_CLASS}; if r8 == {INSIDE} goto pass; if r8 != {INTERNET} goto delivered
        r1 = *(u32 *)(r6 + 44); r1 &= {_CLASS}; if r1 == {INSIDE} goto sent
        {_find(36, "delivered")}; goto sent    # a pod, whatever its packets say
    delivered: r7 |= 1
        {_count(40, "sent")}
        if r8 == {INTERNET} goto counted
    sent: {_look_up(peers, "destination", 16, 24)}
        r8 &= {_CLASS}
        {_count(36, "pass")}; goto pass
    outside: r7 = 1; r1 = *(u32 *)(r6 + 16); if r1 == {_IPV4} goto short
        r7 = 3; if r1 == {_IPV6} goto whole; goto pass
    short: {_UNPADDED}
    whole: {_count(40, "nobody")}
        if r8 != {INTERNET} goto pass
    counted: {_sum(PODS)}; goto pass
    nobody: if r8 != {INTERNET} goto pass
        {_sum(UNATTRIBUTED)}
        {_ON}
    """


LEAVING, LEAVING_BARE, ENTERING = "leaving", "leaving_bare", "entering"
SENDING, ARRIVING = "sending", "arriving"


def texts(peers: Peers, link_layer: int = 0) -> dict[str, str]:
    """Each program, by its name; each packet has so many bytes more on a wire."""
    return {
        LEAVING: _leaving(peers, _ETHERNET, link_layer),
        # Tunnels and their like send packets without a header before that of IP.
        LEAVING_BARE: _leaving(peers, 0, link_layer),
        ENTERING: _entering(peers),
        SENDING: _SENDING,
        ARRIVING: _arriving(peers, link_layer),
    }
