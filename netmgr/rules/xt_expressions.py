"""An iptables rule as expressions of nf_tables, as the nf_tables variant of iptables writes it, and back.

Addresses, links and the protocol become comparisons; matches and targets stay the kernel's own
structures, which nft_compat carries out (<linux/netfilter/nf_tables.h>, <linux/netfilter/nf_tables_compat.h>).
So rules are compared as the bytes of `xt_entries`, whichever variant of iptables holds them. What iptables
did not write is kept as a match of its own, which equals nothing of ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from netmgr.dataplane import nft_messages
from netmgr.dataplane.nft_messages import GOTO, JUMP, Expression, number, plain, text
from netmgr.dataplane.rtnetlink import attributes
from netmgr.errors import KernelError
from netmgr.prefixes import Family
from netmgr.rules import xt_entries
from netmgr.rules.xt_entries import LAYOUTS, assembled, extension

_META_REGISTER, _META_KEY = 1, 2
_IN_NAME, _OUT_NAME, _PROTOCOL = 6, 7, 16
_CMP_REGISTER, _CMP_OPERATOR, _CMP_DATA = 1, 2, 3
_EQUAL, _UNEQUAL = 0, 1
_LOAD_REGISTER, _LOAD_BASE, _LOAD_OFFSET, _LOAD_LENGTH = 1, 2, 3, 4
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_UDP = 17
_PORT_BYTES = 2
_BITWISE_SOURCE, _BITWISE_REGISTER, _BITWISE_LENGTH, _BITWISE_MASK, _BITWISE_XOR = 1, 2, 3, 4, 5
_COUNTER_BYTES, _COUNTER_PACKETS = 1, 2
_VERDICT_REGISTER, _VERDICT_DATA = 1, 2
_VERDICT, _VERDICT_CODE, _VERDICT_CHAIN = 2, 1, 2
_NAME, _REVISION, _INFO = 1, 2, 3

_REGISTER = number(1)
_VERDICTS = {"DROP": 0, "ACCEPT": 1, "RETURN": -5}
_VERDICT_NAMES = {code: name for name, code in _VERDICTS.items()}
_LINK_NAME = 16
_INVERTED_LINK = (0x01, 0x02)
_INVERTED_ADDRESS = (0x08, 0x10)
_INVERTED_PROTOCOL = 0x40
_ADDRESSES_AT = {Family.V4: (12, 16), Family.V6: (8, 24)}
"""Where a packet's header has its source and its destination."""
_UNKNOWN = "nft"
"""Name of the match that an expression becomes which no rule of iptables has."""


class Step(NamedTuple):
    """A value of the packet that is about to be compared."""

    kind: str
    key: int
    size: int = 0
    mask: bytes = b""


_META_PROTOCOL = Step("meta", _PROTOCOL)
_OF_PROTOCOL = {Family.V4: (_META_PROTOCOL, Step("payload", 9, 1, b"\xff")), Family.V6: (_META_PROTOCOL,)}
"""Ways to compare the protocol; iptables since 1.8.10 takes it from the header of IPv4."""


def encode(entry: bytes, family: Family) -> list[Expression]:
    """An entry's expressions, with what it has counted."""
    head, matches, (name, revision, data) = xt_entries.parts(entry, family)
    packets, octets = xt_entries.counters_in(entry, family)
    counter = {_COUNTER_BYTES: octets.to_bytes(8, "big"), _COUNTER_PACKETS: packets.to_bytes(8, "big")}
    return [
        *_comparisons(head, family),
        *(_extension("match", *match) for match in matches),
        Expression("counter", counter),
        *_target(name, revision, data, is_goto=bool(head[LAYOUTS[family].flags_at] & LAYOUTS[family].goto)),
    ]


def protocol_of(entry: bytes, family: Family) -> tuple[int, bool]:
    """The protocol that the entry's extensions may rely on, and whether it is any other one than that; 0 is any."""
    layout = LAYOUTS[family]
    number_of = int.from_bytes(entry[layout.protocol_at : layout.protocol_at + 2], "little")
    return number_of, bool(entry[layout.invert_at] & _INVERTED_PROTOCOL)


