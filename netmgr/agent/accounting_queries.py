"""What readers are told of gaps, of the audit and of the history."""

from __future__ import annotations

from typing import cast

from netmgr.agent.accounts import Accounts
from netmgr.agent.audit import LinkCheck
from netmgr.ledger.history import By, Period
from netmgr.ledger.totals import Totals
from netmgr.snapshot import (
    VERSION,
    AccountingGaps,
    Audited,
    AuditView,
    ForwardAudit,
    LinkAudit,
    UsageRow,
    UsageView,
)

MOST_ROWS = 10_000
"""Rows of one answer about usage; the smallest are told of as a number."""

FARTHEST = 1e11
"""Seconds from the epoch that are still a time."""


def gaps(totals: Totals) -> list[AccountingGaps]:
    """Every reason, zeros included."""
    return [
        {"reason": reason, "count": count, "seconds": totals.gap_seconds[reason]}
        for reason, count in totals.gaps.items()
    ]


def unattributed(totals: Totals) -> list[Audited]:
    """Every direction that the forward rules count."""
    return [
        {
            "traffic": one.traffic,
            "bytes": one.missed.bytes,
            "packets": one.missed.packets,
            "forwarded": one.forwarded.bytes,
        }
        for one in totals.audit
    ]


def audit(accounts: Accounts, node: str) -> AuditView:
    """Both comparisons, as of now."""
    report = accounts.audit()
    return {
        "version": VERSION,
        "node": node,
        "forward": [
            ForwardAudit(
                traffic=one.traffic,
                forwarded=one.forwarded.bytes,
                attributed=one.attributed.bytes,
                unattributed=one.missed.bytes,
            )
            for one in report.totals.audit
        ],
        "links": [_link(check) for check in report.links],
        "ratios": report.ratios(),
        "gaps": gaps(report.totals),
    }


def _link(check: LinkCheck) -> LinkAudit:
    return {
        "pods": list(check.pods),
        "link": check.link,
        "direction": check.direction,
        "carried": check.carried,
        "packets": check.packets,
        "headers": check.headers,
        "counted": {str(traffic): size for traffic, size in sorted(check.counted.items())},
        "counted_packets": check.counted_packets,
        "rest": check.rest,
    }


def usage(accounts: Accounts, request: dict[str, object], now: float) -> UsageView:
    """The history of a period: `since` and `until` in seconds since the epoch, `by` as of `By`, with commas.

    Raises:
        ValueError: the request is none.
    """
    since, until = float(str(request.get("since"))), float(str(request.get("until") or now))
    by = [By(name) for name in str(request.get("by")).split(",")]
    if not -FARTHEST < since < until < FARTHEST:
        raise ValueError("until must be later than since, and both within some thousand years")
    period = Period.around(since, until)
    rows = accounts.usage(period, by)
    return {
        "version": VERSION,
        "since": period.since,
        "until": period.until,
        "by": [str(one) for one in by],
        "rows": [cast(UsageRow, row._asdict()) for row in rows[:MOST_ROWS]],
        "left_out": max(0, len(rows) - MOST_ROWS),
    }
