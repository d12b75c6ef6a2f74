"""`netmgr plan check --report`: a changed plan as a reviewer of a pull request wants to see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from netmgr.cli.plan_common import Planned, answer
from netmgr.documents.diagnostics import Diagnostic
from netmgr.plan import files
from netmgr.plan.check.usage import Forecast, Usage
from netmgr.plan.diff import ChangeKind, diff
from netmgr.plan.growth import kept_nodes
from netmgr.plan.lock import LockDocument

MOST_ROWS = 100
"""Of a table; a comment of a pull request has an end."""


class Report(StrEnum):
    MARKDOWN = "markdown"


class Checked(NamedTuple):
    """What `plan check` finds. After an error there is nothing but findings."""

    findings: Sequence[Diagnostic]
    usages: tuple[Usage, ...] = ()
    forecasts: tuple[Forecast, ...] = ()


def fullest(usages: tuple[Usage, ...]) -> list[Usage]:
    """Of each kind of limit the one that is used most."""
    most_used: dict[str, Usage] = {}
    for usage in usages:
        if usage.what not in most_used or usage.used > most_used[usage.what].used:
            most_used[usage.what] = usage
    return [usage for usage in usages if most_used[usage.what] is usage]


def markdown(planned: Planned, before: LockDocument | None, checked: Checked) -> Iterator[str]:
    """What moves and grows from a lock to the one that answers the plan, and what is left."""
    # What would have to move is shown and not refused, as `plan diff` does.
    after = answer(planned, renumber=True)
    yield f"## Address plan {planned.plan.name}\n"
    yield from _moves(before, after)
    yield from _findings(planned, checked.findings)
    yield from _growth(before, after, checked.forecasts)
    yield from _limits(fullest(checked.usages))
    if planned.lock != after:
        yield f"\n{planned.lock_path.name} does not answer the plan yet: run `netmgr plan lock`."


def _moves(before: LockDocument | None, after: LockDocument) -> Iterator[str]:
    changes = diff(before, after)
    kept, total = kept_nodes(before, after) if before else (0, 0)
    moving = sum(change.kind is ChangeKind.RENUMBER for change in changes)
    places = f"{kept:,} of {total:,} node places keep every address they have"
    yield f"**{f'{moving:,} entries move' if moving else 'Nothing moves'}**: {places}."
    rows = ((f"`{line.kind}`", line.key, line.before, line.after, line.note) for line in changes)
    yield from _table("What changes", ("", "entry", "before", "after", ""), rows)


def _findings(planned: Planned, findings: Iterable[Diagnostic]) -> Iterator[str]:
    rows = ((finding.severity, files.located(planned.path, finding)) for finding in findings)
    yield from _table("Findings", ("", "finding"), rows)


def _growth(
    before: LockDocument | None, after: LockDocument, forecasts: Iterable[Forecast]
) -> Iterator[str]:
    """The clusters that have places for another number of nodes than before."""
    former = _places(before) if before else {}
    places = _places(after)
    rows = (
        (
            ahead.cluster,
            f"{former.get(ahead.cluster, 0):,}",
            f"{ahead.capacity:,}",
            str(ahead.doublings),
            f"{ahead.first_limit} at {ahead.at_nodes:,} nodes",
        )
        for ahead in forecasts
        if former.get(ahead.cluster) != places[ahead.cluster]
    )
    headings = ("cluster", "places before", "places now", "doublings left", "the first limit")
    yield from _table("What grows", headings, rows)


def _places(lock: LockDocument) -> dict[str, int]:
    return {
        name: sum(pool.capacity for pool in held.node_pools.values())
        for name, held in lock.clusters.items()
    }


def _limits(usages: Iterable[Usage]) -> Iterator[str]:
    rows = (
        (
            usage.what,
            usage.subject,
            f"{usage.used:,}",
            f"{usage.limit:,}",
            f"{usage.limit - usage.used:,}",
            "" if usage.status == "ok" else usage.status,
        )
        for usage in usages
        if usage.limit is not None
    )
    yield from _table("Limits left", ("limit", "where", "used", "of", "left", ""), rows)


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Nothing without rows."""
    lines = [*rows]
    if not lines:
        return
    yield f"\n### {title}\n"
    for line in (headings, ["---"] * len(headings), *lines[:MOST_ROWS]):
        # A bar would end the cell.
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
    if len(lines) > MOST_ROWS:
        yield f"\nand {len(lines) - MOST_ROWS:,} more."
