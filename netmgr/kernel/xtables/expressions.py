"""Translates a rule of iptables to and from expressions, as iptables-nft writes it.

Addresses, links and the protocol become comparisons; matches and targets stay the kernel's own
structures, which nft_compat carries out (<linux/netfilter/nf_tables.h>,
<linux/netfilter/nf_tables_compat.h>). So rules are compared as the same bytes, whichever variant of
iptables holds them. An expression that iptables did not write becomes a match of its own, which
equals no match of iptables.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from netmgr.errors import KernelError
from netmgr.kernel import nf_tables
from netmgr.kernel.netlink import attributes
from netmgr.kernel.nf_tables import GOTO, JUMP, Expression, number, plain, text
from netmgr.kernel.xtables.entries import (
    LAYOUTS,
    LINK_NAME,
    Entry,
    Extension,
    assembled,
    extension,
    text_of,
    udp_match,
)
from netmgr.model import CHAIN_PREFIX
from netmgr.prefixes import Family

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
_LINKS = (_IN_NAME, _OUT_NAME)
_INVERTED_LINK = (0x01, 0x02)
_INVERTED_ADDRESS = (0x08, 0x10)
_INVERTED_PROTOCOL = 0x40
_ADDRESSES_AT = {Family.V4: (12, 16), Family.V6: (8, 24)}
"""Where a packet's header has its source and its destination."""
_UNKNOWN = "nft"
"""Name of the match that an expression becomes which no rule of iptables has."""


def encode(entry: Entry) -> list[Expression]:
    """An entry's expressions, with what it has counted."""
    packets, octets = entry.counters
    # A rule keeps its count when it is written again, so counters are never set back.
    counter = {
        _COUNTER_BYTES: octets.to_bytes(8, "big"),
        _COUNTER_PACKETS: packets.to_bytes(8, "big"),
    }
    return [
        *_comparisons(entry),
        *(_extension("match", *match) for match in entry.matches()),
        Expression("counter", counter),
        *_target(entry.target_extension(), is_goto=entry.is_goto),
    ]


def protocol_of(entry: Entry) -> tuple[int, bool]:
    """The protocol of an entry's packets (0: any), and whether it is negated."""
    at = entry.layout.protocol_at
    is_inverted = bool(entry.raw[entry.layout.invert_at] & _INVERTED_PROTOCOL)
    return int.from_bytes(entry.raw[at : at + 2], sys.byteorder), is_inverted


def decode(expressions: Iterable[Expression], family: Family, comment: str = "") -> Entry:
    """The entry that the expressions are.

    `comment` is one kept beside the expressions, as nft(8) keeps it.
    """
    decoding = _Decoding(family)
    if comment:
        decoding.matches += extension("comment", text(comment))
    for expression in expressions:
        decoding.take(expression)
    return decoding.entry()


def _comparisons(entry: Entry) -> Iterator[Expression]:
    head, layout = entry.head, entry.layout
    size, inverted = layout.address, head[layout.invert_at]
    for side, key in enumerate(_LINKS):
        at = layout.links_at + side * LINK_NAME
        # The mask says how much of the name counts.
        significant = head[at + 2 * LINK_NAME : at + 3 * LINK_NAME].count(0xFF)
        if significant:
            yield Expression("meta", {_META_KEY: number(key), _META_REGISTER: _REGISTER})
            yield _comparison(head[at : at + significant], negated=inverted & _INVERTED_LINK[side])
    protocol = head[layout.protocol_at]
    if protocol:
        yield Expression("meta", {_META_KEY: number(_PROTOCOL), _META_REGISTER: _REGISTER})
        yield _comparison(bytes([protocol]), negated=inverted & _INVERTED_PROTOCOL)
    for side, offset in enumerate(_ADDRESSES_AT[entry.family]):
        address = head[side * size : (side + 1) * size]
        mask = head[(2 + side) * size : (3 + side) * size]
        yield from _address(address, mask, offset, negated=inverted & _INVERTED_ADDRESS[side])


def _address(address: bytes, mask: bytes, offset: int, *, negated: int) -> Iterator[Expression]:
    if not any(mask):
        return
    # A mask of whole bytes is written as a shorter load, as iptables does; any other one as a
    # bitwise and.
    bytes_alone = mask.rstrip(b"\0")
    is_plain = bytes_alone == b"\xff" * len(bytes_alone)
    length = len(bytes_alone) if is_plain else len(mask)
    load = {_LOAD_REGISTER: _REGISTER, _LOAD_BASE: number(_NETWORK_HEADER)}
    yield Expression(
        "payload", {**load, _LOAD_OFFSET: number(offset), _LOAD_LENGTH: number(length)}
    )
    if not is_plain:
        registers = {
            _BITWISE_SOURCE: _REGISTER,
            _BITWISE_REGISTER: _REGISTER,
            _BITWISE_LENGTH: number(length),
        }
        yield Expression(
            "bitwise", {**registers, _BITWISE_MASK: plain(mask), _BITWISE_XOR: plain(bytes(length))}
        )
    yield _comparison(address[:length], negated=negated)


