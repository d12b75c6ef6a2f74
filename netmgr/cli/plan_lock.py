"""`netmgr plan lock`, `diff`, `release`, `import` and `adopt`: what writes the lock or the plan."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr import durable
from netmgr.cli import completion, plan_common
from netmgr.cli.options import DEFAULT_PLAN, Format, OutputFormat, PlanFile, Yes
from netmgr.cli.output import respond, show
from netmgr.documents import loader
from netmgr.documents.diagnostics import dotted
from netmgr.errors import ConfigError, Exit
from netmgr.plan import files
from netmgr.plan.check.checks import refuse_errors
from netmgr.plan.check.conflicts import pin_faults
from netmgr.plan.clouds.registry import narrowings
from netmgr.plan.diff import Change, ChangeKind
from netmgr.plan.diff import diff as compare
from netmgr.plan.document import Exclusion, PlanDocument
from netmgr.plan.lock import LockDocument

if TYPE_CHECKING:
    from netmgr.plan.adopt import Existing


def lock(
    *,
    file: PlanFile = DEFAULT_PLAN,
    yes: Yes = False,
    renumber: Annotated[
        bool,
        typer.Option("--renumber", help="Allow addresses in use to change."),
    ] = False,
) -> None:
    """Allocate prefixes, show the diff, ask, and write the lock.

    Exit 3 if changes were not written.
    """
    planned = plan_common.load(file, older=renumber)
    after = plan_common.answer(planned, renumber=renumber)
    with plan_common.refusals_described(partial(files.located, file)):
        refuse_errors(planned.plan, after, planned.limits)
    _settle(planned, after, yes=yes)


def release(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A cluster, or cluster/nodepool, that left the plan.",
            autocompletion=completion.tombstones,
        ),
    ],
    *,
    file: PlanFile = DEFAULT_PLAN,
    yes: Yes = False,
) -> None:
    """Release the addresses of a cluster or node pool.

    It must have left the plan; then others can get its addresses.

    Exit 3 if changes were not written.
    """
    planned = plan_common.load(file)
    _settle(planned, plan_common.answer(planned, released=[name]), yes=yes)


def diff(*, file: PlanFile = DEFAULT_PLAN, output: Format = OutputFormat.TABLE) -> None:
    """Show what `plan lock` would change; -/+ is renumbering. Exit 3 if there are changes."""
    planned = plan_common.load(file, older=True)
    # What `plan lock` would refuse is shown as well, as a renumbering.
    after = plan_common.answer(planned, renumber=True)
    changes = compare(planned.lock, after)
    lines = [
        *plan_common.change_lines(changes),
        _summary(planned, after, changes),
        *plan_common.narrowing_lines(planned, after),
    ]
    narrowed = list(narrowings(planned.plan.cloud, planned.lock, after))
    respond(output, {"version": 1, "changes": changes, "narrowed": narrowed}, lines)
    # Not by the changes: the plan's digest may be all that differs, and is written, too.
    raise typer.Exit(Exit.SUCCESS if planned.lock == after else Exit.CHANGES)


def _settle(planned: plan_common.Planned, after: LockDocument, *, yes: bool) -> None:
    changes = compare(planned.lock, after)
    show(*plan_common.change_lines(changes), _summary(planned, after, changes))
    if planned.lock == after:
        return
    show(*plan_common.narrowing_lines(planned, after))
    if not (yes or _is_wanted(planned)):
        typer.echo("Nothing was written.")
        raise typer.Exit(Exit.CHANGES)
    files.write_lock(planned.lock_path, after, planned.lock)
    typer.echo(f"Wrote {planned.lock_path}.")


def _is_wanted(planned: plan_common.Planned) -> bool:
    # A pipeline must not hang at a question.
    if not sys.stdin.isatty():
        typer.echo("To write without being asked, add --yes.", err=True)
        return False
    return typer.confirm(f"Write {planned.lock_path}?")


def _summary(planned: plan_common.Planned, after: LockDocument, changes: tuple[Change, ...]) -> str:
    if planned.lock == after:
        return f"{planned.lock_path} is up to date: nothing to do"
    if not changes:
        return f"No address changes; only the plan's digest in {planned.lock_path} does."
    count = Counter(change.kind for change in changes)
    verbs = zip(ChangeKind, ("add", "change", "release", "renumber"), strict=True)
    return f"{', '.join(f'{count[kind]} to {verb}' for kind, verb in verbs)}."


def adopt(
    existing: Annotated[
        Path, typer.Argument(metavar="FILE", help="Prefixes and their owners.", dir_okay=False)
    ],
    *,
    file: PlanFile = DEFAULT_PLAN,
    names: plan_common.As = None,
    only: plan_common.Owners = None,
    skip: plan_common.Owners = None,
    yes: Yes = False,
) -> None:
    """Pin existing prefixes in the plan.

    Prefixes of its clusters and hub are pinned as theirs, others as taken.

    FILE is lines or CSV (name prefix), YAML or JSON (name: [prefixes]), where a prefix may also be
    a range (10.0.0.0-10.0.2.255), or what `az network vnet list`, `az network vnet show` or Azure's
    REST API prints. Of the latter, only these are read: each VNet's name, id and address space, the
    same of peers that are not listed, and name and prefixes of each subnet of the plan's own VNets.
    Such a subnet is excluded from allocation, unless the lock or a node pool's `subnets` has it. To
    take over nodes, move their subnets from `exclude` to `subnets`.

    Lines are added to the plan, none is changed; the next `plan lock` allocates addresses.
    Exit 3 if changes were not written.
    """
    from netmgr.plan import adopt as adopting

    plan, lock = files.load_plan(file), files.load_lock(files.lock_path(file))
    text = file.read_text(encoding="utf-8")
    adopted = adopting.called(
        adopting.read_existing(loader.read(existing), str(existing)), plan, names, only, skip
    )
    adopting.refuse_overlaps(adopted, str(existing))
    live = adopting.live_subnets(plan, lock, adopted)
    after = adopting.with_adopted(text, plan, adopted, live, str(file))
    if after == text:
        typer.echo(f"{file} has all of them: nothing to do")
        return
    # Before the question: what is written must be a valid plan.
    if faults := list(pin_faults(loader.parse(after, str(file), PlanDocument))):
        lines = [f"{file}: {dotted(fault.at.key)}: {fault}" for fault in faults]
        remedy = "nothing was written; --skip leaves one of the list out"
        raise ConfigError("\n".join(lines), remedy)
    _print_adopted(plan, adopted, live)
    if not (yes or (sys.stdin.isatty() and typer.confirm(f"Write {file}?"))):
        typer.echo("Nothing was written; to write without being asked, add --yes.")
        raise typer.Exit(Exit.CHANGES)
    durable.write(file, after.encode())
    typer.echo(f"Wrote {file}. Next: netmgr plan diff -f {file}")


def _print_adopted(plan: PlanDocument, adopted: Existing, live: list[Exclusion]) -> None:
    for name, prefixes in adopted.prefixes.items():
        if name not in plan.pinned:
            whose = "its own" if plan.is_site(name) else "taken"
            typer.secho(f"  + pinned.{name}: {', '.join(map(str, prefixes))} ({whose})", fg="green")
    for exclusion in live:
        typer.secho(
            f"  + exclude: {exclusion.prefix} ({exclusion.reason}, left as it is)", fg="green"
        )


def import_(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `plan export` wrote.", dir_okay=False)
    ],
    *,
    file: PlanFile = DEFAULT_PLAN,
) -> None:
    """Make the lock anew from an export, also from NetBox's export of it.

    It is written only where there is none. Prefixes of others are named, and left out.
    """
    from netmgr.plan.exchange import read_lock

    planned = plan_common.load(file)
    imported, others = read_lock(loader.read(source), str(source), planned.plan)
    if planned.lock not in (None, imported):
        message = f"{planned.lock_path}: is another lock, whose addresses may be in use"
        raise ConfigError(message, "to have that of the export, move it away")
    files.write_lock(planned.lock_path, imported, planned.lock)
    for prefix in others:
        typer.echo(f"left out: {prefix}; if it is in use, write it under exclude", err=True)
    typer.echo(f"Wrote {planned.lock_path}. Next: netmgr plan diff -f {file}")
