"""A small assembler of eBPF (RFC 9669), in the notation of LLVM and of the kernel's verifier.

    r2 = *(u32 *)(r6 + 36); if r2 == 0 goto pass    *(u32 *)(r10 - 20) = 128    r2 <<= 3
    lock *(u64 *)(r0 + 8) += r9    r1 = map pods    r1 = value sums    call 1    exit
    r2 = be32 r2    if w2 >= 0xe0000000 goto pass

`map` is a map's address, `value` that of an array's one element; `w2` is the lower half of `r2`.
What follows `#` is a comment.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Mapping
from typing import NamedTuple

from netmgr.errors import SetupError

_SIZES = {"u8": 0x10, "u16": 0x08, "u32": 0x00, "u64": 0x18}
_ARITHMETIC = {"": 0xB0, "+": 0x00, "-": 0x10, "*": 0x20, "/": 0x30}
_ARITHMETIC |= {"|": 0x40, "&": 0x50, "<<": 0x60, ">>": 0x70}
_COMPARISONS = {"==": 0x10, ">": 0x20, ">=": 0x30, "&": 0x40, "!=": 0x50, "<": 0xA0, "<=": 0xB0}
_OPERAND = r"(?:r(?P<register>\d+)|(?P<number>-?\w+))"
_CONDITION = rf"(?P<target>\d+) (?P<operator>\S+) {_OPERAND} goto (?P<label>\w+)"


def _memory(base: str) -> str:
    return rf"\*\((?P<size>u\d+) \*\)\(r(?P<{base}>\d+) (?P<sign>[+-]) (?P<offset>\d+)\)"


class _Form(NamedTuple):
    """A statement, its code, what a register in place of a number adds to that, and operators."""

    pattern: str
    code: int
    by_register: int = 0
    operators: Mapping[str, int] = {"": 0}


_FORMS = (
    _Form(r"r(?P<target>\d+) = (?P<kind>map|value) (?P<map>\w+)", 0x18),
    _Form(rf"r(?P<target>\d+) = {_memory('source')}", 0x61),
    _Form(rf"{_memory('target')} = {_OPERAND}", 0x62, 1),
    _Form(rf"lock {_memory('target')} \+= r(?P<source>\d+)", 0xC3),
    _Form(rf"if r{_CONDITION}", 0x05, 8, _COMPARISONS),
    _Form(rf"if w{_CONDITION}", 0x06, 8, _COMPARISONS),
    _Form(r"goto (?P<label>\w+)", 0x05),
    _Form(r"r(?P<target>\d+) = be(?P<number>\d+) r\1", 0xDC),
    _Form(rf"r(?P<target>\d+) (?P<operator>\S*)= {_OPERAND}", 0x07, 8, _ARITHMETIC),
    _Form(r"call (?P<number>\d+)", 0x85),
    _Form(r"exit", 0x95),
)
_PARTS = ("target", "source", "register", "number", "size", "sign", "offset", "operator")
_WORD, _FARTHEST = struct.Struct("=BBhi"), 0x7FFF


def assembled(text: str, maps: Mapping[str, int]) -> bytes:
    """The program as the kernel takes it; `maps` has the descriptors of those that it names.

    Raises:
        ValueError: a statement has none of the forms above.
        KeyError: there is no such map, label or operator.
        SetupError: a jump leads too far.
    """
    code = re.sub(r"#.*", "", text).replace(":", ":;").replace("\n", ";")
    labels: dict[str, int] = {}
    statements: list[tuple[str, int]] = []
    place = 0
    for statement in filter(None, map(str.strip, code.split(";"))):
        if statement.endswith(":"):
            labels[statement[:-1]] = place
        else:
            statements.append((statement, place))
            # An address has 64 bits, and takes the room of two.
            place += 1 + bool(re.search(" = (map|value) ", statement))
    return b"".join(_encoded(statement, at, labels, maps) for statement, at in statements)


def _encoded(
    statement: str, place: int, labels: Mapping[str, int], maps: Mapping[str, int]
) -> bytes:
    form, parts = _parsed(statement)
    code = form.code + _SIZES[parts["size"] or "u32"] + form.operators[parts["operator"]]
    code += form.by_register * bool(parts["register"])
    source, target = int(parts["register"] or parts["source"] or 0), int(parts["target"] or 0)
    number, offset = int(parts["number"] or "0", 0), int(parts["sign"] + (parts["offset"] or "0"))
    if parts["label"]:
        offset = labels[parts["label"]] - place - 1
        if offset > _FARTHEST:
            raise SetupError("accounting.at: links: node.yaml has too many prefixes; say at: rules")
    if parts["map"]:
        source, number = {"map": 1, "value": 2}[parts["kind"]], maps[parts["map"]]
    halves = (source, target) if sys.byteorder == "little" else (target, source)
    signed = (number + (1 << 31)) % (1 << 32) - (1 << 31)
    word = _WORD.pack(code, halves[0] << 4 | halves[1], offset, signed)
    return word + bytes(_WORD.size) if parts["map"] else word


def _parsed(statement: str) -> tuple[_Form, dict[str, str]]:
    for form in _FORMS:
        if match := re.fullmatch(form.pattern, statement):
            return form, dict.fromkeys((*_PARTS, "label", "kind", "map"), "") | match.groupdict("")
    raise ValueError(f"no statement of eBPF: {statement!r}")
