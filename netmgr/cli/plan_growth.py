"""`netmgr plan grow`, `rehearse` and `advise`: what would happen, before it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netmgr.cli.plan_common import (
    CHANGES,
    DEFAULT_FILE,
    FAILED,
    NOTHING_TO_DO,
    File,
    Format,
    Output,
    PlanFailed,
    Planned,
    answer,
    describe,
    load,
    narrowings,
    print_changes,
    print_document,
    print_findings,
    print_rows,
)

if TYPE_CHECKING:
    from netmgr.plan.diff import Change
    from netmgr.plan.findings import Finding
    from netmgr.plan.grow import Effect
    from netmgr.plan.lock import LockDocument

Name = Annotated[str, typer.Argument(metavar="CLUSTER", help="A cluster of the plan.")]

rehearse_app = typer.Typer(no_args_is_help=True, help="Rehearse an upgrade before it is started.")
advise_app = typer.Typer(no_args_is_help=True, help="Advise on figures of the plan.")


def grow(
    cluster: Name,
    *,
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, help="Nodes the cluster is to have in all.")],
    pool: Annotated[str | None, typer.Option(help="Node pool that takes the difference [default: the largest]")] = None,
    file: File = DEFAULT_FILE,
    output: Format = Output.TABLE,
) -> None:
    """Show what growth takes: the lock's changes, the proof that nothing moves, and everything else there is to do.

    Writes nothing. Exit codes: 0 nothing to do, 1 it does not fit, 2 changes.
    """
    from dataclasses import replace

    from netmgr.plan.check import check_limits
    from netmgr.plan.diff import diff as compare
    from netmgr.plan.grow import effects, grown_plan, kept_nodes

    planned = load(file)
    before = _current(planned)
    larger = replace(planned, plan=grown_plan(planned.plan, cluster, nodes, pool))
    after = answer(larger)
    growth = Growth(
        changes=compare(before, after),
        todo=effects((planned.plan, before), (larger.plan, after), planned.limits),
        kept=kept_nodes(before, after),
        over=[each for each in check_limits(larger.plan, after, planned.limits)[1] if each.severity != "note"],
        narrowed=tuple(narrowings(before, after)),
    )
    if output is Output.TABLE:
        _print_growth(file, growth)
    else:
        print_document(_describe(growth), output)
    if not growth.is_sound:
        raise typer.Exit(FAILED)
    raise typer.Exit(CHANGES if growth.changes or growth.todo else NOTHING_TO_DO)


@dataclass(frozen=True, slots=True)
class Growth:
    """What growth takes. `kept` is how many node places keep every address, and how many there were."""

    changes: tuple[Change, ...]
    todo: tuple[Effect, ...]
    kept: tuple[int, int]
    over: list[Finding]
    narrowed: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing moves and no limit is passed."""
        return self.kept[0] == self.kept[1] and not any(each.severity == "error" for each in self.over)


def _print_growth(file: Path, growth: Growth) -> None:
    print_changes(growth.changes)
    kept, total = growth.kept
    moves = "Nothing moves" if kept == total else "Nodes would move"
    typer.echo(f"{moves}: {kept:,} of {total:,} node places in the lock keep every address they have.")
    if growth.todo:
        print_rows(("to do", "where", "what"), [(each.what, each.subject, each.detail) for each in growth.todo])
    for line in growth.narrowed:
        typer.secho(line, fg="yellow")
    print_findings(file, growth.over)
    typer.secho(f"To do it, write the nodes into {file} and run: netmgr plan lock", dim=True)


def _describe(growth: Growth) -> dict[str, Any]:
    return {
        "changes": describe(growth.changes),
        "kept": growth.kept[0],
        "of": growth.kept[1],
        "to_do": [{"what": each.what, "where": each.subject, "detail": each.detail} for each in growth.todo],
        "findings": [{"severity": str(each.severity), "message": str(each)} for each in growth.over],
    }


def _current(planned: Planned) -> LockDocument:
    """The lock, which must answer the plan: what is compared is growth alone."""
    if planned.locked != answer(planned):
        raise PlanFailed(f"{planned.lock_path}: does not answer the plan yet; run: netmgr plan lock -f {planned.path}")
    return planned.locked


@rehearse_app.command()
def upgrade(
    cluster: Name,
    *,
    surge: Annotated[int, typer.Option("--surge", min=1, help="Nodes beside the others, in each node pool in turn.")],
    pool: Annotated[str | None, typer.Option(help="Upgrade this node pool alone.")] = None,
    file: File = DEFAULT_FILE,
    output: Format = Output.TABLE,
) -> None:
    """Walk through an upgrade of every node pool with so many surge nodes. Exit codes: 0 it succeeds, 1 it does not."""
    from netmgr.plan.rehearse import rehearse_upgrade

    planned = load(file)
    found = rehearse_upgrade(planned.plan, _current(planned), planned.limits, cluster, surge=surge, only=pool)
    over = [f"{line.what}, {line.subject}: {line.used:,} of {line.limit:,}" for line in found.over]
    if output is Output.TABLE:
        rows = [
            (
                step.pool,
                f"{step.nodes:,}",
                f"{step.peak:,}",
                f"{step.places:,}",
                f"{step.short:,} short" if step.short else "fits",
            )
            for step in found.steps
        ]
        print_rows(("node pool", "nodes", "at the peak", "places", ""), rows)
        for line in over:
            typer.secho(line, fg="red")
        verdict = "The upgrade succeeds." if found.succeeds else "The upgrade would fail; nothing was changed."
        typer.secho(verdict, fg="green" if found.succeeds else "red", bold=True)
    else:
        steps = [
            {"pool": s.pool, "nodes": s.nodes, "peak": s.peak, "places": s.places, "short": s.short}
            for s in found.steps
        ]
        print_document({"succeeds": found.succeeds, "steps": steps, "over": over}, output)
    raise typer.Exit(NOTHING_TO_DO if found.succeeds else FAILED)


@advise_app.command("max-pods")
def max_pods(cluster: Name, *, file: File = DEFAULT_FILE, output: Format = Output.TABLE) -> None:
    """Say how many pods a node can have by its number of blocks, and how many nodes then fit. Exit codes: 0 or 1."""
    from dataclasses import asdict

    from netmgr.plan.rehearse import max_pods as choose

    planned = load(file)
    choices = choose(planned.plan, _current(planned), planned.limits, cluster)
    if output is not Output.TABLE:
        print_document({"choices": [asdict(choice) for choice in choices]}, output)
        return
    rows = [
        (
            each.pool,
            str(each.blocks),
            f"up to {each.pods}",
            f"{each.nodes:,}",
            str(each.mappings),
            "now" if each.is_now else "" if each.fits else "too few nodes fit",
        )
        for each in choices
    ]
    print_rows(("node pool", "blocks", "pods a node", "nodes that fit", "mappings a node", ""), rows)
    typer.secho(
        "More blocks than now renumber the node pool's nodes; more pods in the blocks of now cost nothing.", dim=True
    )


@advise_app.callback()
@rehearse_app.callback()
def _group() -> None:
    """Keep a group of one command a group."""
