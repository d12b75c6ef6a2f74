"""Waits for addresses that were just added: the kernel makes IPv6's usable from a work queue."""

from __future__ import annotations

from pathlib import Path

from tests.waiting import eventually

_NET = Path("/proc/thread-self/net")
_TENTATIVE, _LOCAL = 0x40, 0x80000000
"""IFA_F_TENTATIVE and RTF_LOCAL."""


def wait_until_usable() -> None:
    """Wait for all that the calling thread's namespace has.

    Until then a socket may not be bound to one, and packets to it are lost: the kernel adds its
    local route later, also where it detects no duplicates.
    """
    eventually(lambda: _pending() == set(), lambda: f"not usable: {_pending()}", every=0.005)


def _pending() -> set[str]:
    local = set[str]()
    for line in (_NET / "ipv6_route").read_text().splitlines():
        destination, *_, flags, _ = line.split()
        if int(flags, 16) & _LOCAL:
            local.add(destination)
    pending = set[str]()
    for line in (_NET / "if_inet6").read_text().splitlines():
        address, _, _, _, flags, _ = line.split()
        if address not in local or int(flags, 16) & _TENTATIVE:
            pending.add(address)
    return pending
