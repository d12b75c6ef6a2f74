"""Accounting gaps in words, the same wherever people read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from netmgr.api.snapshot import AccountingGaps


def described(gaps: Iterable[AccountingGaps]) -> Iterator[str]:
    """A line for each reason that there was: events, duration, bytes, the last one and whose."""
    # An agent of the release before answers in the same version, and may say less of a gap.
    for gap in filter(lambda gap: gap["count"], gaps):
        named = gap.get("counters", [])
        more = gap.get("concerned", 0) - len(named)
        whose = ", ".join(["", *named, *([f"{more} more"] if more else ())])
        yield (
            f"gap {gap['reason']}: {gap['count']} event{'s' * (gap['count'] > 1)}, "
            f"{gap['seconds']:.1f} s, {gap.get('bytes', 0):,} bytes known to be lost; the last "
            f"{_time(gap.get('since', 0))} to {_time(gap.get('last', 0))}{whose}"
        )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%FT%TZ") if seconds else "?"
