"""Opens the agent's state, and goes on without it when it cannot be trusted.

A corrupt file is never deleted: it is renamed, so that somebody can look at it. What it, or a
file that was removed, held is read back from the kernel, which has every link with its owner in
the alias and every address as a route. A file that merely cannot be reached is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from netmgr import sqlite_file
from netmgr.errors import StateError
from netmgr.model import Attachment
from netmgr.prefixes import Family

if TYPE_CHECKING:
    from netmgr.agent.node import Node

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Opened = TypeVar("Opened")

log = logging.getLogger(__name__)


def boot_id() -> str:
    """Identity of the kernel's current boot (random(4))."""
    return BOOT_ID.read_text(encoding="ascii").strip()


def open_or_set_aside(path: Path, opener: Callable[[Path], Opened]) -> tuple[Opened, bool]:
    """Open a state file; a corrupt one is set aside and a new one begun. Whether that happened.

    Raises:
        StateError: not even a new file can be opened.
        SetupError: the file cannot be reached just now; nothing was changed.
    """
    try:
        return opener(path), False
    except StateError as error:
        kept = sqlite_file.set_aside(path, "corrupt")
        log.error("state file is corrupt, set aside, rebuilding from the kernel file=%s error=%s", kept, error)  # noqa: TRY400  the message says all there is
    return opener(path), True


def take_over(node: Node, families: tuple[Family, ...], current: str) -> None:
    """Make what is remembered true for the kernel's `current` boot.

    A store without a boot is new: whatever the kernel has was attached by a predecessor, and is
    adopted before the boot is noted, so that an agent killed in between begins again. After a
    reboot nothing the kernel held exists any more: every attachment ends.
    """
    if node.leases.boot_id == current:
        return
    if node.leases.boot_id:
        for attachment in node.leases.all():
            node.leases.release(attachment)
        log.info("the node was rebooted; attachments of the former boot are released")
    else:
        _adopt_from_kernel(node, families)
    node.leases.begin_boot(current)


def _adopt_from_kernel(node: Node, families: tuple[Family, ...]) -> None:
    """Remember every attachment the kernel still has."""
    for identity, (link, addresses) in node.dataplane.attached().items():
        ours = tuple(address for address in addresses if address.family in families)
        if ours and node.leases.get(identity.key) is None:
            node.leases.adopt(Attachment(identity.key, identity.pod, ours, link.name, netns=""))
            shown = ", ".join(map(str, ours))
            log.warning("adopted container=%s pod=%s addresses=%s", identity.key.container_id, identity.pod, shown)
