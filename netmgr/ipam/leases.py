"""The node's attachments and the addresses they hold: `pool` and `store` kept in step.

An address is taken when the pool has decided and the store has written it, not before. It is in at
most one row of the store (its primary key), so that even a bug in the pool could not hand it out
twice. A release takes effect at once, and is written as soon as possible.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from netmgr.api.snapshot import PoolState
from netmgr.clock import Clock
from netmgr.errors import AddressUnavailable, CapacityError
from netmgr.ipam.pool import FamilyPool, Timing
from netmgr.ipam.store import LeaseStore
from netmgr.model import Attachment, AttachmentKey, by_address
from netmgr.prefixes import Address, Family, Prefix

Value = TypeVar("Value")

ConnectionLookup = Callable[[Iterable[Address]], set[Address]]
"""Which of these addresses the connection table still names."""


class Leases:
    """All attachments of one node. Thread-safe. `store` may be flushed, synced and restored."""

    def __init__(
        self,
        store: LeaseStore,
        ranges: Iterable[Prefix],
        timing: Timing,
        clock: Clock,
        lookup: ConnectionLookup,
    ) -> None:
        self.store = store
        self._clock = clock
        self._lookup = lookup
        self._lock = threading.Lock()
        # Held before the other one, by ADDs that found no address; never by anybody else.
        self._looking = threading.Lock()
        self._refused_at = -math.inf
        # Both families, also without ranges: held addresses and cooldowns must be known when a
        # range comes back.
        self._pools = {family: FamilyPool(family, (), timing) for family in Family}
        self.set_ranges(ranges)
        remembered = store.remembered()
        self.boot_id = remembered.boot_id
        self._attachments = remembered.attachments
        self._tombstones = remembered.tombstones
        holders = by_address(self._attachments.values())
        held = {address: holder.key for address, holder in holders.items()}
        now = clock.monotonic()
        # Nobody can set CLOCK_MONOTONIC, and so end a cooldown early or never. It starts anew with
        # each boot: a release that lies ahead was before this one, and its cooldown counts from the
        # boot on. One of another boot that does not lie ahead is older than it seems.
        cooldown = {at: since if since <= now else 0.0 for at, since in remembered.cooldown.items()}
        for family, pool in self._pools.items():
            returned = [address for address in remembered.returned if address.family is family]
            pool.restore(_of_family(held, family), _of_family(cooldown, family), returned)

    def set_ranges(self, ranges: Iterable[Prefix]) -> None:
        """Give out addresses of these ranges alone from now on; held ones stay held."""
        listed = tuple(ranges)
        with self._lock:
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
            holders = by_address(self._attachments.values())
            return {address: holder for address, holder in holders.items() if address in kept}

    def get(self, key: AttachmentKey) -> Attachment | None:
        # Without the lock: one look-up is atomic, and whoever changes this attachment holds its own
        # lock (`agent/cni/node.py`).
        return self._attachments.get(key)

    def all(self) -> list[Attachment]:
        with self._lock:
            return list(self._attachments.values())

    def reserve(self, wanted: Attachment) -> Attachment:
        """Give a new attachment an address of each family that has ranges.

        That is the one among its `addresses`, which it asks for, else the next one.

        Raises:
            AddressUnavailable: an address that it asks for cannot be given; nothing is held then.
            CapacityError: a family has no free address, or there is no range; nothing is held then.
            StateError: the store could not be written; nothing is held then.
        """
        with suppress(CapacityError):
            return self._reserve(wanted)
        # Cooldowns may have ended since the background task last looked. Of many ADDs at once each
        # would look at the same addresses, the oldest, and most would find that others had taken
        # them meanwhile. So they look one after the other, and go on until there is no cooldown
        # left to end.
        with self._looking:
            while True:
                # A few at first: this ADD needs one, and each is two walks of the connection table.
                # Those that waited the longest may all be named by connections.
                asked = wanted.addresses
                were_over = self.end_needed_cooldowns(asked, 8) or self.end_needed_cooldowns(asked)
                try:
                    return self._reserve(wanted)
                except CapacityError:
                    # They were taken by ADDs that came meanwhile.
                    if not were_over:
                        self._refused_at = self._clock.monotonic()
                        raise

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
                # The store before memory: an address that only memory knows would be given twice
                # after a crash.
                self.store.hold(attachment)
            except BaseException:
                # Not only on our own errors: whatever ends this ADD must not leave addresses held.
                for address in taken:
                    self._pools[address.family].put_back(address)
                raise
            self._attachments[wanted.key] = attachment
            return attachment

    def renew(self, key: AttachmentKey, started_at: float, netns: str) -> None:
        """Note that another ADD, begun at `started_at`, found this attachment whole, at `netns`."""
        with self._lock:
            attachment = self._attachments[key]
            # ADDs may overtake each other. Were it to seem older, a late DEL would end the pod.
            if started_at > attachment.started_at:
                self._attachments[key] = replace(attachment, started_at=started_at, netns=netns)
                self.store.renew(key, started_at, netns)

    def adopt(self, attachment: Attachment) -> None:
        """Remember an attachment that the kernel has and the store lost."""
        with self._lock:
            self.store.hold(attachment)
            self._attachments[attachment.key] = attachment
            # The kernel decides here: the address may be in cooldown, or of no range any more.
            for address in attachment.addresses:
                self._pools[address.family].restore({address: attachment.key})

    def release(self, attachment: Attachment) -> None:
        """Forget an attachment; its addresses enter their cooldown."""
        with self._lock:
            now = self._clock.monotonic()
            # This never fails: a release that cannot be written waits in the store.
            self.store.release(attachment, now)
            self._attachments.pop(attachment.key, None)
            for address in attachment.addresses:
                self._pools[address.family].release(address, now)

    def end_cooldowns(self) -> None:
        """End cooldowns that are over."""
        now = self._clock.monotonic()
        with self._lock:
            due = [address for pool in self._pools.values() for address in pool.cooled_down(now)]
        self._end_cooldowns(due, now)

    def end_needed_cooldowns(
        self, asked: Collection[Address] = (), at_most: int | None = None
    ) -> bool:
        """End cooldowns that keep an ADD from its addresses.

        Args:
            asked: addresses that the ADD asks for: of their families only they are looked at.
            at_most: how many addresses of each family to look at, oldest release first; None for
                all.

        Returns whether to try again: some were over, or nothing keeps the ADD from its addresses.
        """
        now = self._clock.monotonic()
        with self._lock:
            lacking = [pool for pool in self._pools.values() if pool.is_empty or pool.of(asked)]
            due = [pool.cooled_down(now, asked)[:at_most] for pool in lacking]
            is_served = bool(self.families) and not lacking
        needed = [*chain.from_iterable(due)]
        return is_served or self._end_cooldowns(needed, now)

    def _end_cooldowns(self, waiting: list[Address], now: float) -> bool:
        """Whether any of these is in no cooldown any more."""
        if not waiting:
            return False
        # Without the lock: the look-up walks the kernel's connection table twice, some 10 ms each.
        named = self._lookup(waiting)
        with self._lock:
            # One that another thread ended or gave out meanwhile is in no cooldown any more.
            ended = [
                address
                for address in waiting
                if self._pools[address.family].end_cooldown(address, now, named=address in named)
            ]
            self.store.end_cooldown(ended)
        # One that did not end here although no connection names it was another thread's.
        return not named.issuperset(waiting)

    def lacks_addresses(self, seconds: float) -> bool:
        """Whether an attachment was refused for lack of an address, so many seconds ago at most."""
        return self._clock.monotonic() - self._refused_at <= seconds

    def occupancy(self) -> dict[Family, PoolState]:
        """Addresses by state, of families that have ranges or held addresses of former ones."""
        with self._lock:
            states: dict[Family, PoolState] = {}
            for family, pool in self._pools.items():
                state = pool.occupancy()
                if pool.gives or state["withdrawn"]:
                    states[family] = state
            return states

    def add_tombstone(self, key: AttachmentKey, deleted_at: float) -> None:
        """Remember that a DEL began at `deleted_at` (seconds since boot)."""
        with self._lock:
            # The spool may replay an earlier DEL after a later one was served.
            latest = max(deleted_at, self._tombstones.get(key, deleted_at))
            self.store.add_tombstone(key, latest)
            self._tombstones[key] = latest

    def tombstone(self, key: AttachmentKey) -> float | None:
        """When the last DEL of this key began, in seconds since boot."""
        return self._tombstones.get(key)

    def forget_tombstones(self, before: float) -> None:
        """Drop tombstones older than `before` seconds since boot."""
        with self._lock:
            # Looked at first: most of the time none is that old, and no transaction is needed.
            if any(at < before for at in self._tombstones.values()):
                self.store.forget_tombstones(before)
                self._tombstones = {key: at for key, at in self._tombstones.items() if at >= before}

    def begin_boot(self, boot_id: str) -> None:
        """Note the kernel's boot; tombstones of another one mean nothing."""
        with self._lock:
            self.store.begin_boot(boot_id)
            self._tombstones.clear()
            self.boot_id = boot_id


def _of_family(items: dict[Address, Value], family: Family) -> dict[Address, Value]:
    return {address: value for address, value in items.items() if address.family is family}
