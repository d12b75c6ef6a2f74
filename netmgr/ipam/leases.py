"""The node's attachments and the addresses they hold: `pool` and `store` kept in step.

An address is taken by deciding in the pool and writing to the store, and only then is it true.
It stands in at most one row of the store (its primary key), so that even a fault in the pool
could not hand it out twice. Giving back is true at once, and written as soon as that is possible.

Rests are counted in CLOCK_MONOTONIC, by which nobody's setting of the clock can end them early
or never. It starts anew with each boot, so a release that seems to lie ahead was before this
boot, and one of another boot that does not is older than it seems: no rest is ever cut short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import astuple, replace
from pathlib import Path
from typing import TypeVar

from netmgr.clock import Clock
from netmgr.errors import AddressUnavailable, CapacityError
from netmgr.ipam.pool import Occupancy, Pool, Timing
from netmgr.ipam.store import Store
from netmgr.model import NOTHING_REQUESTED, Attachment, AttachmentKey, PodRef, Requested
from netmgr.prefixes import Address, Family, Prefix

Value = TypeVar("Value")

ConnectionLookup = Callable[[Iterable[Address]], set[Address]]
"""Which of these addresses the connection table still names."""


class Leases:
    """All attachments of one node. Thread-safe."""

    def __init__(
        self, store: Store, ranges: Iterable[Prefix], timing: Timing, clock: Clock, lookup: ConnectionLookup
    ) -> None:
        self._store = store
        self._clock = clock
        self._lookup = lookup
        self._lock = threading.Lock()
        # Both families, also without ranges: what rests or is held must be known when a range comes back.
        self._pools = {family: Pool((), timing) for family in Family}
        self._set_ranges(ranges)
        remembered = store.remembered()
        self.boot_id = remembered.boot_id
        self._attachments = remembered.attachments
        self._tombstones = remembered.tombstones
        held = {address: a.key for a in self._attachments.values() for address in a.addresses}
        now = clock.monotonic()
        resting = {address: at if at <= now else 0.0 for address, at in remembered.resting.items()}
        for family, pool in self._pools.items():
            rested = [address for address in remembered.rested if address.family is family]
            pool.restore(_of_family(held, family), _of_family(resting, family), rested)

    def set_ranges(self, ranges: Iterable[Prefix]) -> None:
        """Give out addresses of these ranges alone from now on; who holds another keeps it until its end."""
        with self._lock:
            self._set_ranges(ranges)

    def _set_ranges(self, ranges: Iterable[Prefix]) -> None:
        listed = tuple(ranges)
        for family, pool in self._pools.items():
            pool.set_ranges(block for block in listed if block.family is family)

    @property
    def families(self) -> tuple[Family, ...]:
        """The families a new attachment gets an address of, v4 first."""
        return tuple(family for family, pool in self._pools.items() if pool.gives)

    def withdrawn(self) -> dict[Address, Attachment]:
        """Addresses of no range any more, and the attachments that still hold them."""
        with self._lock:
            kept = {address for pool in self._pools.values() for address in pool.withdrawn()}
            held = ((address, a) for a in self._attachments.values() for address in a.addresses)
            return {address: attachment for address, attachment in held if address in kept}

    def get(self, key: AttachmentKey) -> Attachment | None:
        """The attachment of this key, if there is one."""
        return self._attachments.get(key)

    def all(self) -> list[Attachment]:
        """Every attachment, at this moment."""
        with self._lock:
            return list(self._attachments.values())

    def reserve(
        self,
        key: AttachmentKey,
        pod: PodRef,
        host_link: str,
        netns: str,
        started_at: float = 0.0,
        requested: Requested = NOTHING_REQUESTED,
    ) -> Attachment:
        """Give a new attachment one address of each family that has ranges: the one it asks for, or the next.

        Raises:
            AddressUnavailable: an address that it asks for cannot be given; nothing is held then.
            CapacityError: a family has no free address, or there is no range; nothing is held then.
            StateError: the store could not be written; nothing is held then.
        """
        wanted = Attachment(key, pod, requested.addresses, host_link, netns, started_at)
        try:
            return self._reserve(wanted)
        except CapacityError:
            # Some may have rested long enough since the background last looked.
            self.settle(at_most=8, among=requested.addresses)
        return self._reserve(wanted)

    def _reserve(self, wanted: Attachment) -> Attachment:
        with self._lock:
            giving = {family: pool for family, pool in self._pools.items() if pool.gives}
            if not giving:
                raise CapacityError("no range is known to give addresses of")
            asked = {address.family: address for address in wanted.addresses}
            if foreign := asked.keys() - giving:
                raise AddressUnavailable(
                    f"{asked[min(foreign)]} is asked for, and this node has no range of its family"
                )
            taken: list[Address] = []
            try:
                for family, pool in giving.items():
                    taken.append(pool.take(wanted.key, self._clock.monotonic(), asked.get(family)))
                attachment = replace(wanted, addresses=tuple(taken))
                self._store.hold(attachment)
            except BaseException:
                for address in taken:
                    self._pools[address.family].put_back(address)
                raise
            self._attachments[wanted.key] = attachment
            return attachment

    def renew(self, key: AttachmentKey, started_at: float) -> None:
        """Note that another ADD, begun at `started_at`, found this attachment whole."""
        with self._lock:
            attachment = self._attachments[key]
            if started_at > attachment.started_at:
                self._attachments[key] = replace(attachment, started_at=started_at)
                self._store.renew(key, started_at)

    def adopt(self, attachment: Attachment) -> None:
        """Remember an attachment that the kernel has and the store lost."""
        with self._lock:
            self._store.hold(attachment)
            self._attachments[attachment.key] = attachment
            for address in attachment.addresses:
                self._pools[address.family].restore({address: attachment.key})

    def release(self, attachment: Attachment) -> None:
        """Forget an attachment; its addresses rest."""
        with self._lock:
            now = self._clock.monotonic()
            self._store.release(attachment, now)
            self._attachments.pop(attachment.key, None)
            for address in attachment.addresses:
                self._pools[address.family].release(address, now)

    def settle(self, at_most: int | None = None, among: Collection[Address] = ()) -> None:
        """Free addresses whose rest is over, longest-resting first, looking at `at_most` of each family.

        With `among`, at these alone.

        Each costs two walks of the kernel's connection table (some 10 ms each, without our locks).
        """
        now = self._clock.monotonic()
        with self._lock:
            over = [pool.settling(now) for pool in self._pools.values()]
            if among:
                over = [[address for address in each if address in among] for each in over]
            waiting = [address for each in over for address in each[:at_most]]
        if not waiting:
            return
        named = self._lookup(waiting)
        with self._lock:
            freed = [
                address
                for address in waiting
                if self._pools[address.family].settle(address, now, named=address in named)
            ]
            self._store.rested(freed)

    def occupancy(self) -> dict[Family, Occupancy]:
        """Addresses by family and state, of families that have any."""
        with self._lock:
            found = {family: pool.occupancy() for family, pool in self._pools.items()}
            return {f: state for f, state in found.items() if self._pools[f].gives or any(astuple(state))}

    def bury(self, key: AttachmentKey, deleted_at: float) -> None:
        """Remember that a DEL began at `deleted_at` (seconds since boot)."""
        with self._lock:
            latest = max(deleted_at, self._tombstones.get(key, deleted_at))
            self._store.bury(key, latest)
            self._tombstones[key] = latest

    def buried(self, key: AttachmentKey) -> float | None:
        """When the last DEL of this key began, in seconds since boot."""
        return self._tombstones.get(key)

    def forget_tombstones(self, before: float) -> None:
        """Drop tombstones older than `before` seconds since boot."""
        with self._lock:
            if any(at < before for at in self._tombstones.values()):
                self._store.forget_tombstones(before)
                self._tombstones = {key: at for key, at in self._tombstones.items() if at >= before}

    def begin_boot(self, boot_id: str) -> None:
        """Note the kernel's boot; tombstones of another one mean nothing."""
        with self._lock:
            self._store.begin_boot(boot_id)
            self._tombstones.clear()
            self.boot_id = boot_id

    @property
    def durable(self) -> bool:
        """Whether the end of this process would forget nothing; while it would, nothing new is held."""
        return self._store.durable

    @property
    def path(self) -> Path:
        """Where the store's file stands."""
        return self._store.path

    def is_lost(self) -> bool:
        """Whether the store's file was removed or replaced since it was opened."""
        return self._store.is_lost()

    def restore(self) -> None:
        """Make the store's file again.

        Raises:
            StateError: it cannot be made.
        """
        self._store.restore()

    def flush(self) -> None:
        """Write what the store could not write before.

        Raises:
            StateError: it still cannot.
        """
        self._store.flush()

    def checkpoint(self) -> None:
        """Write what is not yet written, and sync it to the disk.

        Raises:
            StateError: the disk refused.
        """
        self._store.flush()
        self._store.checkpoint()

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _of_family(items: dict[Address, Value], family: Family) -> dict[Address, Value]:
    return {address: value for address, value in items.items() if address.family is family}
