"""`netmgr plan lock`, `diff`, `release`, `import` and `adopt`: what writes the lock or the plan."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli import completion, plan_common
from netmgr.cli.options import DEFAULT_PLAN, Format, OutputFormat, PlanFile, Yes
from netmgr.cli.output import respond, show
from netmgr.cli.plan_git import Before, lock_before
from netmgr.documents import loader
from netmgr.documents.diagnostics import dotted, listed
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
    output: Format = OutputFormat.TABLE,
) -> None:
    """Allocate prefixes, show the diff, ask, and write the lock.

    Exit 3 if changes were not written.
    """
    planned = plan_common.load(file)
    after = plan_common.answer(planned, renumber=renumber)
    with plan_common.refusals_described(partial(files.located, file)):
        refuse_errors(planned.plan, after, planned.limits)
    _settle(planned, after, yes=yes, output=output)


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
    output: Format = OutputFormat.TABLE,
) -> None:
    """Release the addresses of a cluster or node pool.

    It must have left the plan; then others can get its addresses.

    Exit 3 if changes were not written.
    """
    planned = plan_common.load(file)
    _settle(planned, plan_common.answer(planned, released=[name]), yes=yes, output=output)


def diff(
    *,
    file: PlanFile = DEFAULT_PLAN,
    before: Before = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Show what `plan lock` would change; -/+ is renumbering.

    With --before, show what changed since an earlier lock.

    Exit 3 if there are changes.
    """
    planned = plan_common.load(file)
    # What `plan lock` would refuse is shown as well, as a renumbering.
    after = plan_common.answer(planned, renumber=True)
    if before is not None:
        planned = replace(planned, lock=lock_before(before, file))
    is_same = planned.lock == after
    summary = f"Nothing changed since {before}." if before and is_same else ""
    document, lines = _described(planned, after, summary)
    respond(output, document, lines)
    # Not by the changes: the plan's digest may be all that differs, and is written, too.
    raise typer.Exit(Exit.SUCCESS if is_same else Exit.CHANGES)


def _described(
    planned: plan_common.Planned, after: LockDocument, summary: str = ""
) -> tuple[dict[str, object], list[str]]:
    """What changes, for programs and for people."""
    changes = compare(planned.lock, after)
    narrowed = list(narrowings(planned.plan.cloud, planned.lock, after))
    lines = [
        *plan_common.change_lines(changes),
        summary or _summary(planned, after, changes),
        *plan_common.narrowing_lines(narrowed),
    ]
    return {"version": 1, "changes": changes, "narrowed": narrowed}, lines


def _settle(
    planned: plan_common.Planned,
    after: LockDocument,
    *,
    yes: bool,
    output: OutputFormat = OutputFormat.TABLE,
) -> None:
    """Show the changes and write them, if they are wanted."""
    document, lines = _described(planned, after)
    is_changed = planned.lock != after
    if output is OutputFormat.TABLE:
        show(*lines)
    is_written = is_changed and (yes or is_wanted(planned.lock_path, output))
    if is_written:
        files.write_lock(planned.lock_path, after, planned.lock)
    written = f"Wrote {planned.lock_path}." if is_written else "Nothing was written."
    respond(output, {**document, "written": is_written}, [written] if is_changed else [])
    if is_changed and not is_written:
        raise typer.Exit(Exit.CHANGES)


def is_wanted(path: Path, output: OutputFormat) -> bool:
    """Whether whoever runs the command says that a file is to be written."""
    # A pipeline must not hang at a question, and a program reads no question.
    if output is not OutputFormat.TABLE or not sys.stdin.isatty():
        typer.echo("To write without being asked, add --yes.", err=True)
        return False
    return typer.confirm(f"Write {path}?")


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
    only: plan_common.Only = None,
    skip: plan_common.Skip = None,
    yes: Yes = False,
    output: Format = OutputFormat.TABLE,
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
        document = {"version": 1, "changes": [], "written": False}
        respond(output, document, [f"{file} has all of them: nothing to do"])
        return
    # Before the question: what is written must be a valid plan.
    if faults := list(pin_faults(loader.parse(after, str(file), PlanDocument))):
        lines = [f"{file}: {dotted(fault.at.key)}: {fault}" for fault in faults]
        remedy = "nothing was written; --skip leaves one of the list out"
        raise ConfigError("\n".join(lines), remedy)
    changes = list(_pinning(plan, adopted, live))
    if output is OutputFormat.TABLE:
        for change in changes:
            typer.secho(f"  + {change.key}: {change.after} ({change.note})", fg="green")
    is_written = yes or is_wanted(file, output)
    if is_written:
        files.write_plan(file, after, text)
    written = f"Wrote {file}. Next: netmgr plan diff -f {file}"
    document = {"version": 1, "changes": changes, "written": is_written}
    respond(output, document, [written if is_written else "Nothing was written."])
    if not is_written:
        raise typer.Exit(Exit.CHANGES)


def _pinning(plan: PlanDocument, adopted: Existing, live: list[Exclusion]) -> Iterator[Change]:
    for name, prefixes in adopted.prefixes.items():
        if name not in plan.pinned:
            whose = "its own" if plan.is_site(name) else "taken"
            yield Change(ChangeKind.ADD, f"pinned.{name}", "", listed(prefixes), whose)
    for exclusion in live:
        note = f"{exclusion.reason}, left as it is"
        yield Change(ChangeKind.ADD, "exclude", "", str(exclusion.prefix), note)


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
