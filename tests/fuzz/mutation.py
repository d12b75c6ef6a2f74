"""Mutations that know a format: the engine's own rarely get past a parser's first check.

All of them follow from the random source, so that a seed repeats a run.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

CUT = 0.1
"""How often an input is cut off where something could be inserted: most would be short soon."""
LONGEST = 1 << 16
MOST_REPETITIONS = 300
ODD_NUMBERS = (0, 1, -1, 2, 127, 255, 256, 65535, 65536, 2**31, 2**32, 2**63 - 1, 2**64, 10**30)
ODD_TEXTS = (
    *("", " ", "0", "-1", "010", "1e3", "²", "\uff11", "%", "%n", "..", "/", "a/b", "a\0b"),
    *("\ud800", "\x1b[2J", "\n", "\r", "é" * 90, "a" * 300, "0.0.0.0/0", "::/0", "fe80::%1/64"),
    *("::ffff:10.0.0.1", "10.0.0.1/33", "10.0.0.1", "[", "{", '"'),
)
ODD_YAML = (
    *('!!int ""', '!!float ""', "!!bool x", "!!binary x", "!!timestamp x", "!!set {a}"),
    *("!!omap [a]", "!!pairs [a]", "!!python/name:os.system", "2026-13-01"),
    *("0001-01-01 00:00:00 +23:59", "190:20:30.15", "0x", "0b2", "0o9", ".inf", ".nan", "~"),
    *("*a", "&a", "&a [*a]", "<<: *a", "? [a]", "|", ">-", "%YAML 9.9", "---", "...", "@", "`"),
    *("\u2028",),
)
EDGES = tuple("a1."[number % 3] * number for number in (15, 16, 17, 253, 254, 255, 256))
"""Of lengths around which something ends: names of links, labels, paths, numbers of 8 bits."""
_ATTRIBUTE = struct.Struct("=HH")

Mutation = Callable[[bytes, random.Random, Sequence[str]], bytes]


class Shape(Enum):
    """What inputs look like."""

    BYTES = "bytes"
    TEXT = "text"
    """Lines of words."""
    JSON = "json"
    YAML = "yaml"
    HTTP = "http"
    """A head with lines, then perhaps JSON."""
    WIRE = "wire"
    """Variables with a NUL behind each, then JSON (`cni/wire.py`)."""
    NETLINK = "netlink"
    """A byte that selects, a header, then attributes."""


def mutate(data: bytes, shape: Shape, source: random.Random, tokens: Sequence[str]) -> bytes:
    """The input, changed in one to four places."""
    for _ in range(source.choice((1, 1, 1, 2, 3, 4))):
        ways = _WAYS[shape]
        # Repetitions of repetitions would fill the memory.
        data = source.choice(ways)(data, source, tokens)[:LONGEST]
    return data


def _bytes(  # noqa: PLR0911  one return for each kind of change
    data: bytes, source: random.Random, tokens: Sequence[str]
) -> bytes:
    """Change, insert, delete, repeat or cut some bytes."""
    begin, end = _slice(data, source)
    piece = data[begin:end]
    match source.randrange(7):
        case 0:
            changed = bytearray(data)
            if changed:
                changed[begin % len(changed)] ^= 1 << source.randrange(8)
            return bytes(changed)
        case 1:
            return data[:begin] + data[end:]
        case 2:
            return data[:begin] + piece * source.choice((2, 3, MOST_REPETITIONS)) + data[end:]
        case 3:
            return data[:begin] + source.randbytes(source.choice((1, 2, 4, 8))) + data[end:]
        case 4:
            number = source.choice(ODD_NUMBERS) % 2**32
            code = source.choice(("<B", "<H", ">H", "<I", ">I"))
            width = struct.calcsize(code)
            value = struct.pack(code, number % 256**width)
            return data[:begin] + value + data[begin + width :]
        case 5:
            return data[:begin] + _word(source, tokens) + data[end:]
        case _ if source.random() < CUT:
            return data[:begin]
        case _:
            return data[:begin] + _word(source, tokens) + data[begin:]


def _text(data: bytes, source: random.Random, tokens: Sequence[str]) -> bytes:
    """Exchange, repeat, delete or replace lines and words."""
    separator = source.choice((b"\n", b" ", b"\n", b",", b":", b";", b"/", b"."))
    parts = data.split(separator)
    at, other = source.randrange(len(parts)), source.randrange(len(parts))
    match source.randrange(6):
        case 0:
            parts[at], parts[other] = parts[other], parts[at]
        case 1:
            parts[at:at] = [parts[other]] * source.choice((1, 2, MOST_REPETITIONS))
        case 2:
            del parts[at]
        case 3:
            parts[at] = _word(source, tokens)
        case 4:
            parts[at] = parts[at] + _word(source, tokens)
        case _:
            parts[at] = _value(source, tokens)
    return separator.join(parts)


def _yaml(data: bytes, source: random.Random, tokens: Sequence[str]) -> bytes:
    """Change a line's value or its indentation."""
    lines = data.split(b"\n")
    at = source.randrange(len(lines))
    key, colon, _ = lines[at].partition(b":")
    odd = source.choice(ODD_YAML).encode()
    match source.randrange(5):
        case 0:
            lines[at] = key + colon + b" " + odd
        case 1:
            lines[at] = b" " * source.choice((1, 2, 4)) + lines[at]
        case 2:
            lines[at] = lines[at].lstrip()
        case 3:
            lines[at] = (
                key + b": " + source.choice((b"[", b"{a: ", b"- ")) * source.choice((1, 3, 1200))
            )
        case _:
            lines[at] = key + b": " + _word(source, tokens)
    return b"\n".join(lines)


