"""Opens the agent's state, and goes on without it when it cannot be trusted.

A corrupt file is renamed, so that somebody can look at it; one that merely cannot be reached is
left alone. What is lost, or was replaced by an older copy, is read back from the kernel, which has
every link with its owner in the alias, the limits that a pod brought along in the link's
alternative names, and every address as a route.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from netmgr import sqlite_file
from netmgr.dataplane import desired
from netmgr.errors import OtherSchema, StateError
from netmgr.kernel import netns
from netmgr.model import Attachment, AttachmentKey, by_address
from netmgr.prefixes import Address, Family

if TYPE_CHECKING:
    from netmgr.dataplane.wiring import Dataplane
    from netmgr.ipam.leases import Leases

Opened = TypeVar("Opened")

log = logging.getLogger(__name__)


def boot_id() -> str:
    """Identity of the kernel's current boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def open_or_set_aside(path: Path, opener: Callable[[Path], Opened]) -> tuple[Opened, bool]:
    """Open a state file, or a new one if it is corrupt; returns whether it was.

    Raises:
        OtherSchema: another version wrote it; it stays in its place.
        StateError: not even a new file can be opened.
        SetupError: the file cannot be reached just now; nothing was changed.
    """
    try:
        return opener(path), False
    except OtherSchema:
        # Set aside, it would be missing to both versions: addresses would be given out of turn, and
        # totals begin again.
        raise
    except StateError as error:
        kept = sqlite_file.set_aside(path, "corrupt")
        log.error("state-file-corrupt action=rebuild-from-kernel kept=%s error=%s", kept, error)  # noqa: TRY400  the message says all there is
    return opener(path), True


def take_over(
    leases: Leases, dataplane: Dataplane, families: tuple[Family, ...], current: str
) -> bool:
    """Bring the leases up to the `current` boot and its links; whether they were an older copy."""
    former = leases.boot_id
    # "" is a store that saw no boot yet. A reboot ends every attachment.
    if former not in ("", current):
        for attachment in leases.all():
            leases.release(attachment)
        log.info("node-rebooted action=release-attachments")
    # Links that are there now were attached by a predecessor. Where the store does not know them or
    # differs, the kernel is right: running pods keep what they have.
    is_changed = _follow_kernel(leases, dataplane, families)
    if former != current:
        # Noted last, so that an agent killed in between starts again from here.
        leases.begin_boot(current)
    # A store without a boot is new, and differs from the kernel without being an older copy.
    is_older = is_changed and bool(former)
    if is_older:
        log.error(
            "ipam-state-older-than-kernel what=%s",
            "attachments were taken from the kernel's links instead",
        )
    return is_older


def _follow_kernel(leases: Leases, dataplane: Dataplane, families: tuple[Family, ...]) -> bool:
    """Follow the kernel's links; returns whether any attachment was unknown or wrong."""
    links = _attached(dataplane, families)
    holders = by_address(links.values())
    is_changed = False
    for remembered in leases.all():
        actual = links.get(remembered.key)
        is_gone = actual is None and _is_gone(remembered, leases, dataplane)
        is_wrong = _differs(remembered, actual, holders)
        if is_gone or is_wrong:
            # One whose sandbox went while no agent ran merely ends.
            is_changed |= is_wrong
            leases.release(remembered)
            log.warning(
                "released container=%s pod=%s why=%s",
                remembered.key.container_id,
                remembered.pod,
                "the kernel has no such attachment",
            )
    for attachment in links.values():
        if attachment.addresses and leases.get(attachment.key) is None:
            leases.adopt(attachment)
            is_changed = True
            log.warning(
                "adopted container=%s pod=%s addresses=%s",
                attachment.key.container_id,
                attachment.pod,
                ", ".join(map(str, attachment.addresses)),
            )
    return is_changed


def _attached(
    dataplane: Dataplane, families: tuple[Family, ...]
) -> dict[AttachmentKey, Attachment]:
    """The attachments that the kernel's links show."""
    attachments: dict[AttachmentKey, Attachment] = {}
    for identity, (link, addresses) in dataplane.attached().items():
        key, pod = identity.key, identity.pod
        usable = tuple(address for address in addresses if address.family in families)
        rates = desired.rates_of(link)
        attachments[key] = Attachment(key, pod, usable, link.name, netns="", rates=rates)
    return attachments


def _differs(
    remembered: Attachment, actual: Attachment | None, holders: Mapping[Address, Attachment]
) -> bool:
    """Whether the kernel has other addresses than the store gave."""
    # An additional one was given after the copy was made. A missing one does not count: another
    # program may have removed its route, which is repaired later.
    if actual is not None and not set(actual.addresses) <= set(remembered.addresses):
        return True
    return any(
        holders.get(address, remembered).key != remembered.key for address in remembered.addresses
    )


def _is_gone(remembered: Attachment, leases: Leases, dataplane: Dataplane) -> bool:
    """Whether nothing is left of an attachment for which no link was understood."""
    # Somebody else may have written its link's alias, which is repaired later.
    if dataplane.is_attached(remembered.host_link):
        return False
    # Without a DEL, one whose sandbox lives is left to the first pass, which reports it: by then
    # the runtime has repeated an ADD that a killed agent did not answer.
    deleted_at = leases.tombstone(remembered.key)
    is_deleted = deleted_at is not None and deleted_at >= remembered.started_at
    return is_deleted or not netns.is_one(remembered.netns)