def decode(expressions: Iterable[Expression], family: Family, comment: str = "") -> tuple[bytes, str]:
    """The entry that the expressions are, and its target's name.

    `comment` is one kept beside the expressions, as nft(8) keeps it.
    """
    head, matches = bytearray(LAYOUTS[family].size), b""
    packets = octets = 0
    name, target = "", extension("", bytes(4))
    loaded: list[Expression] = []
    if comment:
        matches += extension("comment", text(comment))
    for one in expressions:
        has = one.attributes
        if one.name in ("meta", "payload", "bitwise"):
            loaded.append(one)
        elif one.name == "cmp" and _put(head, _step(loaded), has, family):
            loaded.clear()
        elif one.name == "cmp" and head[LAYOUTS[family].protocol_at] == _UDP and (port := _port(loaded, has)):
            matches += xt_entries.udp_match(port)
            loaded.clear()
        elif one.name == "counter":
            packets, octets = (
                int.from_bytes(has.get(kind, b"")[:8], "big") for kind in (_COUNTER_PACKETS, _COUNTER_BYTES)
            )
        elif one.name in ("match", "target") and has.keys() >= {_NAME, _REVISION, _INFO}:
            found = extension(_string(has[_NAME]), has[_INFO], int.from_bytes(has[_REVISION][-1:], "big"))
            if one.name == "match":
                matches += found
            else:
                name, target = _string(has[_NAME]), found
        elif one.name == "immediate" and (verdict := _verdict(has)) is not None:
            name, is_goto = verdict
            target = extension(name, bytes(4))
            head[LAYOUTS[family].flags_at] |= LAYOUTS[family].goto if is_goto else 0
        else:
            matches += _foreign([*loaded, one])
            loaded.clear()
    matches += _foreign(loaded)
    return xt_entries.with_counts(assembled(head, matches, target, family), packets, octets, family), name


def _foreign(expressions: Iterable[Expression]) -> bytes:
    """Matches that equal none of iptables': digests, since an entry has less room than a rule of nf_tables."""
    return b"".join(extension(_UNKNOWN, hashlib.sha256(one.encode()).digest()) for one in expressions)


def _comparisons(head: bytes, family: Family) -> Iterator[Expression]:
    layout = LAYOUTS[family]
    size, inverted = layout.address, head[layout.invert_at]
    for side, key in enumerate((_IN_NAME, _OUT_NAME)):
        at = layout.links_at + side * _LINK_NAME
        significant = head[at + 2 * _LINK_NAME : at + 3 * _LINK_NAME].count(0xFF)
        if significant:
            yield Expression("meta", {_META_KEY: number(key), _META_REGISTER: _REGISTER})
            yield _comparison(head[at : at + significant], negated=inverted & _INVERTED_LINK[side])
    protocol = head[layout.protocol_at]
    if protocol:
        yield Expression("meta", {_META_KEY: number(_PROTOCOL), _META_REGISTER: _REGISTER})
        yield _comparison(bytes([protocol]), negated=inverted & _INVERTED_PROTOCOL)
    for side, offset in enumerate(_ADDRESSES_AT[family]):
        address = head[side * size : (side + 1) * size]
        mask = head[(2 + side) * size : (3 + side) * size]
        yield from _address(address, mask, offset, negated=inverted & _INVERTED_ADDRESS[side])


def _address(address: bytes, mask: bytes, offset: int, *, negated: int) -> Iterator[Expression]:
    if not any(mask):
        return
    bytes_alone = mask.rstrip(b"\0")
    is_plain = bytes_alone == b"\xff" * len(bytes_alone)
    length = len(bytes_alone) if is_plain else len(mask)
    load = {_LOAD_REGISTER: _REGISTER, _LOAD_BASE: number(_NETWORK_HEADER)}
    yield Expression("payload", {**load, _LOAD_OFFSET: number(offset), _LOAD_LENGTH: number(length)})
    if not is_plain:
        registers = {_BITWISE_SOURCE: _REGISTER, _BITWISE_REGISTER: _REGISTER, _BITWISE_LENGTH: number(length)}
        yield Expression("bitwise", {**registers, _BITWISE_MASK: plain(mask), _BITWISE_XOR: plain(bytes(length))})
    yield _comparison(address[:length], negated=negated)


def _comparison(data: bytes, *, negated: int) -> Expression:
    operator = number(_UNEQUAL if negated else _EQUAL)
    return Expression("cmp", {_CMP_REGISTER: _REGISTER, _CMP_OPERATOR: operator, _CMP_DATA: plain(data)})


def _extension(kind: str, name: str, revision: int, data: bytes) -> Expression:
    return Expression(kind, {_NAME: text(name), _REVISION: number(revision), _INFO: data})


def _target(name: str, revision: int, data: bytes, *, is_goto: bool) -> Iterator[Expression]:
    if name in _VERDICTS:
        verdict = nft_messages.verdict(_VERDICTS[name])
    elif name.startswith(xt_entries.OWN_CHAINS):
        verdict = nft_messages.goto(name, GOTO if is_goto else JUMP)
    else:
        if name:
            yield _extension("target", name, revision, data)
        return
    yield Expression("immediate", {_VERDICT_REGISTER: number(0), _VERDICT_DATA: verdict})


