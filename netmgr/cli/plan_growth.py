"""`netmgr plan grow`, `dry-run` and `advise`: what would happen, before it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netmgr.cli import completion, plan_common
from netmgr.cli.options import DEFAULT_PLAN, ClusterName, Format, Output, PlanFile
from netmgr.cli.output import Table, show, show_document
from netmgr.errors import Exit

if TYPE_CHECKING:
    from netmgr.documents.diagnostics import Diagnostic
    from netmgr.plan.diff import Change
    from netmgr.plan.growth import Effect, UpgradeDryRun

dry_run_app = typer.Typer(
    no_args_is_help=True, help="Show what an upgrade would meet, without starting it."
)
advise_app = typer.Typer(no_args_is_help=True, help="Advise on values of the plan.")


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
    output: Format = Output.TABLE,
) -> None:
    """Show what growth would change, and that no node moves.

    Writes nothing, and lists what else is to do. Exit 1 if it does not fit, 3 if it takes changes.
    """
    from dataclasses import replace

    from netmgr.plan.check.checks import check_limits
    from netmgr.plan.clouds.registry import narrowings
    from netmgr.plan.diff import diff as compare
    from netmgr.plan.growth import effects, grown_plan, kept_nodes

    planned = plan_common.up_to_date(file)
    before = planned.locked
    larger = replace(planned, plan=grown_plan(planned.plan, cluster, nodes, pool))
    after = plan_common.answer(larger)
    over = check_limits(larger.plan, after, planned.limits)[1]
    growth = Growth(
        changes=compare(before, after),
        todo=effects((planned.plan, before), (larger.plan, after), planned.limits),
        kept=kept_nodes(before, after),
        # Notes concern sizes that no limit forbids, and would hide what does.
        over=[finding for finding in over if finding.severity != "note"],
        narrowed=tuple(narrowings(planned.plan.cloud, before, after)),
    )
    if output is Output.TABLE:
        _print_growth(file, growth)
    else:
        show_document(_describe(growth), output)
    if not growth.is_sound:
        raise typer.Exit(Exit.FAILURE)
    raise typer.Exit(Exit.CHANGES if growth.changes or growth.todo else Exit.SUCCESS)


@dataclass(frozen=True, slots=True)
class Growth:
    """What growth takes. `kept` is how many node places keep every address, and of how many."""

    changes: tuple[Change, ...]
    todo: tuple[Effect, ...]
    kept: tuple[int, int]
    over: list[Diagnostic]
    narrowed: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing moves and no limit is passed."""
        return self.kept[0] == self.kept[1] and not any(
            finding.severity == "error" for finding in self.over
        )


def _print_growth(file: Path, growth: Growth) -> None:
    plan_common.print_changes(growth.changes)
    kept, total = growth.kept
    moves = "Nothing moves" if kept == total else "Nodes would move"
    typer.echo(
        f"{moves}: {kept:,} of {total:,} node places in the lock keep every address they have."
    )
    if growth.todo:
        table = Table("to do", "where", "what")
        for effect in growth.todo:
            table.row(effect.what, effect.subject, effect.detail)
        show(table)
    for line in growth.narrowed:
        typer.secho(line, fg="yellow")
    plan_common.print_findings(file, growth.over)
    typer.secho(f"To apply it, set the nodes in {file} and run: netmgr plan lock", dim=True)


def _describe(growth: Growth) -> dict[str, Any]:
    return {
        "version": 1,
        "changes": growth.changes,
        "kept": growth.kept[0],
        "of": growth.kept[1],
        "to_do": [
            {"what": effect.what, "where": effect.subject, "detail": effect.detail}
            for effect in growth.todo
        ],
        "findings": [
            {"severity": finding.severity, "message": str(finding)} for finding in growth.over
        ],
    }


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
    output: Format = Output.TABLE,
) -> None:
    """Simulate an upgrade of every node pool with surge nodes.

    Exit 1 if the upgrade would fail.
    """
    from netmgr.plan.growth import dry_run_upgrade

    planned = plan_common.up_to_date(file)
    dry_run = dry_run_upgrade(
        planned.plan, planned.locked, planned.limits, cluster, surge=surge, only=pool
    )
    over = [
        f"{line.what}, {line.subject}: {line.used:,} of {line.limit:,}" for line in dry_run.over
    ]
    if output is Output.TABLE:
        show(_steps(dry_run))
        for line in over:
            typer.secho(line, fg="red")
        if dry_run.succeeds:
            typer.secho("The upgrade succeeds.", fg="green", bold=True)
        else:
            typer.secho("The upgrade would fail; nothing was changed.", fg="red", bold=True)
    else:
        steps = [
            {
                "pool": step.pool,
                "nodes": step.nodes,
                "peak": step.peak,
                "places": step.places,
                "short": step.short,
            }
            for step in dry_run.steps
        ]
        document = {
            "version": 1,
            "succeeds": dry_run.succeeds,
            "steps": steps,
            "over": over,
        }
        show_document(document, output)
    raise typer.Exit(Exit.SUCCESS if dry_run.succeeds else Exit.FAILURE)


def _steps(dry_run: UpgradeDryRun) -> Table:
    table = Table("node pool", "nodes>", "at the peak>", "places>", "")
    for step in dry_run.steps:
        result = f"{step.short:,} short" if step.short else "fits"
        figures = (f"{step.nodes:,}", f"{step.peak:,}", f"{step.places:,}")
        table.row(step.pool, *figures, result)
    return table


@advise_app.command("max-pods")
def max_pods(
    cluster: ClusterName, *, file: PlanFile = DEFAULT_PLAN, output: Format = Output.TABLE
) -> None:
    """Show how many pods a node can have, and how many nodes fit."""
    from netmgr.plan.growth import max_pods as choose

    planned = plan_common.up_to_date(file)
    choices = choose(planned.plan, planned.locked, planned.limits, cluster)
    if output is not Output.TABLE:
        document = {"version": 1, "choices": choices}
        show_document(document, output)
        return
    headings = (
        "node pool",
        "blocks>",
        "pods per node",
        "nodes that fit>",
        "mappings per node>",
        "",
    )
    table = Table(*headings)
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
