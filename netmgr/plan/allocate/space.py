"""Free address space as a binary buddy tree, on integers.

Only free blocks are kept, each as large as it can be (no two free buddies), one set for each
prefix length. So every question (is this free, how far can it grow, where is the most room) costs
at most one look-up per length.

There are two ways to choose a block, one for each kind of growth, so that they stay apart:

- `topmost`: the upper end of the highest free block that fits. For what has its growth
  reserved already: the end of the space fills up densely.
- `sparse`: the lower end of the largest free block, so that all of that block stays the
  newcomer's to grow into. For what may grow without having declared it.

And `packed`, the smallest free block that fits, for what lies within a site.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from netmgr.prefixes import Family, Prefix, merge


class Space:
    """Free blocks of one address family."""

    def __init__(
        self, family: Family, free: Iterable[Prefix] = (), taken: Iterable[Prefix] = ()
    ) -> None:
        """The addresses of this family in `free` and not in `taken`."""
        self.family = family
        self._free: dict[int, set[int]] = {}
        for block in merge(prefix for prefix in free if prefix.family is family):
            self._add(block)
        for prefix in taken:
            self.withdraw(prefix)

    def copy(self) -> Space:
        twin = Space(self.family)
        twin._free = {length: set(values) for length, values in self._free.items()}
        return twin

    def blocks(self) -> Iterator[Prefix]:
        """Free blocks, the largest first, and by address within a length."""
        for length in sorted(self._free):
            for value in sorted(self._free[length]):
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
            # A list first: removing changes the sets that `blocks` walks through.
            for block in [block for block in self.blocks() if prefix.covers(block)]:
                self._remove(block)

    def give(self, prefix: Prefix) -> None:
        """Make `prefix` free again, merged with its free buddies."""
        # Two free buddies always become their parent. Otherwise a large block would look like two
        # small ones and be refused when it is needed.
        while (buddy := _buddy(prefix)).value in self._free.get(prefix.length, ()):
            self._remove(buddy)
            prefix = _parent(prefix)
        self._add(prefix)

    def packed(self, length: int) -> Prefix | None:
        """The first block of that length in the smallest free block that has one; or None."""
        return self._first(reversed(range(length + 1)), length)

    def topmost(self, length: int) -> Prefix | None:
        """The last block of that length in the highest free block that has one; or None."""
        fitting = (
            Prefix(self.family, max(values), held)
            for held, values in self._free.items()
            if held <= length
        )
        block = max(fitting, default=None)
        return block and enclosing(Prefix(self.family, block.last, self.family.width), length)

    def sparse(self, length: int) -> Prefix | None:
        """The first block of that length in the largest free block; or None."""
        return self._first(range(length + 1), length)

    def _first(self, sizes: Iterable[int], length: int) -> Prefix | None:
        for holding in sizes:
            if values := self._free.get(holding):
                return Prefix(self.family, min(values), length)
        return None

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
            shift = self.family.width - length
            if prefix.value >> shift << shift in self._free.get(length, ()):
                return enclosing(prefix, length)
        return None

    def _add(self, block: Prefix) -> None:
        self._free.setdefault(block.length, set()).add(block.value)

    def _remove(self, block: Prefix) -> None:
        values = self._free[block.length]
        values.remove(block.value)
        if not values:
            del self._free[block.length]


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
