"""What the kernel holds of a ruleset, as a backend finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from netmgr.kernel.netlink import Counted
from netmgr.model import Counter, Sample
from netmgr.prefixes import Address
from netmgr.rules.model import Element, Hook, Rule, SetSpec
from netmgr.rules.transaction import LIFE_BITS


@dataclass(frozen=True, slots=True)
class ObservedRule:
    """A rule found in our chains: its id by its mark, and whether it is still as we write it."""

    id: str
    intact: bool = True


def in_order(
    seen: Sequence[ObservedRule], written: Sequence[str], rules: Sequence[Rule]
) -> tuple[ObservedRule, ...]:
    """The rules found, in the ruleset's order if the kernel has them in the order `written`."""
    if [rule.id for rule in seen] != list(written):
        return tuple(seen)
    by_id = {rule.id: rule for rule in seen}
    return tuple(by_id[rule.id] for rule in rules)


class LinkFault(NamedTuple):
    """What is not as counting at links needs it; `loses`: traffic may have passed uncounted."""

    text: str
    loses: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """What the kernel holds of ours.

    `members` lacks a set that is not there; `malformed` names sets and hooks that are there
    but of another make. `chains` lacks a hook without our chain. `counters` are names, as
    `Count.name` and its like give them. `orphans`, `orphan_chains` and `orphan_flowtables` are
    sets, chains and flowtables, by their names in the kernel, that the ruleset has no use for.
    `is_dormant`: all of it is there, and switched off. `link_faults` keep links from counting, of
    pods' `counting`.
    """

    members: Mapping[str, frozenset[Element]]
    chains: Mapping[Hook, tuple[ObservedRule, ...]]
    counters: frozenset[str] = frozenset()
    malformed: frozenset[str] = frozenset()
    orphans: frozenset[str] = frozenset()
    orphan_chains: frozenset[str] = frozenset()
    orphan_flowtables: frozenset[str] = frozenset()
    is_dormant: bool = False
    link_faults: tuple[LinkFault, ...] = ()
    counting: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether there is no trace of ours at all."""
        orphans = self.orphans | self.orphan_chains
        return not (
            self.members or self.malformed or self.counters or orphans or any(self.chains.values())
        )


def sample(counter: Counter, octets: int, packets: int, wire: int = 0, measured: int = 0) -> Sample:
    """What a set's element shows, its life apart from its packets (`transaction.with_lives`)."""
    number, life = packets & ((1 << LIFE_BITS) - 1), packets >> LIFE_BITS
    return Sample(counter, octets, number, life, wire, measured)


class Samples:
    """Makes samples of what counting sets list."""

    def __init__(self) -> None:
        # Those of each set's last listing: an agent lists the same pods every few seconds, and
        # would spend more time on making their counters again than on anything else.
        self._counters: dict[str, dict[bytes, Counter]] = {}

    def of(self, spec: SetSpec, listed: Sequence[Counted]) -> list[Sample]:
        """A sample of each address; keys are addresses in network byte order."""
        former = self._counters.get(spec.name, {})
        # Only those that are listed now, so that it does not grow with pods that are gone.
        counters = {
            packed: former.get(packed) or spec.counter(Address.unpack(packed))
            for packed, _, _ in listed
        }
        self._counters[spec.name] = counters
        return [sample(counters[packed], octets, packets) for packed, packets, octets in listed]
