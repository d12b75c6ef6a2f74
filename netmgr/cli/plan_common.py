"""What the commands of `netmgr plan` share: exit codes, a plan with its lock, printed changes."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperGroup

from netmgr.errors import ConfigError, Exit, NetmgrError

if TYPE_CHECKING:
    from netmgr.documents.diagnostics import Diagnostic
    from netmgr.plan.clouds.cloud import CloudLimits
    from netmgr.plan.diff import Change
    from netmgr.plan.document import PlanDocument
    from netmgr.plan.lock import LockDocument

NOTHING_TO_DO, FAILED, CHANGES = Exit.SUCCESS, Exit.FAILURE, Exit.INVALID

EXIT_CODES = "Exit codes: 0 nothing to do, 1 error, 2 changes."

COLOURS = {
    "+": "green",
    "~": "yellow",
    "-": "red",
    "-/+": "red",
    "error": "red",
    "warning": "yellow",
    "note": "blue",
}


class PlanFailed(ConfigError):
    """Any error of a plan command: 2 means changes here, so errors are 1."""

    exit_code = FAILED


class PlanGroup(TyperGroup):
    """A group of commands whose errors exit with 1, wrong options included."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  typer has no public name for its context
        """Run the command."""
        try:
            # A document of a thousand clusters is a million objects, and then the process ends.
            with _without_collection():
                return super().invoke(ctx)
        except NetmgrError as error:
            # Of any kind: an error's own exit code may be 2, which means changes here.
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
    """Whether the lock's file has a valid digest of its content."""

    @property
    def lock_path(self) -> Path:
        """The lock's file, beside the plan."""
        from netmgr.plan.files import lock_path

        return lock_path(self.path)

    @property
    def locked(self) -> LockDocument:
        """The lock.

        Raises:
            ConfigError: it does not exist yet.
        """
        if self.lock is None:
            raise ConfigError(
                f"{self.lock_path}: is not there yet; run: netmgr plan lock -f {self.path}"
            )
        return self.lock


def load(path: Path, *, edited: bool = False) -> Planned:
    """Read a plan, its lock and its limits; with `edited`, also a lock that only fails its digest.

    Raises:
        ConfigError: a file is invalid, or the lock was edited or contradicts itself.
    """
    from netmgr.plan import files
    from netmgr.plan.check.verify import derive, verify
    from netmgr.plan.clouds.cloud import Cloud

    plan = files.load_plan(path)
    limits = files.limits_of(plan, path)
    where = files.lock_path(path)
    found = files.read_lock(where)
    if found is None:
        return Planned(path, plan, None, limits)
    # The plan's own cloud comes first: errors speak of the first one.
    others = [files.load_limits(cloud) for cloud in Cloud if cloud is not plan.cloud]
    findings = [*verify(found.lock), *derive(found.lock, [limits, *others])]
    faults = [files.located(where, each) for each in findings]
    if found.fault and not edited:
        # First: an edit by hand explains most of what follows.
        faults.insert(0, found.fault)
    if faults:
        keep = "to keep an intended edit: netmgr plan lock --renumber" if found.fault else ""
        raise ConfigError("\n".join(dict.fromkeys(faults)), keep)
    return Planned(path, plan, found.lock, limits, found.is_sealed)


def up_to_date(path: Path) -> Planned:
    """Read a plan whose lock answers it.

    Raises:
        ConfigError: there is no lock, or it is out of date; the message says what to run.
    """
    given = load(path)
    refuse_outdated(given)
    return given


def refuse_outdated(planned: Planned) -> None:
    """Stop if the lock does not answer the plan as it is now."""
    if answer(planned) != planned.locked:
        raise PlanFailed(
            f"{planned.lock_path}: is out of date; run: netmgr plan lock -f {planned.path}"
        )


def answer(
    planned: Planned, *, released: Iterable[str] = (), renumber: bool = False
) -> LockDocument:
    """The lock that answers the plan; refusals name the plan's keys and lines."""
    from netmgr.plan.locking import make_lock

    with _refusals_located(planned.path):
        return make_lock(
            planned.plan, planned.lock, planned.limits, released=tuple(released), renumber=renumber
        )


def refuse_errors(planned: Planned, lock: LockDocument) -> None:
    """Stop before a lock is written that `plan check` would not accept."""
    from netmgr.plan.check.checks import refuse_errors as refuse

    with _refusals_located(planned.path):
        refuse(planned.plan, lock, planned.limits)


@contextmanager
def _refusals_located(path: Path) -> Iterator[None]:
    from netmgr.plan import files
    from netmgr.plan.lock import PlanRefused

    try:
        yield
    except PlanRefused as refused:
        lines = [files.located(path, finding) for finding in refused.diagnostics]
        raise PlanFailed("\n".join(dict.fromkeys(lines))) from None


def write(to: Path | None, text: str) -> None:
    """Replace a file in one step, or print."""
    from netmgr.durable import write_text

    if to is None:
        typer.echo(text, nl=False)
        return
    write_text(to, text)
    typer.echo(f"wrote {to}", err=True)


def print_changes(changes: Iterable[Change]) -> None:
    """A lock's diff: one line an entry, renumbering in red."""
    for change in changes:
        typer.secho(
            f"{change.kind:>3} {change.key}", fg=COLOURS[change.kind], bold=change.kind == "-/+"
        )
        if change.before:
            typer.echo(f"      was {change.before}")
        if change.after:
            typer.echo(f"      {'now' if change.before else '   '} {change.after}")
        if change.note:
            typer.secho(f"      {change.note}", dim=True)


def print_findings(path: Path, findings: Iterable[Diagnostic]) -> None:
    """Findings with the line of the plan each hangs on."""
    from netmgr.plan.files import located

    for finding in findings:
        sign = typer.style(finding.severity, fg=COLOURS[finding.severity], bold=True)
        typer.echo(f"{sign}: {located(path, finding)}")


@contextmanager
def _without_collection() -> Iterator[None]:
    """Have cyclic garbage stay for the length of the block.

    A plan makes many objects and hardly a cycle: the collector would walk all of them again and
    again, which is half of the work's time and grows faster than their number.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