def _comparison(data: bytes, *, negated: int) -> Expression:
    operator = number(_UNEQUAL if negated else _EQUAL)
    return Expression(
        "cmp", {_CMP_REGISTER: _REGISTER, _CMP_OPERATOR: operator, _CMP_DATA: plain(data)}
    )


def _extension(kind: str, name: str, revision: int, data: bytes) -> Expression:
    return Expression(kind, {_NAME: text(name), _REVISION: number(revision), _INFO: data})


def _target(target: Extension, *, is_goto: bool) -> Iterator[Expression]:
    name, revision, data = target
    if name in _VERDICTS:
        verdict = nf_tables.verdict(_VERDICTS[name])
    elif name.startswith(CHAIN_PREFIX):
        verdict = nf_tables.goto(name, GOTO if is_goto else JUMP)
    else:
        if name:
            yield _extension("target", name, revision, data)
        return
    yield Expression("immediate", {_VERDICT_REGISTER: number(0), _VERDICT_DATA: verdict})


class _Value(NamedTuple):
    """A value of the packet that is about to be compared."""

    kind: str
    key: int
    size: int = 0
    mask: bytes = b""


_META_PROTOCOL = _Value("meta", _PROTOCOL)
_PROTOCOL_VALUES = {
    Family.V4: (_META_PROTOCOL, _Value("payload", 9, 1, b"\xff")),
    Family.V6: (_META_PROTOCOL,),
}
"""Ways to compare the protocol; iptables since 1.8.10 takes it from the header of IPv4."""


class _Field(NamedTuple):
    """What a comparison sets in an entry's head.

    Bytes by their offset, flags, and the flag of its inversion.
    """

    values: dict[int, bytes]
    inverted: int
    flags: int = 0


