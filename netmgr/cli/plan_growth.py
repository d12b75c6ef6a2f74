"""`netmgr plan grow`, `dry-run` and `advise`: what would happen, before it does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from netmgr.cli import completion, plan_common
from netmgr.cli.options import DEFAULT_PLAN, ClusterName, Format, OutputFormat, PlanFile
from netmgr.cli.output import Table, show, show_document
from netmgr.documents.diagnostics import Diagnostic, Severity
from netmgr.errors import Exit
from netmgr.plan import growth as planning
from netmgr.plan.check.checks import check_limits
from netmgr.plan.diff import diff

dry_run_app = typer.Typer(no_args_is_help=True)
advise_app = typer.Typer(no_args_is_help=True)


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
    larger = planning.grown_plan(planned.plan, cluster, nodes, pool)
    after = plan_common.answer(replace(planned, plan=larger))
    changes = diff(before, after)
    todo = planning.effects((planned.plan, before), (larger, after), limits)
    kept, total = planning.kept_nodes(before, after)
    over = _without_notes(check_limits(larger, after, limits)[1])
    if output is OutputFormat.TABLE:
        plan_common.print_changes(changes)
        _print_effects(todo, kept, total)
        plan_common.print_narrowings(planned, after)
        plan_common.print_findings(file, over)
        typer.secho(f"To apply it, set the nodes in {file} and run: netmgr plan lock", dim=True)
    else:
        document = {
            "version": 1,
            "changes": changes,
            "kept": kept,
            "of": total,
            "to_do": [
                {"what": effect.what, "where": effect.subject, "detail": effect.detail}
                for effect in todo
            ],
            "findings": [{"severity": line.severity, "message": str(line)} for line in over],
        }
        show_document(document, output)
    if kept < total or any(finding.severity is Severity.ERROR for finding in over):
        raise typer.Exit(Exit.FAILURE)
    raise typer.Exit(Exit.CHANGES if changes or todo else Exit.SUCCESS)


def _without_notes(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Notes concern sizes that no limit forbids, and would hide what does."""
    return [finding for finding in findings if finding.severity is not Severity.NOTE]


def _print_effects(todo: Sequence[planning.Effect], kept: int, total: int) -> None:
    moves = "Nothing moves" if kept == total else "Nodes would move"
    places = f"{kept:,} of {total:,} node places in the lock"
    typer.echo(f"{moves}: {places} keep every address they have.")
    if todo:
        table = Table("to do", "where", "what")
        for effect in todo:
            table.row(effect.what, effect.subject, effect.detail)
        show(table)


@dry_run_app.command()
def upgrade(
    cluster: ClusterName,
    *,
    surge: Annotated[
        int,
        typer.Option(
            "--surge", min=1, help="Extra nodes during the upgrade, in one node pool at a time."
        ),
    ],
    pool: Annotated[
        str | None,
        typer.Option(help="Upgrade only this node pool.", autocompletion=completion.node_pools),
    ] = None,
    file: PlanFile = DEFAULT_PLAN,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Simulate an upgrade of every node pool with surge nodes.

    Exit 1 if the upgrade would fail.
    """
    planned = plan_common.up_to_date(file)
    dry_run = planning.dry_run_upgrade(
        planned.plan, planned.locked, planned.limits, cluster, surge=surge, only=pool
    )
    over = [
        f"{line.what}, {line.subject}: {line.used:,} of {line.limit:,}" for line in dry_run.over
    ]
    if output is OutputFormat.TABLE:
        show(_steps(dry_run))
        for line in over:
            typer.secho(line, fg="red")
        if dry_run.succeeds:
            typer.secho("The upgrade succeeds.", fg="green", bold=True)
        else:
            typer.secho("The upgrade would fail; nothing was changed.", fg="red", bold=True)
    else:
        document = {
            "version": 1,
            "succeeds": dry_run.succeeds,
            "steps": [
                {
                    "pool": step.pool,
                    "nodes": step.nodes,
                    "peak": step.peak,
                    "places": step.places,
                    "short": step.short,
                }
                for step in dry_run.steps
            ],
            "over": over,
        }
        show_document(document, output)
    raise typer.Exit(Exit.SUCCESS if dry_run.succeeds else Exit.FAILURE)


def _steps(dry_run: planning.UpgradeDryRun) -> Table:
    table = Table("node pool", "nodes>", "at the peak>", "places>", "")
    for step in dry_run.steps:
        result = f"{step.short:,} short" if step.short else "fits"
        figures = (f"{step.nodes:,}", f"{step.peak:,}", f"{step.places:,}")
        table.row(step.pool, *figures, result)
    return table


@advise_app.command("max-pods")
def max_pods(
    cluster: ClusterName, *, file: PlanFile = DEFAULT_PLAN, output: Format = OutputFormat.TABLE
) -> None:
    """Show how many pods a node can have, and how many nodes fit."""
    planned = plan_common.up_to_date(file)
    choices = planning.max_pods(planned.plan, planned.locked, planned.limits, cluster)
    if output is not OutputFormat.TABLE:
        document = {"version": 1, "choices": choices}
        show_document(document, output)
        return
    headings = ("node pool", "blocks>", "pods per node", "nodes that fit>", "mappings per node>")
    table = Table(*headings, "")
    for choice in choices:
        note = "" if choice.fits else "too few nodes fit"
        table.row(
            choice.pool,
            str(choice.blocks),
            f"up to {choice.pods}",
            f"{choice.nodes:,}",
            str(choice.mappings),
            "now" if choice.is_now else note,
        )
    show(table)
    typer.secho(
        "More blocks renumber the node pool's nodes; more pods in the present blocks cost nothing.",
        dim=True,
    )


@advise_app.callback()
@dry_run_app.callback()
def _group() -> None:
    """Keep a group of one command a group."""
