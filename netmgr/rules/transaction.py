"""A change of the kernel's rules as an object: can be printed, reviewed and then applied."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from netmgr.model import Counter
from netmgr.rules.at_links import AtLinks
from netmgr.rules.model import Element, Hook, Rule, SetSpec

# A pod's packet counter has its life above so many bits, which last four years at 1 MHz.
LIFE_BITS = 47

# As many as leave the whole number below 2**62, so that nothing takes one for a wrap.
_LIVES = (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class DropChain:
    """Take our rules off a hook. `rules` are the ones that belong there, to recognise ours by."""

    hook: Hook
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class DeleteSet:
    """Remove a set that no rule uses any more."""

    spec: SetSpec


@dataclass(frozen=True, slots=True)
class DeleteOrphan:
    """Remove something of ours that no rule uses, by its name in the kernel."""

    name: str
    kind: Literal["set", "chain", "flowtable"] = "set"


@dataclass(frozen=True, slots=True)
class CreateSet:
    """Make an empty set."""

    spec: SetSpec


@dataclass(frozen=True, slots=True)
class AddElements:
    """Add elements. One that is there already keeps its counter.

    `life` is that of the newcomers' counters (`with_lives`).
    """

    spec: SetSpec
    elements: frozenset[Element]
    life: int = 0

    @property
    def packets(self) -> int:
        """What their counters begin at."""
        return self.life << LIFE_BITS


@dataclass(frozen=True, slots=True)
class RemoveElements:
    """Remove elements. A missing one is no error."""

    spec: SetSpec
    elements: frozenset[Element]


@dataclass(frozen=True, slots=True)
class ReplaceElements:
    """Have a set of prefixes hold exactly these."""

    spec: SetSpec
    elements: frozenset[Element]


@dataclass(frozen=True, slots=True)
class DeclareCounter:
    """Make a named counter, at zero, where counters are objects of their own."""

    name: str


@dataclass(frozen=True, slots=True)
class FillChain:
    """Have a hook's chain hold exactly these rules in this order."""

    hook: Hook
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class EndFlows:
    """Have a flowtable's connections meet the rules again: it is made anew, without devices.

    `hook` and `rules` are of the chain that fills it, which is written again for that.
    """

    spec: SetSpec
    hook: Hook
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class CountAtLinks:
    """Have programs at links count, at these of pods', and know these peers."""

    at_links: AtLinks
    links: frozenset[str]
    loses: bool
    """Whether traffic may have passed uncounted until now."""


Operation = (
    DropChain
    | DeleteSet
    | DeleteOrphan
    | CreateSet
    | AddElements
    | RemoveElements
    | ReplaceElements
    | DeclareCounter
    | FillChain
    | EndFlows
    | CountAtLinks
)


@dataclass(frozen=True)
class Transaction:
    """Operations in the order they must happen; falsy when there are none.

    Attributes:
        created: kernel counters that begin at zero when this is applied.
        repairs: a message for each thing that is repaired.
    """

    operations: tuple[Operation, ...] = ()
    created: frozenset[Counter] = frozenset()
    repairs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.operations)


def with_lives(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """The operations, with a new life for the pods' counters that they add."""
    # The kernel has no identity for the counter of a set's element, nftables' or ipset's. Saved,
    # taken away and put back, one shows bytes that were counted before as if they had just passed.
    # So each begins at a random number of packets, a multiple of 2**47, and not at zero. One that
    # another program zeroed has left that life, one that was put back is in another, or shows less
    # than before. No packet pays for it.
    return tuple(
        replace(operation, life=1 + secrets.randbelow(_LIVES))
        if isinstance(operation, AddElements) and operation.spec.counts is not None
        else operation
        for operation in operations
    )
