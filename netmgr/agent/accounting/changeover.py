"""Changes the backend that counts, so that the ledger takes every packet once.

The successor's rules are made first, and from then on both count the same packets. The ledger can
go on from one to the other at any instant at which both were read.

Killed anywhere, an agent leaves a ledger of the former backend, and starts again, or one of the
successor, and removes what is left of the former. The ledger says which (`BACKENDS`), in the
transaction that changes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from netmgr.documents.backend import Backend
from netmgr.ledger.ledger import BACKENDS, Ledger
from netmgr.model import Counter, Sample
from netmgr.prefixes import Address
from netmgr.rules.choose import FACTS, ONE_TABLE, remember, remembered
from netmgr.rules.engine import Rules

TRIES = 10
"""How often a counter that moves each time is read."""

# How long this goes on if many move; an agent that starts keeps requests waiting.
LONGEST_SECONDS = 2.0

Read = Callable[[], list[Sample]]

log = logging.getLogger(__name__)


class Both(NamedTuple):
    """What two backends show as of one instant, but for counters that moved meanwhile."""

    last: dict[Counter, Sample]
    first: dict[Counter, Sample]
    moved: frozenset[Counter]
    seconds: float


@dataclass(eq=False)
class Changeover:
    state_dir: Path
    """Where the name of the backend is remembered."""
    ledger: Ledger
    successor: Rules
    """Those that are to count."""
    former: Rules | None
    """Those that the ledger reads so far; None where it reads the successor's already."""
    leftovers: list[Rules]
    """Those that the ledger does not read."""

    @property
    def rules(self) -> list[Rules]:
        """All that may be in the kernel besides the successor's."""
        return [*([self.former] if self.former else []), *self.leftovers]

    def read(self) -> list[Sample]:
        """Every counter of the backend that the ledger reads."""
        if self.former is None:
            return self.successor.read()
        return [*self.former.read(), *self.former.read_former(self.ledger.counters())]

    def make_way(self) -> None:
        """Remove rules that cannot count beside the successor's; called right after `read`."""
        # Both variants of iptables keep pods' counters in the same ipsets. Until the successor's
        # rules are there is a gap.
        has_sets = FACTS[Backend(self.successor.backend.name)].has_sets
        sharing = [
            rules
            for rules in self.rules
            if has_sets and FACTS[Backend(rules.backend.name)].has_sets
        ]
        for rules in sharing:
            rules.remove()
        if sharing:
            self.former = None if self.former in sharing else self.former
            self.leftovers = [rules for rules in self.leftovers if rules not in sharing]
            self._remember()

    def _remember(self) -> None:
        if not self.rules:
            note_only_backend(self.state_dir, self.ledger, self.successor)
        elif self.former is None:
            # The first one named is the one that the ledger reads.
            names = (rules.backend.name for rules in (self.successor, *self.leftovers))
            self.ledger.remember(BACKENDS, " ".join(names))

    def finish(self) -> None:
        """Have the ledger go on from the successor, whose rules are there; remove all others."""
        if self.former is not None:
            both = self._read_both(self.former)
            first = [both.first[counter] for counter in both.last if counter in both.first]
            names = " ".join(str(rules.backend.name) for rules in (self.successor, *self.rules))
            # The ledger before the removals: killed in between, the next start finds the successor
            # named as the one that is read, and removes the rest.
            seconds = both.seconds if both.moved else 0.0
            self.ledger.hand_over(both.last.values(), first, names, seconds)
            log.info(
                "backend-changed from=%s to=%s counters=%d moving=%d seconds=%.4f",
                self.former.backend.name,
                self.successor.backend.name,
                len(both.last),
                len(both.moved),
                seconds,
            )
            self.former, self.leftovers = None, self.rules
        for rules in self.rules:
            rules.remove()
        self.successor.share_table(shared=False)
        self.leftovers = []
        self._remember()

    def _read_both(self, former: Rules) -> Both:
        """Read both backends, and read again what moved in between."""
        both = _at_once(self.read, self.successor.read)
        # One deadline for all pods: an agent that starts has requests waiting.
        deadline = time.monotonic() + LONGEST_SECONDS
        moved: dict[Address | None, set[Counter]] = {}
        for counter in both.moved:
            # All counters of a pod's address come in one reading, so they are read again together;
            # so do the node's own (None).
            subject = counter.subject if isinstance(counter.subject, Address) else None
            moved.setdefault(subject, set()).add(counter)
        still: set[Counter] = set()
        longest = 0.0
        for subject, moving in moved.items():
            seconds = self._read_until_still(former, subject, moving, both, deadline)
            if moving:
                still |= moving
                longest = max(longest, seconds)
        return both._replace(moved=frozenset(still), seconds=longest)

    def _read_until_still(
        self,
        former: Rules,
        subject: Address | None,
        moving: set[Counter],
        both: Both,
        deadline: float,
    ) -> float:
        """Read one subject until no counter is left in `moving`; seconds of the last reading."""
        seconds = both.seconds
        for _ in range(TRIES):
            if not moving or time.monotonic() >= deadline:
                break
            if subject is None:
                again = _at_once(self.read, self.successor.read)
            else:
                # A pod by itself takes a fraction of a millisecond, so that it may well pause.
                again = _at_once(
                    partial(former.read_pods, [subject]),
                    partial(self.successor.read_pods, [subject]),
                )
            for latest, newer in ((both.last, again.last), (both.first, again.first)):
                latest |= {counter: newer[counter] for counter in moving & newer.keys()}
            moving &= again.moved
            seconds = again.seconds
        # What moved every time loses what passed during the last reading: a gap of that length.
        return seconds


def _at_once(old: Read, new: Read) -> Both:
    # The former backend between two readings of the successor: where these are equal, nothing
    # passed meanwhile, and all three are of one instant.
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
    """The change of backend to make or to finish, if there is one. No rule is changed yet."""
    name = successor.backend.name
    noted = [*(ledger.recall(BACKENDS) or "").split(), *filter(None, [remembered(state_dir)])]
    known = list(dict.fromkeys([*noted, name]))
    others = [Backend(other) for other in known if other != name]
    if not others:
        return None
    # A backend that cannot even be looked at must not cost the node the rules it has.
    successor.plan(())
    # Before any rule of the successor exists: a crash must not leave rules of an unnamed backend.
    ledger.remember(BACKENDS, " ".join(known))
    leftovers = [open_rules(kind) for kind in others]
    sharing = [rules for rules in leftovers if {rules.backend.name, name} == ONE_TABLE]
    for rules in sharing:
        rules.share_table(shared=True)
    former = leftovers.pop(0) if known[0] != name else None
    # Where the ledger reads the successor's already, its next plan removes what is left in there.
    successor.share_table(shared=former in sharing)
    return Changeover(state_dir, ledger, successor, former, leftovers)


def note_only_backend(state_dir: Path, ledger: Ledger, rules: Rules) -> None:
    """Remember the only backend that has rules."""
    # A crash in between is harmless: `begin` joins both lists, and finds a backend without rules.
    remember(rules.backend.name, state_dir)
    ledger.remember(BACKENDS, rules.backend.name)
