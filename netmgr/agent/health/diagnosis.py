"""Lasting problems of a node's network, by what its figures did in the last minutes (pure).

A problem of figures has to last or come back, since what happened once is repaired and counted,
and nobody has to do anything about it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from netmgr.api.snapshot import Fault, Problem, Snapshot
from netmgr.kernel.links import Carried
from netmgr.printable import shortened

WINDOW = 10
"""How many looks count; a problem that shows in none of them is gone."""

LOOKS = 3
"""In how many looks, in a row or within the window, a problem has to show."""

DELETED_LINKS = "deleted-links"
"""What running pods' links count as, among repairs: their addresses are others' by then."""

FULL = 0.95
"""Share of a table or of ports."""

LEAST_ERRORS, ERROR_SHARE = 100, 0.001
LEAST_LOST, LOST_SHARE = 1000, 0.01
"""Packets of the uplinks with errors, and those they dropped: so many, and such a share of all."""

LEAST_UNATTRIBUTED, UNATTRIBUTED_SHARE = 10 << 20, 0.01
"""Bytes with the internet that were forwarded and counted for no pod, likewise."""


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """A node's figures at one time; counters only grow, unless what they count was made anew."""

    at: float
    """Seconds of a clock that is never set."""
    tracked: float = 0.0
    """The connection table's share that is in use."""
    ports: float = 0.0
    """The share of the NAT host's ports that is in use."""
    # Of the uplinks, in both directions: all, those with errors, and those that were dropped.
    packets: int = 0
    errors: int = 0
    lost: int = 0
    repairs: Mapping[str, int] = field(default_factory=dict)
    """How often another program's changes were undone, by what they changed."""
    gaps: int = 0
    """How often counters lost their past."""
    # Bytes from or to the internet: all, and those counted for no pod, where that is a fault.
    forwarded: int = 0
    unattributed: int = 0
    wiring: tuple[str, ...] = ()
    """What cannot be repaired of pods' links and routes."""
    taps: Collection[str] = ()
    """Where somebody reads or sends past the node's own network stack."""
    missing: Collection[str] = ()
    """Uplinks that are gone."""


def look_at(snapshot: Snapshot, uplinks: Iterable[Carried], at: float) -> NodeFigures:
    """The figures of a snapshot, and of the uplinks."""
    known = list(uplinks)
    tracking, nat = snapshot.get("tracking"), snapshot.get("nat")
    shares = [
        ports["used"] / ports["budget"]
        for ports in (nat["ports"] if nat else ())
        if ports["budget"]
    ]
    return NodeFigures(
        at=at,
        tracked=tracking["connections"] / tracking["most"] if tracking else 0.0,
        ports=max(shares, default=0.0),
        packets=sum(uplink.received_packets + uplink.sent_packets for uplink in known),
        errors=sum(uplink.errors for uplink in known),
        lost=sum(uplink.lost for uplink in known),
        repairs={drift["reason"]: drift["count"] for drift in snapshot["drift_repaired"]},
        gaps=sum(gap["count"] for gap in snapshot["gaps"]),
        forwarded=sum(total["forwarded"] for total in snapshot["unattributed"]),
        unattributed=_unattributed(snapshot),
        wiring=tuple(snapshot.get("wiring_faults", ())),
    )


def _unattributed(snapshot: Snapshot) -> int:
    """Bytes that no pod was counted for, where only a fault of this node can be the cause."""
    # Users of a NodePort send as much as they like through this node to other nodes' pods. Where
    # these are not counted by themselves (`cluster_cidrs`), it is unattributed, and says nothing.
    # Addresses that no pod has cost no bytes: what is sent there is dropped before it is forwarded.
    if not any(total["origin"] == "remote-pods" for total in snapshot["origins"]):
        return 0
    return sum(total["bytes"] for total in snapshot["unattributed"])


def recent(looks: Sequence[NodeFigures]) -> list[NodeFigures]:
    # One more, to compare the first with.
    return list(looks[-WINDOW - 1 :])


def problems(looks: Sequence[NodeFigures]) -> list[Problem]:
    """The problems that these looks show, oldest look first."""
    shown = chain(
        _of_what_lasts(looks[-LOOKS:]),
        _of_links(looks),
        _of_uplinks(looks),
        _of_accounting(looks),
        _of_what_returns(looks),
    )
    return [{"reason": reason, "message": message} for reason, message in shown]