class _Decoding:
    """An entry that is assembled expression by expression.

    `loaded` are the expressions that loaded the value for the next comparison.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self.layout = LAYOUTS[family]
        self.head = bytearray(self.layout.size)
        self.matches = b""
        self.counted = (0, 0)
        self.name, self.target = "", extension("", bytes(4))
        self.loaded: list[Expression] = []

    def take(self, expression: Expression) -> None:
        """Take the next expression."""
        # An expression that iptables does not write becomes a match of its own, so that the rule
        # equals none of ours.
        handle = _HANDLERS.get(expression.name)
        if handle is None or not handle(self, expression):
            self._keep([*self.loaded, expression])

    def entry(self) -> Entry:
        """What the expressions were."""
        self._keep(self.loaded)
        made = assembled(self.head, self.matches, self.name, self.target, self.family)
        return made.with_counts(*self.counted)

    def load(self, expression: Expression) -> bool:
        """`meta`, `payload` or `bitwise`."""
        self.loaded.append(expression)
        return True

    def compare(self, expression: Expression) -> bool:
        """`cmp`: a field of the head, or the destination port that UDP's match has."""
        field = self._field(expression)
        # An entry has room for one comparison of each field. A second one, which nft(8) can write,
        # must make the rule differ from any of iptables.
        if field is not None and not self._is_set(field):
            self._set(field, expression)
        elif (port := self._udp_port(expression)) is not None:
            self.matches += udp_match(port)
        else:
            return False
        self.loaded.clear()
        return True

    def count(self, expression: Expression) -> bool:
        """`counter`."""
        packets, octets = (
            int.from_bytes(expression.attributes.get(kind, b"")[:8], "big")
            for kind in (_COUNTER_PACKETS, _COUNTER_BYTES)
        )
        self.counted = packets, octets
        return True

    def extend(self, expression: Expression) -> bool:
        """`match` or `target`: an extension of xtables."""
        has = expression.attributes
        if not has.keys() >= {_NAME, _REVISION, _INFO}:
            return False
        name = text_of(has[_NAME])
        found = extension(name, has[_INFO], int.from_bytes(has[_REVISION][-1:], "big"))
        if expression.name == "match":
            self.matches += found
        else:
            self.name, self.target = name, found
        return True

    def decide(self, expression: Expression) -> bool:
        """`immediate`: a verdict or a jump."""
        data = expression.attributes.get(_VERDICT_DATA, b"")
        verdict = _inner(_inner(data).get(_VERDICT, b""))
        code = int.from_bytes(verdict.get(_VERDICT_CODE, b""), "big", signed=True)
        if code in (JUMP, GOTO):
            self.name = text_of(verdict.get(_VERDICT_CHAIN, b""))
            self.head[self.layout.flags_at] |= self.layout.goto if code == GOTO else 0
        elif code in _VERDICT_NAMES and verdict:
            self.name = _VERDICT_NAMES[code]
        else:
            return False
        self.target = extension(self.name, bytes(4))
        return True

    def _keep(self, expressions: Iterable[Expression]) -> None:
        """Keep digests of the expressions as matches."""
        for one in expressions:
            # An expression may be longer than an entry has room for.
            self.matches += extension(_UNKNOWN, hashlib.sha256(one.encode()).digest())
        self.loaded = []

    def _field(self, expression: Expression) -> _Field | None:
        """The field of the head that is compared; None if an entry's head has no such field."""
        data, loaded = _value(expression.attributes.get(_CMP_DATA, b"")), _loaded(self.loaded)
        if loaded is None or not data or _operator(expression) not in (_EQUAL, _UNEQUAL):
            return None
        if loaded in _PROTOCOL_VALUES[self.family]:
            at = {self.layout.protocol_at: data[:1]}
            return _Field(at, _INVERTED_PROTOCOL, self.layout.has_protocol)
        if loaded.kind == "meta" and loaded.key in _LINKS:
            return self._link(_LINKS.index(loaded.key), data)
        offsets, size = _ADDRESSES_AT[self.family], self.layout.address
        # Longer data would be in the way of what is behind it in the head.
        is_room = max(len(data), len(loaded.mask)) <= size
        if loaded.kind == "payload" and loaded.key in offsets and is_room:
            side = offsets.index(loaded.key)
            address = {side * size: data, (2 + side) * size: loaded.mask}
            return _Field(address, _INVERTED_ADDRESS[side])
        return None

    def _link(self, side: int, data: bytes) -> _Field | None:
        at = self.layout.links_at + side * LINK_NAME
        name, final, _ = data.partition(b"\0")
        if len(name) >= LINK_NAME:
            return None
        # A name without its final zero is the beginning of one, which iptables shows by a plus.
        shown = name + (b"" if final else b"+")
        mask = b"\xff" * (len(name) + len(final))
        return _Field({at: shown, at + 2 * LINK_NAME: mask}, _INVERTED_LINK[side])

    def _is_set(self, field: _Field) -> bool:
        """Whether an earlier comparison was of the same field."""
        return any(any(self.head[at : at + len(value)]) for at, value in field.values.items())

    def _set(self, field: _Field, expression: Expression) -> None:
        for at, value in field.values.items():
            self.head[at : at + len(value)] = value
        self.head[self.layout.flags_at] |= field.flags
        if _operator(expression) == _UNEQUAL:
            self.head[self.layout.invert_at] |= field.inverted

    def _udp_port(self, expression: Expression) -> int | None:
        """The port, if the comparison is of UDP's destination port."""
        # Since 1.8.8 iptables writes this comparison in place of its match `udp`.
        if self.head[self.layout.protocol_at] != _UDP:
            return None
        if [one.name for one in self.loaded] != ["payload"] or _operator(expression) != _EQUAL:
            return None
        has = self.loaded[0].attributes
        where = [has.get(kind) for kind in (_LOAD_BASE, _LOAD_OFFSET, _LOAD_LENGTH)]
        data = _value(expression.attributes.get(_CMP_DATA, b""))
        is_port = where == [number(_TRANSPORT_HEADER), number(2), number(_PORT_BYTES)]
        return int.from_bytes(data, "big") if is_port and len(data) == _PORT_BYTES else None


_HANDLERS: Mapping[str, Callable[[_Decoding, Expression], bool]] = {
    "meta": _Decoding.load,
    "payload": _Decoding.load,
    "bitwise": _Decoding.load,
    "cmp": _Decoding.compare,
    "counter": _Decoding.count,
    "match": _Decoding.extend,
    "target": _Decoding.extend,
    "immediate": _Decoding.decide,
}
"""What takes an expression, by its name; it says whether iptables writes such a one."""


def _loaded(expressions: list[Expression]) -> _Value | None:
    """The value that these expressions load; None if iptables compares no such value."""
    match [one.name for one in expressions]:
        case ["meta"]:
            key = expressions[0].attributes.get(_META_KEY, b"")
            return _Value("meta", int.from_bytes(key, "big"))
        case ["payload"] | ["payload", "bitwise"]:
            has = expressions[0].attributes
            base, offset, size = (
                int.from_bytes(has.get(kind, b""), "big")
                for kind in (_LOAD_BASE, _LOAD_OFFSET, _LOAD_LENGTH)
            )
            # What iptables compares fits into an address.
            if base != _NETWORK_HEADER or size > Family.V6.octets:
                return None
            mask = b"\xff" * size
            if expressions[1:]:
                mask = _value(expressions[1].attributes.get(_BITWISE_MASK, b""))
            return _Value("payload", offset, size, mask)
        case _:
            return None


def _operator(expression: Expression) -> int:
    return int.from_bytes(expression.attributes.get(_CMP_OPERATOR, b""), "big")


def _value(data: bytes) -> bytes:
    return _inner(data).get(1, b"")


def _inner(data: bytes) -> dict[int, bytes]:
    try:
        return attributes(data, 0)
    except KernelError:
        # Another program's rule that cannot be read must not hide ours.
        return {}
