"""Small files that are old or new after a crash, never half: written beside, synced, renamed over.

Everything small that netmgr keeps or installs is written here, and what decides something later is
read back here, so that a file somebody cut short or filled with something else is refused by name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from netmgr.errors import StateError

Value = TypeVar("Value")

_PLAIN = 0o644


def write(path: Path, content: bytes, mode: int | None = None) -> None:
    """Replace a file in one step; file and name are on the disk then.

    `mode` None: that of the file that is replaced, else 0644.

    Raises:
        StateError: the file system refused; what was there is untouched.
    """
    try:
        if mode is None:
            mode = path.stat().st_mode & 0o777 if path.exists() else _PLAIN
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        scratch = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                os.fsync(stream.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
        _sync_names(path.parent)
    except OSError as error:
        raise StateError(f"{path}: cannot be written: {error.strerror}") from None


def read(path: Path, parse: Callable[[str], Value]) -> Value | None:
    """What a file says, as `parse` understands its text; None where there is no file.

    Raises:
        StateError: it cannot be read, or `parse` found it wrong (ValueError, KeyError or TypeError).
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise StateError(f"{path}: cannot be understood: {error} is missing") from None
    except (ValueError, TypeError) as error:
        raise StateError(f"{path}: cannot be understood: {error}") from None


def _sync_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