def _of_what_lasts(looks: Sequence[NodeFigures]) -> Iterator[tuple[Fault, str]]:
    if len(looks) < LOOKS:
        return
    if wiring := min((look.wiring for look in looks), key=len):
        message = f"the wiring of {len(wiring)} pods cannot be repaired, first of all {wiring[0]}"
        yield Fault.WIRING, message
    if min(look.tracked for look in looks) >= FULL:
        message = (
            f"the connection table is {looks[-1].tracked:.0%} full, and nobody can connect once it "
            "is; bound pods by `connections` in limits, or raise net.netfilter.nf_conntrack_max"
        )
        yield Fault.CONNECTIONS_FULL, message
    if min(look.ports for look in looks) >= FULL:
        message = (
            f"{looks[-1].ports:.0%} of the NAT host's ports toward one endpoint are in use; give "
            "it more addresses"
        )
        yield Fault.PORTS_FULL, message


def _of_what_returns(looks: Sequence[NodeFigures]) -> Iterator[tuple[Fault, str]]:
    repairs = {
        area: _increases([look.repairs.get(area, 0) for look in looks])
        for area in sorted(looks[-1].repairs)
    }
    if drift := [f"{area} {times} times" for area, times in repairs.items() if times >= LOOKS]:
        shown = ", ".join(drift)
        message = (
            f"other programs keep changing what the agent repairs ({shown} in "
            f"{looks[-1].at - looks[0].at:.0f} s); its log says what was changed"
        )
        yield Fault.DRIFT, message
    if _increases([look.gaps for look in looks]) >= LOOKS:
        message = (
            "counters keep losing their past, so traffic is missing in the totals; the agent's log "
            "says which"
        )
        yield Fault.GAPS, message


def _of_uplinks(looks: Sequence[NodeFigures]) -> Iterator[tuple[Fault, str]]:
    packets = _increase([look.packets for look in looks])
    for reason, counts, least, share, outcome in (
        (Fault.LINK_ERRORS, [look.errors for look in looks], LEAST_ERRORS, ERROR_SHARE, "failed"),
        (Fault.LINK_DROPS, [look.lost for look in looks], LEAST_LOST, LOST_SHARE, "were dropped"),
    ):
        affected = _increase(counts)
        if (
            affected >= least
            and affected >= share * (packets + affected)
            and _increases(counts) >= LOOKS
        ):
            message = (
                f"{affected} packets of the uplinks {outcome} in the last minutes, beside "
                f"{packets} others; `ip -s -s link` shows why"
            )
            yield reason, message


def _of_accounting(looks: Sequence[NodeFigures]) -> Iterator[tuple[Fault, str]]:
    counts = [look.unattributed for look in looks]
    unattributed, forwarded = _increase(counts), _increase([look.forwarded for look in looks])
    is_much = unattributed >= LEAST_UNATTRIBUTED and unattributed >= UNATTRIBUTED_SHARE * forwarded
    if is_much and _increases(counts) >= LOOKS:
        message = (
            f"{unattributed} of {forwarded} bytes that were forwarded from or to the internet in "
            "the last minutes were counted for no pod; `netmgr node audit` compares what passed, "
            "and `netmgr doctor` looks for other programs"
        )
        yield Fault.UNATTRIBUTED, message


def _of_links(looks: Sequence[NodeFigures]) -> Iterator[tuple[Fault, str]]:
    # One look is enough: whoever does it on purpose does not wait for the next.
    if missing := sorted(set().union(*(look.missing for look in looks))):
        message = f"uplink {', '.join(missing)} is or was gone; `ip -d link` shows what there is"
        yield Fault.UPLINK_MISSING, message
    if taps := sorted(set().union(*(look.taps for look in looks))):
        message = (
            f"{shortened(taps)}: what is sent or read there meets neither rules nor "
            "counters; see SECURITY.md, and run pods that have NET_ADMIN with `hostUsers: false`"
        )
        yield Fault.LINK_TAPPED, message
    # An agent's repairs count from its start; what happened before its first look counts as well.
    before = [0] if len(looks) <= WINDOW else []
    if lost := _increase(before + [look.repairs.get(DELETED_LINKS, 0) for look in looks]):
        message = (
            f"{lost} links of running pods were deleted in the last minutes; the agent's log names "
            "the pods: delete them, since they have neither a network nor their addresses"
        )
        yield Fault.POD_LINK_DELETED, message


def _increases(counts: Sequence[int]) -> int:
    """In how many steps a counter grew."""
    return sum(after > before for before, after in pairwise(counts))


def _increase(counts: Sequence[int]) -> int:
    """By how much a counter grew; a step back is one that was made anew."""
    return sum(max(0, after - before) for before, after in pairwise(counts))
