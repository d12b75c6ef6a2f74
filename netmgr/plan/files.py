"""The plan's files: read with errors that name key and line, and replaced in one step.

The rest of `netmgr/plan` is pure: all that it reads or writes goes through here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from netmgr import durable
from netmgr.documents import loader
from netmgr.documents.diagnostics import Diagnostic
from netmgr.errors import ConfigError, StateError
from netmgr.plan.clouds.cloud import Cloud, CloudLimits
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LOCK_FILE, LockDocument, digest_of

HEADER = """\
# Written by `netmgr plan lock`. Keep it in git beside plan.yaml, and do not edit it:
# what it records never moves, and every node's addresses follow from it by arithmetic.
"""


def lock_path(plan: Path) -> Path:
    """The path of a plan's lock: plan.yaml has plan.lock.yaml."""
    return plan.with_name(f"{plan.stem}.lock{plan.suffix or '.yaml'}")


def load_plan(path: Path) -> PlanDocument:
    """Read a plan; ConfigError with each of its faults."""
    if not path.exists():
        raise ConfigError(f"{path}: is not there; run: netmgr plan init -f {path}, or name another")
    return loader.load(path, PlanDocument)


def load_lock(path: Path) -> LockDocument | None:
    """Read a lock, None when there is none yet; otherwise as `read_lock`."""
    return read_lock(loader.read(path), path) if path.exists() else None


def read_lock(text: str, path: Path, side: str = "") -> LockDocument:
    """Read the text of a lock.

    `path` is where the lock is kept, and `side` says which of several locks of that path it is.
    ConfigError if it is no lock, is of another version, or was edited or merged by hand.
    """
    source = f"{path} ({side})" if side else str(path)
    # Not left to `parse`, whose advice is to resolve it in an editor: line by line, two clusters
    # can get one prefix.
    if line := loader.merge_mark(text):
        raise ConfigError(
            f"{source}:{line}: has the marks of an unfinished git merge; {_cure(path)}"
        )
    try:
        lock = loader.parse(text, source, LockDocument)
    except ConfigError as error:
        raise ConfigError(
            error.message, f"if it was edited or merged by hand, {_cure(path)}"
        ) from None
    if lock.digest != digest_of(lock):
        fault = "is not that of what the file says" if lock.digest else "is missing"
        where = f"{source}:{loader.line_in(text, source, ('digest',))}: digest"
        raise ConfigError(f"{where}: {fault}: it was edited or merged by hand; {_cure(path)}")
    # Without it a lock that was read and one that was made anew compare equal.
    return lock.model_copy(update={"digest": ""})


def _cure(path: Path) -> str:
    """How to repair a lock that was edited, or merged line by line."""
    return (
        "take the whole file of one side as git has it "
        f"(git checkout --ours or --theirs {path.name} during a merge, "
        f"git checkout REVISION {path.name} at any time), "
        "that of the side whose addresses are in use, then run: netmgr plan lock"
    )


def load_limits(cloud: Cloud) -> CloudLimits:
    """The published limits of a cloud, from the data file that ships with netmgr."""
    return loader.load(Path(__file__).parent / f"clouds/{cloud}/limits.yaml", CloudLimits)


def limits_of(plan: PlanDocument, path: Path) -> CloudLimits:
    """The cloud's limits with a plan's quotas in place; ConfigError for a quota of no limit."""
    published = load_limits(plan.cloud)
    known = type(published.limits).model_fields
    for name in plan.limits:
        if name not in known:
            where = loader.place(path, ("limits", name))
            raise ConfigError(f"{where}: is no limit; there are {', '.join(known)}")
    return published.agreed(plan.limits)


def located(path: Path, diagnostic: Diagnostic) -> str:
    """A diagnostic with the file, line and key it is about, and those of what it contradicts."""
    if (beside := diagnostic.beside) and beside.file == LOCK_FILE:
        diagnostic = replace(diagnostic, beside=replace(beside, file=str(lock_path(path))))
    return loader.describe(diagnostic, path)


def to_yaml(document: BaseModel | dict[str, Any]) -> str:
    """A document as YAML, leaves on one line; a model's keys in its order, without defaults."""
    if isinstance(document, BaseModel):
        plain = document.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    else:
        # PyYAML refuses every type that it does not know, subclasses of str such as StrEnum
        # included.
        plain = to_jsonable_python(document)
    return yaml.dump(
        plain,
        Dumper=yaml.CSafeDumper,
        sort_keys=False,
        default_flow_style=None,
        # One entry a line: a reader, and a merge, sees which allocation changed.
        width=1 << 20,
    )


def sealed(lock: LockDocument) -> dict[str, Any]:
    """A lock as its file has it: without defaults, and with its digest."""
    content = lock.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {**content, "digest": digest_of(lock)}


def write_lock(path: Path, lock: LockDocument, before: LockDocument | None) -> None:
    """Replace the lock in one step: a crash anywhere leaves the old one, as a StateError does.

    Raises:
        StateError: the file has another lock by now than the one that this was made from.
    """
    # Somebody may have locked while a question waited for an answer; writing would undo that.
    _replace(path, lock_text(lock), is_unchanged=load_lock(path) == before)


def write_plan(path: Path, text: str, before: str) -> None:
    """Replace the plan's text in one step; StateError if it is not `before` any more."""
    _replace(path, text, is_unchanged=path.read_text(encoding="utf-8") == before)


def _replace(path: Path, text: str, *, is_unchanged: bool) -> None:
    if not is_unchanged:
        raise StateError(f"{path}: was changed meanwhile; run the command again")
    durable.write(path, text.encode())


def lock_text(lock: LockDocument) -> str:
    """What a lock's file says."""
    return HEADER + to_yaml(sealed(lock))
