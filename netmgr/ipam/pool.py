"""Decides which address an attachment gets. Remembers nothing across a restart: that is the store's.

Rules:
- An address is free, held by one attachment, or resting after its release.
- Among free addresses those never used come first, in the order of the ranges, then those
  whose release is longest ago. So an address returns as late as the pool allows.
- A resting address becomes free when its cooldown is over *and* it was settled: somebody
  looked and found no connection that still names it, or the bounded wait for that ended.
- Every address of a range is usable, its first and last too: they are /32 and /128 routes.
- Ranges may come and go while addresses are held. A new address joins those never used; a
  withdrawn one that is held stays with its attachment, and is never handed out again.
- A range may be a whole /64: nothing here is sized by a range. Once `MOST_RESTED` addresses
  wait for their return, the oldest of them comes even before one never used.

Time is whatever the caller counts in seconds, as long as it never steps back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from netmgr.errors import AddressUnavailable, CapacityError
from netmgr.model import AttachmentKey
from netmgr.prefixes import Address, Family, Prefix, PrefixTable

MOST_RESTED = 16384
"""Bounds what is remembered of a range that is never used up."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a released address rests, in seconds."""

    cooldown: float
    connection_wait: float


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many addresses of one family are in each state. Resting ones are `cooldown`.

    `withdrawn` ones are held, and of no range any more.
    """

    allocated: int
    cooldown: int
    free: int
    withdrawn: int = 0


class Pool:
    """The addresses of one family on one node."""

    def __init__(self, ranges: Iterable[Prefix], timing: Timing) -> None:
        self._timing = timing
        self._held: dict[Address, AttachmentKey] = {}
        self._resting: dict[Address, float] = {}
        self._rested: dict[Address, None] = {}
        self.set_ranges(ranges)

    def set_ranges(self, ranges: Iterable[Prefix]) -> None:
        """Give out addresses of these ranges alone from now on."""
        self._ranges = tuple(ranges)
        self._size = sum(block.size for block in self._ranges)
        self._table = PrefixTable((block, None) for block in self._ranges)
        self._rested = {address: None for address in self._rested if self._is_ours(address)}
        self._fresh = self._never_used()

    @property
    def gives(self) -> bool:
        """Whether there are ranges to give addresses of."""
        return self._size > 0

    def withdrawn(self) -> list[Address]:
        """Addresses that are held and of no range any more."""
        return [address for address in self._held if not self._is_ours(address)]

    def restore(
        self,
        held: Mapping[Address, AttachmentKey],
        resting: Mapping[Address, float] | None = None,
        rested: Iterable[Address] = (),
    ) -> None:
        """Take over what a store remembers; addresses of withdrawn ranges stay held but never return."""
        self._held.update(held)
        self._resting.update(sorted((resting or {}).items(), key=lambda item: item[1]))
        self._rested.update((address, None) for address in rested if self._is_ours(address))
        for address in held:
            self._resting.pop(address, None)
            self._rested.pop(address, None)

    def take(self, key: AttachmentKey, now: float, asked: Address | None = None) -> Address:
        """Hand an address to an attachment: the one it asks for, else the next.

        Raises:
            AddressUnavailable: the one it asks for is held, in cooldown, or of none of the ranges.
            CapacityError: none is free; says when the next may be.
        """
        address = self._named(asked, now) if asked else self._next_free()
        if address is None:
            raise CapacityError(self._why_empty(now))
        self._held[address] = key
        return address

    def put_back(self, address: Address) -> None:
        """Undo a `take` whose attachment never came to be."""
        if self._held.pop(address, None) is not None:
            self._rested[address] = None

    def release(self, address: Address, now: float) -> None:
        """End an attachment's hold; the address begins to rest."""
        if self._held.pop(address, None) is not None:
            self._resting[address] = now

    def settling(self, now: float) -> list[Address]:
        """Resting addresses whose cooldown is over: to be looked up in the connection table."""
        return [address for address, since in self._resting.items() if now - since >= self._timing.cooldown]

    def settle(self, address: Address, now: float, *, named: bool) -> bool:
        """Free a resting address, unless a connection still names it and may for a while; whether it is free."""
        wait = self._timing.cooldown + (self._timing.connection_wait if named else 0)
        if address not in self._resting or now - self._resting[address] < wait:
            return False
        del self._resting[address]
        if self._is_ours(address):
            self._rested[address] = None
        return True

    def occupancy(self) -> Occupancy:
        """Addresses of the current ranges by state."""
        allocated = sum(map(self._is_ours, self._held))
        cooldown = sum(map(self._is_ours, self._resting))
        return Occupancy(allocated, cooldown, self._size - allocated - cooldown, len(self._held) - allocated)

    def _named(self, address: Address, now: float) -> Address:
        if not self._is_ours(address):
            raise AddressUnavailable(f"{address} is asked for, and is in none of this node's ranges")
        if address in self._held:
            holder = self._held[address]
            raise AddressUnavailable(f"{address} is asked for, and is held by {holder.container_id} {holder.ifname}")
        if address in self._resting:
            left = max(0.0, self._timing.cooldown - (now - self._resting[address]))
            raise AddressUnavailable(
                f"{address} is asked for, and is in cooldown for {left:.0f} s more, longer while connections name it"
            )
        self._rested.pop(address, None)
        return address

    def _next_free(self) -> Address | None:
        if len(self._rested) >= MOST_RESTED:
            return self._oldest_rested()
        return next(self._fresh, None) or self._oldest_rested()

    def _oldest_rested(self) -> Address | None:
        if not self._rested:
            return None
        address = next(iter(self._rested))
        del self._rested[address]
        return address

    def _never_used(self) -> Iterator[Address]:
        for block in self._ranges:
            for value in range(block.value, block.last + 1):
                address = Address(block.family, value)
                if address not in self._held and address not in self._resting and address not in self._rested:
                    yield address

    def _is_ours(self, address: Address) -> bool:
        return self._table.match(address) is not None

    def _why_empty(self, now: float) -> str:
        state = self.occupancy()
        family = self._ranges[0].family if self._ranges else Family.V4
        message = f"no IPv{family.value} address is free: {state.allocated} held, {state.cooldown} resting"
        if self._resting:
            wait = min(self._resting.values()) + self._timing.cooldown - now
            message += f"; the next may be free in {max(0, wait):.0f} s"
        return message
