"""`netmgr plan merge`, and locks of earlier commits: the lock as git has it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from netmgr import durable, programs
from netmgr.cli.plan_common import change_lines
from netmgr.documents import loader
from netmgr.errors import ConfigError, Exit
from netmgr.plan import files
from netmgr.plan.lock import LockDocument
from netmgr.plan.merging import merge_locks

Before = Annotated[
    str | None,
    typer.Option(
        "--before",
        metavar="REV|FILE",
        help="Compare with the lock of a git revision, or in a file, and not with that of today.",
    ),
]


def merge(
    base: Annotated[Path, typer.Argument(help="The lock that both began with, or an empty file.")],
    ours: Annotated[Path, typer.Argument(help="Our lock; the merged one is written here.")],
    theirs: Annotated[Path, typer.Argument(help="The other side's lock.")],
    path: Annotated[
        Path | None, typer.Argument(help="Where the lock is kept, for messages [default: OURS]")
    ] = None,
) -> None:
    """Merge the locks of two branches.

    Entries that one side alone added, changed or released are kept, each as a whole. If both sides
    changed one entry, or gave out the same addresses, nothing is written.

    For git, with `plan.lock.yaml merge=netmgr-lock` in .gitattributes:
    git config merge.netmgr-lock.driver 'netmgr plan merge %O %A %B %P'

    Exit 1 if the locks cannot be merged.
    """
    kept_at = path or ours
    former = None
    if text := loader.read(base):
        former = files.read_lock(text, kept_at, "base")
    own, other = (
        files.read_lock(loader.read(side), kept_at, word)
        for side, word in ((ours, "ours"), (theirs, "theirs"))
    )
    merged = merge_locks(former, own, other)
    if merged.collisions:
        for line in change_lines(merged.collisions, ("ours", "theirs")):
            typer.echo(line, err=True)
        remedy = (
            f"{kept_at}: cannot be merged; take the whole lock of the side whose addresses are in "
            f"use (git checkout --ours or --theirs {kept_at}), merge the plan, then run: "
            "netmgr plan lock"
        )
        typer.echo(remedy, err=True)
        raise typer.Exit(Exit.FAILURE)
    durable.write(ours, files.lock_text(merged.lock).encode())
    typer.echo(f"Merged {kept_at}.")


def lock_before(before: str, plan: Path) -> LockDocument:
    """The lock in a file of that name, else that of a git revision; ConfigError without one."""
    if (path := Path(before)).is_file():
        return files.read_lock(loader.read(path), path)
    kept_at = files.lock_path(plan)
    asked = f"--before {before}"
    commit = _git(plan.parent, "rev-parse", "--verify", f"{before}^{{commit}}")
    if commit.returncode:
        raise ConfigError(
            f"{asked}: is no file, and no revision that git has here; "
            "name another, or fetch it if the clone is shallow",
            commit.stderr.decode(errors="replace").strip(),
        )
    revision = commit.stdout.decode().strip()
    shown = _git(plan.parent, "show", f"{revision}:./{kept_at.name}")
    if shown.returncode:
        raise ConfigError(f"{asked}: has no {kept_at.name}; name a revision that has one")
    return files.read_lock(shown.stdout.decode(errors="replace"), kept_at, before)


def _git(folder: Path, *arguments: str) -> programs.Outcome:
    return programs.run([programs.locate("git", "git"), *arguments], cwd=folder)
