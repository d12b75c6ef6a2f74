"""The backend of Services, by the name of the node's backend."""

from __future__ import annotations

from collections.abc import Iterable

from netmgr.config import Backend
from netmgr.prefixes import Prefix
from netmgr.services.backend import ServiceBackend


def holder(backend: str) -> Backend:
    """What holds the Services of a node with a backend of rules of this name.

    With iptables' nf_tables variant they are in a table of nf_tables of their own, as on nftables: the kernel
    interface is the same one, and a change costs what changed instead of what there is.
    """
    return Backend.NFTABLES if backend in (Backend.NFTABLES, Backend.IPTABLES_NFT) else Backend.IPTABLES_LEGACY


def open_backend(name: str, seen: Iterable[Prefix]) -> ServiceBackend:
    """The backend called so, in the calling thread's namespace; `seen` are the ranges as the hub sees them.

    Raises:
        SetupError: a library that the backend needs is missing.
        KernelError: the kernel refuses the backend's socket.
    """
    # Each backend's libraries are imported only on the host that uses them.
    if holder(name) is Backend.NFTABLES:
        from netmgr.services.nftables import NftablesServices  # noqa: PLC0415  one backend's libraries are loaded

        return NftablesServices(seen)
    from netmgr.services.iptables import IptablesServices  # noqa: PLC0415  one backend's libraries are loaded

    return IptablesServices(seen)
