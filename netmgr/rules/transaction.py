"""A change of the kernel's rules as an object: can be printed, reviewed and then applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from netmgr.model import Counter
from netmgr.rules.model import Element, Hook, Rule, SetSpec

LIFE_BITS = 47
"""A pod's packet counter has its life above so many bits, which last four years at 1 MHz."""


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

    `life` is that of the newcomers' counters (`lives.py`).
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
)


@dataclass(frozen=True)
class Transaction:
    """Operations in the order they must happen; falsy when there are none.

    Attributes:
        created: kernel counters that begin at zero when this is applied.
        repairs: a message for each thing that is repaired.
        text: the operations as the backend will carry them out, for people.
    """

    operations: tuple[Operation, ...] = ()
    created: frozenset[Counter] = frozenset()
    repairs: tuple[str, ...] = ()
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.operations)

    def split(self) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """What changes the ruleset, and what then removes orphans, which no rule uses any more."""
        parts: tuple[list[Operation], list[Operation]] = ([], [])
        for operation in self.operations:
            # Apart from the rest, since the ledger reads an orphan's counters before they go.
            parts[isinstance(operation, DeleteOrphan)].append(operation)
        return tuple(parts[0]), tuple(parts[1])
