"""The plan's files: reading them with errors that name key and line, and writing a lock so that it is old or new.

The rooms under `netmgr/plan` are pure; every byte they get or give passes here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

import netmgr.plan.limits
from netmgr import documents, durable
from netmgr.errors import ConfigError
from netmgr.plan.document import Cloud, PlanDocument
from netmgr.plan.findings import Finding
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import CURE, LOCK_VERSION, LockDocument, digest_of

HEADER = """\
# Written by `netmgr plan lock`. Keep it in git beside plan.yaml, and do not edit it:
# what stands here never moves, and every node's addresses follow from it by arithmetic.
"""


def lock_path(plan: Path) -> Path:
    """Where a plan's lock stands: plan.yaml has plan.lock.yaml."""
    return plan.with_name(f"{plan.stem}.lock{plan.suffix or '.yaml'}")


def load_plan(path: Path) -> PlanDocument:
    """Read a plan.

    Raises:
        ConfigError: a fault in the file; every one is named with its key and line.
    """
    return documents.load(path, PlanDocument)


@dataclass(frozen=True, slots=True)
class LockFile:
    """A lock as it was found on disk.

    Attributes:
        lock: what it says, as of this version and without its digest.
        is_sealed: whether it has a digest. One that an earlier netmgr wrote has none.
        fault: why the digest is not that of the content, with line and cure; empty if it is.
    """

    lock: LockDocument
    is_sealed: bool
    fault: str


def read_lock(path: Path) -> LockFile | None:
    """Read a lock, None when there is none yet.

    Raises:
        ConfigError: it cannot be read, is no lock, is of a newer version, or is half merged.
    """
    if not path.exists():
        return None
    text = read_text(path)
    if line := documents.merge_mark(text):
        raise ConfigError(f"{path}:{line}: has the marks of an unfinished git merge; {_cure(path)}")
    try:
        found = documents.parse(text, str(path), LockDocument)
    except ConfigError as error:
        raise ConfigError(error.message, f"if it was edited or merged by hand, {_cure(path)}") from None
    lock = found.model_copy(update={"version": LOCK_VERSION, "digest": ""})
    fault = ""
    if found.digest != digest_of(lock) and (found.digest or found.version == LOCK_VERSION):
        what = "is not that of what the file says" if found.digest else "is missing"
        fault = f"{documents.place(path, ('digest',))}: {what}: it was edited or merged by hand; {_cure(path)}"
    return LockFile(lock, bool(found.digest) and not fault, fault)


def _cure(path: Path) -> str:
    """What makes a lock sound again, with the name that this one has."""
    return CURE.replace("plan.lock.yaml", path.name)


def load_lock(path: Path) -> LockDocument | None:
    """Read a lock that was left as it was written, None when there is none yet.

    Raises:
        ConfigError: as `read_lock`, or its digest is not that of its content.
    """
    found = read_lock(path)
    if found and found.fault:
        raise ConfigError(found.fault)
    return found.lock if found else None


def load_limits(cloud: Cloud) -> CloudLimits:
    """The published limits of a cloud, from the data file that ships with netmgr."""
    return documents.load(Path(netmgr.plan.limits.__file__).with_name(f"{cloud}.yaml"), CloudLimits)


def limits_of(plan: PlanDocument, path: Path) -> CloudLimits:
    """The limits that hold for a plan: the cloud's, with the plan's own quotas in place.

    Raises:
        ConfigError: the plan names a limit that is none.
    """
    published = load_limits(plan.cloud)
    known = type(published.limits).model_fields
    for name in plan.limits:
        if name not in known:
            where = documents.place(path, ("limits", name))
            raise ConfigError(f"{where}: is no limit; there are {', '.join(known)}")
    return published.agreed(plan.limits)


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def located(path: Path, finding: Finding) -> str:
    """A finding with the file, line and key it hangs on, and those of what it contradicts."""
    other = ""
    if finding.beside:
        other = f"line {documents.line(path, finding.beside)}"
    elif finding.locked:
        other = documents.place(lock_path(path), finding.locked)
    return f"{documents.place(path, finding.path)}: {finding.told(other).replace(CURE, _cure(path))}"


def to_yaml(document: BaseModel | dict[str, Any]) -> str:
    """A document as YAML, keys in the model's order, leaves on one line."""
    return yaml.dump(
        to_plain(document), Dumper=yaml.CSafeDumper, sort_keys=False, default_flow_style=None, width=1 << 20
    )


def to_plain(document: BaseModel | dict[str, Any]) -> dict[str, Any]:
    """A document as dictionaries, lists and text; a model's without what is at its default."""
    if isinstance(document, BaseModel):
        return document.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    # PyYAML refuses every type that it does not know, subclasses of str such as StrEnum included.
    plain: dict[str, Any] = to_jsonable_python(document)
    return plain


def write_lock(path: Path, lock: LockDocument) -> None:
    """Replace the lock in one step; a crash anywhere leaves the old one.

    Raises:
        StateError: the file system refused; the old lock is untouched.
    """
    durable.write_text(path, lock_text(lock))


def lock_text(lock: LockDocument) -> str:
    """A lock as its file has it, digest included."""
    return HEADER + to_yaml(sealed(lock))


def sealed(lock: LockDocument) -> LockDocument:
    """The lock with its digest."""
    return lock.model_copy(update={"digest": digest_of(lock)})
