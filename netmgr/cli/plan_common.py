"""What the commands of `netmgr plan` share: their options, their files, and how they end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from netmgr.errors import ConfigError, NetmgrError
from netmgr.sites import HUB

if TYPE_CHECKING:
    from netmgr.plan.diff import Change
    from netmgr.plan.document import PlanDocument
    from netmgr.plan.findings import Finding
    from netmgr.plan.limits import CloudLimits
    from netmgr.plan.lock import LockDocument

NOTHING_TO_DO, FAILED, CHANGES = 0, 1, 2

EXIT_CODES = "Exit codes: 0 nothing to do, 1 error, 2 changes."

File = Annotated[
    Path,
    typer.Option("--file", "-f", envvar="NETMGR_PLAN", help="The plan; its lock stands beside it.", metavar="PLAN"),
]
DEFAULT_FILE = Path("plan.yaml")


class Output(StrEnum):
    """Whom the answer is for."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Format = Annotated[Output, typer.Option("--output", "-o", help="table for people, json or yaml for programs.")]

COLOURS = {
    "+": "green",
    "~": "yellow",
    "-": "red",
    "-/+": "red",
    "error": "red",
    "warning": "yellow",
    "note": "blue",
    "over": "red",
    "near": "yellow",
}


class PlanFailed(ConfigError):
    """Any error of a plan command: 2 means changes here, so errors are 1."""

    exit_code = FAILED


class PlanGroup(TyperGroup):
    """The group of commands whose errors end in exit code 1, wrong options included."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  typer's own context, which has no public name
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except NetmgrError as error:
            raise PlanFailed(error.message, error.details) from None
        except typer.Exit:
            raise
        except _USAGE_ERROR as error:
            error.exit_code = FAILED
            raise


_USAGE_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])
"""typer's error for any wrong use, which has no public name: the parent of the one that has."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with its lock and its limits. `lock` is None before the first `plan lock`."""

    path: Path
    plan: PlanDocument
    lock: LockDocument | None
    limits: CloudLimits
    is_sealed: bool = True
    """Whether the lock's file has a digest of what it says now."""

    @property
    def lock_path(self) -> Path:
        """Where the lock stands."""
        from netmgr.plan_files import lock_path

        return lock_path(self.path)

    @property
    def locked(self) -> LockDocument:
        """The lock.

        Raises:
            ConfigError: there is none yet.
        """
        if self.lock is None:
            raise ConfigError(f"{self.lock_path}: is not there yet; run: netmgr plan lock -f {self.path}")
        return self.lock


def load(path: Path, *, edited: bool = False) -> Planned:
    """Read a plan, its lock and its limits, and refuse a lock that was edited, or contradicts itself.

    With `edited` a lock is taken that only its digest contradicts.
    """
    from netmgr import plan_files
    from netmgr.plan.document import Cloud
    from netmgr.plan.verify import derive, verify

    plan = plan_files.load_plan(path)
    where = plan_files.lock_path(path)
    found = plan_files.read_lock(where)
    limits = plan_files.limits_of(plan, path)
    if found:
        # The plan's own cloud comes first: it is the one that errors speak of.
        clouds = [limits, *(plan_files.load_limits(cloud) for cloud in Cloud if cloud is not plan.cloud)]
        faults = [found.fault] if found.fault and not edited else []
        faults += [plan_files.located(where, each) for each in (*verify(found.lock), *derive(found.lock, clouds))]
        if faults:
            keep = "to keep an edit that was made on purpose: netmgr plan lock --renumber" if found.fault else ""
            raise ConfigError("\n".join(dict.fromkeys(faults)), keep)
    return Planned(path, plan, found.lock if found else None, limits, found is None or found.is_sealed)


def answer(planned: Planned, *, released: Iterable[str] = (), renumber: bool = False) -> LockDocument:
    """The lock that answers the plan; refusals name the plan's keys and lines."""
    from netmgr.plan.allocate import make_lock

    with _refusals_located(planned.path):
        return make_lock(planned.plan, planned.lock, planned.limits, released=tuple(released), renumber=renumber)


def refuse_errors(planned: Planned, lock: LockDocument) -> None:
    """Stop before a lock is written that `plan check` would not accept."""
    from netmgr.plan.check import refuse_errors as refuse

    with _refusals_located(planned.path):
        refuse(planned.plan, lock, planned.limits)


@contextmanager
def _refusals_located(path: Path) -> Iterator[None]:
    from netmgr import plan_files
    from netmgr.plan.findings import PlanRefused

    try:
        yield
    except PlanRefused as refused:
        lines = [plan_files.located(path, finding) for finding in refused.findings]
        raise PlanFailed("\n".join(dict.fromkeys(lines))) from None


def print_changes(changes: Iterable[Change]) -> None:
    """A lock's diff: one line an entry, renumbering in red."""
    for change in changes:
        typer.secho(f"{change.kind:>3} {change.key}", fg=COLOURS[change.kind], bold=change.kind == "-/+")
        if change.before:
            typer.echo(f"      was {change.before}")
        if change.after:
            typer.echo(f"      {'now' if change.before else '   '} {change.after}")
        if change.note:
            typer.secho(f"      {change.note}", dim=True)


def narrowings(before: LockDocument | None, after: LockDocument) -> Iterator[str]:
    """What to know before a lock is applied that takes address space from a live VNet, a line for each."""
    from netmgr.plan.vnets import narrowed, virtual_networks

    old, new = virtual_networks(before) if before else (), virtual_networks(after)
    now = {vnet.name: vnet for vnet in new}
    for name, was in narrowed(old, new).items():
        peers = [vnet.name for vnet in old if vnet.name != name and vnet.site in (HUB, now[name].site)]
        targets = " ".join(f"-target=azurerm_virtual_network_peering.{peer}_to_{name}" for peer in peers)
        yield (
            f"VNet {name} loses address space: {', '.join(map(str, was))} becomes "
            f"{', '.join(map(str, now[name].address_space))}; no subnet of it is touched. Apply that first and bring "
            f"its peerings in step (terraform apply {targets}), then all the others: Azure refuses to peer a new "
            "VNet with what the old one still has"
        )


def print_findings(path: Path, findings: Iterable[Finding]) -> None:
    """Findings with the line of the plan each hangs on."""
    from netmgr.plan_files import located

    for finding in findings:
        sign = typer.style(finding.severity, fg=COLOURS[finding.severity], bold=True)
        typer.echo(f"{sign}: {located(path, finding)}")


def print_document(document: Any, output: Output) -> None:  # noqa: ANN401  whatever JSON can say
    """A document for programs."""
    if output is Output.YAML:
        from netmgr.plan_files import to_yaml

        typer.echo(to_yaml(document), nl=False)
    else:
        typer.echo(json.dumps(document, indent=2))


def print_rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """A table in plain text; columns of numbers stand at the right."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    numeric = [
        all(not row[column].strip("0123456789,") for row in table[1:]) and len(table) > 1 for column in range(len(head))
    ]
    for place, row in enumerate(table):
        cells = [
            f"{cell:>{width}}" if right else f"{cell:<{width}}"
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        line = "  ".join(cells).rstrip()
        fg = next((COLOURS[cell] for cell in row if cell in {"over", "near"}), None)
        typer.secho(line, dim=place == 0, fg=fg)


def describe(changes: Iterable[Change]) -> list[dict[str, str]]:
    """Changes for programs."""
    return [
        {"kind": change.kind, "key": change.key, "before": change.before, "after": change.after, "note": change.note}
        for change in changes
    ]
