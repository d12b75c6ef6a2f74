"""Which backend a node uses: decided once, then remembered.

Looking at the legacy iptables tables creates them, which would turn the next look's answer
around; and a node that changed its mind would count on one backend and repair on the other.
So `auto` looks at nftables alone, and `iptables` for the variant of it that is in use
(`variant`); what was found is written down, and nobody looks again. Only the document changes
a node's backend.
"""

from __future__ import annotations

from pathlib import Path

from netmgr import durable
from netmgr.config import Backend
from netmgr.errors import KernelError, SetupError
from netmgr.rules.backend import RuleBackend
from netmgr.rules.legacy_tables import LegacyTables
from netmgr.rules.nft_tables import NftTables, is_supported
from netmgr.rules.variant import in_use

_KINDS = (Backend.NFTABLES, Backend.IPTABLES_LEGACY, Backend.IPTABLES_NFT)
"""What rules can be held by."""

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


def open_kind(kind: Backend) -> RuleBackend:
    """What holds rules under this name, as `remembered` gives it.

    Raises: as `open_backend`.
    """
    return _open(kind)


def remember(name: str, state_dir: Path) -> None:
    """Note the backend in use: `auto` keeps to it, and a later change finds what to remove.

    Raises:
        StateError: the note cannot be written.
    """
    durable.make_folder(state_dir)
    durable.write(state_dir / FILE_NAME, f"{name}\n".encode())


def _resolve(choice: Backend, state_dir: Path) -> Backend:
    """One of `_KINDS`."""
    if choice in _KINDS:
        return choice
    former = remembered(state_dir)
    if former is None or (choice is Backend.IPTABLES and former is Backend.NFTABLES):
        found = Backend.NFTABLES if choice is Backend.AUTO and _nftables_works() else in_use()
        if former is None:
            remember(found, state_dir)
        return found
    return former


def _open(backend: Backend) -> RuleBackend:
    # Each backend's libraries are imported only on the node that uses them.
    if backend is Backend.NFTABLES:
        from netmgr.rules.nftables import NftablesBackend  # noqa: PLC0415  one backend's libraries are loaded, not both

        return NftablesBackend()
    from netmgr.rules.iptables import IptablesBackend  # noqa: PLC0415  one backend's libraries are loaded, not both

    return IptablesBackend(_nft_tables() if backend is Backend.IPTABLES_NFT else LegacyTables())


def _nft_tables() -> NftTables:
    if not is_supported():
        raise SetupError(
            "backend: iptables-nft cannot be used: this kernel lacks nft_compat or xt_set; load them with "
            "`modprobe -a nft_compat xt_set`, or choose another backend"
        )
    return NftTables()


def remembered(state_dir: Path) -> Backend | None:
    """The backend that this node used last; None if it used none.

    Raises:
        StateError: the note cannot be read, or is none.
    """
    return durable.read(state_dir / FILE_NAME, _parsed)


def _parsed(text: str) -> Backend:
    name = text.strip()
    if name == Backend.IPTABLES:
        # As versions that knew the legacy variant alone wrote it.
        return Backend.IPTABLES_LEGACY
    if name not in _KINDS:
        raise ValueError(f"{name!r} is no backend; put there what this node used before: {', '.join(_KINDS)}")
    return Backend(name)


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
