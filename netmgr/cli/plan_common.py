"""What the commands of `netmgr plan` share: a plan with its lock, printed changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from netmgr import durable
from netmgr.documents.diagnostics import Diagnostic
from netmgr.errors import ConfigError
from netmgr.plan import files
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.diff import Change
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument, PlanRefused, plan_digest_of
from netmgr.plan.locking import make_lock

As = Annotated[
    list[str] | None,
    typer.Option(
        "--as",
        metavar="OWNER=SITE",
        help="The cluster (or hub) that an owner of another name, or resource id, is; repeatable.",
    ),
]
_owners = partial(typer.Option, metavar="NAME|ID")
Only = Annotated[list[str] | None, _owners(help="Owners in FILE to take alone; repeatable.")]
Skip = Annotated[list[str] | None, _owners(help="Owners in FILE to leave out; repeatable.")]

CHANGES = {"+": "green", "~": "yellow", "-": "red", "-/+": "red"}
SEVERITIES = {"error": "red", "warning": "yellow", "note": "blue"}


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with its lock and its limits. `lock` is None before the first `plan lock`."""

    path: Path
    plan: PlanDocument
    lock: LockDocument | None
    limits: CloudLimits

    @property
    def lock_path(self) -> Path:
        return files.lock_path(self.path)

    @property
    def locked(self) -> LockDocument:
        """The lock; ConfigError if it does not exist yet."""
        if self.lock is None:
            raise ConfigError(
                f"{self.lock_path}: is not there yet; run: netmgr plan lock -f {self.path}"
            )
        return self.lock

    @property
    def is_outdated(self) -> bool:
        """Whether the lock is missing, or was made from a plan of other content."""
        return self.lock is None or self.lock.plan_digest != plan_digest_of(self.plan)


def load(path: Path) -> Planned:
    """Read a plan, its lock and its limits; ConfigError if one is invalid or was edited."""
    plan = files.load_plan(path)
    lock = files.load_lock(files.lock_path(path))
    return Planned(path, plan, lock, files.limits_of(plan, path))


def up_to_date(path: Path) -> Planned:
    """Read a plan whose lock was made from it; else the ConfigError says what to run."""
    given = load(path)
    # `locked` first: without a lock, which is outdated as well, it says so.
    if given.locked and given.is_outdated:
        raise ConfigError(f"{given.lock_path}: is out of date; run: netmgr plan lock -f {path}")
    return given


def answer(
    planned: Planned, *, released: Iterable[str] = (), renumber: bool = False
) -> LockDocument:
    """The lock that answers the plan; refusals name the plan's keys and lines."""
    with refusals_described(partial(files.located, planned.path)):
        return make_lock(
            planned.plan, planned.lock, planned.limits, released=tuple(released), renumber=renumber
        )


@contextmanager
def refusals_described(describe: Callable[[Diagnostic], str]) -> Iterator[None]:
    """Turn a refused plan into a ConfigError with a line for each different finding."""
    try:
        yield
    except PlanRefused as refused:
        lines = dict.fromkeys(map(describe, refused.diagnostics))
        raise ConfigError("\n".join(lines)) from None


def write(to: Path | None, text: str) -> None:
    """Replace a file in one step, or print."""
    if to is None:
        typer.echo(text, nl=False)
        return
    durable.write(to, text.encode())
    typer.echo(f"wrote {to}", err=True)


def change_lines(
    changes: Iterable[Change], labels: tuple[str, str] = ("was", "now")
) -> Iterator[str]:
    """A lock's diff, renumbering in red; `labels` stand before what is replaced and replaces."""
    was, now = labels
    for change in changes:
        head = f"{change.kind:>3} {change.key}"
        yield typer.style(head, fg=CHANGES[change.kind], bold=change.kind == "-/+")
        if change.before:
            yield f"      {was} {change.before}"
        if change.after:
            yield f"      {now if change.before else ' ' * len(now)} {change.after}"
        if change.note:
            yield typer.style(f"      {change.note}", dim=True)


def narrowing_lines(narrowed: Iterable[str]) -> Iterator[str]:
    """What to know before a lock is applied that takes address space from a live network."""
    return (typer.style(line, fg="yellow") for line in narrowed)


def finding_lines(path: Path, findings: Iterable[Diagnostic]) -> Iterator[str]:
    """Findings, each with its line of the plan."""
    for finding in findings:
        sign = typer.style(finding.severity, fg=SEVERITIES[finding.severity], bold=True)
        yield f"{sign}: {files.located(path, finding)}"
