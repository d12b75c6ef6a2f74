"""Which backend a node uses: decided once, then remembered.

Looking at the legacy iptables tables creates them, which would turn the next look's answer
around; and a node that changed its mind would count on one backend and repair on the other.
So `auto` looks at nftables alone, writes down what it found, and never looks again. Only the
document changes a node's backend.
"""

from __future__ import annotations

import os
from pathlib import Path

from netmgr.config import Backend
from netmgr.errors import KernelError, SetupError, StateError
from netmgr.rules.backend import RuleBackend

FILE_NAME = "rules-backend"
"""In the state directory: the name of the backend in use, and a line feed."""


def open_backend(choice: Backend, state_dir: Path) -> RuleBackend:
    """The backend for `choice`, ready for use.

    Raises:
        SetupError: a library that the backend needs is missing.
        StateError: the remembered decision cannot be read or written.
        KernelError: the kernel refuses the backend's sockets.
    """
    return _open(_resolve(choice, state_dir))


def open_former(choice: Backend, state_dir: Path) -> RuleBackend | None:
    """The backend this node used before its document chose another; its rules are still there.

    Raises: as `open_backend`.
    """
    former = _remembered(state_dir)
    return None if former in (None, _resolve(choice, state_dir)) else _open(former)


def remember(name: str, state_dir: Path) -> None:
    """Note the backend in use: `auto` keeps to it, and a later change finds what to remove.

    Raises:
        StateError: the note cannot be written.
    """
    path = state_dir / FILE_NAME
    scratch = path.with_name(f".{FILE_NAME}.{os.getpid()}")
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        with scratch.open("w", encoding="ascii") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        raise StateError(f"{path}: cannot be written: {error.strerror}") from None


def _resolve(choice: Backend, state_dir: Path) -> Backend:
    if choice is not Backend.AUTO:
        return choice
    remembered = _remembered(state_dir)
    if remembered is None:
        remembered = Backend.NFTABLES if _nftables_works() else Backend.IPTABLES
        remember(remembered, state_dir)
    return remembered


def _open(backend: Backend) -> RuleBackend:
    # Each backend's libraries are imported only on the node that uses them.
    if backend is Backend.NFTABLES:
        from netmgr.rules.nftables import NftablesBackend  # noqa: PLC0415  one backend's libraries are loaded, not both

        return NftablesBackend()
    from netmgr.rules.iptables import IptablesBackend  # noqa: PLC0415  one backend's libraries are loaded, not both

    return IptablesBackend()


def _remembered(state_dir: Path) -> Backend | None:
    path = state_dir / FILE_NAME
    try:
        content = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {error.strerror}") from None
    if content not in (Backend.NFTABLES, Backend.IPTABLES):
        raise StateError(f"{path}: {content!r} is no backend; put nftables or iptables there, as this node used before")
    return Backend(content)


def _nftables_works() -> bool:
    from netmgr.rules.libnftables import LibNftables  # noqa: PLC0415 - as above

    try:
        library = LibNftables()
    except (SetupError, KernelError):
        return False
    try:
        library.run("list chains")  # the one listing that asks for no rule of anybody's
    except KernelError:
        return False
    finally:
        library.close()
    return True
