"""What a nameserver answers to a question, as bytes."""

from __future__ import annotations

import struct

ANSWER = 0x8180
"""Flags: an answer, and recursion was asked for and is there."""


def answer(question: bytes, code: int = 0, records: int = 1) -> bytes:
    """An answer to a question with this response code; of its records only the number is true."""
    head = question[:2] + struct.pack("!HHHHH", ANSWER | code, 1, records, 0, 0)
    return head + question[12:] + b"\xc0\x0c" * records
