"""Numbers with Kubernetes' suffixes: 100M is 100,000,000, 1Ki is 1024."""

from __future__ import annotations

import re
from typing import Any

SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": "^[0-9]{1,15}([.][0-9]{1,9})?(|k|K|M|G|T|Ki|Mi|Gi|Ti)$"},
    ]
}
"""JSON Schema of a quantity."""

_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(|k|K|M|G|T|Ki|Mi|Gi|Ti)\Z")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
LEAST_RATE, MOST_RATE = 64_000, 10**12
"""Bits a second. Below, a connection's own acknowledgements would not fit."""


def quantity(value: object) -> int:
    """The number that a text, or a number, is.

    Raises:
        ValueError: it is none.
    """
    found = _QUANTITY.match(str(value)) if isinstance(value, str | int | float) else None
    if isinstance(value, bool) or found is None:
        raise ValueError(
            f"{str(value)[:40]!r} is no quantity; write a number, as 500k, 100M or 1Gi"
        )
    number, suffix = found.groups()
    base = 1024 if suffix.endswith("i") else 1000
    return int(float(number) * base ** _POWERS[suffix.removesuffix("i")])


def bit_rate(value: object) -> int:
    """A quantity of bits a second that can be kept.

    Raises:
        ValueError: it is none, or too little or too much.
    """
    rate = quantity(value)
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ValueError(f"{rate} bits a second: give at least 64k, and at most 1T")
    return rate
