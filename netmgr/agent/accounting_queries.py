"""What readers are told of gaps, of the audit and of the history."""

from __future__ import annotations

from netmgr.agent.accounts import Accounts
from netmgr.agent.audit import LinkCheck
from netmgr.ledger.audit import Audit
from netmgr.ledger.history import FARTHEST, By, Period, view
from netmgr.ledger.totals import Totals
from netmgr.snapshot import (
    VERSION,
    AccountingGaps,
    Audited,
    AuditView,
    ForwardAudit,
    LinkAudit,
    OriginTotals,
    UsageView,
)


def gaps(totals: Totals) -> list[AccountingGaps]:
    """Every reason, zeros included."""
    return [
        {"reason": reason, "count": count, "seconds": totals.gap_seconds[reason]}
        for reason, count in totals.gaps.items()
    ]


def unattributed(totals: Totals, *, runs_pods: bool) -> list[Audited]:
    """Every direction that the forward rules count; none where no pods run and all that is forwarded is others'."""
    if not runs_pods:
        return []
    return [
        {
            "traffic": one.traffic,
            "bytes": one.missed.bytes,
            "packets": one.missed.packets,
            "forwarded": one.passed.bytes,
        }
        for one in totals.audit(Audit.FORWARD)
    ]


def origins(totals: Totals, *, runs_pods: bool) -> list[OriginTotals]:
    """The node's total in four parts, each of which only rises."""
    names = {Audit.FORWARD: ("pods", "unattributed" if runs_pods else "transit"), Audit.LOCAL: ("host-pods", "node")}
    return [
        {"origin": name, "traffic": one.traffic, "bytes": amount.bytes, "packets": amount.packets}
        for one in totals.audits
        for name, amount in zip(names[one.audit], (one.counted, one.missed), strict=True)
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
                forwarded=one.passed.bytes,
                attributed=one.counted.bytes,
                unattributed=one.missed.bytes,
            )
            for one in report.totals.audit(Audit.FORWARD)
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
    if not 0 <= since < until < FARTHEST:
        raise ValueError("until must be later than since, and both within some thousand years from 1970")
    period = Period.around(since, until)
    return view(period, by, accounts.usage(period, by))
