"""What `netmgr plan check` found as tables, and its report of a change for who reviews it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from netmgr.cli.output import Styled, Table
from netmgr.cli.plan_common import Planned, answer
from netmgr.documents.diagnostics import Diagnostic
from netmgr.plan import files
from netmgr.plan.check.usage import Forecast, Usage
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.diff import ChangeKind, diff
from netmgr.plan.growth import kept_nodes
from netmgr.plan.lock import LockDocument

MOST_ROWS = 100
"""Of a table; a comment of a pull request has an end."""

STATUS_COLOURS = {"over": "red", "near": "yellow"}


class Report(StrEnum):
    MARKDOWN = "markdown"


class Checked(NamedTuple):
    """What `plan check` finds. After an error there is nothing but findings."""

    findings: Sequence[Diagnostic]
    usages: tuple[Usage, ...] = ()
    forecasts: tuple[Forecast, ...] = ()


def limits_table(planned: Planned, usages: tuple[Usage, ...], *, every: bool = False) -> Table:
    """Each limit, or of each kind the one that is used most."""
    title = f"Limits of {planned.limits.cloud}, as published {planned.limits.as_of}"
    worth_showing = usages
    if planned.plan.cloud is Cloud.NONE:
        title = "Limits of Kubernetes (cloud: none has no others)"
        # Most limits do not exist there; that a cloud's is unknown is worth knowing.
        worth_showing = tuple(usage for usage in usages if usage.limit is not None)
    table = Table("what", "where", "used>", "limit>", "left>", "", title=title)
    for usage in usages if every else _fullest(worth_showing):
        cells = (usage.what, usage.subject, f"{usage.used:,}", *_limit(usage), usage.status)
        table.row(*(Styled(cell, STATUS_COLOURS.get(usage.status)) for cell in cells))
    return table


def _limit(usage: Usage) -> tuple[str, str]:
    """It, and how much of it is left."""
    if usage.limit is None:
        return "unknown", ""
    return f"{usage.limit:,}", f"{usage.limit - usage.used:,}"


def _fullest(usages: tuple[Usage, ...]) -> list[Usage]:
    most_used: dict[str, Usage] = {}
    for usage in usages:
        if usage.what not in most_used or usage.used > most_used[usage.what].used:
            most_used[usage.what] = usage
    return [usage for usage in usages if most_used[usage.what] is usage]


def growth_table(
    ahead: Iterable[Forecast], network: str, former: Mapping[str, int] | None = None
) -> Table:
    """How far clusters can grow; with the places that they had before, if these are given."""
    headings = ("nodes>", "places>", f"{network}s>", "doublings left>", "the first limit you hit")
    was = ["places before>"] * (former is not None)
    table = Table("cluster", *was, *headings, "at", title="Growth")
    for forecast in ahead:
        before = [] if former is None else [f"{former.get(forecast.cluster, 0):,}"]
        table.row(
            forecast.cluster,
            *before,
            f"{forecast.nodes:,}",
            f"{forecast.capacity:,}",
            str(forecast.networks),
            str(forecast.doublings),
            forecast.first_limit,
            f"{forecast.at_nodes:,} nodes",
        )
    return table


def markdown(planned: Planned, before: LockDocument | None, checked: Checked) -> Iterator[str]:
    """What moves and grows from a lock to the one that answers the plan, and what is left."""
    # What would have to move is shown and not refused, as `plan diff` does.
    after = answer(planned, renumber=True)
    yield f"## Address plan {planned.plan.name}\n"
    moves, findings = Table("", "entry", "before", "after", ""), Table("", "finding")
    moving = 0
    for line in diff(before, after):
        moving += line.kind is ChangeKind.RENUMBER
        moves.row(f"`{line.kind}`", line.key, line.before, line.after, line.note)
    for finding in checked.findings:
        findings.row(finding.severity, files.located(planned.path, finding))
    kept, total = kept_nodes(before, after) if before else (0, 0)
    places = f"{kept:,} of {total:,} node places keep every address they have"
    yield f"**{f'{moving:,} entries move' if moving else 'Nothing moves'}**: {places}."
    yield from _section("What changes", moves)
    yield from _section("Findings", findings)
    former = _places(before)
    growing = [ahead for ahead in checked.forecasts if former.get(ahead.cluster) != ahead.capacity]
    yield from _section("What grows", growth_table(growing, planned.limits.words.network, former))
    yield from _section("Limits left", limits_table(planned, checked.usages))
    if planned.lock != after:
        yield f"\n{planned.lock_path.name} does not answer the plan yet: run `netmgr plan lock`."


def _section(title: str, table: Table) -> Iterator[str]:
    if rows := list(table.markdown(MOST_ROWS)):
        yield "\n".join((f"\n### {title}\n", *rows))


def _places(lock: LockDocument | None) -> dict[str, int]:
    sites = lock.clusters.items() if lock else ()
    return {name: sum(pool.capacity for pool in held.node_pools.values()) for name, held in sites}
