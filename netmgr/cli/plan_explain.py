"""`netmgr plan explain` and `adopt`: what an address is, and what there is already."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netmgr.cli.plan_common import (
    CHANGES,
    DEFAULT_FILE,
    File,
    Format,
    Output,
    PlanFailed,
    load,
    print_document,
)
from netmgr.sites import HUB

if TYPE_CHECKING:
    from netmgr.plan.adopt import Existing
    from netmgr.plan.document import Exclusion, PlanDocument


def explain(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="An IPv4 or IPv6 address.")],
    *,
    file: File = DEFAULT_FILE,
    output: Format = Output.TABLE,
) -> None:
    """Say whose an address is: cluster, role, node, block, the document and key behind it, and what happens to it.

    Exit codes: 0, or 1 on an error.
    """
    from dataclasses import asdict

    from netmgr.plan.explain import explain as look_up
    from netmgr.prefixes import Address

    planned = load(file)
    try:
        wanted = Address.parse(address)
    except ValueError as error:
        raise PlanFailed(str(error)) from None
    found = look_up(planned.plan, planned.locked, wanted)
    if output is not Output.TABLE:
        print_document(asdict(found), output)
        return
    for name, value in asdict(found).items():
        if value:
            typer.echo(f"{typer.style(f'{name:>8}', dim=True)}  {value}")


def adopt(
    existing: Annotated[Path, typer.Argument(metavar="FILE", help="Prefixes and their owners.", dir_okay=False)],
    *,
    file: File = DEFAULT_FILE,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--as", metavar="OWNER=SITE", help="What is a cluster's, or hub's, under another name; repeatable."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
) -> None:
    """Pin existing prefixes in the plan: those of its clusters and hub become theirs, all others are kept out of.

    FILE is lines or CSV (name prefix), YAML or JSON (name: [prefixes]), or what `az network vnet list` prints.
    Of that are read each VNet's name and addressSpace.addressPrefixes, and of each subnet of the plan's own VNets
    name, addressPrefix and addressPrefixes; nothing else. Nothing is allocated from such a subnet: it is excluded,
    unless the lock or a node pool's `subnets` has it. To take nodes over, move theirs from `exclude` to `subnets`.

    Lines are added to the plan, none is changed; addresses are chosen by the next `plan lock`.
    Exit codes: 0 the plan has them, 1 error, 2 changes that were not written.
    """
    from netmgr import durable, plan_files
    from netmgr.plan.adopt import add_excluded, add_pinned, called, live_subnets, read_existing

    plan, lock = plan_files.load_plan(file), plan_files.load_lock(plan_files.lock_path(file))
    text = file.read_text(encoding="utf-8")
    found = called(read_existing(plan_files.read_text(existing), str(existing)), names or (), plan)
    live = live_subnets(plan, lock, found)
    after = add_excluded(add_pinned(text, plan.pinned, found.prefixes, str(file)), live, str(file))
    if after == text:
        typer.echo(f"{file} has them all: nothing to do")
        return
    _refuse_overlaps(after, file)
    _show(plan, found, live)
    if not (yes or (sys.stdin.isatty() and typer.confirm(f"Write {file}?"))):
        typer.echo("Nothing was written; add --yes to write without being asked.")
        raise typer.Exit(CHANGES)
    durable.write_text(file, after)
    typer.echo(f"Wrote {file}. Next: netmgr plan diff -f {file}")


def _show(plan: PlanDocument, found: Existing, live: list[Exclusion]) -> None:
    for name, prefixes in found.prefixes.items():
        if name not in plan.pinned:
            whose = "its own" if name in plan.clusters or name == HUB else "kept out of"
            typer.secho(f"  + pinned.{name}: {', '.join(map(str, prefixes))} ({whose})", fg="green")
    for each in live:
        typer.secho(f"  + exclude: {each.prefix} ({each.reason}, left as it is)", fg="green")


def _refuse_overlaps(text: str, file: Path) -> None:
    from netmgr import documents
    from netmgr.plan.conflicts import pinned_faults
    from netmgr.plan.document import PlanDocument

    if faults := list(pinned_faults(documents.parse(text, str(file), PlanDocument))):
        lines = [f"{file}: {'.'.join(map(str, fault.path))}: {fault}" for fault in faults]
        raise PlanFailed("\n".join(lines), "nothing was written")
