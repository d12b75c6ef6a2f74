"""Numbers with Kubernetes' suffixes: 100M is 100,000,000, 1Ki is 1024."""

from __future__ import annotations

import re
from typing import Any

from netmgr.model import LEAST_RATE, MOST_RATE

SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": "^[0-9]{1,15}([.][0-9]{1,9})?(|k|K|M|G|T|Ki|Mi|Gi|Ti)$"},
    ]
}
"""JSON Schema of a quantity."""

_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(|k|K|M|G|T|Ki|Mi|Gi|Ti)\Z")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def quantity(value: object) -> int:
    """The number that a text, or a number, is; ValueError if it is none."""
    match = _QUANTITY.match(str(value)) if isinstance(value, str | int | float) else None
    if isinstance(value, bool) or match is None:
        raise ValueError(
            f"{str(value)[:40]!r} is no quantity; write a number without a unit: 500k, 100M, 1Gi"
        )
    number, suffix = match.groups()
    base = 1024 if suffix.endswith("i") else 1000
    # Whole numbers of 15 digits, the most there are here, are exact as floats.
    return int(float(number) * base ** _POWERS[suffix.removesuffix("i")])


def written(number: int) -> str:
    """A number as a document has it: 1000000 is 1M."""
    for base, suffixes in ((1000, ("T", "G", "M", "k")), (1024, ("Ti", "Gi", "Mi", "Ki"))):
        for power, suffix in zip((4, 3, 2, 1), suffixes, strict=True):
            if number and number % base**power == 0:
                return f"{number // base**power}{suffix}"
    return str(number)


def bit_rate(value: object) -> int:
    """A quantity of bits a second that can be kept; ValueError if it is none."""
    try:
        rate = quantity(value)
    except ValueError:
        raise ValueError(
            f"{str(value)[:40]!r} is no rate; write bits a second, without a unit: 100M "
            "are 100 Mbit/s, 800M are 100 MB/s"
        ) from None
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ValueError(f"{rate} bits a second: give at least 64k, and at most 1T")
    return rate