def _step(loaded: list[Expression]) -> Step | None:
    """The value that these expressions load; None if it is none that iptables compares."""
    match [one.name for one in loaded]:
        case ["meta"]:
            return Step("meta", int.from_bytes(loaded[0].attributes.get(_META_KEY, b""), "big"))
        case ["payload"] | ["payload", "bitwise"]:
            has = loaded[0].attributes
            base, offset, size = (
                int.from_bytes(has.get(kind, b""), "big") for kind in (_LOAD_BASE, _LOAD_OFFSET, _LOAD_LENGTH)
            )
            mask = _value(loaded[1].attributes.get(_BITWISE_MASK, b"")) if loaded[1:] else b"\xff" * size
            return Step("payload", offset, size, mask) if base == _NETWORK_HEADER else None
        case _:
            return None


def _port(loaded: list[Expression], has: Mapping[int, bytes]) -> int | None:
    """A destination port, which iptables since 1.8.8 compares itself; None if it is nothing such."""
    if [one.name for one in loaded] != ["payload"]:
        return None
    where = [loaded[0].attributes.get(kind) for kind in (_LOAD_BASE, _LOAD_OFFSET, _LOAD_LENGTH)]
    if where != [number(_TRANSPORT_HEADER), number(2), number(_PORT_BYTES)] or has.get(_CMP_OPERATOR) != number(_EQUAL):
        return None
    data = _value(has.get(_CMP_DATA, b""))
    return int.from_bytes(data, "big") if len(data) == _PORT_BYTES else None


def _put(head: bytearray, step: Step | None, has: Mapping[int, bytes], family: Family) -> bool:
    """Put a comparison into the head; says whether it belongs there, and is the first of its kind."""
    layout, data = LAYOUTS[family], _value(has.get(_CMP_DATA, b""))
    operator = int.from_bytes(has.get(_CMP_OPERATOR, b""), "big")
    if step is None or operator not in (_EQUAL, _UNEQUAL) or not data:
        return False
    inverted = 0
    if step.kind == "payload" and step.key in _ADDRESSES_AT[family] and step.size <= layout.address:
        side, size = _ADDRESSES_AT[family].index(step.key), layout.address
        inverted = _INVERTED_ADDRESS[side]
        parts = {side * size: data, (2 + side) * size: step.mask}
    elif step.kind == "meta" and step.key in (_IN_NAME, _OUT_NAME):
        side = (_IN_NAME, _OUT_NAME).index(step.key)
        inverted, at = _INVERTED_LINK[side], layout.links_at + side * _LINK_NAME
        name, final, _ = data.partition(b"\0")
        # A name without its final zero is the begin of one, which iptables shows by a plus.
        parts = {at: name + (b"" if final else b"+"), at + 2 * _LINK_NAME: b"\xff" * (len(name) + len(final))}
    elif step in _OF_PROTOCOL[family]:
        inverted, parts = _INVERTED_PROTOCOL, {layout.protocol_at: data[:1]}
        head[layout.flags_at] |= layout.has_protocol
    else:
        return False
    if any(any(head[at : at + len(value)]) for at, value in parts.items()):
        return False
    for at, value in parts.items():
        head[at : at + len(value)] = value
    head[layout.invert_at] |= inverted if operator == _UNEQUAL else 0
    return True


def _verdict(has: Mapping[int, bytes]) -> tuple[str, bool] | None:
    """The verdict's or the chain's name, and whether the chain does not return; None if it is neither."""
    verdict = _inner(_inner(has.get(_VERDICT_DATA, b"")).get(_VERDICT, b""))
    code = int.from_bytes(verdict.get(_VERDICT_CODE, b""), "big", signed=True)
    if code in (JUMP, GOTO):
        return _string(verdict.get(_VERDICT_CHAIN, b"")), code == GOTO
    return (_VERDICT_NAMES[code], False) if code in _VERDICT_NAMES and verdict else None


def _value(data: bytes) -> bytes:
    return _inner(data).get(1, b"")


def _inner(data: bytes) -> dict[int, bytes]:
    """What an attribute holds; nothing where that makes no sense, since a rule of others must not hide ours."""
    try:
        return attributes(data, 0)
    except KernelError:
        return {}


def _string(value: bytes) -> str:
    return value.partition(b"\0")[0].decode(errors="replace")
