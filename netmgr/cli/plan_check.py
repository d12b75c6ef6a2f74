"""`netmgr plan check` and `show`: is the plan sound, and what does it look like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from netmgr.cli.plan_common import (
    CHANGES,
    COLOURS,
    DEFAULT_FILE,
    FAILED,
    NOTHING_TO_DO,
    File,
    Format,
    Output,
    Planned,
    answer,
    load,
    print_document,
    print_findings,
    print_rows,
)

if TYPE_CHECKING:
    from netmgr.plan.bill import Line
    from netmgr.plan.findings import Finding
    from netmgr.plan.lock import LockDocument, Subnet
    from netmgr.plan.outlook import Outlook


def check(
    *,
    file: File = DEFAULT_FILE,
    output: Format = Output.TABLE,
    every: Annotated[bool, typer.Option("--all", "-a", help="Show every line of the bill of limits.")] = False,
    documents: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Hold the node.yaml files there against each other and the plan instead."),
    ] = None,
) -> None:
    """Look for overlaps, forbidden ranges, missing headroom and limits, and say what each cluster meets first.

    With --documents, machines' documents are checked: no two claim one address, name or Service
    range, all know the same sites, and each says what the plan has it say. Without a plan they
    are held against each other alone.

    Exit codes: 0 all is well, 1 an error, 2 the lock does not answer the plan yet.
    """
    if documents:
        _check_documents(documents, file, output)
    else:
        _check_plan(file, output, every=every)


def _check_plan(file: Path, output: Output, *, every: bool) -> None:
    from netmgr.plan.check import check_limits, check_plan
    from netmgr.plan.outlook import outlooks

    planned = load(file)
    first = planned.lock or answer(planned)
    findings = list(check_plan(planned.plan, first, planned.limits))
    has_errors = any(finding.severity == "error" for finding in findings)
    after = None if has_errors else answer(planned) if planned.lock else first
    lines: tuple[Line, ...] = ()
    ahead: tuple[Outlook, ...] = ()
    if after:
        lines, over = check_limits(planned.plan, after, planned.limits)
        findings += over
        ahead = outlooks(planned.plan, after, planned.limits)
    behind = after is not None and after != planned.lock
    if output is Output.TABLE:
        _print(planned, findings, lines if every else _notable(lines), ahead)
        _verdict(planned, findings, behind=behind)
    else:
        print_document({"sealed": planned.is_sealed, **_describe(findings, lines, ahead, behind=behind)}, output)
    failed = any(finding.severity == "error" for finding in findings)
    raise typer.Exit(FAILED if failed else CHANGES if behind else NOTHING_TO_DO)


def _check_documents(folder: Path, file: Path, output: Output) -> None:
    from netmgr.cli.plan_documents import faults
    from netmgr.cli.plan_render import up_to_date

    given = up_to_date(file) if file.exists() or file != DEFAULT_FILE else None
    found = faults(folder, (given.plan, given.locked, given.lock_path) if given else None)
    if output is not Output.TABLE:
        print_document({"errors": found}, output)
        raise typer.Exit(FAILED if found else NOTHING_TO_DO)
    for line in found:
        typer.echo(f"{typer.style('error', fg='red', bold=True)}: {line}")
    if found:
        typer.secho(f"{len(found)} error{'s' if len(found) > 1 else ''}.", fg="red", bold=True)
        raise typer.Exit(FAILED)
    against = f"{file} and each other" if given else f"each other; there is no {file} to hold them against"
    typer.secho(f"The documents agree with {against}.", fg="green")


def _notable(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """The fullest subject of each kind, and everything that is near its limit or over."""
    fullest: dict[str, Line] = {}
    for line in lines:
        if line.what not in fullest or line.used > fullest[line.what].used:
            fullest[line.what] = line
    return tuple(line for line in lines if fullest[line.what] is line)


def _print(planned: Planned, findings: list[Finding], lines: tuple[Line, ...], ahead: tuple[Outlook, ...]) -> None:
    print_findings(planned.path, findings)
    if not planned.is_sealed:
        note = "has no digest, which would show an edit by hand; the next `netmgr plan lock` adds it"
        typer.echo(f"{typer.style('note', fg=COLOURS['note'], bold=True)}: {planned.lock_path}: {note}")
    if lines:
        typer.secho(f"\nLimits of {planned.limits.cloud}, as published {planned.limits.as_of}", bold=True)
        print_rows(
            ("what", "where", "used", "limit", ""),
            [
                (
                    line.what,
                    line.subject,
                    f"{line.used:,}",
                    "unknown" if line.limit is None else f"{line.limit:,}",
                    line.status,
                )
                for line in lines
            ],
        )
    if ahead:
        typer.secho("\nGrowth", bold=True)
        print_rows(
            ("cluster", "nodes", "places", "VNets", "doublings left", "the first limit you hit", "at"),
            [
                (
                    each.cluster,
                    f"{each.nodes:,}",
                    f"{each.capacity:,}",
                    str(each.vnets),
                    str(each.doublings),
                    each.first_limit,
                    f"{each.at_nodes:,} nodes",
                )
                for each in ahead
            ],
        )
    typer.echo()


def _verdict(planned: Planned, findings: list[Finding], *, behind: bool) -> None:
    errors = sum(finding.severity == "error" for finding in findings)
    if errors:
        typer.secho(f"{errors} error{'s' if errors > 1 else ''}.", fg="red", bold=True)
    elif behind:
        typer.secho(f"{planned.lock_path} does not answer the plan yet; run: netmgr plan lock", fg="yellow")
    else:
        typer.secho("The plan is sound.", fg="green")


def _describe(
    findings: list[Finding], lines: tuple[Line, ...], ahead: tuple[Outlook, ...], *, behind: bool
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "behind": behind,
        "findings": [
            {"severity": str(each.severity), "key": ".".join(map(str, each.path)), "message": str(each)}
            for each in findings
        ],
        "limits": [
            {"what": line.what, "where": line.subject, "used": line.used, "limit": line.limit, "status": line.status}
            for line in lines
        ],
        "growth": [asdict(each) for each in ahead],
    }


def show(
    *,
    file: File = DEFAULT_FILE,
    output: Format = Output.TABLE,
    tree: Annotated[bool, typer.Option("--tree", help="As a tree: prefixes, subnets, node pools.")] = False,
) -> None:
    """Show what is locked. Exit codes: 0, or 1 on an error."""
    planned = load(file)
    if output is not Output.TABLE:
        from netmgr.plan_files import sealed, to_plain

        print_document(to_plain(sealed(planned.locked)), output)
    elif tree:
        from rich.console import Console

        from netmgr.cli.plan_tree import tree as draw

        Console(highlight=False).print(draw(planned.plan, planned.locked))
    else:
        _table(planned.locked)


def _table(lock: LockDocument) -> None:
    rows = [("hub", "", *_held(lock, "hub"), "", "", _fixed(lock.hub.routers))]
    for name, held in lock.clusters.items():
        capacity = sum(pool.capacity for pool in held.node_pools.values())
        seen = " ".join(map(str, held.services.seen))
        services = f"{seen} (shared)" if held.services.mode == "shared" else seen
        state = "tombstone" if held.tombstone else ""
        rows.append((name, state, *_held(lock, name), f"{capacity:,}", services, _fixed(held.nat)))
    print_rows(("", "", "prefixes", "reserved", "places", "Services, from the hub", "routers, NAT hosts"), rows)


def _fixed(subnet: Subnet) -> str:
    return ", ".join(map(str, (*subnet.addresses, *subnet.addresses_v6)))


def _held(lock: LockDocument, name: str) -> tuple[str, str]:
    prefixes = lock.hub.prefixes if name == "hub" else lock.clusters[name].prefixes
    reserved = [str(held.reserve) for held in prefixes if held.reserve != held.prefix]
    return " ".join(str(held.prefix) for held in prefixes), " ".join(reserved)
