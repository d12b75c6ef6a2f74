"""`netmgr plan lock`, `diff` and `release`: the commands that compare a plan with its lock, and write the lock."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli.plan_common import (
    CHANGES,
    DEFAULT_FILE,
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
    refuse_errors,
)

if TYPE_CHECKING:
    from netmgr.plan.diff import Change
    from netmgr.plan.lock import LockDocument

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")]


def lock(
    *,
    file: File = DEFAULT_FILE,
    yes: Yes = False,
    renumber: Annotated[
        bool, typer.Option("--renumber", help="Let addresses in use move where they must; take an edited lock.")
    ] = False,
) -> None:
    """Choose prefixes for what the plan asks, show the diff, ask, and write the lock.

    Exit codes: 0 the lock answers the plan now, 1 error, 2 changes that were not written.
    """
    planned = load(file, edited=renumber)
    after = answer(planned, renumber=renumber)
    refuse_errors(planned, after)
    _settle(planned, after, yes=yes)


def release(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A cluster, or cluster/nodepool, that left the plan.")],
    *,
    file: File = DEFAULT_FILE,
    yes: Yes = False,
) -> None:
    """Give up the addresses of a cluster or node pool that is out of the plan, so that others may get them.

    Exit codes: 0 released, 1 error, 2 changes that were not written.
    """
    planned = load(file)
    _settle(planned, answer(planned, released=[name]), yes=yes)


def diff(*, file: File = DEFAULT_FILE, output: Format = Output.TABLE) -> None:
    """Show what `plan lock` would change. Renumbering stands as -/+.

    Exit codes: 0 nothing to do, 1 error, 2 changes.
    """
    from netmgr.plan.diff import diff as compare

    planned = load(file)
    after = answer(planned, renumber=True)
    changes = compare(planned.lock, after)
    narrowed = list(narrowings(planned.lock, after))
    if output is Output.TABLE:
        print_changes(changes)
        typer.echo(_summary(changes) if changes else f"{planned.lock_path} answers {file}: nothing to do")
        for line in narrowed:
            typer.secho(line, fg="yellow")
    else:
        print_document({"changes": describe(changes), "narrowed": narrowed}, output)
    raise typer.Exit(CHANGES if changes else NOTHING_TO_DO)


def _settle(planned: Planned, after: LockDocument, *, yes: bool) -> None:
    """Show, ask, write."""
    from netmgr import plan_files
    from netmgr.plan.diff import diff as compare

    changes = compare(planned.lock, after)
    if not changes and planned.lock == after and planned.is_sealed:
        typer.echo(f"{planned.lock_path} answers {planned.path}: nothing to do")
        return
    if not planned.is_sealed:
        typer.echo(f"{planned.lock_path} has no digest of what it says: this adds the digest.")
    print_changes(changes)
    typer.echo(_summary(changes))
    for line in narrowings(planned.lock, after):
        typer.secho(line, fg="yellow")
    if not (yes or _is_wanted(planned)):
        typer.echo("Nothing was written.")
        raise typer.Exit(CHANGES)
    found = plan_files.read_lock(planned.lock_path)
    if (found.lock if found else None) != planned.lock:
        raise PlanFailed(f"{planned.lock_path}: was changed meanwhile; run the command again")
    plan_files.write_lock(planned.lock_path, after)
    typer.echo(f"Wrote {planned.lock_path}.")


def _is_wanted(planned: Planned) -> bool:
    if not sys.stdin.isatty():
        typer.echo("To write this without being asked, add --yes.", err=True)
        return False
    return typer.confirm(f"Write {planned.lock_path}?")


def _summary(changes: tuple[Change, ...]) -> str:
    count = {kind: sum(change.kind == kind for change in changes) for kind in ("+", "~", "-", "-/+")}
    parts = (
        f"{count['+']} to add",
        f"{count['~']} to change",
        f"{count['-']} to release",
        f"{count['-/+']} to renumber",
    )
    return f"{', '.join(parts)}."
