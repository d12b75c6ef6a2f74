"""Changes the backend that counts, so that the books take every packet once.

The successor's rules are made while the former ones are still there. From then on both count the
same packets, and the books can go on from the one to the other at any instant at which both were
read. No two readings are of one instant; but if the successor shows the same before and after
the former was read, then nothing passed meanwhile, and both readings are as good as that. A pod
that did not pause is read again by itself, which takes a fraction of a millisecond. What moved
every time loses what passed during the last of these readings, which is a gap of that length.

Killed anywhere, an agent leaves either books that read the former backend, and begins again, or
books that read the successor, and removes what is left of the former. The ledger says which
(`BACKENDS`), in the transaction that changes it.

Both variants of iptables keep pods' counters in the same sets and cannot count at once. Between
them the former rules are read and removed first, and until the others are there is a gap.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from netmgr.config import Backend
from netmgr.ledger.ledger import BACKENDS, Ledger
from netmgr.model import Counter, Sample
from netmgr.prefixes import Address
from netmgr.rules.choose import remember, remembered
from netmgr.rules.engine import Rules

TRIES = 10
"""How often a counter is read that moves each time."""

LONGEST_SECONDS = 2.0
"""How long this goes on with many that move; an agent that starts keeps requests waiting."""

_SHARING = frozenset({Backend.IPTABLES_LEGACY, Backend.IPTABLES_NFT})

Read = Callable[[], list[Sample]]

log = logging.getLogger(__name__)


class Both(NamedTuple):
    """What two backends show, by counter, as of one instant but for counters that moved meanwhile."""

    last: dict[Counter, Sample]
    first: dict[Counter, Sample]
    moved: frozenset[Counter]
    seconds: float


class Changeover:
    """A change of backend that is not over.

    Args:
        state_dir: where the name of the backend is remembered.
        ledger: the books.
        successor: the rules that are to count.
        former: the rules that the books have read so far; None if they have read the successor's.
        leftovers: rules that no books read.
    """

    def __init__(
        self, state_dir: Path, ledger: Ledger, successor: Rules, former: Rules | None, leftovers: Sequence[Rules]
    ) -> None:
        self._state_dir = state_dir
        self._ledger = ledger
        self._successor = successor
        self._former = former
        self._leftovers = list(leftovers)

    @property
    def rules(self) -> list[Rules]:
        """All that may be in the kernel beside the successor's."""
        return [*([self._former] if self._former else []), *self._leftovers]

    @property
    def is_former_read(self) -> bool:
        """Whether the books read the former backend."""
        return self._former is not None

    def read(self) -> list[Sample]:
        """Every counter of the backend that the books read."""
        if self._former is None:
            return self._successor.read()
        return [*self._former.read(), *self._former.read_former(self._ledger.counters())]

    def make_way(self) -> None:
        """Remove rules that cannot count beside the successor's; called right after `read`."""
        sharing = [rules for rules in self.rules if _shares(rules, self._successor)]
        for rules in sharing:
            rules.remove()
        if sharing:
            self._former = None if self._former in sharing else self._former
            self._leftovers = [rules for rules in self._leftovers if rules not in sharing]
            self._remember()

    def _remember(self) -> None:
        if not self.rules:
            settle(self._state_dir, self._ledger, self._successor)
        elif self._former is None:
            names = (rules.backend.name for rules in (self._successor, *self._leftovers))
            self._ledger.remember(BACKENDS, " ".join(names))

    def finish(self) -> None:
        """Have the books go on from the successor, whose rules are there by now, and remove all others."""
        if self._former is not None:
            both = self._read_both(self._former)
            first = [both.first[counter] for counter in both.last if counter in both.first]
            names = " ".join(str(rules.backend.name) for rules in (self._successor, *self.rules))
            self._ledger.hand_over(both.last.values(), first, names, len(both.moved), both.seconds)
            log.info(
                "backend-changed from=%s to=%s counters=%d moving=%d seconds=%.4f",
                self._former.backend.name,
                self._successor.backend.name,
                len(both.last),
                len(both.moved),
                both.seconds if both.moved else 0.0,
            )
        for rules in self.rules:
            rules.remove()
        self._former, self._leftovers = None, []
        self._remember()

    def _read_both(self, former: Rules) -> Both:
        both = _at_once(self.read, self._successor.read)
        deadline = time.monotonic() + LONGEST_SECONDS
        still: set[Counter] = set()
        seconds = 0.0
        for subject in dict.fromkeys(map(_subject, both.moved)):
            moving = frozenset(counter for counter in both.moved if _subject(counter) == subject)
            latest, tries = both.seconds, TRIES
            while moving and tries and time.monotonic() < deadline:
                again = self._read_again(former, subject)
                both.last.update((one, again.last[one]) for one in moving & again.last.keys())
                both.first.update((one, again.first[one]) for one in moving & again.first.keys())
                moving &= again.moved
                latest, tries = again.seconds, tries - 1
            if moving:
                still |= moving
                seconds = max(seconds, latest)
        return both._replace(moved=frozenset(still), seconds=seconds)

    def _read_again(self, former: Rules, subject: Address | None) -> Both:
        if subject is None:
            return _at_once(self.read, self._successor.read)
        return _at_once(lambda: former.read_pods([subject]), lambda: self._successor.read_pods([subject]))


def _shares(rules: Rules, successor: Rules) -> bool:
    """Whether two backends keep pods' counters in the same sets."""
    return {rules.backend.name, successor.backend.name} <= _SHARING


def _subject(counter: Counter) -> Address | None:
    """What can be read by itself; the node's counters are read together."""
    return counter.subject if isinstance(counter.subject, Address) else None


def _at_once(old: Read, new: Read) -> Both:
    before = _by_counter(new())
    began = time.monotonic()
    last = _by_counter(old())
    first = _by_counter(new())
    moved = frozenset(counter for counter in last if before.get(counter) != first.get(counter))
    return Both(last, first, moved, time.monotonic() - began)


def _by_counter(samples: Iterable[Sample]) -> dict[Counter, Sample]:
    return {sample.counter: sample for sample in samples}


def begin(
    state_dir: Path, ledger: Ledger, successor: Rules, open_rules: Callable[[Backend], Rules]
) -> Changeover | None:
    """The change of backend that there is to make, or to end; nothing of the rules is changed yet.

    Raises:
        SetupError: a library that the former backend needs is missing.
        StateError: what was remembered cannot be read, or the ledger not be written.
        KernelError: the kernel refuses one of both.
    """
    name = successor.backend.name
    noted = [*(ledger.recall(BACKENDS) or "").split(), *filter(None, [remembered(state_dir)])]
    known = list(dict.fromkeys([*noted, name]))
    others = [Backend(one) for one in known if one != name]
    if not others:
        return None
    # A backend that cannot even be looked at must not cost the node the rules it has.
    successor.plan(())
    ledger.remember(BACKENDS, " ".join(known))
    opened = [open_rules(kind) for kind in others]
    is_former_read = known[0] != name
    return Changeover(state_dir, ledger, successor, opened[0] if is_former_read else None, opened[is_former_read:])


def settle(state_dir: Path, ledger: Ledger, rules: Rules) -> None:
    """Remember the only backend that has rules.

    Raises:
        StateError: it cannot be written.
    """
    remember(rules.backend.name, state_dir)
    ledger.remember(BACKENDS, rules.backend.name)
