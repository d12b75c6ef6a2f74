"""Free address space as a binary buddy tree, on integers.

Only free blocks are kept, each as large as it can be (no two free buddies), one sorted list for
each prefix length. So every question (is this free, how far can it grow, where is the most room)
costs at most one bisection per length.

There are three ways to choose a block:

- `sparse`: in a large free block, so that much beside it stays free. For what may grow.
- `topmost`: at the end of the space, which fills up densely. For what is small and stays so.
- `packed`: in the smallest free block that fits. For what lies within a site, and Services.

Of places that are equally good a hash of the owner's name chooses: two branches of a plan that
each add a cluster seldom give both the same addresses, and can be merged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256

from netmgr.prefixes import Family, Prefix, merge

PLACES = 4096
"""In how many places of a free block a hash puts something, so that addresses stay round."""

ROOM = 4
"""A free block whose length is so many bits shorter is large: all of them are equally good."""

END = 16
"""The end of the space is a part of it as large as one in so many of its free addresses."""


class Space:
    """Free blocks of one address family."""

    def __init__(
        self, family: Family, free: Iterable[Prefix] = (), taken: Iterable[Prefix] = ()
    ) -> None:
        """The addresses of this family in `free` and not in `taken`."""
        self.family = family
        self._free: dict[int, list[int]] = {}
        for block in merge(prefix for prefix in free if prefix.family is family):
            self._add(block)
        for prefix in taken:
            self.withdraw(prefix)

    def copy(self) -> Space:
        twin = Space(self.family)
        twin._free = {length: values.copy() for length, values in self._free.items()}
        return twin

    def blocks(self) -> Iterator[Prefix]:
        """Free blocks, the largest first, and by address within a length."""
        for length in sorted(self._free):
            for value in self._free[length]:
                yield Prefix(self.family, value, length)

    @property
    def size(self) -> int:
        return sum(
            len(values) << (self.family.width - length) for length, values in self._free.items()
        )

    def is_free(self, prefix: Prefix) -> bool:
        """Whether every address of `prefix` is free."""
        return self._holder(prefix) is not None

    def take(self, prefix: Prefix) -> None:
        """Mark `prefix` as used; ValueError if it is not wholly free."""
        holder = self._holder(prefix)
        if holder is None:
            raise ValueError(f"{prefix} is not free")
        self._remove(holder)
        for rest in subtract(holder, prefix):
            self._add(rest)

    def withdraw(self, prefix: Prefix) -> None:
        """Take whatever is still free of `prefix`."""
        if self.is_free(prefix):
            self.take(prefix)
        elif prefix.family is self.family:
            # A list first: removing changes the lists that `blocks` walks through.
            for block in [block for block in self.blocks() if prefix.covers(block)]:
                self._remove(block)

    def give(self, prefix: Prefix) -> None:
        """Make `prefix` free again, merged with its free buddies."""
        # Two free buddies always become their parent. Otherwise a large block would look like two
        # small ones and be refused when it is needed.
        while self._has(buddy := _buddy(prefix)):
            self._remove(buddy)
            prefix = _parent(prefix)
        self._add(prefix)

    def packed(self, length: int, name: str = "", share: int = 1) -> Prefix | None:
        """A block of that length, from the smallest free blocks that have some; or None.

        Without a name the first; with one any of the first, which are one in `share` of all.
        """
        places = {n: 1 << (length - n) for n in sorted(self._free, reverse=True) if n <= length}
        return self._named(places, length, name, share)

    def topmost(self, length: int, name: str = "") -> Prefix | None:
        """A block of that length at the end of the space; or None.

        Without a name the last; with one anywhere in the end, as the name decides.
        """
        fitting = [(held, firsts) for held, firsts in self._free.items() if held <= length]
        top = max((firsts[-1] + self._size(held) for held, firsts in fitting), default=0)
        before = top - 1 - _hash(name) % (self.size // END + 1)
        # What is free next below; or, where that is nothing, the last of all.
        for bound in (before, top):
            below = (
                (firsts[place - 1], held)
                for held, firsts in fitting
                if (place := bisect_right(firsts, bound))
            )
            if block := max(below, default=None):
                first, held = block
                return self._at(min(bound, first + self._size(held) - 1), length)
        return None

    def sparse(self, length: int, name: str = "") -> Prefix | None:
        """A block of that length in a large free block, or else in one of the largest; or None.

        Which block and where in it the name decides; without, the beginning of the first.
        """
        largest = min(self._free, default=length + 1)
        if largest > length:
            return None
        # All that have room for growth: where only the largest count, two names soon meet.
        places = {
            held: min(1 << (length - held), PLACES)
            for held in sorted(self._free)
            if held <= max(largest, length - ROOM)
        }
        return self._named(places, length, name)

    def _named(
        self, places: Mapping[int, int], length: int, name: str, share: int = 1
    ) -> Prefix | None:
        """Of so many places in every free block of these lengths, the one that a name decides."""
        every = sum(count * len(self._free[held]) for held, count in places.items())
        place = _hash(name) % max(1, every // share)
        for held, count in places.items():
            block, place_in_it = divmod(place, count)
            if block < len(self._free[held]):
                first = self._free[held][block]
                return self._at(first + place_in_it * self._size(held) // count, length)
            place -= count * len(self._free[held])
        return None

    def _at(self, value: int, length: int) -> Prefix:
        """The block of that length that holds an address."""
        return enclosing(Prefix(self.family, value, self.family.width), length)

    def _size(self, length: int) -> int:
        return 1 << (self.family.width - length)

    def grown(self, prefix: Prefix, length: int) -> Prefix | None:
        """`prefix` widened to `length`, if all that this adds is free; or None."""
        while prefix.length > length:
            if not self.is_free(_buddy(prefix)):
                return None
            prefix = _parent(prefix)
        return prefix

    def reach(self, prefix: Prefix) -> Prefix:
        """`prefix` doubled in place as often as what lies beside it is free."""
        while self.is_free(_buddy(prefix)):
            prefix = _parent(prefix)
        return prefix

    def _holder(self, prefix: Prefix) -> Prefix | None:
        if prefix.family is not self.family:
            return None
        for length in reversed(range(prefix.length + 1)):
            if self._has(holder := enclosing(prefix, length)):
                return holder
        return None

    def _has(self, block: Prefix) -> bool:
        firsts = self._free.get(block.length, [])
        place = bisect_left(firsts, block.value)
        return firsts[place : place + 1] == [block.value]

    def _add(self, block: Prefix) -> None:
        insort(self._free.setdefault(block.length, []), block.value)

    def _remove(self, block: Prefix) -> None:
        firsts = self._free[block.length]
        del firsts[bisect_left(firsts, block.value)]
        if not firsts:
            del self._free[block.length]


def _hash(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()) if name else 0


def halves(prefix: Prefix) -> tuple[Prefix, Prefix]:
    """The two buddies a prefix is made of, the lower first."""
    low = Prefix(prefix.family, prefix.value, prefix.length + 1)
    return low, _buddy(low)


def enclosing(prefix: Prefix, length: int) -> Prefix:
    """The block of that length that holds `prefix`."""
    shift = prefix.family.width - length
    return Prefix(prefix.family, prefix.value >> shift << shift, length)


def length_for(addresses: int, family: Family) -> int:
    """The longest prefix length whose blocks have so many addresses."""
    return family.width - max(addresses - 1, 0).bit_length()


def subtract(outer: Prefix, inner: Prefix) -> list[Prefix]:
    """What is left of `outer` without `inner`, which it covers."""
    rest = []
    while inner.length > outer.length:
        rest.append(_buddy(inner))
        inner = _parent(inner)
    return rest


def _buddy(prefix: Prefix) -> Prefix:
    # Buddies differ in the last bit of their prefix alone. That of all addresses is never free.
    return Prefix(prefix.family, prefix.value ^ prefix.size, prefix.length)


def _parent(prefix: Prefix) -> Prefix:
    return enclosing(prefix, prefix.length - 1)
