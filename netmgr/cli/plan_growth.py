"""`netmgr plan grow`: what growth would change, before it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from netmgr.cli import completion, plan_common
from netmgr.cli.options import DEFAULT_PLAN, ClusterName, Format, OutputFormat, PlanFile
from netmgr.cli.output import Table, respond
from netmgr.documents.diagnostics import Severity
from netmgr.errors import ConfigError, Exit, NetmgrError
from netmgr.plan.check.checks import check_limits
from netmgr.plan.clouds.registry import narrowings
from netmgr.plan.diff import diff
from netmgr.plan.growth import effects, grown_plan, kept_nodes
from netmgr.plan.lock import LockDocument


def grow(
    cluster: ClusterName,
    *,
    nodes: Annotated[
        int, typer.Option("--nodes", "-n", min=1, help="Nodes the cluster will have in total.")
    ],
    pool: Annotated[
        str | None,
        typer.Option(
            help="Node pool to grow [default: the largest]", autocompletion=completion.node_pools
        ),
    ] = None,
    file: PlanFile = DEFAULT_PLAN,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Show what growth would change, and that no node moves.

    Writes nothing, and lists what else is to do. Exit 1 if it does not fit, 3 if it takes changes.
    """
    planned = plan_common.up_to_date(file)
    before, limits = planned.locked, planned.limits
    larger = grown_plan(planned.plan, cluster, nodes, pool)
    after = _fitting(replace(planned, plan=larger))
    changes = diff(before, after)
    todo = effects((planned.plan, before), (larger, after), limits)
    kept, total = kept_nodes(before, after)
    # Notes concern sizes that no limit forbids, and would hide what does.
    over = [
        finding
        for finding in check_limits(larger, after, limits)[1]
        if finding.severity is not Severity.NOTE
    ]
    document = {
        "version": 1,
        "changes": changes,
        "kept": kept,
        "of": total,
        "to_do": todo,
        "findings": [{"severity": line.severity, "message": str(line)} for line in over],
    }
    moves = "Nothing moves" if kept == total else "Nodes would move"
    places = f"{kept:,} of {total:,} node places in the lock"
    table = Table("to do", "where", "what")
    for effect in todo:
        table.row(effect.what, effect.where, effect.detail)
    parts: list[Table | str] = [
        *plan_common.change_lines(changes),
        f"{moves}: {places} keep every address they have.",
        *([table] if todo else []),
        *plan_common.narrowing_lines(narrowings(planned.plan.cloud, planned.lock, after)),
        *plan_common.finding_lines(file, over),
        typer.style(f"To apply it, set the nodes in {file} and run: netmgr plan lock", dim=True),
    ]
    respond(output, document, parts)
    if kept < total or any(finding.severity is Severity.ERROR for finding in over):
        raise typer.Exit(Exit.FAILURE)
    raise typer.Exit(Exit.CHANGES if changes or todo else Exit.SUCCESS)


def _fitting(larger: plan_common.Planned) -> LockDocument:
    try:
        return plan_common.answer(larger)
    except ConfigError as refused:
        # The document is as it should be: it is the growth that does not fit.
        raise NetmgrError(refused.message) from None
