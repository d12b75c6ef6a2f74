"""Opens the agent's state, and goes on without it when it cannot be trusted.

A corrupt file is never deleted: it is renamed, so that somebody can look at it. What it, or a
file that was removed or replaced by an older copy, held is read back from the kernel, which has
every link with its owner in the alias and every address as a route. A file that merely cannot be
reached is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from netmgr import sqlite_file
from netmgr.errors import StateError
from netmgr.model import Attachment, PodRef
from netmgr.prefixes import Address, Family

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
        log.error("state-file-corrupt action=rebuild-from-kernel kept=%s error=%s", kept, error)  # noqa: TRY400  the message says all there is
    return opener(path), True


def take_over(node: Node, families: tuple[Family, ...], current: str) -> bool:
    """Make what is remembered true for the kernel's `current` boot and for the links it has; whether it was not.

    After a reboot nothing the kernel held exists any more: every attachment ends. Whatever links the kernel has
    now were attached by a predecessor. Where the store does not know them (it is new, or an older copy of itself),
    or has it otherwise, the kernel is right: running pods keep what they have. The boot is noted last, so that an
    agent killed in between begins again.
    """
    former = node.leases.boot_id
    if former not in ("", current):
        for attachment in node.leases.all():
            node.leases.release(attachment)
        log.info("node-rebooted action=release-attachments")
    changed = _follow_kernel(node, families)
    if former != current:
        node.leases.begin_boot(current)
    is_older = changed and bool(former)
    if is_older:
        log.error("ipam-state-older-than-kernel what=%s", "attachments were taken from the kernel's links instead")
    return is_older


def _follow_kernel(node: Node, families: tuple[Family, ...]) -> bool:
    """Have the attachments be those of the kernel's links; whether one was unknown, or remembered otherwise.

    One whose sandbox went while no agent ran merely ends.
    """
    links = {
        identity.key: Attachment(identity.key, identity.pod, _of(families, addresses), link.name, netns="")
        for identity, (link, addresses) in node.dataplane.attached().items()
    }
    holders = {address: each.key for each in links.values() for address in each.addresses}
    # A link whose alias somebody else has written is not in `links`; its alias is put back later.
    present = node.dataplane.attached_links()
    changed = False
    for remembered in node.leases.all():
        found = links.get(remembered.key)
        is_gone = found is None and remembered.host_link not in present
        # A route that another program removed is put back later; one that should not be there was given since.
        extra = found and set(found.addresses) - set(remembered.addresses)
        taken = [address for address in remembered.addresses if holders.get(address, remembered.key) != remembered.key]
        if is_gone or extra or taken:
            changed |= bool(extra or taken)
            node.leases.release(remembered)
            log.warning("released container=%s pod=%s why=%s", *_named(remembered), "the kernel has no such attachment")
    for found in links.values():
        if found.addresses and node.leases.get(found.key) is None:
            node.leases.adopt(found)
            changed = True
            log.warning(
                "adopted container=%s pod=%s addresses=%s", *_named(found), ", ".join(map(str, found.addresses))
            )
    return changed


def _of(families: tuple[Family, ...], addresses: Iterable[Address]) -> tuple[Address, ...]:
    return tuple(address for address in addresses if address.family in families)


def _named(attachment: Attachment) -> tuple[str, PodRef]:
    return attachment.key.container_id, attachment.pod