def _json(data: bytes, source: random.Random, tokens: Sequence[str]) -> bytes:
    """Change one value of a document."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, source, tokens)
    return json.dumps(_changed(document, source, tokens)).encode()


def _changed(  # noqa: PLR0911  as above
    value: Any, source: random.Random, tokens: Sequence[str]
) -> Any:
    """The value with something in it replaced."""
    if isinstance(value, dict) and value and source.random() < 0.85:
        key = source.choice(list(value))
        match source.randrange(8):
            case 0:
                return {name: each for name, each in value.items() if name != key}
            case 1:
                return value | {_odd_text(source, tokens): value[key]}
            case _:
                return value | {key: _changed(value[key], source, tokens)}
    if isinstance(value, list) and value and source.random() < 0.85:
        at = source.randrange(len(value))
        match source.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value + [value[at]] * source.choice((1, 2, MOST_REPETITIONS))
            case _:
                return [*value[:at], _changed(value[at], source, tokens), *value[at + 1 :]]
    if isinstance(value, str) and source.random() < 0.5:
        at = source.randrange(len(value) + 1)
        return value[:at] + _odd_text(source, tokens) + value[at + source.randrange(2) :]
    return _odd(value, source, tokens)


def _odd(  # noqa: PLR0911  as above
    value: Any, source: random.Random, tokens: Sequence[str]
) -> Any:
    """A value of another type, or an odd one of the same."""
    match source.randrange(9):
        case 0:
            return source.choice(ODD_NUMBERS)
        case 1:
            return source.choice((1.5, 1e400, -0.0, float("nan")))
        case 2:
            return source.choice((True, False, None))
        case 3:
            return [value]
        case 4:
            return {_odd_text(source, tokens): value}
        case 5:
            return source.choice(([], {}, [[]], [None], [{}]))
        case _:
            return _odd_text(source, tokens)


def _odd_text(source: random.Random, tokens: Sequence[str]) -> str:
    return source.choice((*ODD_TEXTS, *EDGES, *tokens))


def _wire(data: bytes, source: random.Random, tokens: Sequence[str]) -> bytes:
    """Change a variable or the configuration behind them."""
    head, end, config = data.partition(b"\0\0")
    if end and source.random() < 0.6:
        return head + end + _json(config, source, tokens)
    variables = head.split(b"\0")
    at = source.randrange(len(variables))
    name, equals, value = variables[at].partition(b"=")
    match source.randrange(5):
        case 0:
            del variables[at]
        case 1:
            variables.append(variables[at])
        case 2:
            variables[at] = name + equals + _word(source, tokens)
        case _:
            variables[at] = name + equals + _bytes(value, source, tokens)
    return b"\0".join(variables) + end + config


def _http(data: bytes, source: random.Random, tokens: Sequence[str]) -> bytes:
    """Change a line of the head, or the body."""
    head, end, body = data.partition(b"\r\n\r\n")
    if body and source.random() < 0.5:
        return head + end + _json(body, source, tokens)
    lines = head.split(b"\r\n")
    at = source.randrange(len(lines))
    name, colon, _ = lines[at].partition(b":")
    if colon and source.random() < 0.5:
        lines[at] = name + b": " + _value(source, tokens)
    else:
        lines[at] = source.choice((_bytes, _text))(lines[at], source, tokens)
    if source.random() < 0.2:
        lines.append(lines[at])
    return b"\r\n".join(lines) + end + body


def _netlink(data: bytes, source: random.Random, tokens: Sequence[str]) -> bytes:
    """Change an attribute; the lengths around it stay true."""
    # Where attributes begin depends on the message. All header lengths are multiples of four.
    for header in (4, 8, 12, 16, 20, 1, 0):
        tree = _attributes(data[1 + header :])
        if tree:
            return data[: 1 + header] + _encoded(_other_tree(tree, source, tokens))
    return _bytes(data, source, tokens)


Tree = list[tuple[int, "Tree | bytes"]]


def _attributes(data: bytes) -> Tree:
    """Attributes, nested as far as values are attributes; empty if these are none."""
    found: Tree = []
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if (
            length < _ATTRIBUTE.size
            or at + length > len(data)
            or not kind & 0x3FFF
            or kind & 0x3FFF > 80
        ):
            return []
        value = data[at + _ATTRIBUTE.size : at + length]
        found.append((kind, _attributes(value) or value))
        at += (length + 3) & ~3
    return found


def _encoded(tree: Tree) -> bytes:
    parts = []
    for kind, value in tree:
        raw = value if isinstance(value, bytes) else _encoded(value)
        length = min(_ATTRIBUTE.size + len(raw), 0xFFFF)
        parts.append(_ATTRIBUTE.pack(length, kind) + raw + b"\0" * (-length % 4))
    return b"".join(parts)


def _other_tree(  # noqa: PLR0911  as above
    tree: Tree, source: random.Random, tokens: Sequence[str]
) -> Tree:
    at = source.randrange(len(tree))
    kind, value = tree[at]
    if not isinstance(value, bytes) and value and source.random() < 0.75:
        return [*tree[:at], (kind, _other_tree(value, source, tokens)), *tree[at + 1 :]]
    raw = value if isinstance(value, bytes) else _encoded(value)
    match source.randrange(7):
        case 0:
            return tree[:at] + tree[at + 1 :]
        case 1:
            return tree + [tree[at]] * source.choice((1, 2, 40))
        case 2:
            return [*tree[:at], (source.randrange(1, 60), value), *tree[at + 1 :]]
        case 3:
            return [tree[source.randrange(len(tree))], *tree]
        case 4:
            return [*tree[:at], (kind, [(source.randrange(1, 8), raw)]), *tree[at + 1 :]]
        case _:
            return [*tree[:at], (kind, _bytes(raw, source, tokens)), *tree[at + 1 :]]


def _word(source: random.Random, tokens: Sequence[str]) -> bytes:
    return _odd_text(source, tokens).encode(errors="surrogatepass")


def _value(source: random.Random, tokens: Sequence[str]) -> bytes:
    """A number, or a word."""
    return source.choice((str(source.choice(ODD_NUMBERS)).encode(), _word(source, tokens)))


def _slice(data: bytes, source: random.Random) -> tuple[int, int]:
    begin = source.randrange(len(data) + 1)
    return begin, min(len(data), begin + source.choice((0, 1, 1, 2, 4, 8, 32, 200)))


_WAYS: dict[Shape, tuple[Mutation, ...]] = {
    Shape.BYTES: (_bytes,),
    Shape.TEXT: (_text, _text, _bytes),
    Shape.JSON: (_json, _json, _json, _bytes),
    Shape.YAML: (_yaml, _yaml, _text, _text, _bytes),
    Shape.HTTP: (_http, _http, _text, _bytes),
    Shape.WIRE: (_wire, _wire, _wire, _bytes),
    Shape.NETLINK: (_netlink, _netlink, _netlink, _bytes),
}
