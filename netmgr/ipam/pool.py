"""Decides which address an attachment gets. Remembers nothing across a restart; the store does.

Rules:
- An address is free, held by one attachment, or in cooldown after its release.
- Among free addresses, those never used come first, in the order of the ranges, then returned
  ones, oldest release first. So an address is given out again as late as the pool allows.
- A cooldown ends when its time is over *and* the address was looked up: the connection table no
  longer names it, or the bounded wait for that is over.
- Every address of a range is usable, first and last included: they are /32 and /128 routes.
- Ranges may change while addresses are held. A new address joins those never used; a withdrawn
  one that is held stays with its attachment and is never given out again.
- A range may be a whole /64, so nothing here is sized by a range. Once `MOST_RETURNED`
  addresses have returned, the oldest of them is given out even before one never used.

Time is whatever the caller counts in seconds, as long as it never steps back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from netmgr.api.snapshot import PoolState
from netmgr.errors import AddressUnavailable, CapacityError
from netmgr.model import AttachmentKey
from netmgr.prefixes import Address, Family, Prefix, PrefixTable

MOST_RETURNED = 16384
"""Bounds how many returned addresses are remembered while a range is never used up."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a released address stays in cooldown, in seconds."""

    cooldown: float
    connection_wait: float


class FamilyPool:
    """The addresses of one family on one node."""

    def __init__(self, family: Family, ranges: Iterable[Prefix], timing: Timing) -> None:
        self._family = family
        self._timing = timing
        self._held: dict[Address, AttachmentKey] = {}
        # When each was released. Dicts keep insertion order, which is the order of release.
        self._cooldown: dict[Address, float] = {}
        self._returned: dict[Address, None] = {}
        self.set_ranges(ranges)

    def set_ranges(self, ranges: Iterable[Prefix]) -> None:
        """Give out addresses of these ranges alone from now on."""
        self._ranges = tuple(ranges)
        self._size = sum(block.size for block in self._ranges)
        self._table = PrefixTable((block, None) for block in self._ranges)
        self._returned = {address: None for address in self._returned if self._is_ours(address)}
        # A new walk: the former generator is in the middle of the former ranges.
        self._fresh = self._never_used()

    @property
    def gives(self) -> bool:
        """Whether there are ranges to give addresses of."""
        return self._size > 0

    @property
    def is_empty(self) -> bool:
        """Whether all addresses of its ranges are held or in cooldown."""
        return self.gives and not self.occupancy()["free"]

    def withdrawn(self) -> list[Address]:
        """Held addresses that are in no range any more."""
        return [address for address in self._held if not self._is_ours(address)]

    def restore(
        self,
        held: Mapping[Address, AttachmentKey],
        cooldown: Mapping[Address, float] | None = None,
        returned: Iterable[Address] = (),
    ) -> None:
        """Take over what a store remembers."""
        self._held.update(held)
        self._cooldown.update(sorted((cooldown or {}).items(), key=lambda item: item[1]))
        self._returned.update((address, None) for address in returned if self._is_ours(address))
        # `adopt` may take an address that is in cooldown: the kernel decides.
        for address in held:
            self._cooldown.pop(address, None)
            self._returned.pop(address, None)

    def take(self, key: AttachmentKey, now: float, asked: Address | None = None) -> Address:
        """Hand an address to an attachment: the one it asks for, else the next.

        Raises:
            AddressUnavailable: the one it asks for is held, in cooldown, or in none of the ranges.
            CapacityError: none is free; says when the next may be.
        """
        address = self._named(asked, now) if asked else self._next_free()
        if address is None:
            raise CapacityError(self._why_empty(now))
        self._held[address] = key
        return address

    def put_back(self, address: Address) -> None:
        """Undo a `take` whose attachment was never made."""
        # Without a cooldown: nobody has ever sent from it.
        if self._held.pop(address, None) is not None:
            self._returned[address] = None

    def release(self, address: Address, now: float) -> None:
        """End an attachment's hold; the address enters its cooldown."""
        # Once: a release that is repeated must not begin the cooldown anew.
        if self._held.pop(address, None) is not None:
            self._cooldown[address] = now

    def of(self, addresses: Iterable[Address]) -> list[Address]:
        """Those of this family."""
        return [address for address in addresses if address.family is self._family]

    def cooled_down(self, now: float, asked: Iterable[Address] = ()) -> list[Address]:
        """Addresses whose cooldown time is over: to be looked up in the connection table.

        If addresses of this family are `asked` for, these alone.
        """
        due, only = now - self._timing.cooldown, self.of(asked)
        return [
            address
            for address, since in self._cooldown.items()
            if since <= due and (not only or address in only)
        ]

    def end_cooldown(self, address: Address, now: float, *, named: bool) -> bool:
        """End a cooldown, unless a connection still names the address; returns whether it ended."""
        wait = self._timing.cooldown + (self._timing.connection_wait if named else 0)
        if address not in self._cooldown or now - self._cooldown[address] < wait:
            return False
        del self._cooldown[address]
        # One that was withdrawn during its cooldown is dropped.
        if self._is_ours(address):
            self._returned[address] = None
        return True

    def occupancy(self) -> PoolState:
        # By what is in use, and never by walking a range, which may be a /64.
        allocated = sum(map(self._is_ours, self._held))
        cooldown = sum(map(self._is_ours, self._cooldown))
        return {
            "family": f"ipv{self._family.value}",
            "allocated": allocated,
            "cooldown": cooldown,
            "free": self._size - allocated - cooldown,
            "withdrawn": len(self._held) - allocated,
        }

    def _named(self, address: Address, now: float) -> Address:
        if not self._is_ours(address):
            raise AddressUnavailable(
                f"{address} is asked for, and is in none of this node's ranges"
            )
        if address in self._held:
            holder = self._held[address]
            raise AddressUnavailable(
                f"{address} is asked for, and is held by {holder.container_id} {holder.ifname}"
            )
        if address in self._cooldown:
            # Its time may be over while a connection names it, or nobody has looked yet.
            left = max(0.0, self._timing.cooldown - (now - self._cooldown[address]))
            raise AddressUnavailable(
                f"{address} is asked for, and is in cooldown for {left:.0f} s more, "
                "longer while connections name it"
            )
        self._returned.pop(address, None)
        return address

    def _next_free(self) -> Address | None:
        if len(self._returned) < MOST_RETURNED and (fresh := next(self._fresh, None)):
            return fresh
        oldest = next(iter(self._returned), None)
        if oldest is not None:
            del self._returned[oldest]
        return oldest

    def _never_used(self) -> Iterator[Address]:
        # Compared anew for each address: the tables change between two calls of next().
        for block in self._ranges:
            # Lazily: a /64 has more addresses than any list.
            for value in range(block.value, block.last + 1):
                address = Address(block.family, value)
                if (
                    address not in self._held
                    and address not in self._cooldown
                    and address not in self._returned
                ):
                    yield address

    def _is_ours(self, address: Address) -> bool:
        return self._table.match(address) is not None

    def _why_empty(self, now: float) -> str:
        state = self.occupancy()
        message = (
            f"no IPv{self._family.value} address is free: "
            f"{state['allocated']} held, {state['cooldown']} in cooldown"
        )
        if self._cooldown:
            wait = min(self._cooldown.values()) + self._timing.cooldown - now
            message += f"; the next may be free in {max(0, wait):.0f} s"
        return message
